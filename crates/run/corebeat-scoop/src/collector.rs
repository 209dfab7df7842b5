//! The collector of objects and processors together.
//!
//! What lives is the least solution of (Meyer, Kogtenkov, Akhi, *Processors and their collection*, 2012, section 5.3)
//!
//! ```text
//!   LO = s*(BR u r(LP))        objects: what others hold, and the roots of live processors; and what those lead to
//!   LP = BP u h(LO)            processors: those with calls, and those of live objects
//! ```
//!
//! It is computed by differences (5.4): a list of processors that were reached newly, or in which objects were. Whoever has the turn
//! with such a region scans the processor's roots, if that is news, and traces what was reached, all within that region: what leads
//! out of it goes to the inbox of another one. When nobody has anything left to do, both sets are complete.
//!
//! ```text
//!            all have their marks              all are swept
//!    idle ---------> marking ---------> sweeping ---------> idle         one number for each round: the epoch
//! ```
//!
//! Nobody is stopped for it but who is traced. A region is traced between two calls of its processor, when there are no
//! references on a stack; by a task of the collector, which takes the turns of many regions at once to follow links among them, and
//! gives them back when somebody wants one; or by the processor itself, if that runs. Calls go on meanwhile, and
//! nothing is lost:
//!
//! - A region whose roots were scanned is *black*: all that calls there can reach is marked and traced before the next call runs. What they
//!   make is marked.
//! - Only a `Separate` carries a reference from one region to another. It begins with an export, which marks its object, if it
//!   is the first. In a black region it becomes a reference by being the target of a call, or by `link`, and both mark the
//!   object; in the region's own case with all that it leads to, at once.
//! - So while there is an unmarked object that a call could reach, somebody has something left to do: that region's roots
//!   are not scanned, or some inbox is not empty. `Collector::pending` counts those.

use crate::fault::{Fault, is_planted};
use crate::handle::At;
use crate::processor::{Processor, finalise, finalises};
use crate::queue::lock;
use crate::region::{Region, Swept};
use crate::system::Inner;
use crate::trace::Tracer;
use corebeat_lpel::{Writer, sleep, yield_now};
use corebeat_sync::Mutex;
use corebeat_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The collector lets others run when it has traced so many objects.
const SLICE: usize = if cfg!(test) { 3 } else { 16 << 10 };
/// It looks for regions to take when it has traced so many.
const PART: usize = if cfg!(test) { 2 } else { 1 << 10 };
/// Most regions whose turn it has at a time.
const HELD_MAX: usize = if cfg!(test) { 3 } else { 1 << 10 };
/// It lets others run when it has looked into so many regions.
const TAKEN_MAX: usize = if cfg!(test) { 1 } else { 64 };
/// It has the table of processors for so many of them at a time.
const TABLE_PART: usize = if cfg!(test) { 2 } else { 1 << 10 };

/// Who makes a processor waits so long while there are twice as many as begin a collection: else processors could be made for ever
/// faster than they are collected, as those that are made meanwhile live until the next collection.
const BEHIND: Duration = Duration::from_micros(20);

/// What a collection has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Which collection: they are counted from 1.
    pub epoch: u64,
    /// Live processors.
    pub processors: u64,
    /// Processors that are gone.
    pub processors_freed: u64,
    /// Objects of live processors when they were swept.
    pub objects: u64,
    /// Objects of live processors that are gone; those of dead ones are gone with them.
    pub objects_freed: u64,
    /// Bytes of the objects that are left, without what they own elsewhere.
    pub bytes: u64,
    /// From its beginning until it was known who lives.
    pub marking: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Marking,
    Sweeping,
}

const PHASES: [Phase; 3] = [Phase::Idle, Phase::Marking, Phase::Sweeping];

/// Who waits for a collection that begins later.
struct Waiter {
    epoch: u64,
    writer: Writer<Collected>,
}

/// What is asked of the collector.
#[derive(Default)]
struct Requests {
    /// The last collection that somebody wants.
    wanted: u64,
    objects_only: bool,
    waiters: Vec<Waiter>,
    last: Option<Collected>,
    /// Of the collection that goes on.
    now: Collected,
    /// When it began.
    begun: Option<Instant>,
    /// The collector was unwound.
    is_over: bool,
}

pub(crate) struct Collector {
    /// The epoch, times 4, and the phase.
    phase: AtomicU64,
    /// Processors that have something to do in this phase, and 1 while the collector's task makes them so.
    pending: AtomicU64,
    /// Those of them that nobody has looked after yet.
    work: Mutex<Vec<Arc<Processor>>>,
    /// The collector has a task.
    has_task: AtomicBool,
    /// How many wait for the turn with a region.
    pub(crate) wants: AtomicUsize,
    requests: Mutex<Requests>,
    processors_between: u64,
    bytes_between: u64,
    /// Processors that were made since the last collection began.
    processors_made: AtomicU64,
    /// More processors than these, or bytes made since then, begin a collection.
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
            wants: AtomicUsize::new(0),
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

    /// The number of the last collection that has begun, and whether it marks.
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
    /// For those who trace their own region: it has room for numbers of pools, and keeps it. Nobody else of the thread runs meanwhile.
    static TRACER: RefCell<Tracer> = RefCell::default();
}

impl Inner {
    /// Asks for a collection that begins from now on.
    pub(crate) fn request(self: &Arc<Self>, objects_only: bool, waiter: Option<Writer<Collected>>) {
        let mut requests = lock(&self.collector.requests);
        let epoch = self.collector.phase().0 + 1;
        // What is asked for by itself comes once.
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

    /// One more processor was made, and there are so many. Waits a little where the collector is far behind.
    pub(crate) fn count_processors(self: &Arc<Self>, processors: u64) {
        let collector = &self.collector;
        // Relaxed: hints.
        collector.processors_made.fetch_add(1, Ordering::Relaxed);
        let max = collector.processors_max.load(Ordering::Relaxed);
        if processors > max {
            self.request_when_idle();
        }
        if processors > max.saturating_mul(2) && !finalises() {
            sleep(BEHIND);
        }
    }

    /// A call has made so many bytes of objects.
    pub(crate) fn count_made(self: &Arc<Self>, bytes: usize) {
        let collector = &self.collector;
        // Relaxed: hints.
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

    // ---- who lives

    /// A processor lives, and this object of it.
    pub(crate) fn reach(self: &Arc<Self>, processor: &Arc<Processor>, at: Option<At>) {
        if self.note(processor, at) {
            self.wake_collector();
        }
    }

    /// As [`Inner::reach`], while anybody may still be found to live.
    pub(crate) fn reach_while_marking(self: &Arc<Self>, processor: &Arc<Processor>, at: At) {
        if self.collector.is_marking() {
            self.reach(processor, Some(at));
        }
    }

    /// As [`Inner::reach`]. True if it has something to do now, and had not.
    fn note(&self, processor: &Arc<Processor>, at: Option<At>) -> bool {
        let mut inbox = lock(&processor.inbox);
        let (epoch, _) = self.collector.phase();
        let is_news = inbox.live < epoch;
        inbox.live = epoch;
        inbox.reached.extend(at.filter(|_| !is_planted(Fault::Inbox)));
        let begins = !inbox.pending && (is_news || at.is_some());
        if begins {
            inbox.pending = true;
            self.collector.pending.fetch_add(1, Ordering::SeqCst);
            drop(inbox);
            lock(&self.collector.work).push(processor.clone());
        }
        begins
    }

    /// What is to be traced in a region now. If it is swept instead: it had so many objects.
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
                // What was reached that late is marked.
                reached.clear();
                if region.is_black() {
                    let Swept { freed, objects, bytes } = finalise(|| region.sweep());
                    let mut requests = lock(&self.collector.requests);
                    requests.now.objects += objects;
                    requests.now.objects_freed += freed;
                    requests.now.bytes += bytes;
                    swept = objects + freed;
                }
            }
        }
        (reached, swept)
    }

    /// Nothing is left to do there, unless something has come in: then false.
    fn close(&self, processor: &Processor) -> bool {
        let mut inbox = lock(&processor.inbox);
        let done = inbox.reached.is_empty();
        if done && inbox.pending {
            inbox.pending = false;
            self.collector.pending.fetch_sub(1, Ordering::SeqCst);
        }
        done
    }

    /// Traces or sweeps a region, for who has the turn with it and is no collector.
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

    /// Marks these, traces all that was reached in this region, and tells others what was reached of theirs.
    pub(crate) fn trace_own(self: &Arc<Self>, region: &mut Region, reached: impl IntoIterator<Item = At>) {
        // It is back only after the last object: where a `Trace` panics, what it holds is not met by the next region.
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

    // ---- the collector's task

    /// Does all that there is to do and that others do not do.
    pub(crate) fn collect(self: Arc<Self>) {
        let mut hands = Hands::new(self.clone());
        loop {
            while hands.step() {}
            hands.give_back_all();
            self.collector.has_task.store(false, Ordering::SeqCst);
            // Whoever has seen a task before that has left something for it.
            if !hands.has_work() || self.collector.has_task.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}

/// What the collector's task has in hand.
struct Hands {
    inner: Arc<Inner>,
    tracer: Tracer,
    /// Those whose turn it has.
    held: Vec<Arc<Processor>>,
    /// By processor, its place in `held`.
    places: HashMap<u64, usize>,
    /// Objects of regions that were swept since others ran.
    swept: u64,
}

impl Hands {
    fn new(inner: Arc<Inner>) -> Self {
        let (tracer, held, places) = Default::default();
        Hands { inner, tracer, held, places, swept: 0 }
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

    /// Does something, if there is anything to do.
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
        self.give_back_all();
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
            // The rest is with those who run.
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

    /// Lets others run: those on this worker, and those who wait for regions.
    fn pause(&mut self) {
        self.swept = 0;
        // Relaxed: if it is not seen now, it is later.
        if self.collector().wants.load(Ordering::Relaxed) > 0 {
            self.give_back_all();
            // This has no turn, so they get theirs.
            while self.collector().wants.load(Ordering::Relaxed) > 0 {
                yield_now();
            }
        }
        yield_now();
    }

    /// Begins to count who lives.
    fn begin(&mut self, epoch: u64) {
        let inner = self.inner.clone();
        inner.collector.pending.fetch_add(1, Ordering::SeqCst);
        let objects_only = {
            let mut requests = lock(&inner.collector.requests);
            requests.now = Collected { epoch, ..Collected::default() };
            requests.begun = Some(Instant::now());
            // From here on, who asks gets a later one.
            inner.collector.set_phase(epoch, Phase::Marking);
            // Relaxed: a hint.
            inner.collector.processors_made.store(0, Ordering::Relaxed);
            std::mem::take(&mut requests.objects_only)
        };
        self.for_parts(|processors| {
            for processor in processors {
                if objects_only || processor.is_basic() {
                    inner.note(processor, None);
                }
            }
        });
        inner.collector.pending.fetch_sub(1, Ordering::SeqCst);
    }

    /// For all processors that are there all the time, in parts; others run in between.
    fn for_parts(&mut self, mut f: impl FnMut(&[Arc<Processor>])) {
        let inner = self.inner.clone();
        let mut from = 0;
        loop {
            let table = inner.table();
            // Those that come later live already.
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
                // The last reference to one that is dead: its objects are dropped, which may take long.
                if finalise(|| Arc::into_inner(processor).is_some()) {
                    yield_now();
                }
            }
            from += TABLE_PART;
            yield_now();
        }
    }

    /// All who live are known: the others go, and those who live are to be swept.
    fn end_marking(&mut self, epoch: u64) {
        let inner = self.inner.clone();
        inner.collector.pending.fetch_add(1, Ordering::SeqCst);
        inner.collector.set_phase(epoch, Phase::Sweeping);
        {
            let mut requests = lock(&inner.collector.requests);
            requests.now.marking = requests.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        }
        let (mut live, mut freed) = (0, 0);
        self.for_parts(|processors| {
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
            // Its task has nothing to run any more, and may be giving the turn back just now.
            dead.iter().for_each(|processor| inner.take_turn(processor));
            let mut table = inner.table_mut();
            for processor in &dead {
                // SAFETY: this has the turn, for ever.
                let region = unsafe { processor.turn.value() };
                region.pool_ids().for_each(|pool| table.remove_pool(pool));
                // Relaxed: written before it came into the table.
                table.processors.remove(processor.key.load(Ordering::Relaxed));
            }
            // Its objects go with the last reference to it, after the lock.
        });
        let mut requests = lock(&inner.collector.requests);
        requests.now.processors = live;
        requests.now.processors_freed = freed;
        drop(requests);
        inner.collector.pending.fetch_sub(1, Ordering::SeqCst);
    }

    /// All is swept.
    fn end(&mut self, epoch: u64) {
        let collector = &self.inner.collector;
        let mut requests = lock(&collector.requests);
        collector.set_phase(epoch, Phase::Idle);
        let now = requests.now;
        requests.last = Some(now);
        // Relaxed: hints. Nobody knows yet who lives of those that were made meanwhile.
        let live = now.processors.saturating_sub(collector.processors_made.load(Ordering::Relaxed));
        let more = live.max(collector.processors_between);
        collector.processors_max.store(live.saturating_add(more), Ordering::Relaxed);
        collector.bytes_max.store(now.bytes.max(collector.bytes_between), Ordering::Relaxed);
        collector.bytes_made.store(0, Ordering::Relaxed);
        let (over, later) = requests.waiters.drain(..).partition(|waiter| waiter.epoch <= epoch);
        requests.waiters = later;
        drop(requests);
        for Waiter { mut writer, .. } in over {
            // Who has asked may be unwound by now.
            let _ = writer.write(now);
        }
        let mut table = self.inner.table_mut();
        if table.processors.capacity() > 2 * table.processors.len() + TABLE_PART {
            table.shrink();
        }
    }

    // ---- regions

    /// Takes a region that has something to do, unless somebody else has the turn, who does it then.
    fn take(&mut self, processor: &Arc<Processor>) {
        if let Some(&place) = self.places.get(&processor.id) {
            self.look_into(place);
            return;
        }
        if self.held.len() >= HELD_MAX {
            self.give_back_all();
        }
        let turn = &processor.turn;
        if !(turn.try_take() || turn.ask() && turn.try_take()) {
            return;
        }
        turn.take_work();
        let place = self.held.len();
        self.held.push(processor.clone());
        self.places.insert(processor.id, place);
        if self.collector().phase().1 == Phase::Marking {
            // SAFETY: this has the turn.
            let region = unsafe { processor.turn.value() };
            // SAFETY: who has the turn does nothing but trace there until it gives the turn back.
            unsafe { region.hold(&mut self.tracer) };
            self.look_into(place);
        } else {
            self.look_into(place);
            self.give_back_all();
        }
    }

    /// Looks what is to be done in a region that is held.
    fn look_into(&mut self, place: usize) {
        let processor = &self.held[place];
        // SAFETY: this has the turn.
        let (reached, swept) = self.inner.open(processor, unsafe { processor.turn.value() });
        self.swept += swept;
        reached.into_iter().for_each(|at| self.tracer.reach(at));
    }

    /// Traces a slice. False if there was nothing to trace.
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

    /// Takes the regions of what was reached elsewhere, as far as they can be had.
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
                // If it had something to do already, whoever has the turn does this as well.
                if self.inner.note(&processor, Some(at)) {
                    self.take(&processor);
                }
            }
        }
    }

    /// Gives all turns back. Where something is left to do, that is done by who has the next turn.
    fn give_back_all(&mut self) {
        self.places.clear();
        let is_marking = self.collector().is_marking();
        while let Some(processor) = self.held.pop() {
            // SAFETY: this has the turn.
            let region = unsafe { processor.turn.value() };
            let traced = !is_marking || region.let_go(&mut self.tracer) || is_planted(Fault::Rest);
            if traced && self.inner.close(&processor) {
                while !processor.turn.give_back() {
                    processor.turn.take_work();
                }
            } else {
                lock(&self.collector().work).push(processor.clone());
                processor.turn.leave();
            }
        }
        self.tracer.forget_active();
    }
}

impl Drop for Hands {
    /// Unwound, by a panic or with its runtime: regions get their marks back, so that what is in them is dropped some time. What is
    /// marked is not known any more, so nothing is collected from now on: `has_task` stays, and who waits is told.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.give_back_all();
            // Relaxed: a hint. Nobody waits for this any more.
            self.collector().processors_max.store(u64::MAX, Ordering::Relaxed);
            let mut requests = lock(&self.collector().requests);
            requests.is_over = true;
            let waiters = std::mem::take(&mut requests.waiters);
            drop(requests);
            drop(waiters);
        }
    }
}
