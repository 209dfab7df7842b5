//! Workers: each runs its tasks, one after another, and reads its inbox between two tasks.
//!
//! The loop is that of Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream
//! Processing, 2011, 4.2.1: pick a ready task, switch to the task, return, record, read the
//! mailbox, repeat. This implementation differs in three points:
//!
//! - A worker gives idle workers a share of its new tasks ([`share`]), and an idle worker may steal
//!   a task that has not started.
//! - Before a worker sleeps, it searches for work for a few microseconds, because waking a thread
//!   takes longer.
//! - One `heavy` fence before the sleep covers every way in which another thread may provide work
//!   at that moment (inbox, tasks to steal, changed slots). Thus no other thread needs a full
//!   fence: see [`sleep`](crate::sleep).

mod carriers;
mod idle;
mod share;
mod timer;

pub(crate) use idle::SpinLimit;
pub(crate) use share::IdleCount;
pub(crate) use timer::{Key as TimerKey, Target};

use crate::block::Blocks;
use crate::counter::Counts;
use crate::current;
use crate::deque::{self, Steal, Stealer};
use crate::error::Failure;
use crate::inbox::Inbox;
use crate::monitor::Watch;
use crate::park::Park;
use crate::recheck::{Deferred, Recheck};
use crate::retired;
use crate::runtime::Inner;
use crate::scheduler::{Ready, ReadySet};
use crate::sleep::Sleep;
use crate::stream::Shared;
use crate::table::Table;
use crate::task::{self, Header, Kind, Outcome, Status, Unended};
use carriers::Carriers;
use corebeat_sync::CachePadded;
use corebeat_sync::asymmetric::{heavy_fence, light_fence};
use corebeat_sync::atomic::Ordering;
use share::{Burst, FIRM, Idleness};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use timer::Timers;

/// Number of steps of a busy worker between two rounds of periodic work.
const PERIODIC_STEPS: u32 = 64;
/// While other tasks are ready, a worker admits one unstarted task per this number of steps. An
/// admitted task cannot be stolen.
const ADMIT_STEPS: u32 = 8;
/// Number of rounds of periodic work per round with a `heavy` fence.
const HEAVY_ROUNDS: u32 = 64;

/// One of the workers of a runtime.
pub(crate) struct Worker {
    pub(crate) index: usize,
    home: u64,
    /// The runtime that the worker is a part of.
    inner: *const Inner,
    inbox: CachePadded<Inbox<Header>>,
    pub(crate) sleep: CachePadded<Sleep>,
    pub(crate) idleness: CachePadded<Idleness>,
    pub(crate) stealer: Stealer<Unended>,
    pub(crate) table: Table,
    pub(crate) counts: CachePadded<Counts>,
    /// State that only the worker's thread uses.
    own: Own,
}

// SAFETY: only the thread that runs the worker uses `own`. `inner` is constant, and the runtime is
// Sync. The other fields are Sync.
unsafe impl Sync for Worker {}
// SAFETY: as above.
unsafe impl Send for Worker {}

struct Own {
    ready: ReadySet,
    /// Tasks that have not started.
    unstarted: deque::Worker<Unended>,
    /// Upper bound of the number of unstarted tasks. Other workers may have stolen some.
    unstarted_max: Cell<usize>,
    burst: Burst,
    /// Whether the task that this worker started last blocked in its first dispatch.
    starts_block: Cell<bool>,
    /// Whether this idle worker has left unstarted tasks to their worker for long enough.
    has_left: Cell<bool>,
    deferred: RefCell<Vec<Deferred>>,
    timers: Timers,
    carriers: Carriers,
    /// Steps until the next round of periodic work.
    steps_left: Cell<u32>,
    rounds: Cell<u32>,
    blocks: Blocks,
    /// Next unused number for a task or timer, and the end of the worker's numbers.
    next_id: Cell<u64>,
    end_of_ids: Cell<u64>,
    watch: Option<Watch>,
    /// Time for which the worker searches for work before it sleeps.
    spin: Duration,
    /// Number of cancellation requests that the worker has handled.
    handled_requests: Cell<u64>,
}

/// Parameters of a worker.
pub(crate) struct WorkerConfig {
    pub(crate) index: usize,
    pub(crate) ready: ReadySet,
    pub(crate) watch: Option<Watch>,
    pub(crate) spin: Duration,
    pub(crate) park: Option<Box<dyn Park>>,
}

impl Worker {
    /// `inner` is the runtime that contains the worker, when it is complete.
    pub(crate) fn new(config: WorkerConfig, inner: *const Inner) -> Worker {
        let unstarted = deque::Worker::new_fifo();
        Worker {
            index: config.index,
            home: current::new_home(),
            inner,
            inbox: CachePadded::new(Inbox::new()),
            sleep: CachePadded::new(Sleep::new(config.park)),
            idleness: CachePadded::default(),
            stealer: unstarted.stealer(),
            table: Table::new(),
            counts: CachePadded::default(),
            own: Own {
                ready: config.ready,
                unstarted,
                unstarted_max: Cell::new(0),
                burst: Burst::default(),
                starts_block: Cell::new(true),
                has_left: Cell::new(false),
                deferred: RefCell::default(),
                timers: Timers::default(),
                carriers: Carriers::default(),
                steps_left: Cell::new(PERIODIC_STEPS),
                rounds: Cell::new(0),
                blocks: Blocks::default(),
                next_id: Cell::new(0),
                end_of_ids: Cell::new(0),
                watch: config.watch,
                spin: config.spin,
                handled_requests: Cell::new(0),
            },
        }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: the worker is a part of the runtime, which is complete before it uses its
        // workers.
        unsafe { &*self.inner }
    }

    pub(crate) fn home(&self) -> u64 {
        self.home
    }

    // ---- for other threads

    /// Sends a task of this worker, from another thread.
    pub(crate) fn send(&self, task: *const Header) {
        // A thread outside must keep the runtime alive: the sent task may be its last one.
        let is_outside = current::worker().is_none_or(|w| !std::ptr::eq(w.inner(), self.inner()));
        let keep_alive = is_outside.then(|| self.inner().to_arc());
        // SAFETY: the task is new, or the caller took its only token. So the task is in no inbox,
        // and is alive.
        unsafe { self.inbox.push(task) };
        light_fence();
        self.wake();
        drop(keep_alive);
    }

    /// Wakes the worker if it sleeps. The caller posts the work for the worker before a `light`
    /// fence.
    pub(crate) fn wake(&self) -> bool {
        self.sleep.wake(|| self.inner().count_woken_worker())
    }

    // ---- for tasks of this worker, on its thread

    /// Makes a task of this worker ready.
    #[inline]
    pub(crate) fn make_ready(&self, task: *const Header) {
        // SAFETY: the task was woken, or yields, so it is alive.
        let header = unsafe { &*task };
        if !header.queued.replace(true) {
            header.set_status(Status::Ready);
            self.counts.wakeups.add(1);
            self.own.ready.put(Ready(task));
        }
    }

    /// Wakes the owner of a blocking token, a task of this worker.
    #[inline]
    pub(crate) fn wake_task(&self, task: *const Header) {
        // SAFETY: the task was blocked until now.
        unsafe { (*task).delivered.set(true) };
        self.make_ready(task);
    }

    /// Takes a new task that a task of this worker spawned.
    pub(crate) fn adopt(&self, task: Unended) {
        self.counts.spawned.add(1);
        self.take_new(task);
    }

    /// Takes a new task, which other workers may steal if its parameters allow that.
    #[inline]
    fn take_new(&self, task: Unended) {
        if task.header().stealable.get() { self.offer_new(task) } else { self.queue_new(task) }
    }

    /// Lets other workers steal a new task.
    #[inline(never)]
    fn offer_new(&self, task: Unended) {
        self.count_in_burst();
        self.own.unstarted.push(task);
        self.own.unstarted_max.set(self.own.unstarted_max.get() + 1);
        light_fence();
        self.inner().wake_one_worker();
    }

    fn queue_new(&self, task: Unended) {
        self.queue(task.into_raw());
    }

    /// Puts a new task, or the one that yields, into the ready set.
    #[inline(never)]
    fn queue(&self, task: *const Header) {
        // SAFETY: the caller owns the task, and passes it to the ready set.
        unsafe { (*task).queued.set(true) };
        self.own.ready.put(Ready(task));
    }

    /// Returns the free memory blocks for tasks.
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.own.blocks
    }

    /// Returns an unused number for a task or timer.
    #[inline]
    pub(crate) fn new_id(&self) -> u64 {
        let Own { next_id, end_of_ids, .. } = &self.own;
        if next_id.get() == end_of_ids.get() {
            let ids = Inner::new_ids();
            next_id.set(ids.start);
            end_of_ids.set(ids.end);
        }
        next_id.replace(next_id.get() + 1)
    }

    /// Sets a timer, which runs after `time_ns`.
    pub(crate) fn set_timer(&self, time_ns: u64, target: Target) -> TimerKey {
        let key = (self.inner().clock.now_ns().saturating_add(time_ns), self.new_id());
        self.own.timers.set(key, target);
        key
    }

    /// Removes a timer, if it has not run.
    pub(crate) fn remove_timer(&self, key: TimerKey) {
        self.own.timers.remove(key);
    }

    /// Defers a recheck until the next `heavy` fence.
    pub(crate) fn defer<T: Send + 'static>(&self, recheck: Recheck<&Arc<Shared<T>>>) {
        self.own.deferred.borrow_mut().push(recheck.into_deferred());
    }

    /// Returns the monitor if it records the stream use of a task that is `marked` or not.
    #[inline(always)]
    pub(crate) fn stream_watch(&self, marked: bool) -> Option<&Watch> {
        self.own.watch.as_ref().filter(|watch| watch.watches_streams(marked))
    }

    // ---- steps

    /// Executes one step of the loop. Returns false if no task was ready.
    #[inline(always)]
    pub(crate) fn step(&self) -> bool {
        if !self.inbox.is_empty() {
            self.read_inbox();
        }
        let steps = self.own.steps_left.get() - 1;
        self.own.steps_left.set(steps);
        if steps == 0 {
            self.do_periodic_work();
        }
        if self.own.unstarted_max.get() > 0
            && (self.own.ready.is_empty() || steps.is_multiple_of(ADMIT_STEPS))
        {
            self.admit_unstarted();
        }
        match self.own.ready.fetch() {
            Some(Ready(task)) => {
                self.dispatch(task);
                true
            }
            None => false,
        }
    }

    #[cold]
    fn do_periodic_work(&self) {
        self.own.steps_left.set(PERIODIC_STEPS);
        self.sleep.poll();
        self.run_timers();
        self.apply_cancellations();
        self.steal_from_injector();
        self.inner().resolve_cycles_rarely();
        if self.own.deferred.borrow().is_empty() {
            return;
        }
        // A `heavy` fence takes as long as many dispatches, and interrupts all other workers. In
        // almost all cases, the changes are visible without a fence by now.
        let rounds = self.own.rounds.get() + 1;
        self.own.rounds.set(rounds);
        let is_heavy = rounds.is_multiple_of(HEAVY_ROUNDS);
        if is_heavy {
            heavy_fence();
        }
        self.recheck_deferred(is_heavy);
    }

    #[cold]
    #[inline(never)]
    fn read_inbox(&self) {
        let mut new = 0;
        for task in self.inbox.take() {
            // SAFETY: a sent task is alive until it has run.
            let header = unsafe { &*task };
            if header.worker.load(Ordering::Relaxed).is_null() {
                new += 1;
                // SAFETY: the sender passed the task (`Unended`).
                let task = unsafe { Unended::from_raw(task) };
                if new <= FIRM { self.queue_new(task) } else { self.take_new(task) }
            } else {
                header.delivered.set(true);
                self.counts.mails.add(1);
                self.make_ready(task);
            }
        }
        self.apply_cancellations();
    }

    /// Makes cancelled tasks ready to unwind, if there is a new request.
    pub(crate) fn apply_cancellations(&self) {
        let requests = self.inner().cancellation.requests();
        if self.own.handled_requests.replace(requests) == requests {
            return;
        }
        let ending = self.inner().cancellation.is_ending();
        let mut has_sleepers = false;
        for task in self.table.tasks() {
            // SAFETY: tasks in the worker's own table are alive.
            let header = unsafe { &*task };
            if ending {
                header.cancel.store(task::CANCEL_ENDING, Ordering::Release);
            } else if header.must_abort() {
                header.abort();
            }
            if !header.is_cancelled() {
                continue;
            }
            match header.status() {
                Status::Awaiting if header.take_await() => self.make_ready(task),
                Status::Awaiting => {}
                Status::Sleeping => {
                    has_sleepers = true;
                    self.wake_task(task);
                }
                status if status.is_blocked() => self.make_ready(task),
                _ => {}
            }
        }
        if has_sleepers {
            // SAFETY: a task with a timer sleeps, or waits with a time limit. It has not run since,
            // and it removes its timer before it ends.
            self.own.timers.retain_tasks(|task| unsafe { !(*task).is_cancelled() });
        }
    }

    /// Moves one unstarted task to the ready set.
    #[cold]
    #[inline(never)]
    fn admit_unstarted(&self) {
        self.share_unstarted();
        match self.own.unstarted.pop() {
            Some(task) => {
                self.own.unstarted_max.set(self.own.unstarted_max.get() - 1);
                // A new task may compute for long. A task with a timer would then continue late.
                match self.idle_beside_sleepers() {
                    Some(worker) => worker.send(task.into_raw()),
                    None => {
                        self.own.burst.started.set(self.own.burst.started.get() + 1);
                        self.queue_new(task);
                    }
                }
            }
            None => self.own.unstarted_max.set(0),
        }
    }

    fn run_timers(&self) {
        self.own.timers.run(
            || self.inner().clock.now_ns(),
            |target| match target {
                Target::Task(task) => {
                    // SAFETY: a task removes its timer before it ends.
                    let header = unsafe { &*task };
                    match header.status() {
                        Status::Sleeping => header.delivered.set(true),
                        _ => header.expire(),
                    }
                    self.make_ready(task);
                }
                Target::Future(waker) => task::discard_panic(|| waker.wake()),
            },
        );
    }

    /// Returns when the next timer is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.own.timers.next_due_ns()
    }

    /// Wakes the owners of deferred rechecks whose slots have changed, as far as the changes are
    /// visible, and drops their rechecks. After a `heavy` fence, all rechecks are dropped: a change
    /// that is not visible then is made by a thread that finds the token.
    fn recheck_deferred(&self, after_heavy: bool) {
        let mut deferred = self.own.deferred.take();
        deferred.extract_if(.., |recheck| recheck.resolve() || after_heavy).for_each(retire);
        // A drop of a retired recheck may have added new ones.
        deferred.append(&mut self.own.deferred.borrow_mut());
        self.own.deferred.replace(deferred);
    }

    fn steal_from_injector(&self) -> bool {
        self.steal_with(|| self.inner().injector.steal_batch_and_pop(&self.own.unstarted))
    }

    fn steal_from(&self, victim: &Worker) -> bool {
        let stolen = self.steal_with(|| victim.stealer.steal_batch_and_pop(&self.own.unstarted));
        if stolen {
            self.counts.steals.add(1);
        }
        stolen
    }

    fn steal_with(&self, steal: impl Fn() -> Steal<Unended>) -> bool {
        loop {
            match steal() {
                Steal::Success(task) => {
                    let left = self.own.unstarted.len();
                    self.own.unstarted_max.set(left);
                    self.own.burst.restart(left);
                    self.queue_new(task);
                    return true;
                }
                Steal::Empty => return false,
                Steal::Retry => {}
            }
        }
    }

    fn steal(&self) -> bool {
        if self.steal_from_injector() {
            return true;
        }
        self.others().any(|victim| {
            !victim.stealer.is_empty() && !self.leaves_to(victim) && self.steal_from(victim)
        })
    }

    /// Returns all other workers, the next one first.
    fn others(&self) -> impl Iterator<Item = &Worker> {
        let workers = &self.inner().workers;
        (1..workers.len()).map(|i| &workers[(self.index + i) % workers.len()])
    }

    // ---- dispatch

    #[inline(always)]
    fn dispatch(&self, task: *const Header) {
        if !self.prepare(task) {
            return;
        }
        // SAFETY: the task was in the ready set, so it is alive. It owns a carrier, which only this
        // function resumes.
        let outcome = unsafe { (*(*task).carrier.get()).resume() };
        // With constants, the compiler removes the other cases.
        match outcome {
            Outcome::Blocked => self.finish(task, Outcome::Blocked),
            Outcome::Ended => self.finish(task, Outcome::Ended),
            outcome => self.finish_rarely(task, outcome),
        }
    }

    /// Makes a ready task the running one. Returns false if the task does not run.
    #[inline(always)]
    fn prepare(&self, task: *const Header) -> bool {
        // SAFETY: the task was in the ready set, so it is alive until its end in `finish`.
        let header = unsafe { &*task };
        let worker = header.worker.load(Ordering::Relaxed).cast_const();
        assert!(
            worker.is_null() || std::ptr::eq(worker, self),
            "a scheduler returned a task of another worker: it must return what was put into it"
        );
        header.queued.set(false);
        if header.carrier.get().is_null() && !self.begin(task) {
            return false;
        }
        header.set_status(Status::Running);
        header.dispatches.set(header.dispatches.get() + 1);
        self.counts.dispatches.add(1);
        current::with(|c| {
            c.task.set(task);
            c.stamp.set(header.stamp.get());
        });
        true
    }

    /// [`Worker::finish`] for outcomes that are no constants where the compiler would inline it.
    #[inline(never)]
    fn finish_rarely(&self, task: *const Header, outcome: Outcome) {
        self.finish(task, outcome);
    }

    /// Handles the end of a dispatch.
    #[inline(always)]
    fn finish(&self, task: *const Header, outcome: Outcome) {
        // SAFETY: as in `prepare`.
        let header = unsafe { &*task };
        current::with(|c| c.task.set(std::ptr::null()));
        // Attributes the calls that probes recorded on this thread to the task.
        corebeat_probe::task(header.id);
        if let Some(watch) = &self.own.watch {
            let status = match outcome {
                Outcome::Ended => Status::Zombie,
                Outcome::Awaits => Status::Awaiting,
                Outcome::Yielded => Status::Ready,
                Outcome::Blocked => header.status(),
            };
            watch.dispatched(header, status);
        }
        if header.dispatches.get() == 1 {
            self.predict(outcome, header);
        }
        match outcome {
            Outcome::Blocked => {}
            Outcome::Ended => {
                self.release_carrier(header);
                // SAFETY: the worker owns the task, whose run has ended.
                unsafe { self.end(task) };
            }
            Outcome::Yielded => self.queue(task),
            Outcome::Awaits => {
                self.release_carrier(header);
                header.set_status(Status::Awaiting);
                if !header.begin_await() {
                    self.make_ready(task);
                }
            }
        }
    }

    /// Prepares a task without a stack for its dispatch: at its start, or after an await. Returns
    /// false if the task does not run.
    #[inline(always)]
    fn begin(&self, task: *const Header) -> bool {
        // SAFETY: the task was in the ready set, so it is alive.
        let header = unsafe { &*task };
        if header.worker.load(Ordering::Relaxed).is_null() {
            if !self.start(task) {
                return false;
            }
        } else if header.kind == Kind::Async {
            // This dispatch is what was delivered. Without the reset, code in the poll that blocks
            // would take the delivery for its own wake-up.
            header.delivered.set(false);
            header.forget_await();
            header.end_await();
        }
        self.borrow_carrier(header) || self.borrow_spare_carrier(task)
    }

    /// Makes a new task a task of this worker. Returns false if the task has ended instead.
    #[inline(always)]
    fn start(&self, task: *const Header) -> bool {
        // SAFETY: as in `begin`.
        let header = unsafe { &*task };
        // Relaxed: published with the first token that the task leaves.
        header.worker.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        header.stamp.set(current::stamp(self.home, header.id));
        header.place.set(self.table.insert(task));
        self.counts.started.add(1);
        // A reason to end the task is marked before its request is counted.
        if self.inner().cancellation.requests() > 0 && self.ends_unstarted(task) {
            return false;
        }
        if header.name.is_some() {
            name_task(header);
        }
        true
    }

    /// Ends a new task without running it, if its end was requested.
    #[cold]
    #[inline(never)]
    fn ends_unstarted(&self, task: *const Header) -> bool {
        let why = if self.inner().cancellation.is_ending() {
            Failure::Cancelled
        // SAFETY: as in `begin`.
        } else if unsafe { &*task }.must_abort() {
            Failure::Aborted
        } else {
            return false;
        };
        self.abandon(task, why);
        true
    }

    /// Ends a task without running it, or without continuing it.
    fn abandon(&self, task: *const Header, why: Failure) {
        // SAFETY: the worker owns the task, and the task does not run.
        unsafe { task::fail(task, why) };
        // SAFETY: as above. The task may have run before, so it may have locals.
        unsafe { &(*task).locals }.clear();
        // SAFETY: the task has failed.
        unsafe { self.end(task) };
    }

    /// # Safety
    ///
    /// The worker owns the task, which has a result instead of a body ([`task::publish_end`]).
    #[inline(always)]
    unsafe fn end(&self, task: *const Header) {
        // SAFETY: by the contract of this function, and each path to its end ends here.
        let task = unsafe { Unended::from_raw(task) };
        self.table.remove(task.header().place.get());
        self.counts.ended.add(1);
        // SAFETY: by the contract of this function.
        unsafe { task::publish_end(task) };
    }

    /// Excludes the time up to now from the execution time of the next task.
    pub(crate) fn restart_watch(&self) {
        self.own.watch.iter().for_each(Watch::restart);
    }

    /// Returns the time of the monitor's clock; 0 without a monitor.
    #[inline]
    pub(crate) fn monitor_ns(&self) -> u64 {
        #[inline(never)]
        fn now_ns(watch: &Watch) -> u64 {
            watch.now_ns()
        }
        self.own.watch.as_ref().map_or(0, now_ns)
    }

    /// Returns tasks that were sent and did not arrive. Only for the end of a runtime, when no
    /// thread runs the worker.
    pub(crate) fn unstarted(&self) -> impl Iterator<Item = Unended> {
        // SAFETY: only new tasks are left, which no worker has started or ended.
        let sent = self.inbox.take().map(|task| unsafe { Unended::from_raw(task) });
        sent.chain(std::iter::from_fn(|| self.own.unstarted.pop()))
    }

    // ---- life

    /// Runs a worker on its own thread until the runtime ends.
    pub(crate) fn run(&self) {
        self.sleep.set_thread();
        self.idleness.end(self.inner());
        let _saved = self.enter();
        let abort = AbortOnPanic;
        loop {
            while self.step() {}
            if self.inner().cancellation.is_over()
                && self.table.tasks().next().is_none()
                && self.inbox.is_empty()
            {
                break;
            }
            self.idle();
        }
        self.leave();
        std::mem::forget(abort);
    }

    /// Makes the calling thread the thread of this worker, until the result is dropped.
    pub(crate) fn enter(&self) -> current::Saved {
        let saved = current::with(|c| {
            let saved = current::Saved::of(c);
            c.worker.set(self);
            c.task.set(std::ptr::null());
            c.stamp.set(current::stamp(self.home, 0));
            saved
        });
        if let Some(watch) = &self.own.watch {
            watch.restart();
        }
        saved
    }

    /// Releases the resources of the worker, at its end.
    pub(crate) fn leave(&self) {
        // For rechecks of sets that have left the runtime.
        heavy_fence();
        self.recheck_deferred(true);
        self.trim_carriers(0);
        self.sleep.leave();
        if let Some(watch) = &self.own.watch {
            watch.ended(self.index);
        }
    }

    /// Searches for work of any origin, on behalf of a deterministic runtime whose workers found no
    /// ready task. Returns whether there is work.
    pub(crate) fn search_everywhere(&self) -> bool {
        heavy_fence();
        self.recheck_deferred(true);
        self.apply_cancellations();
        self.run_timers();
        self.steal();
        !self.own.ready.is_empty() || !self.own.unstarted.is_empty() || !self.inbox.is_empty()
    }
}

/// Declares the name of a task to probes.
#[cold]
#[inline(never)]
fn name_task(task: &Header) {
    task.name.iter().for_each(|name| corebeat_probe::name_task(task.id, name));
}

/// Aborts the program when it is dropped, which happens when a panic leaves the loop of a worker.
/// The tasks of that worker could never continue, and nothing would report that.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        eprintln!(
            "corebeat-lpel: a worker panicked between two tasks, in its scheduler, its listener, \
             or a destructor: fix the panic"
        );
        std::process::abort();
    }
}

/// Retires a recheck. A dump may have found its stream through a task whose status states that the
/// task waits there, although both ends may be dropped.
fn retire(recheck: Deferred) {
    // SAFETY: only the worker owned the recheck. Items are Send, so any thread may drop it.
    unsafe { retired::retire(recheck) };
}
