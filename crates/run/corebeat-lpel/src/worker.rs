//! Workers: each runs its tasks, one after another, and reads its mail in between.
//!
//! The loop is that of Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.2.1:
//! pick a ready task, switch to it, come back, record, read the mail, again. What is new:
//!
//! - A task that has not started may be taken by a worker that has nothing to do.
//! - Before a worker sleeps it looks around for a few microseconds, because waking a thread takes longer.
//! - One `heavy` fence before it sleeps stands against every way in which others may have given it work at that moment
//!   (mail, tasks to steal, changed slots), so that none of them needs a fence of its own: see [`sleep`](crate::sleep).

use crate::block::Blocks;
use crate::context::Carrier;
use crate::counter::Counts;
use crate::current;
use crate::deque::{self, Steal, Stealer};
use crate::doubt::{Doubt, Kept};
use crate::error::Failure;
use crate::inbox::Inbox;
use crate::limbo;
use crate::monitor::{Direction, Touched, Watch};
use crate::runtime::Inner;
use crate::scheduler::{Order, Ready};
use crate::sleep::Sleep;
use crate::stack::Pool;
use crate::stream::{Core, Shared};
use crate::table::Table;
use crate::task::{self, Header, Kind, Outcome, Status, TaskRef};
use corebeat_sync::CachePadded;
use corebeat_sync::asymmetric::{heavy, light};
use corebeat_sync::atomic::Ordering;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Mail and tasks of its own apart, a busy worker looks at everything once in so many turns.
const CHORE_TURNS: u32 = 64;
/// While tasks are ready, one that has not started is let in every so many turns: from then on nobody can take it away.
const LET_IN_TURNS: u32 = 8;
/// Every so many times it does so with a `heavy` fence.
const HEAVY_CHORES: u32 = 64;
/// When nothing has moved for so long, it is time to look for a deadlock.
const JUDGE_AFTER: Duration = Duration::from_millis(5);
/// An async task for which there is no stack tries again after this time.
const STACK_RETRY_NS: u64 = 1_000_000;
/// So many free carriers a size are kept when a worker goes to sleep; the memory of more is given back.
const SPARE_MAX: usize = 1024;

/// One of a runtime's workers.
pub(crate) struct Worker {
    pub(crate) index: usize,
    home: u64,
    inner: OnceLock<*const Inner>,
    inbox: CachePadded<Inbox<Header>>,
    pub(crate) sleep: CachePadded<Sleep>,
    pub(crate) stealer: Stealer<TaskRef>,
    pub(crate) table: Table,
    pub(crate) counts: CachePadded<Counts>,
    /// Touched by the worker's thread alone.
    own: Own,
}

// SAFETY: `own` is touched by the thread that turns the worker alone; the rest is Sync or said to be so at its place.
unsafe impl Sync for Worker {}
// SAFETY: as above.
unsafe impl Send for Worker {}

struct Own {
    order: Order,
    /// Tasks that have not started.
    fresh: deque::Worker<TaskRef>,
    /// At most so many are there; others may have taken some.
    fresh_max: Cell<usize>,
    doubts: RefCell<Vec<Kept>>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    /// Free carriers and stacks, by stack size.
    sizes: RefCell<Vec<Size>>,
    /// Turns until the next chores.
    turns: Cell<u32>,
    chores: Cell<u32>,
    /// The carrier that came back last, if nobody has borrowed it yet: an async task borrows one for each poll.
    hot: Cell<*mut Carrier>,
    hot_size: Cell<u32>,
    blocks: Blocks,
    /// Ids that it may give to tasks and dispatches.
    ids: Cell<std::ops::Range<u64>>,
    watch: Option<Watch>,
    dispatch_stamp: Cell<u64>,
    /// How long it looks around before it sleeps.
    spin: Duration,
    /// The last call that it has heard.
    heard: Cell<u64>,
}

struct Size {
    pool: Pool,
    #[expect(clippy::vec_box, reason = "a task points to its carrier")]
    spare: Vec<Box<Carrier>>,
}

/// A task that sleeps.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    due_ns: u64,
    /// First set, first woken.
    number: u64,
    task: *const Header,
}

/// What a worker is made with.
pub(crate) struct Plan {
    pub(crate) index: usize,
    pub(crate) order: Order,
    pub(crate) watch: Option<Watch>,
    pub(crate) spin: Duration,
}

impl Worker {
    pub(crate) fn new(plan: Plan) -> Worker {
        let fresh = deque::Worker::new_fifo();
        Worker {
            index: plan.index,
            home: current::new_home(),
            inner: OnceLock::new(),
            inbox: CachePadded::new(Inbox::new()),
            sleep: CachePadded::new(Sleep::new()),
            stealer: fresh.stealer(),
            table: Table::new(),
            counts: CachePadded::default(),
            own: Own {
                order: plan.order,
                fresh,
                fresh_max: Cell::new(0),
                doubts: RefCell::default(),
                timers: RefCell::default(),
                sizes: RefCell::default(),
                turns: Cell::new(CHORE_TURNS),
                chores: Cell::new(0),
                hot: Cell::new(std::ptr::null_mut()),
                hot_size: Cell::new(0),
                blocks: Blocks::default(),
                ids: Cell::new(0..0),
                watch: plan.watch,
                dispatch_stamp: Cell::new(0),
                spin: plan.spin,
                heard: Cell::new(0),
            },
        }
    }

    pub(crate) fn attach(&self, inner: *const Inner) {
        let _ = self.inner.set(inner);
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner {
        let inner = *self.inner.get().expect("attached before anything runs");
        // SAFETY: the workers are part of it.
        unsafe { &*inner }
    }

    pub(crate) fn home(&self) -> u64 {
        self.home
    }

    // ---- what others do

    /// Sends a task that belongs to this worker, from another thread.
    pub(crate) fn send(&self, task: *const Header) {
        // A thread from outside must keep the runtime: the task, once sent, may be its last.
        let stranger = current::worker().is_none_or(|w| !std::ptr::eq(w.inner(), self.inner()));
        let keep = stranger.then(|| self.inner().keep());
        // SAFETY: created just now, or its only token was taken; so it is in no inbox, and lives.
        unsafe { self.inbox.push(task) };
        light();
        self.rouse();
        drop(keep);
    }

    /// Wakes the worker if it sleeps. What it is to see was posted before a `light`.
    pub(crate) fn rouse(&self) -> bool {
        self.sleep.rouse(|| self.inner().wakes_a_sleeper())
    }

    // ---- what its tasks do

    /// A task of this worker, which is running, became ready.
    #[inline]
    pub(crate) fn make_ready(&self, task: *const Header) {
        // SAFETY: it was woken, or yields, so it lives.
        let header = unsafe { &*task };
        if !header.queued.replace(true) {
            header.set_status(Status::Ready);
            self.counts.wakeups.add(1);
            self.own.order.put(Ready(task));
        }
    }

    /// Wakes the owner of a blocking token, a task of this worker, which is running.
    #[inline]
    pub(crate) fn wake(&self, task: *const Header) {
        // SAFETY: it was blocked until now.
        unsafe { (*task).delivered.set(true) };
        self.make_ready(task);
    }

    /// A new task begins its life here.
    pub(crate) fn adopt(&self, task: TaskRef) {
        self.counts.spawned.add(1);
        if task.header().stealable.get() && self.inner().workers.len() > 1 {
            self.own.fresh.push(task);
            self.own.fresh_max.set(self.own.fresh_max.get() + 1);
            light();
            self.inner().rouse_one();
        } else {
            self.queue_new(task);
        }
    }

    fn queue_new(&self, task: TaskRef) {
        let task = task.into_raw();
        // SAFETY: the ready set has the runtime's reference now.
        unsafe { (*task).queued.set(true) };
        self.own.order.put(Ready(task));
    }

    /// For tasks' memory.
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.own.blocks
    }

    /// A number for a task.
    #[inline]
    pub(crate) fn new_id(&self) -> u64 {
        let mut ids = self.own.ids.take();
        let id = ids.next().unwrap_or_else(|| {
            ids = self.inner().new_ids();
            ids.next().expect("ids come in blocks")
        });
        self.own.ids.set(ids);
        id
    }

    /// Has the running task woken at that time.
    pub(crate) fn set_timer(&self, due_ns: u64, task: *const Header) {
        let number = self.new_id();
        self.own.timers.borrow_mut().push(Reverse(Timer { due_ns, number, task }));
    }

    /// Keeps a doubt until the next `heavy`.
    pub(crate) fn doubt<T: Send + 'static>(&self, doubt: Doubt<&Arc<Shared<T>>>) {
        self.own.doubts.borrow_mut().push(doubt.keep());
    }

    /// Whether it has nothing to do but what it does.
    fn is_hungry(&self) -> bool {
        self.inbox.is_empty()
            && self.own.order.is_empty()
            && self.own.fresh_max.get() == 0
            && self.own.timers.borrow().is_empty()
    }

    /// For ends: the running task uses a stream. Where the monitor keeps what it does there.
    #[inline(always)]
    pub(crate) fn touch(&self, core: &Core, direction: Direction, opened: bool, items: u64) -> *mut Touched {
        match &self.own.watch {
            Some(watch) if self.watches_streams() => watch.touch(core, direction, opened, items),
            _ => std::ptr::null_mut(),
        }
    }

    /// Whether the monitor wants to know what the running task does with streams.
    #[inline(always)]
    pub(crate) fn watches_streams(&self) -> bool {
        let Some(watch) = &self.own.watch else { return false };
        let task = current::with(|c| c.task.get());
        // SAFETY: the running task is alive.
        !task.is_null() && watch.watches_streams(unsafe { (*task).marked })
    }

    // ---- what it does

    /// One turn of the loop. False: there was nothing to do.
    #[inline(always)]
    pub(crate) fn turn(&self) -> bool {
        if !self.inbox.is_empty() {
            self.read_mail();
        }
        let turns = self.own.turns.get() - 1;
        self.own.turns.set(turns);
        if turns == 0 {
            self.do_chores();
        }
        if self.own.fresh_max.get() > 0 && (self.own.order.is_empty() || turns.is_multiple_of(LET_IN_TURNS)) {
            self.let_in();
        }
        match self.own.order.fetch() {
            Some(Ready(task)) => {
                self.dispatch(task);
                true
            }
            None => false,
        }
    }

    #[cold]
    fn do_chores(&self) {
        self.own.turns.set(CHORE_TURNS);
        self.run_timers();
        self.heed();
        self.steal_from_outside();
        self.inner().resolve_circles_sparingly();
        if self.own.doubts.borrow().is_empty() {
            return;
        }
        // A `heavy` costs as much as many tasks' turns, and disturbs all other workers. Almost always what it would show
        // can be seen without it by now.
        let chores = self.own.chores.get() + 1;
        self.own.chores.set(chores);
        let is_heavy = chores.is_multiple_of(HEAVY_CHORES);
        if is_heavy {
            heavy();
        }
        self.resolve_doubts(is_heavy);
    }

    #[cold]
    #[inline(never)]
    fn read_mail(&self) {
        for task in self.inbox.take() {
            // SAFETY: it was sent here, and lives until it has run.
            let header = unsafe { &*task };
            if header.worker.load(Ordering::Relaxed).is_null() {
                // SAFETY: the sender gave us the runtime's reference.
                self.queue_new(unsafe { TaskRef::from_raw(task) });
            } else {
                header.delivered.set(true);
                self.counts.mails.add(1);
                self.make_ready(task);
            }
        }
        self.heed();
    }

    /// Has tasks end early, if there was a call.
    pub(crate) fn heed(&self) {
        let calls = self.inner().calls();
        if self.own.heard.replace(calls) == calls {
            return;
        }
        let ending = self.inner().is_ending();
        let mut sleepers = false;
        for task in self.table.tasks() {
            // SAFETY: a task in our own table lives.
            let header = unsafe { &*task };
            if ending {
                header.cancel.store(task::CANCEL_ENDING, Ordering::Release);
            }
            if !header.is_cancelled() {
                continue;
            }
            match header.status() {
                Status::Awaiting if header.take_await() => self.make_ready(task),
                Status::Awaiting => {}
                Status::Sleeping => {
                    sleepers = true;
                    self.wake(task);
                }
                status if status.is_blocked() => self.make_ready(task),
                _ => {}
            }
        }
        if sleepers {
            // SAFETY: who has a timer has slept until now, and has not run yet.
            self.own.timers.borrow_mut().retain(|t| unsafe { !(*t.0.task).is_cancelled() });
        }
    }

    /// Lets one task in that has not started.
    #[cold]
    #[inline(never)]
    fn let_in(&self) {
        match self.own.fresh.pop() {
            Some(task) => {
                self.own.fresh_max.set(self.own.fresh_max.get() - 1);
                self.queue_new(task);
            }
            None => self.own.fresh_max.set(0),
        }
    }

    fn run_timers(&self) {
        let mut timers = self.own.timers.borrow_mut();
        if timers.is_empty() {
            return;
        }
        let now_ns = self.inner().now_ns();
        while let Some(Reverse(timer)) = timers.peek() {
            if timer.due_ns > now_ns {
                return;
            }
            // SAFETY: it sleeps, so it lives.
            unsafe { (*timer.task).delivered.set(true) };
            self.make_ready(timer.task);
            timers.pop();
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.own.timers.borrow().peek().map(|t| t.0.due_ns)
    }

    /// Wakes whoever has something to wake up for, as far as can be seen, and forgets who was woken. After a `heavy` it forgets
    /// all: what cannot be seen then, is not there, and whoever brings it sees the token.
    fn resolve_doubts(&self, after_heavy: bool) {
        let mut doubts = self.own.doubts.take();
        doubts.extract_if(.., |doubt| doubt.resolve() || after_heavy).for_each(retire);
        // Who was woken, or dropped, may have brought new ones.
        doubts.append(&mut self.own.doubts.borrow_mut());
        self.own.doubts.replace(doubts);
    }

    fn steal_from_outside(&self) -> bool {
        self.take_stolen(|| self.inner().injector.steal_batch_and_pop(&self.own.fresh))
    }

    fn steal_from(&self, victim: &Worker) -> bool {
        let stolen = self.take_stolen(|| victim.stealer.steal_batch_and_pop(&self.own.fresh));
        if stolen {
            self.counts.steals.add(1);
        }
        stolen
    }

    fn take_stolen(&self, steal: impl Fn() -> Steal<TaskRef>) -> bool {
        loop {
            match steal() {
                Steal::Success(task) => {
                    self.own.fresh_max.set(self.own.fresh.len());
                    self.queue_new(task);
                    return true;
                }
                Steal::Empty => return false,
                Steal::Retry => {}
            }
        }
    }

    fn steal(&self) -> bool {
        if self.steal_from_outside() {
            return true;
        }
        let workers = &self.inner().workers;
        let others = (1..workers.len()).map(|i| &workers[(self.index + i) % workers.len()]);
        others.into_iter().any(|victim| !victim.stealer.is_empty() && self.steal_from(victim))
    }

    #[inline(always)]
    fn dispatch(&self, task: *const Header) {
        // SAFETY: it was in our ready set, so it lives until it ends, which is at the end of this function.
        let header = unsafe { &*task };
        let worker = header.worker.load(Ordering::Relaxed).cast_const();
        assert!(
            worker.is_null() || std::ptr::eq(worker, self),
            "a scheduler has handed out a task of another worker: it must give back what was put into it"
        );
        header.queued.set(false);
        if header.carrier.get().is_null() && !self.begin(task) {
            return;
        }
        header.set_status(Status::Running);
        header.dispatches.set(header.dispatches.get() + 1);
        self.counts.dispatches.add(1);
        let stamp = match &self.own.watch {
            Some(watch) if watch.watches_streams(header.marked) => {
                let number = self.own.dispatch_stamp.get() + 1;
                self.own.dispatch_stamp.set(number);
                current::stamp(self.home, DISPATCH_STAMPS | number)
            }
            _ => header.stamp.get(),
        };
        let outcome = current::with(|c| {
            c.task.set(task);
            c.stamp.set(stamp);
            // SAFETY: it has a carrier, which nobody else resumes.
            unsafe { (*header.carrier.get()).resume() };
            c.task.set(std::ptr::null());
            c.outcome.get()
        });
        // What probes saw on this thread was this task.
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
        match outcome {
            Outcome::Blocked => {}
            Outcome::Yielded => {
                header.queued.set(true);
                self.own.order.put(Ready(task));
            }
            Outcome::Awaits => {
                self.release(header);
                header.set_status(Status::Awaiting);
                if !header.begin_await() {
                    self.make_ready(task);
                }
            }
            Outcome::Ended => {
                self.release(header);
                self.end(task);
            }
        }
    }

    /// A task is dispatched without a stack: for the first time, or after it awaited. False: it has ended instead.
    #[inline(never)]
    fn begin(&self, task: *const Header) -> bool {
        // SAFETY: it was in the ready set, so it lives.
        let header = unsafe { &*task };
        if header.worker.load(Ordering::Relaxed).is_null() {
            // Relaxed: published with the first token that it leaves.
            header.worker.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
            header.stamp.set(current::stamp(self.home, header.id));
            header.place.set(self.table.insert(task));
            if self.inner().is_ending() {
                self.abandon(task, Failure::Cancelled);
                return false;
            }
        } else if header.kind == Kind::Async {
            // What was delivered is this dispatch: the poll may block, and must not take it for its own wake-up.
            header.delivered.set(false);
            header.forget_await();
            header.end_await();
        }
        match self.borrow_carrier(header.stack_size) {
            Ok(carrier) => {
                // SAFETY: on loan to this task now.
                header.guard.set(unsafe { (*carrier).guard() });
                header.carrier.set(carrier);
                true
            }
            Err(_) if header.dispatches.get() > 0 && !header.is_cancelled() => {
                // It is in the midst of its life: others will give their stacks back.
                header.set_status(Status::Sleeping);
                self.set_timer(self.inner().now_ns() + STACK_RETRY_NS, task);
                false
            }
            Err(why) => {
                let why = Failure::NoStack(why);
                self.inner()
                    .leave_untold(|| format!("task {} did not run, and perhaps others: {why}", header.id));
                self.abandon(task, why);
                false
            }
        }
    }

    /// Ends a task without running it.
    fn abandon(&self, task: *const Header, why: Failure) {
        // SAFETY: we own it, and it does not run.
        unsafe { task::fail(task, why) };
        // SAFETY: as above. It may have run before.
        unsafe { &(*task).locals }.clear();
        self.end(task);
    }

    #[inline]
    fn end(&self, task: *const Header) {
        // SAFETY: we have the runtime's reference.
        let task = unsafe { TaskRef::from_raw(task) };
        self.table.remove(task.header().place.get());
        self.counts.ended.add(1);
        task::publish_end(task.header());
    }

    #[inline]
    fn borrow_carrier(&self, stack_size: u32) -> std::io::Result<*mut Carrier> {
        let hot = self.own.hot.get();
        if self.own.hot_size.get() == stack_size && !hot.is_null() {
            self.own.hot.set(std::ptr::null_mut());
            return Ok(hot);
        }
        self.borrow_cold_carrier(stack_size as usize).map(Box::into_raw)
    }

    fn borrow_cold_carrier(&self, stack_size: usize) -> std::io::Result<Box<Carrier>> {
        let mut sizes = self.own.sizes.borrow_mut();
        let at = match sizes.iter().position(|s| s.pool.stack_size() == stack_size) {
            Some(at) => at,
            None => {
                sizes.push(Size { pool: Pool::new(stack_size), spare: Vec::new() });
                sizes.len() - 1
            }
        };
        let size = &mut sizes[at];
        if let Some(carrier) = size.spare.pop() {
            return Ok(carrier);
        }
        let carrier = Box::new(Carrier::new(size.pool.take()?)?);
        self.counts.stacks.add(1);
        Ok(carrier)
    }

    /// Takes a task's carrier back.
    #[inline(never)]
    fn release(&self, header: &Header) {
        let before = self.own.hot.replace(header.carrier.replace(std::ptr::null_mut()));
        let before_size = self.own.hot_size.replace(header.stack_size);
        if !before.is_null() {
            self.put_by(before, before_size);
        }
    }

    fn put_by(&self, carrier: *mut Carrier, stack_size: u32) {
        // SAFETY: from `borrow_carrier`, and on loan to nobody.
        let carrier = unsafe { Box::from_raw(carrier) };
        let mut sizes = self.own.sizes.borrow_mut();
        let size = sizes.iter_mut().find(|s| s.pool.stack_size() == stack_size as usize);
        size.expect("it was borrowed from there").spare.push(carrier);
    }

    /// Gives back the memory of all free carriers but `keep` a size.
    pub(crate) fn trim(&self, keep: usize) {
        let hot = self.own.hot.replace(std::ptr::null_mut());
        if !hot.is_null() {
            self.put_by(hot, self.own.hot_size.get());
        }
        let mut sizes = self.own.sizes.borrow_mut();
        for size in sizes.iter_mut() {
            while size.spare.len() > keep {
                let carrier = size.spare.pop().expect("there are more");
                size.pool.give_back(carrier.end());
                self.counts.stacks.add(u64::MAX);
            }
        }
    }

    /// What was done up to now is no task's.
    pub(crate) fn restart_watch(&self) {
        self.own.watch.iter().for_each(Watch::restart);
    }

    /// The monitor's time, if there is a monitor.
    pub(crate) fn monitor_ns(&self) -> u64 {
        self.own.watch.as_ref().map_or(0, |w| w.now_ns())
    }

    /// For the end of a runtime, when nobody turns its workers: tasks that were sent and did not arrive.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = TaskRef> {
        // SAFETY: only new tasks are left, with the runtime's reference.
        let mail = self.inbox.take().map(|task| unsafe { TaskRef::from_raw(task) });
        mail.chain(std::iter::from_fn(|| self.own.fresh.pop()))
    }

    // ---- its thread

    /// The whole life of a worker with a thread of its own.
    pub(crate) fn run(&self) {
        self.sleep.settle();
        let _here = self.enter();
        let ruin = Ruin;
        loop {
            while self.turn() {}
            if self.inner().is_over() && self.table.tasks().next().is_none() && self.inbox.is_empty() {
                break;
            }
            self.idle();
        }
        self.leave();
        std::mem::forget(ruin);
    }

    /// This thread turns the worker from here on.
    pub(crate) fn enter(&self) -> current::Before {
        let before = current::with(|c| {
            let before = current::Before::of(c);
            c.worker.set(self);
            c.task.set(std::ptr::null());
            c.stamp.set(current::stamp(self.home, 0));
            before
        });
        if let Some(watch) = &self.own.watch {
            watch.restart();
        }
        before
    }

    /// This thread does not turn it any more; at its end.
    pub(crate) fn leave(&self) {
        // Of sets that have left the runtime.
        heavy();
        self.resolve_doubts(true);
        self.trim(0);
        if let Some(watch) = &self.own.watch {
            watch.ended(self.index);
        }
    }

    /// Looks for work, for a moment with the processor busy, then asleep.
    fn idle(&self) {
        let mut hunger = Hunger::new(self);
        let inner = self.inner();
        inner.hunters.fetch_add(1, Ordering::Relaxed);
        let mut found = self.run_timers_and_look();
        while !found && hunger.goes_on() {
            found = self.steal();
        }
        inner.hunters.fetch_sub(1, Ordering::Relaxed);
        if found || !self.inbox.is_empty() || self.steal() {
            // There may be more than we can eat.
            inner.rouse_one();
            self.restart_watch();
            return;
        }
        self.trim(SPARE_MAX);
        let begin_ns = self.own.watch.as_ref().map(|w| w.now_ns());
        self.counts.waits.add(1);
        self.sleep();
        if let (Some(watch), Some(begin_ns)) = (&self.own.watch, begin_ns) {
            watch.waited(self.index, begin_ns);
            watch.restart();
        }
    }

    fn run_timers_and_look(&self) -> bool {
        self.run_timers();
        !self.own.order.is_empty()
    }

    fn sleep(&self) {
        let inner = self.inner();
        // Relaxed: ordered by the fence in `begin`.
        inner.sleepers.fetch_add(1, Ordering::Relaxed);
        self.sleep.begin();
        self.resolve_doubts(true);
        self.heed();
        let awake = !self.inbox.is_empty()
            || !self.own.order.is_empty()
            || !inner.injector.is_empty()
            || inner.workers.iter().any(|w| !w.stealer.is_empty())
            || inner.is_over();
        let due_ns = self.next_due_ns();
        if awake || due_ns.is_some() {
            if !awake {
                self.doze(due_ns.unwrap_or(0));
            }
            if self.sleep.end() {
                inner.sleepers.fetch_sub(1, Ordering::Relaxed);
            } else {
                // Who roused us has counted us as active, and we were all the time.
                inner.rest();
            }
            return;
        }
        let mut judges = inner.rest();
        while !self.sleep.is_over() {
            // Looking for circles, in `rest` or below, may have made a task of ours ready.
            if !self.own.order.is_empty() && self.rouse() {
                break;
            }
            match inner.nap() {
                Some(nap) => {
                    self.sleep.wait(Some(nap));
                    inner.resolve_circles();
                }
                None if judges => {
                    self.sleep.wait(Some(JUDGE_AFTER));
                    judges = false;
                    inner.judge_late();
                }
                None => self.sleep.wait(None),
            }
        }
    }

    /// Sleeps until a timer is due, or somebody has news.
    fn doze(&self, due_ns: u64) {
        let inner = self.inner();
        // Looking for circles may have made a task of ours ready.
        while !self.sleep.is_over() && self.own.order.is_empty() {
            let now_ns = inner.now_ns();
            if now_ns >= due_ns {
                return;
            }
            let left = Duration::from_nanos(due_ns - now_ns);
            match inner.nap() {
                Some(nap) => {
                    self.sleep.wait(Some(nap.min(left)));
                    inner.resolve_circles();
                }
                None => self.sleep.wait(Some(left)),
            }
        }
    }

    // ---- without a thread of its own

    /// For a deterministic runtime, after a turn in which there was nothing to do: whether anything can be found.
    pub(crate) fn look_around(&self) -> bool {
        heavy();
        self.resolve_doubts(true);
        self.heed();
        self.run_timers();
        self.steal();
        !self.own.order.is_empty() || !self.inbox.is_empty()
    }
}

/// Ends the program when it is dropped, which happens while a panic leaves the loop of a worker: its tasks could never go
/// on, and nothing would say so.
pub(crate) struct Ruin;

impl Drop for Ruin {
    fn drop(&mut self) {
        eprintln!(
            "corebeat-lpel: a worker has panicked between two tasks, in its scheduler, its listener, or a destructor"
        );
        std::process::abort();
    }
}

/// A dump may have found the doubt's stream by a task that still says that it waits there, and its ends may be gone.
fn retire(doubt: Kept) {
    // SAFETY: only the worker had it, and items are Send, so any thread may drop it.
    unsafe { limbo::retire(doubt) };
}

/// Set in stamps that are of one dispatch, not of one task.
const DISPATCH_STAMPS: u64 = 1 << 39;

/// How long a worker with nothing to do keeps its processor busy.
pub(crate) struct Hunger<'a> {
    worker: &'a Worker,
    /// Rounds until it looks at the clock.
    rounds: u32,
    /// When it first did.
    begin: Option<Instant>,
}

impl<'a> Hunger<'a> {
    /// The clock takes as long as a few rounds.
    const ROUNDS: u32 = 32;

    pub(crate) fn new(worker: &'a Worker) -> Self {
        Hunger { worker, rounds: Self::ROUNDS, begin: None }
    }

    /// Spins a little. False: there is something to do, or it is time to sleep.
    #[inline]
    pub(crate) fn goes_on(&mut self) -> bool {
        if self.worker.own.spin.is_zero() || !self.worker.is_hungry() || self.rounds == 0 && self.is_over() {
            return false;
        }
        self.rounds -= 1;
        std::hint::spin_loop();
        true
    }

    #[cold]
    fn is_over(&mut self) -> bool {
        self.rounds = Self::ROUNDS;
        self.begin.get_or_insert_with(Instant::now).elapsed() >= self.worker.own.spin
    }
}
