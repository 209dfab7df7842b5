//! The collector of objects and processors.
//!
//! The live objects and processors are the least solution of (Meyer, Kogtenkov, Akhi, *Processors
//! and their collection*, 2012, section 5.3)
//!
//! ```text
//!   LO = s*(BR u r(LP))        live objects
//!   LP = BP u h(LO)            live processors
//! ```
//!
//! The live objects are the exported ones, the roots of live processors, and all objects that are
//! reachable from those. The live processors are those with calls and those of live objects.
//!
//! The solution is computed by differences (5.4), with a list of processors that were reached for
//! the first time, or in which objects were reached. The owner of the turn with such a region scans
//! the roots of the processor, if it is newly reached, and traces the reached objects within that
//! region. References to other regions go to the inboxes of their processors. When no processor is
//! pending, both sets are complete.
//!
//! ```text
//!                    no processor is pending     all are swept
//!    idle ---------> marking ---------> sweeping ---------> idle
//! ```
//!
//! Each round has a number: the epoch.
//!
//! A collection stops only the processor that is being traced. A region is traced between two calls
//! of its processor, when no references are on a stack. If the processor is running, it traces the
//! region itself. Otherwise a task of the collector does. That task takes the turns of many regions
//! at once, to follow links among them, and releases the turns when another thread waits for one.
//! Other calls continue, and no live object is lost:
//!
//! - A region whose roots were scanned is *black*: all objects that calls there can reach are
//!   marked and traced before the next call runs. New objects are marked.
//! - Only a `Separate` carries a reference from one region to another. A `Separate` begins with an
//!   export, which marks the object if the export is new. In a black region, a `Separate` becomes a
//!   reference as the target of a call or by `link`. Both mark the object. If the object belongs to
//!   that region, they also mark at once everything that the object reaches.
//! - So while there is an unmarked object that a call could reach, some processor is pending: the
//!   roots of that region are not scanned, or an inbox is not empty. `Collector::pending` counts
//!   those processors.

use crate::fault::{Fault, is_planted};
use crate::handle::At;
use crate::processor::{Processor, finalise, finalises};
use crate::region::{Region, Swept};
use crate::system::Inner;
use crate::trace::Tracer;
use corebeat_lpel::{Writer, sleep, yield_now};
use corebeat_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use corebeat_sync::{Mutex, lock};
use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of traced objects after which the collector yields.
const SLICE: usize = if cfg!(test) { 3 } else { 16 << 10 };
/// Number of traced objects after which the collector takes newly reached regions.
const PART: usize = if cfg!(test) { 2 } else { 1 << 10 };
/// Maximum number of regions that the collector owns at a time.
const HELD_MAX: usize = if cfg!(test) { 3 } else { 1 << 10 };
/// Number of opened regions after which the collector yields.
const TAKEN_MAX: usize = if cfg!(test) { 1 } else { 64 };
/// Number of processors for which the table is locked at a time.
const TABLE_PART: usize = if cfg!(test) { 2 } else { 1 << 10 };

/// Delay of the creation of a processor while there are twice as many as trigger a collection.
/// Otherwise processors could be created faster than they are collected, because new ones live
/// until the next collection.
const BEHIND: Duration = Duration::from_micros(20);

/// Result of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Number of the collection, from 1.
    pub epoch: u64,
    /// Number of live processors.
    pub processors: u64,
    /// Number of freed processors.
    pub processors_freed: u64,
    /// Number of objects of live processors at their sweeps.
    pub objects: u64,
    /// Number of freed objects, with those of freed processors.
    pub objects_freed: u64,
    /// Size of the remaining objects in bytes, without memory that they own elsewhere.
    pub bytes: u64,
    /// Duration of the marking phase.
    pub marking: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Marking,
    Sweeping,
}

const PHASES: [Phase; 3] = [Phase::Idle, Phase::Marking, Phase::Sweeping];

/// A client that waits for a collection.
struct Waiter {
    epoch: u64,
    writer: Writer<Collected>,
}

/// Requests to the collector.
#[derive(Default)]
struct Requests {
    /// The last requested collection.
    wanted: u64,
    objects_only: bool,
    waiters: Vec<Waiter>,
    last: Option<Collected>,
    /// Result of the current collection.
    current: Collected,
    /// Begin of the current collection.
    begun: Option<Instant>,
    /// The task of the collector was unwound.
    is_over: bool,
}

pub(crate) struct Collector {
    /// The epoch times 4, plus the phase.
    phase: AtomicU64,
    /// Number of pending processors of this phase, plus 1 while the task of the collector adds to
    /// them.
    pending: AtomicU64,
    /// Pending processors that no thread has handled yet.
    work: Mutex<Vec<Arc<Processor>>>,
    /// Whether the collector has a task.
    has_task: AtomicBool,
    /// Number of threads that wait for the turn with a region.
    pub(crate) waiting: AtomicUsize,
    requests: Mutex<Requests>,
    processors_between: u64,
    bytes_between: u64,
    /// Number of processors that were created since the last collection began.
    processors_made: AtomicU64,
    /// Numbers of processors and of new bytes that trigger a collection.
    processors_max: AtomicU64,
    bytes_made: AtomicU64,
    bytes_max: AtomicU64,
}

impl Collector {
    pub(crate) fn new(processors_between: u64, bytes_between: u64) -> Self {
        Collector {
            phase: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            work: Mutex::default(),
            has_task: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            requests: Mutex::default(),
            processors_between,
            bytes_between,
            processors_made: AtomicU64::new(0),
            processors_max: AtomicU64::new(processors_between),
            bytes_made: AtomicU64::new(0),
            bytes_max: AtomicU64::new(bytes_between),
        }
    }

    fn phase(&self) -> (u64, Phase) {
        let word = self.phase.load(Ordering::SeqCst);
        (word / 4, PHASES[(word % 4) as usize])
    }

    fn set_phase(&self, epoch: u64, phase: Phase) {
        self.phase.store(epoch * 4 + phase as u64, Ordering::SeqCst);
    }

    /// Returns the number of the last collection that has begun, and whether it is marking.
    pub(crate) fn epoch(&self) -> (u64, bool) {
        let (epoch, phase) = self.phase();
        (epoch, phase == Phase::Marking)
    }

    pub(crate) fn is_marking(&self) -> bool {
        self.epoch().1
    }

    pub(crate) fn last(&self) -> Option<Collected> {
        lock(&self.requests).last
    }

    pub(crate) fn did_not_start(&self) {
        self.has_task.store(false, Ordering::SeqCst);
    }
}

thread_local! {
    /// Tracer for processors that trace their own regions; it keeps its allocated memory. No other
    /// task of the thread runs during a trace.
    static TRACER: RefCell<Tracer> = RefCell::default();
}

impl Inner {
    /// Requests a collection that begins after this call.
    pub(crate) fn request(self: &Arc<Self>, objects_only: bool, waiter: Option<Writer<Collected>>) {
        let mut requests = lock(&self.collector.requests);
        let epoch = self.collector.phase().0 + 1;
        // Automatic requests are merged.
        if requests.is_over || waiter.is_none() && requests.wanted >= epoch {
            return;
        }
        requests.wanted = requests.wanted.max(epoch);
        requests.objects_only = objects_only;
        requests.waiters.extend(waiter.map(|writer| Waiter { epoch, writer }));
        drop(requests);
        self.wake_collector();
    }

    fn wake_collector(self: &Arc<Self>) {
        if !self.collector.has_task.swap(true, Ordering::SeqCst) {
            self.start_collector();
        }
    }

    /// Counts a new processor, of `processors` in total. Delays the caller if the collector cannot
    /// keep up.
    pub(crate) fn count_processors(self: &Arc<Self>, processors: u64) {
        let collector = &self.collector;
        // Relaxed: these are hints.
        collector.processors_made.fetch_add(1, Ordering::Relaxed);
        let max = collector.processors_max.load(Ordering::Relaxed);
        if processors > max {
            self.request_when_idle();
        }
        if processors > max.saturating_mul(2) && !finalises() {
            sleep(BEHIND);
        }
    }

    /// Counts the bytes of new objects of a call.
    pub(crate) fn count_made(self: &Arc<Self>, bytes: usize) {
        let collector = &self.collector;
        // Relaxed: these are hints.
        if bytes > 0
            && collector.bytes_made.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64
                > collector.bytes_max.load(Ordering::Relaxed)
        {
            self.request_when_idle();
        }
    }

    fn request_when_idle(self: &Arc<Self>) {
        if self.collector.phase().1 == Phase::Idle {
            self.request(false, None);
        }
    }

    // ---- marking

    /// Marks a processor, and one of its objects, as live.
    pub(crate) fn reach(self: &Arc<Self>, processor: &Arc<Processor>, at: Option<At>) {
        if self.note(processor, at) {
            self.wake_collector();
        }
    }

    /// Marks as [`Inner::reach`] does, during the marking phase.
    pub(crate) fn reach_while_marking(self: &Arc<Self>, processor: &Arc<Processor>, at: At) {
        if self.collector.is_marking() {
            self.reach(processor, Some(at));
        }
    }

    /// Marks as [`Inner::reach`] does. Returns whether the processor has become pending.
    fn note(&self, processor: &Arc<Processor>, at: Option<At>) -> bool {
        let mut inbox = lock(&processor.inbox);
        let (epoch, _) = self.collector.phase();
        let is_new = inbox.live < epoch;
        inbox.live = epoch;
        inbox.reached.extend(at.filter(|_| !is_planted(Fault::Inbox)));
        let begins = !inbox.pending && (is_new || at.is_some());
        if begins {
            inbox.pending = true;
            self.collector.pending.fetch_add(1, Ordering::SeqCst);
            drop(inbox);
            lock(&self.collector.work).push(processor.clone());
        }
        begins
    }

    /// Returns the objects to trace in a region. If the region is swept instead, also returns the
    /// number of its objects.
    fn open(&self, processor: &Processor, region: &mut Region) -> (Vec<At>, u64) {
        let mut swept = 0;
        let mut reached = std::mem::take(&mut lock(&processor.inbox).reached);
        match self.collector.phase() {
            (epoch, Phase::Marking) if region.scanned < epoch => {
                region.scanned = epoch;
                reached.extend(region.roots().filter(|_| !is_planted(Fault::Roots)));
                reached.extend(processor.exported());
            }
            (_, Phase::Marking) => {}
            (_, Phase::Sweeping | Phase::Idle) => {
                // Objects that are reached this late are marked already.
                reached.clear();
                if region.is_black() {
                    let Swept { freed, objects, bytes } = finalise(|| region.sweep());
                    let mut requests = lock(&self.collector.requests);
                    requests.current.objects += objects;
                    requests.current.objects_freed += freed;
                    requests.current.bytes += bytes;
                    swept = objects + freed;
                }
            }
        }
        (reached, swept)
    }

    /// Marks a processor as not pending. Returns `false` if new objects were reached meanwhile.
    fn close(&self, processor: &Processor) -> bool {
        let mut inbox = lock(&processor.inbox);
        let done = inbox.reached.is_empty();
        if done && inbox.pending {
            inbox.pending = false;
            self.collector.pending.fetch_sub(1, Ordering::SeqCst);
        }
        done
    }

    /// Traces or sweeps a region, for an owner of the turn that is not the collector.
    pub(crate) fn do_work(self: &Arc<Self>, processor: &Arc<Processor>, region: &mut Region) {
        while lock(&processor.inbox).pending {
            let (reached, _) = self.open(processor, region);
            self.trace_own(region, reached);
            self.close(processor);
        }
        if self.collector.pending.load(Ordering::SeqCst) == 0 {
            self.wake_collector();
        }
    }

    /// Marks these objects, traces all reached objects of this region, and notifies the processors
    /// of reached objects elsewhere.
    pub(crate) fn trace_own(
        self: &Arc<Self>,
        region: &mut Region,
        reached: impl IntoIterator<Item = At>,
    ) {
        // The tracer is put back after the last object: if a `Trace` panics, the next region gets a
        // new tracer.
        let mut tracer = TRACER.take();
        region.trace_from(reached, &mut tracer);
        let foreign = std::mem::take(&mut tracer.foreign);
        TRACER.set(tracer);
        let mut begins = false;
        for at in foreign {
            let processor = self.processor_of(at.pool);
            begins |= processor.is_some_and(|processor| self.note(&processor, Some(at)));
        }
        if begins {
            self.wake_collector();
        }
    }

    // ---- the task of the collector

    /// Runs the task of the collector until no work is left for it.
    pub(crate) fn collect(self: Arc<Self>) {
        let mut task = Task::new(self.clone());
        loop {
            while task.step() {}
            task.release_all();
            self.collector.has_task.store(false, Ordering::SeqCst);
            // A thread that observed the task before the store may have left work for it.
            if !task.has_work() || self.collector.has_task.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}

/// State of the task of the collector.
struct Task {
    inner: Arc<Inner>,
    tracer: Tracer,
    /// Processors whose turns the task owns.
    held: Vec<Arc<Processor>>,
    /// Index in `held` by number of the processor.
    places: HashMap<u64, usize>,
    /// Number of objects in regions that were swept since the last yield.
    swept: u64,
}

impl Task {
    fn new(inner: Arc<Inner>) -> Self {
        let (tracer, held, places) = Default::default();
        Task { inner, tracer, held, places, swept: 0 }
    }

    fn collector(&self) -> &Collector {
        &self.inner.collector
    }

    fn is_finished(&self) -> bool {
        self.collector().pending.load(Ordering::SeqCst) == 0
    }

    fn has_work(&self) -> bool {
        if !lock(&self.collector().work).is_empty() {
            return true;
        }
        match self.collector().phase() {
            (epoch, Phase::Idle) => lock(&self.collector().requests).wanted > epoch,
            _ => self.is_finished(),
        }
    }

    /// Does one step. Returns whether there was work.
    fn step(&mut self) -> bool {
        let mut taken = 0;
        while taken < TAKEN_MAX
            && self.swept < SLICE as u64
            && let Some(processor) = self.next_work()
        {
            self.take(&processor);
            taken += 1;
        }
        if self.trace() || taken > 0 {
            self.pause();
            return true;
        }
        self.release_all();
        if !lock(&self.collector().work).is_empty() {
            return true;
        }
        match self.collector().phase() {
            (epoch, Phase::Idle) => {
                let begins = lock(&self.collector().requests).wanted > epoch;
                if begins {
                    self.begin(epoch + 1);
                }
                begins
            }
            // Running processors do the remaining work.
            _ if !self.is_finished() => false,
            (epoch, Phase::Marking) => {
                self.end_marking(epoch);
                true
            }
            (epoch, Phase::Sweeping) => {
                self.end(epoch);
                true
            }
        }
    }

    fn next_work(&self) -> Option<Arc<Processor>> {
        lock(&self.collector().work).pop()
    }

    /// Yields to other tasks of this worker, and to threads that wait for regions.
    fn pause(&mut self) {
        self.swept = 0;
        // Relaxed: a missed increment is observed at the next pause.
        if self.collector().waiting.load(Ordering::Relaxed) > 0 {
            self.release_all();
            // This task owns no turn now, so the waiting threads make progress.
            while self.collector().waiting.load(Ordering::Relaxed) > 0 {
                yield_now();
            }
        }
        yield_now();
    }

    /// Begins a collection.
    fn begin(&mut self, epoch: u64) {
        let inner = self.inner.clone();
        inner.collector.pending.fetch_add(1, Ordering::SeqCst);
        let objects_only = {
            let mut requests = lock(&inner.collector.requests);
            requests.current = Collected { epoch, ..Collected::default() };
            requests.begun = Some(Instant::now());
            // Requests from here on refer to a later collection.
            inner.collector.set_phase(epoch, Phase::Marking);
            // Relaxed: this is a hint.
            inner.collector.processors_made.store(0, Ordering::Relaxed);
            std::mem::take(&mut requests.objects_only)
        };
        self.for_chunks(|processors| {
            for processor in processors {
                if objects_only || processor.is_basic() {
                    inner.note(processor, None);
                }
            }
        });
        inner.collector.pending.fetch_sub(1, Ordering::SeqCst);
    }

    /// Calls `f` with all processors, in chunks, and yields in between. Concurrently created ones
    /// may be missing.
    fn for_chunks(&mut self, mut f: impl FnMut(&[Arc<Processor>])) {
        let inner = self.inner.clone();
        let mut from = 0;
        loop {
            let table = inner.table();
            // Processors that are created later count as live.
            let end = table.processors.capacity();
            if from >= end {
                return;
            }
            let part: Vec<_> = (from..end.min(from + TABLE_PART))
                .filter_map(|key| table.processors.get(key).cloned())
                .collect();
            drop(table);
            f(&part);
            for processor in part {
                // The last reference to a dead processor drops its objects, which may take long.
                if finalise(|| Arc::into_inner(processor).is_some()) {
                    yield_now();
                }
            }
            from += TABLE_PART;
            yield_now();
        }
    }

    /// Ends the marking phase: frees dead processors, and marks live ones for sweeping.
    fn end_marking(&mut self, epoch: u64) {
        let inner = self.inner.clone();
        inner.collector.pending.fetch_add(1, Ordering::SeqCst);
        inner.collector.set_phase(epoch, Phase::Sweeping);
        {
            let mut requests = lock(&inner.collector.requests);
            requests.current.marking =
                requests.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        }
        let (mut live, mut freed, mut objects_freed) = (0, 0, 0);
        self.for_chunks(|processors| {
            let mut dead = Vec::new();
            for processor in processors {
                let mut inbox = lock(&processor.inbox);
                if inbox.live < epoch {
                    drop(inbox);
                    dead.push(processor);
                    continue;
                }
                live += 1;
                if !inbox.pending {
                    inbox.pending = true;
                    inner.collector.pending.fetch_add(1, Ordering::SeqCst);
                    drop(inbox);
                    lock(&inner.collector.work).push(processor.clone());
                }
            }
            freed += dead.len() as u64;
            // The task of a dead processor has no calls any more, and may be releasing the turn
            // now.
            dead.iter().for_each(|processor| inner.take_turn(processor));
            let mut table = inner.table_mut();
            for processor in &dead {
                // SAFETY: this task owns the turn and never releases it.
                let region = unsafe { processor.turn.value() };
                objects_freed += region.objects();
                region.pool_ids().for_each(|pool| table.remove_pool(pool));
                // Relaxed: written before the processor was in the table.
                table.processors.remove(processor.key.load(Ordering::Relaxed));
            }
            // The last reference to a processor drops its objects, after the lock.
        });
        let mut requests = lock(&inner.collector.requests);
        requests.current.processors = live;
        requests.current.processors_freed = freed;
        requests.current.objects_freed += objects_freed;
        drop(requests);
        inner.collector.pending.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends a collection after all regions are swept.
    fn end(&mut self, epoch: u64) {
        let collector = &self.inner.collector;
        let mut requests = lock(&collector.requests);
        collector.set_phase(epoch, Phase::Idle);
        let result = requests.current;
        requests.last = Some(result);
        // Relaxed: these are hints. Processors that were created during the collection may be dead.
        let live =
            result.processors.saturating_sub(collector.processors_made.load(Ordering::Relaxed));
        let more = live.max(collector.processors_between);
        collector.processors_max.store(live.saturating_add(more), Ordering::Relaxed);
        collector.bytes_max.store(result.bytes.max(collector.bytes_between), Ordering::Relaxed);
        collector.bytes_made.store(0, Ordering::Relaxed);
        let (over, later) = requests.waiters.drain(..).partition(|waiter| waiter.epoch <= epoch);
        requests.waiters = later;
        drop(requests);
        for Waiter { mut writer, .. } in over {
            // The waiting client may have been unwound.
            let _ = writer.write(result);
        }
        let mut table = self.inner.table_mut();
        if table.processors.capacity() > 2 * table.processors.len() + TABLE_PART {
            table.shrink();
        }
    }

    // ---- regions

    /// Takes a pending region, or leaves the work to the owner of its turn.
    fn take(&mut self, processor: &Arc<Processor>) {
        if let Some(&place) = self.places.get(&processor.id) {
            self.open_held(place);
            return;
        }
        if self.held.len() >= HELD_MAX {
            self.release_all();
        }
        let turn = &processor.turn;
        if !(turn.try_take() || turn.request() && turn.try_take()) {
            return;
        }
        turn.take_work();
        let place = self.held.len();
        self.held.push(processor.clone());
        self.places.insert(processor.id, place);
        if self.collector().phase().1 == Phase::Marking {
            // SAFETY: this task owns the turn.
            let region = unsafe { processor.turn.value() };
            // SAFETY: this task only traces the region until it releases the turn.
            unsafe { region.hold(&mut self.tracer) };
            self.open_held(place);
        } else {
            self.open_held(place);
            self.release_all();
        }
    }

    /// Opens a held region, and passes its reached objects to the tracer.
    fn open_held(&mut self, place: usize) {
        let processor = &self.held[place];
        // SAFETY: this task owns the turn.
        let (reached, swept) = self.inner.open(processor, unsafe { processor.turn.value() });
        self.swept += swept;
        reached.into_iter().for_each(|at| self.tracer.reach(at));
    }

    /// Traces a slice. Returns `false` if there was no object to trace.
    fn trace(&mut self) -> bool {
        let mut left = SLICE;
        while left > 0 {
            let mut budget = PART.min(left);
            left -= budget;
            let traced = self.tracer.trace(&mut budget);
            left += budget;
            if !traced {
                break;
            }
            if !self.tracer.foreign.is_empty() {
                self.fetch();
            }
        }
        left < SLICE
    }

    /// Takes the regions of objects that were reached elsewhere, if their turns are free.
    fn fetch(&mut self) {
        let mut last: Option<(NonZeroU32, Arc<Processor>)> = None;
        for at in std::mem::take(&mut self.tracer.foreign) {
            if self.tracer.holds(at.pool) {
                self.tracer.reach(at);
                continue;
            }
            if last.as_ref().is_none_or(|(pool, _)| *pool != at.pool) {
                last = self.inner.processor_of(at.pool).map(|processor| (at.pool, processor));
            }
            if let Some((_, processor)) = &last {
                let processor = processor.clone();
                // If the processor was pending already, the owner of its turn handles this object.
                if self.inner.note(&processor, Some(at)) {
                    self.take(&processor);
                }
            }
        }
    }

    /// Releases all turns, with requests to the next owners where work is left.
    fn release_all(&mut self) {
        self.places.clear();
        let is_marking = self.collector().is_marking();
        while let Some(processor) = self.held.pop() {
            // SAFETY: this task owns the turn.
            let region = unsafe { processor.turn.value() };
            let traced = !is_marking || region.let_go(&mut self.tracer) || is_planted(Fault::Rest);
            if traced && self.inner.close(&processor) {
                while !processor.turn.release() {
                    processor.turn.take_work();
                }
            } else {
                lock(&self.collector().work).push(processor.clone());
                processor.turn.release_with_request();
            }
        }
        self.tracer.forget_active();
    }
}

impl Drop for Task {
    /// After a panic, or the end of the runtime: returns the marks to the regions, so that their
    /// objects are dropped eventually. The set of marked objects is incomplete, so the system
    /// collects nothing any more: `has_task` stays set, and waiting clients are woken.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.release_all();
            // Relaxed: this is a hint. New processors do not wait any more.
            self.collector().processors_max.store(u64::MAX, Ordering::Relaxed);
            let mut requests = lock(&self.collector().requests);
            requests.is_over = true;
            let waiters = std::mem::take(&mut requests.waiters);
            drop(requests);
            drop(waiters);
        }
    }
}
