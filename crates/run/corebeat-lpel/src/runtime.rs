//! A runtime: workers, what they share, and the doors for threads that are none of them.

use crate::counter::{Counters, Counts};
use crate::crash;
use crate::current;
use crate::deadlock::{self, Deadlock};
use crate::deque::{Injector, Steal};
use crate::dump::Dump;
use crate::error::{Error, Failure, STACK_MAX, STACK_MIN, WORKERS_MAX};
use crate::monitor::{self, Monitor, Watch};
use crate::placement::{Place, Placement, TaskInfo};
use crate::random::{Random, RandomOrder};
use crate::scheduler::{Fifo, Order, Scheduler};
use crate::task::{
    self, Awaited, Body, CANCEL_DEADLOCK, CANCEL_ENDING, JoinHandle, Plain, Priority, Seed, Status, TaskRef,
};
use crate::worker::{Plan, Ruin, Worker};
use corebeat_sync::asymmetric::light;
use corebeat_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use corebeat_sync::{CachePadded, Condvar, Mutex, MutexGuard, mpsc, thread};
use std::cell::{RefCell, UnsafeCell};
use std::future::Future;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Bytes of a task's stack if nothing is said. Only what is touched takes memory: one page, for most tasks.
pub const STACK_SIZE: usize = 64 << 10;
/// How long a worker looks around before it sleeps: about what waking a thread costs (measured: 6 µs).
const SPIN: Duration = Duration::from_micros(5);
/// More would keep `run` from returning.
const SPIN_MAX: Duration = Duration::from_millis(1);
/// The next number of a task.
static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
/// Numbers are handed to workers in blocks of this size.
const ID_BLOCK: u64 = 256;
/// While a task waits for room on a stream that may grow, an idle worker looks for circles this often.
const CIRCLE_PERIOD: Duration = Duration::from_millis(5);

/// What all parts of a runtime share.
pub(crate) struct Inner {
    pub(crate) workers: Box<[Worker]>,
    me: Weak<Inner>,
    /// Tasks from outside, for whoever comes first.
    pub(crate) injector: Injector<TaskRef>,
    /// Workers that do not sleep for good, and wrappers that do not wait. Who wakes one counts it before it can act, so
    /// at 0 nothing moves unless somebody from outside moves it.
    active: CachePadded<AtomicUsize>,
    /// Workers that sleep, or are about to.
    pub(crate) sleepers: CachePadded<AtomicUsize>,
    /// Workers that look for work.
    pub(crate) hunters: AtomicUsize,
    /// Counts calls to look who is to end early.
    calls: AtomicU64,
    ending: AtomicBool,
    over: AtomicBool,
    verdict: Mutex<Option<Deadlock>>,
    /// What went wrong with tasks that nobody may join, and nobody was told yet.
    untold: Mutex<Option<String>>,
    /// For `run`: changed when nothing moves.
    quiet: Mutex<()>,
    is_quiet: Condvar,
    judging: Mutex<()>,
    /// Calls of `run` that wait.
    runs: AtomicUsize,
    /// One of its tasks has spawned a task of another runtime, or the other way round. Ends that nobody has used yet may be
    /// there from then on, and nobody here can tell what goes on there.
    open: AtomicBool,
    pub(crate) wrappers: Mutex<Vec<TaskRef>>,
    /// Where wrappers are, for those who use the other ends of their streams.
    pub(crate) wrapper_home: u64,
    placement: Option<Mutex<Box<dyn Placement>>>,
    next_worker: AtomicUsize,
    /// Of threads that are no workers.
    outside: Mutex<Counts>,
    growths: AtomicU64,
    /// Tasks that wait for room on a stream that may grow: only while there are any is it worth to look for circles.
    growable: AtomicUsize,
    /// When a busy worker looks for circles again.
    next_look_ns: AtomicU64,
    begin: Instant,
    stack_size: usize,
    /// For the line that says that a stack was too small.
    pub(crate) stack_option: &'static str,
    deterministic: Option<Mutex<Random>>,
    /// The clock of a deterministic runtime.
    virtual_ns: AtomicU64,
}

impl Inner {
    pub(crate) fn keep(&self) -> Arc<Inner> {
        self.me.upgrade().expect("it has tasks, so somebody keeps it")
    }

    pub(crate) fn now_ns(&self) -> u64 {
        match self.deterministic {
            Some(_) => self.virtual_ns.load(Ordering::Relaxed),
            None => u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn new_ids(&self) -> Range<u64> {
        // Relaxed: only unique.
        let first = IDS.fetch_add(ID_BLOCK, Ordering::Relaxed);
        first..first + ID_BLOCK
    }

    pub(crate) fn is_ending(&self) -> bool {
        // Acquire: with what was done before it was said.
        self.ending.load(Ordering::Acquire)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn calls(&self) -> u64 {
        // Acquire: with the marks on tasks that were set before.
        self.calls.load(Ordering::Acquire)
    }

    pub(crate) fn verdict(&self) -> Option<Deadlock> {
        lock(&self.verdict).clone()
    }

    // ---- who moves

    /// A sleeping worker was woken: counted before it runs.
    pub(crate) fn wakes_a_sleeper(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.rouse();
    }

    /// A worker or wrapper will move again.
    pub(crate) fn rouse(&self) {
        self.active.fetch_add(1, Ordering::SeqCst);
    }

    /// A worker or wrapper will not move until it is woken.
    ///
    /// Nothing may move now. A worker that rests looks into that after a while (`judge_late`), because mostly somebody
    /// outside has it move again soon, and looking takes time for each task.
    pub(crate) fn rest(&self) -> bool {
        let last = self.active.fetch_sub(1, Ordering::SeqCst) == 1;
        if last {
            self.quiesce();
        }
        last
    }

    /// Nothing has moved for a while, it seems.
    pub(crate) fn judge_late(&self) {
        if self.active.load(Ordering::SeqCst) == 0 && self.living() > 0 {
            self.judge();
        }
    }

    /// There is work to steal. It was posted before a `light`.
    pub(crate) fn rouse_one(&self) {
        // Relaxed: ordered by the fences, see `worker`. One who looks for work already will find it.
        if self.sleepers.load(Ordering::Relaxed) > 0 && self.hunters.load(Ordering::Relaxed) == 0 {
            let _ = self.workers.iter().any(|w| w.rouse());
        }
    }

    /// A task begins, or ends, to wait for room on a stream that may grow.
    pub(crate) fn count_growable(&self, begins: bool) {
        if !begins {
            self.growable.fetch_sub(1, Ordering::SeqCst);
        } else if self.growable.fetch_add(1, Ordering::SeqCst) == 0 {
            // Workers that sleep do so without end, and now there is something to look for now and then.
            light();
            let _ = self.workers.iter().any(|w| w.rouse());
        }
    }

    /// How long a sleeping worker may sleep before it looks for circles; `None`: there can be none.
    pub(crate) fn nap(&self) -> Option<Duration> {
        (self.growable.load(Ordering::Relaxed) > 0).then_some(CIRCLE_PERIOD)
    }

    pub(crate) fn living(&self) -> u64 {
        let counters = self.counters();
        counters.spawned.saturating_sub(counters.ended)
    }

    #[cold]
    fn quiesce(&self) {
        {
            let _quiet = lock(&self.quiet);
            if self.active.load(Ordering::SeqCst) != 0 {
                return;
            }
            self.is_quiet.notify_all();
        }
        // No worker rests now that could look into it later, or tasks wait for room on a stream that may grow.
        let soon = current::worker().is_none() || self.growable.load(Ordering::Relaxed) > 0;
        if soon && self.living() > 0 {
            self.judge();
        }
    }

    /// Nothing moves, and there are tasks: makes a stream larger, or finds a deadlock. True if something moves now.
    fn judge(&self) -> bool {
        let judging = lock(&self.judging);
        let closed = self.runs.load(Ordering::SeqCst) > 0 && !self.open.load(Ordering::SeqCst);
        let (stuck, all) = deadlock::search(self, closed);
        // Those of an earlier verdict will move.
        let told = stuck.is_told();
        let grown = !told && stuck.grow();
        // Who is not stuck may have any end, also those that others have used before. And somebody from outside may have come
        // in while we looked. Then there is no verdict now.
        let outside_moves = self.deterministic.is_none() && self.active.load(Ordering::SeqCst) != 0;
        // Nor is there one where the last task has ended since somebody saw that nothing moves.
        let judged = !grown && !told && closed && all && !stuck.is_empty() && !outside_moves;
        if judged {
            let verdict = stuck.verdict();
            self.leave_untold(|| verdict.to_string());
            *lock(&self.verdict) = Some(verdict);
            stuck.cancel(CANCEL_DEADLOCK);
        }
        // The lock first: what was left while we looked has destructors.
        drop(judging);
        drop(stuck);
        if grown {
            self.growths.fetch_add(1, Ordering::Relaxed);
        }
        if judged {
            self.call();
        }
        grown || judged
    }

    /// Something has gone wrong with tasks that perhaps nobody joins. The first such thing is told at the end of `run`, or of the
    /// runtime, and not here: the thread that waits for that may hold the lock of the standard error.
    pub(crate) fn leave_untold(&self, what: impl FnOnce() -> String) {
        lock(&self.untold).get_or_insert_with(what);
    }

    fn tell(&self) {
        if let Some(what) = lock(&self.untold).take() {
            // If it is closed, so be it.
            let _ = writeln!(io::stderr(), "corebeat-lpel: {what}");
        }
    }

    /// While others move: makes a stream larger that holds up a circle of tasks. False if there is none.
    pub(crate) fn resolve_circles(&self) -> bool {
        if self.growable.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let Ok(_judging) = self.judging.try_lock() else { return false };
        let grown = deadlock::search(self, false).0.grow();
        if grown {
            self.growths.fetch_add(1, Ordering::Relaxed);
        }
        grown
    }

    /// The same, for a worker that has other things to do: where all are busy, nobody else looks.
    pub(crate) fn resolve_circles_sparingly(&self) {
        /// Of the time, it takes at most one part in so many.
        const SPARINGLY: u64 = 50;
        if self.growable.load(Ordering::Relaxed) == 0 {
            return;
        }
        let begin_ns = self.now_ns();
        // Relaxed: at worst, two look.
        if begin_ns < self.next_look_ns.load(Ordering::Relaxed) {
            return;
        }
        self.resolve_circles();
        let end_ns = self.now_ns();
        let pause_ns = (SPARINGLY * (end_ns - begin_ns)).max(CIRCLE_PERIOD.as_nanos() as u64);
        self.next_look_ns.store(end_ns + pause_ns, Ordering::Relaxed);
    }

    /// Has every worker and wrapper look who is to end early.
    fn call(&self) {
        // Release: after the marks.
        self.calls.fetch_add(1, Ordering::Release);
        light();
        for worker in &self.workers {
            worker.rouse();
        }
        for wrapper in lock(&self.wrappers).iter() {
            current::nudge(wrapper);
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters { growths: self.growths.load(Ordering::Relaxed), ..Counters::default() };
        // What has ended first: so it is never more than what was spawned.
        for worker in &self.workers {
            sum.ended += worker.counts.ended.get();
        }
        let ended = sum.ended + lock(&self.outside).ended.get();
        for worker in &self.workers {
            worker.counts.add_to(&mut sum);
        }
        lock(&self.outside).add_to(&mut sum);
        sum.ended = ended;
        sum
    }

    // ---- new tasks

    /// A task is about to be spawned here, by whoever runs: if by a task of another runtime, the two belong together.
    fn open_to_spawner(&self) {
        if current::worker().is_some_and(|w| std::ptr::eq(w.inner(), self)) {
            return;
        }
        if let Some(other) = current::runtime().filter(|other| !std::ptr::eq(&**other, self)) {
            self.open.store(true, Ordering::SeqCst);
            other.open.store(true, Ordering::SeqCst);
        }
    }

    fn spawn<T: Send + 'static, B: Body<T>>(&self, task: &Task<'_>, body: B) -> Result<JoinHandle<T>, Error> {
        let here = current::worker().filter(|w| std::ptr::eq(w.inner(), self));
        let id = match here {
            Some(worker) => worker.new_id(),
            None => IDS.fetch_add(1, Ordering::Relaxed),
        };
        let workers = self.workers.len();
        let place = match (task.worker, &self.placement) {
            (Some(asked), _) if asked >= workers => return Err(Error::NoSuchWorker { asked, workers }),
            (Some(worker), _) => Place::Worker(worker),
            (None, Some(placement)) => {
                let priority = task.priority.unwrap_or_default();
                let spawner = here.map(|w| w.index);
                let info = TaskInfo { id, name: task.name.as_deref(), priority, spawner };
                match lock(placement).place(&info, workers) {
                    Place::Worker(asked) if asked >= workers => {
                        return Err(Error::NoSuchWorker { asked, workers });
                    }
                    place => place,
                }
            }
            (None, None) => Place::Anywhere,
        };
        let stack_size = check_stack_size(task.stack_size.unwrap_or(self.stack_size))?;
        let stealable = place == Place::Anywhere && task.priority.is_none();
        let seed = Seed {
            id,
            name: task.name.clone(),
            priority: task.priority.unwrap_or_default(),
            stack_size: stack_size as u32,
            stealable,
            marked: task.marked,
            created_ns: here.map_or(0, |w| w.monitor_ns()),
        };
        let (new, handle) = task::create(seed, body).ok_or(Error::NoMemory)?;
        if self.is_ending() {
            task::end_unstarted(new);
            return Ok(handle);
        }
        match (place, here) {
            (Place::Anywhere, Some(worker)) => worker.adopt(new),
            (Place::Worker(to), Some(worker)) if to == worker.index => worker.adopt(new),
            (Place::Worker(to), _) => {
                self.count_spawned(here);
                self.workers[to].send(new.into_raw());
            }
            (Place::Anywhere, None) if stealable && workers > 1 => {
                self.count_spawned(None);
                self.injector.push(new);
                light();
                self.rouse_one();
            }
            (Place::Anywhere, None) => {
                self.count_spawned(None);
                let to = self.next_worker.fetch_add(1, Ordering::Relaxed) % workers;
                self.workers[to].send(new.into_raw());
            }
        }
        Ok(handle)
    }

    fn count_spawned(&self, here: Option<&Worker>) {
        match here {
            Some(worker) => worker.counts.spawned.add(1),
            None => lock(&self.outside).spawned.add(1),
        }
    }

    fn spawn_wrapper<T: Send + 'static>(
        &self,
        task: &Task<'_>,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        let stack_size = task.stack_size.map(check_stack_size).transpose()?;
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let seed = Seed {
            id,
            name: task.name.clone(),
            priority: Priority::default(),
            stack_size: 0,
            stealable: false,
            marked: false,
            created_ns: 0,
        };
        let (new, handle) = task::create(seed, Plain(f)).ok_or(Error::NoMemory)?;
        if self.is_ending() {
            task::end_unstarted(new);
            return Ok(handle);
        }
        let inner = self.keep();
        // A thread's name ends at a NUL.
        let thread_name = task.name.as_deref().unwrap_or("lpel wrapper").replace('\0', "?");
        let mut builder = thread::Builder::new().name(thread_name);
        if let Some(stack_size) = stack_size {
            builder = builder.stack_size(stack_size);
        }
        lock(&self.outside).spawned.add(1);
        self.rouse();
        let name = task.name.clone();
        let spawned = builder.spawn(move || {
            let me = current::become_wrapper(inner.clone(), name, id);
            lock(&inner.wrappers).push(me.clone());
            if inner.is_ending() {
                me.header().cancel.store(CANCEL_ENDING, Ordering::Release);
            }
            // SAFETY: this thread is the one that runs it.
            unsafe { task::run(new.as_ptr()) };
            lock(&inner.wrappers).retain(|w| w.as_ptr() != me.as_ptr());
            me.header().locals.clear();
            me.header().set_status(Status::Zombie);
            task::publish_end(new.header());
            lock(&inner.outside).ended.add(1);
            inner.rest();
        });
        match spawned {
            Ok(_) => Ok(handle),
            Err(source) => {
                lock(&self.outside).ended.add(1);
                self.rest();
                Err(Error::Thread { what: "a wrapper".into(), source })
            }
        }
    }

    // ---- without threads

    /// Turns all workers, in an order drawn from the seed, until no task is left.
    fn drive(&self, random: &Mutex<Random>) {
        /// While all wait for threads outside, it looks this often whether there is news.
        const OUTSIDE_PERIOD: Duration = Duration::from_micros(100);
        /// A turn takes so much of virtual time: else who yields until a point in time would stop the clock.
        const TURN_NS: u64 = 100;
        let mut random = lock(random);
        let ruin = Ruin;
        let workers = &self.workers;
        let turn = |worker: &Worker, f: fn(&Worker) -> bool| {
            let _here = worker.enter();
            f(worker)
        };
        let mut idle = 0;
        loop {
            let worker = &workers[random.below(workers.len())];
            let now_ns = self.virtual_ns.load(Ordering::Relaxed);
            self.virtual_ns.store(now_ns.saturating_add(TURN_NS), Ordering::Relaxed);
            idle = if turn(worker, Worker::turn) { 0 } else { idle + 1 };
            if idle < 2 * workers.len() {
                continue;
            }
            if workers.iter().any(|w| turn(w, Worker::look_around)) {
                idle = 0;
                continue;
            }
            if let Some(due_ns) = workers.iter().filter_map(|w| w.next_due_ns()).min() {
                if self.resolve_circles() {
                    idle = 0;
                    continue;
                }
                self.virtual_ns.fetch_max(due_ns, Ordering::Relaxed);
                idle = 0;
                continue;
            }
            if self.living() == 0 {
                break;
            }
            if !self.judge() {
                std::thread::sleep(OUTSIDE_PERIOD);
            }
            idle = 0;
        }
        // Another thread may be the next to turn them, and what has run on a stack belongs to this one.
        for worker in workers {
            let _here = worker.enter();
            worker.trim(0);
        }
        std::mem::forget(ruin);
    }
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind our locks is whole between any two statements.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Workers, and the tasks on them.
///
/// Dropping it ends all tasks: those that have not started never do, those that wait are unwound where they wait, and
/// those that run are waited for. Wrappers end in the same way, but are not waited for: they may be in a system call. A
/// runtime may be dropped inside one of its own tasks, and then nothing is waited for.
pub struct Runtime {
    inner: Arc<Inner>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Runtime {
    /// One worker for each CPU that this process may use, each bound to its own.
    ///
    /// # Errors
    ///
    /// A thread could not be started or bound.
    pub fn new() -> Result<Runtime, Error> {
        Runtime::builder().build()
    }

    /// A runtime with parameters.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Runs `f` as a task, and returns its result when no task of this runtime is left.
    ///
    /// Tasks that wait here are expected to wait for tasks and wrappers of this runtime, or for others that have used their end
    /// of a stream already. If all that is left waits for each other, that is a deadlock: those tasks are unwound, and each has
    /// [`Failure::Deadlock`], with a list of who waits for what. A line on the standard error tells it as well: `f` itself may
    /// have ended well, and nobody join the others. Where tasks of this runtime have spawned tasks of another, or were spawned by
    /// such, any end may be over there: then they wait on, and [`Runtime::dump`] tells for what.
    ///
    /// # Errors
    ///
    /// Why `f` has no result.
    ///
    /// # Panics
    ///
    /// If it is called inside a task, or a wrapper of this runtime; also if the task cannot be spawned, see [`Task::spawn`].
    pub fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
        let inner = &*self.inner;
        let is_ours = |own: Arc<Inner>| std::ptr::eq(&*own, inner);
        assert!(
            current::worker().is_none() && !current::runtime().is_some_and(is_ours),
            "Runtime::run was called inside a task: use spawn and join there"
        );
        inner.runs.fetch_add(1, Ordering::SeqCst);
        let handle = self.task().spawn(f).unwrap_or_else(|why| {
            inner.runs.fetch_sub(1, Ordering::SeqCst);
            panic!("{why}")
        });
        match &inner.deterministic {
            Some(random) => inner.drive(random),
            None => {
                let mut quiet = lock(&inner.quiet);
                while inner.active.load(Ordering::SeqCst) != 0 || inner.living() != 0 {
                    quiet = inner.is_quiet.wait(quiet).unwrap_or_else(|e| e.into_inner());
                }
            }
        }
        inner.runs.fetch_sub(1, Ordering::SeqCst);
        inner.tell();
        handle.join()
    }

    /// Spawns a task, from any thread.
    ///
    /// # Panics
    ///
    /// If there is no memory for it; [`Task::spawn`] returns that as an error.
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.task().spawn(f).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Spawns an async task, from any thread.
    ///
    /// # Panics
    ///
    /// As [`Runtime::spawn`].
    pub fn spawn_async<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.task().spawn_async(future).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A task with parameters.
    pub fn task(&self) -> Task<'_> {
        Task { runtime: Some(&self.inner), ..Task::default() }
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }

    /// What every task does or waits for now. It stops nobody, waits for no task or worker, and works while those are stuck.
    /// Only one looks at a time.
    pub fn dump(&self) -> Dump {
        Dump::of(&self.inner)
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.inner.workers.len()
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runtime({} workers)", self.workers())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let inner = &*self.inner;
        inner.ending.store(true, Ordering::SeqCst);
        for wrapper in lock(&inner.wrappers).iter() {
            wrapper.header().cancel.store(CANCEL_ENDING, Ordering::Release);
        }
        inner.over.store(true, Ordering::SeqCst);
        inner.call();
        match &inner.deterministic {
            Some(random) => {
                inner.drive(random);
                for worker in &inner.workers {
                    let _here = worker.enter();
                    worker.leave();
                }
            }
            // Here the thread of a worker would wait for itself. All ends without it, this task included.
            None => match current::worker().filter(|w| std::ptr::eq(w.inner(), inner)) {
                Some(own) => own.heed(),
                None => self.threads.drain(..).for_each(|thread| drop(thread.join())),
            },
        }
        inner.tell();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let homes = self.workers.iter().map(|w| w.home());
        homes.chain([self.wrapper_home]).for_each(current::give_home_back);
        for worker in &self.workers {
            // Sent while the workers were ending.
            worker.unsent().for_each(task::end_unstarted);
        }
        while let Steal::Success(task) = self.injector.steal() {
            task::end_unstarted(task);
        }
    }
}

/// Makes a scheduler for a worker.
type MakeScheduler = Box<dyn Fn(usize) -> Box<dyn Scheduler>>;

/// The parameters of a runtime.
#[derive(Default)]
pub struct Builder {
    workers: Option<usize>,
    cpus: Option<Vec<usize>>,
    pin: Option<bool>,
    stack_size: Option<usize>,
    stack_option: Option<&'static str>,
    spin: Option<Duration>,
    scheduler: Option<MakeScheduler>,
    placement: Option<Box<dyn Placement>>,
    monitor: Option<Arc<dyn Monitor>>,
    seed: Option<u64>,
}

impl Builder {
    /// How many workers, from 1 to [`WORKERS_MAX`]: one a CPU if nothing is said.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Which CPUs the workers are bound to, by the system's numbers, in turn: those of this process if nothing is said.
    pub fn cpus(mut self, cpus: impl Into<Vec<usize>>) -> Self {
        self.cpus = Some(cpus.into());
        self
    }

    /// Whether workers are bound to CPUs. If nothing is said, they are if CPUs were given, or there is a worker for each.
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Bytes of a task's stack where the task does not say: from [`STACK_MIN`] to [`STACK_MAX`]; [`STACK_SIZE`] if
    /// nothing is said.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// What a user gives tasks larger stacks with, such as `--stack`, for the line that says that a task has overflowed its
    /// stack: `stack_size` if nothing is said.
    pub fn stack_option(mut self, name: &'static str) -> Self {
        self.stack_option = Some(name);
        self
    }

    /// How long a worker with nothing to do looks around before it sleeps, at most a millisecond: 5 µs if nothing is said, and
    /// not at all where there is one worker, or are more than CPUs.
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = Some(time);
        self
    }

    /// In which order a worker runs its ready tasks: [`Fifo`] if nothing is said. Called with each worker's number.
    pub fn scheduler(mut self, make: impl Fn(usize) -> Box<dyn Scheduler> + 'static) -> Self {
        self.scheduler = Some(Box::new(make));
        self
    }

    /// Where new tasks go: [`Nearby`](crate::placement::Nearby) if nothing is said.
    pub fn placement(mut self, placement: impl Placement + 'static) -> Self {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Who listens to what tasks and workers do.
    pub fn monitor(mut self, monitor: impl Monitor + 'static) -> Self {
        self.monitor = Some(Arc::new(monitor));
        self
    }

    /// No threads: [`Runtime::run`] turns all workers on the calling thread, in an order drawn from `seed`, and each
    /// worker runs its ready tasks in an order drawn from it, unless a scheduler was given. The same seed gives the same
    /// run. Time is virtual: each turn takes 100 ns of it, and it goes on to the next timer when all wait. Wrappers are ordinary tasks. Tasks move during
    /// `run` only, so joining one from outside before that waits for ever.
    pub fn deterministic(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    ///
    /// A parameter is out of its range, or a thread could not be started or bound.
    pub fn build(self) -> Result<Runtime, Error> {
        let allowed = allowed_cpus();
        let cpus = match &self.cpus {
            Some(cpus) if cpus.is_empty() => return Err(Error::NoCpus),
            Some(cpus) => cpus.clone(),
            None => allowed.clone(),
        };
        let workers = self.workers.unwrap_or(if self.seed.is_some() { 2 } else { cpus.len() });
        match workers {
            0 => return Err(Error::NoWorkers),
            asked if asked > WORKERS_MAX => return Err(Error::TooManyWorkers { asked }),
            _ => {}
        }
        let stack_size = check_stack_size(self.stack_size.unwrap_or(STACK_SIZE))?;
        crash::install();
        // Chooses its way before it matters.
        corebeat_sync::asymmetric::heavy();
        let pin = self.pin.unwrap_or(self.cpus.is_some() || workers == cpus.len());
        let spin = match self.spin {
            _ if self.seed.is_some() => Duration::ZERO,
            Some(spin) => spin.min(SPIN_MAX),
            None if workers <= allowed.len() && workers > 1 => SPIN,
            None => Duration::ZERO,
        };
        let monitor_clock = self.monitor.as_ref().map(|_| monitor::clock());
        let begin = monitor_clock.as_ref().map_or(0, |c| c.raw());
        let random = self.seed.map(Random::new);
        let plan = |index: usize| Plan {
            index,
            order: match (&self.scheduler, &random) {
                (Some(make), _) => Order::Other(RefCell::new(make(index))),
                (None, Some(random)) => {
                    let order = RandomOrder::new(random.fork(index as u64));
                    Order::Other(RefCell::new(Box::new(order)))
                }
                (None, None) => Order::Fifo(UnsafeCell::new(Fifo::default())),
            },
            watch: self
                .monitor
                .as_ref()
                .zip(monitor_clock.clone())
                .map(|(monitor, clock)| Watch::new(&**monitor, index, clock, begin)),
            spin,
        };
        let threads_of_own = self.seed.is_none();
        let inner = Arc::new_cyclic(|me| Inner {
            workers: (0..workers).map(|index| Worker::new(plan(index))).collect(),
            me: me.clone(),
            injector: Injector::new(),
            active: CachePadded::new(AtomicUsize::new(if threads_of_own { workers } else { 0 })),
            sleepers: CachePadded::new(AtomicUsize::new(0)),
            hunters: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            over: AtomicBool::new(false),
            verdict: Mutex::new(None),
            untold: Mutex::new(None),
            quiet: Mutex::new(()),
            is_quiet: Condvar::new(),
            judging: Mutex::new(()),
            runs: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            wrappers: Mutex::default(),
            wrapper_home: current::new_home(),
            placement: self.placement.map(Mutex::new),
            next_worker: AtomicUsize::new(0),
            outside: Mutex::new(Counts::default()),
            growths: AtomicU64::new(0),
            growable: AtomicUsize::new(0),
            next_look_ns: AtomicU64::new(0),
            begin: Instant::now(),
            stack_size,
            stack_option: self.stack_option.unwrap_or(crash::STACK_OPTION),
            deterministic: random.clone().map(Mutex::new),
            virtual_ns: AtomicU64::new(0),
        });
        for worker in &inner.workers {
            worker.attach(Arc::as_ptr(&inner));
        }
        let mut runtime = Runtime { inner, threads: Vec::new() };
        if threads_of_own {
            for index in 0..workers {
                let cpu = pin.then(|| cpus[index % cpus.len()]);
                let started = start(&runtime.inner, index, cpu);
                match started {
                    Ok(thread) => runtime.threads.push(thread),
                    Err(why) => {
                        // Those that were not started do not count, and those that were end with the runtime.
                        for _ in index..workers {
                            runtime.inner.rest();
                        }
                        return Err(why);
                    }
                }
            }
        }
        Ok(runtime)
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Builder({:?} workers)", self.workers)
    }
}

fn check_stack_size(asked: usize) -> Result<usize, Error> {
    match asked {
        _ if asked < STACK_MIN => Err(Error::StackTooSmall { asked }),
        _ if asked > STACK_MAX => Err(Error::StackTooLarge { asked }),
        _ => Ok(asked),
    }
}

/// Starts a worker's thread, and waits until it is where it should be.
fn start(inner: &Arc<Inner>, index: usize, cpu: Option<usize>) -> Result<thread::JoinHandle<()>, Error> {
    let (tell, told) = mpsc::channel();
    let own = inner.clone();
    let body = move || {
        let bound = cpu.map_or(Ok(()), bind);
        let fine = bound.is_ok();
        let _ = tell.send(bound);
        if fine {
            own.workers[index].run();
        }
    };
    let thread = thread::Builder::new()
        .name(format!("lpel {index}"))
        .spawn(body)
        .map_err(|source| Error::Thread { what: format!("worker {index}"), source })?;
    match told.recv() {
        Ok(Err(source)) => Err(Error::Pin { worker: index, cpu: cpu.unwrap_or(0), source }),
        _ => Ok(thread),
    }
}

/// The CPUs that this process may use.
fn allowed_cpus() -> Vec<usize> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // SAFETY: a set of bits, which the call fills.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let size = std::mem::size_of_val(&set);
            (libc::sched_getaffinity(0, size, &mut set) == 0).then_some(set)
        };
        if let Some(set) = set {
            let last = libc::CPU_SETSIZE as usize;
            // SAFETY: the number is within the set.
            let cpus: Vec<_> = (0..last).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect();
            if !cpus.is_empty() {
                return cpus;
            }
        }
    }
    (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect()
}

/// Binds this thread to a CPU.
fn bind(cpu: usize) -> io::Result<()> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: a set of bits with room for this number, which the call only reads.
        let bound = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set)
        };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let _ = cpu;
    Ok(())
}

/// A task that is going to be spawned.
///
/// ```
/// use corebeat_lpel::{Priority, Runtime, Task};
///
/// let runtime = Runtime::new()?;
/// let answer = runtime.run(|| {
///     let deep = Task::new().name("deep").stack_size(1 << 20).priority(Priority::LOW);
///     deep.spawn(|| 42).unwrap().join().unwrap()
/// });
/// assert_eq!(answer.unwrap(), 42);
/// # Ok::<(), corebeat_lpel::Error>(())
/// ```
#[derive(Default, Clone)]
pub struct Task<'a> {
    runtime: Option<&'a Inner>,
    name: Option<Arc<str>>,
    stack_size: Option<usize>,
    priority: Option<Priority>,
    worker: Option<usize>,
    wrapper: bool,
    marked: bool,
}

impl Task<'_> {
    /// Of the runtime whose task the caller is.
    pub fn new() -> Task<'static> {
        Task::default()
    }

    /// What it is called, in dumps and logs. Tasks of one name are of one kind, for placements. An empty name is none.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into()).filter(|name| !name.is_empty());
        self
    }

    /// Bytes of its stack, from [`STACK_MIN`] to [`STACK_MAX`].
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// How urgent it is, for [`Prioritised`](crate::scheduler::Prioritised). Such a task stays on its spawner's worker, unless it is
    /// placed.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The worker that it runs on, counted from 0.
    pub fn worker(mut self, worker: usize) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Gives it a thread of its own, bound to no CPU, so that it may call what blocks the thread. It uses streams like any
    /// other. Its stack is a thread's; a worker and a priority have no meaning for it. It ends with its closure: destructors of
    /// its `thread_local!` data run later, and cannot wait.
    pub fn wrapper(mut self) -> Self {
        self.wrapper = true;
        self
    }

    /// Marks it for the monitor: see [`Level`](crate::monitor::Level).
    pub fn mark(mut self) -> Self {
        self.marked = true;
        self
    }

    fn with<R>(&self, f: impl FnOnce(&Inner) -> Result<R, Error>) -> Result<R, Error> {
        match (self.runtime, current::worker()) {
            (Some(inner), _) => {
                inner.open_to_spawner();
                f(inner)
            }
            (None, Some(worker)) => f(worker.inner()),
            (None, None) => f(&*current::runtime().ok_or(Error::NoRuntime)?),
        }
    }

    /// Spawns it. A panic in it ends it, and reaches who joins it. If its runtime is being dropped it never runs: who joins
    /// it has [`Failure::Cancelled`].
    ///
    /// # Errors
    ///
    /// A parameter is out of its range, there is no memory or (for a wrapper) no thread, or this is no task's.
    pub fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        self.with(|inner| {
            if self.wrapper && inner.deterministic.is_none() {
                inner.spawn_wrapper(self, f)
            } else {
                inner.spawn(self, Plain(f))
            }
        })
    }

    /// Spawns an async task. It holds no stack while it awaits; what blocks inside it keeps a borrowed one meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Task::spawn`]; or it was to be a wrapper.
    pub fn spawn_async<F>(&self, future: F) -> Result<JoinHandle<F::Output>, Error>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if self.wrapper {
            return Err(Error::AsyncWrapper);
        }
        self.with(|inner| inner.spawn(self, Awaited(future)))
    }
}

impl std::fmt::Debug for Task<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({:?})", self.name)
    }
}

/// Spawns a task of the same runtime, inside a task.
///
/// # Panics
///
/// If the caller is no task, or there is no memory; [`Task::spawn`] returns these as errors.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Task::new().spawn(f).unwrap_or_else(|e| panic!("{e}"))
}

/// Spawns an async task of the same runtime, inside a task.
///
/// # Panics
///
/// As [`spawn`].
pub fn spawn_async<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Task::new().spawn_async(future).unwrap_or_else(|e| panic!("{e}"))
}

/// What every task of the calling task's runtime does or waits for now; `None` outside a task.
pub fn dump() -> Option<Dump> {
    current::runtime().map(|inner| Dump::of(&inner))
}

/// Lets others run first. On a thread that is no task, this is the system's.
///
/// In a task that is to end early it does not return.
pub fn yield_now() {
    if !current::is_task() {
        thread::yield_now();
    } else if current::may_block() {
        current::yield_task();
    }
    current::may_block();
}

/// Waits: the task, or the thread if it is none. Not at all if the caller is unwinding. An async task keeps its stack
/// meanwhile.
pub fn sleep(time: Duration) {
    if !current::may_block() {
        return;
    }
    if !current::is_task() {
        current::sleep_thread(time);
    } else {
        current::sleep_task(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
    current::may_block();
}

/// Whether what `catch_unwind` has caught is no panic, but the end of the task: by [`exit`], or because its runtime ends it.
/// Who catches panics inside a task passes this on with [`resume_unwind`](std::panic::resume_unwind).
pub fn ends_task(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<task::Unwind>()
}

/// Ends the running task: its stack is unwound, and who joins it has [`Failure::Exited`].
///
/// # Panics
///
/// Outside a task.
pub fn exit() -> ! {
    assert!(current::is_task_or_wrapper(), "exit was called outside a task: return instead");
    std::panic::resume_unwind(Box::new(task::Unwind::Exit))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn judging_where_the_last_task_has_just_ended_finds_no_deadlock() {
        let runtime = Runtime::builder().workers(1).deterministic(1).build().unwrap();
        // As in a `run` that is about to see its end.
        runtime.inner.runs.fetch_add(1, Ordering::SeqCst);
        assert!(!runtime.inner.judge());
        assert!(runtime.inner.verdict().is_none() && lock(&runtime.inner.untold).is_none());
        runtime.inner.runs.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(runtime.run(|| 1).unwrap(), 1);
    }

    #[test]
    fn ends_that_a_task_of_another_runtime_has_not_used_yet_are_no_deadlock() {
        let build = || Runtime::builder().workers(1).build().unwrap();
        let (one, two) = (build(), Arc::new(build()));
        let (free, held) = mpsc::channel::<()>();
        // The other runtime does not get round to its task before it is let.
        let holds = two.spawn(move || held.recv());
        let got = std::thread::scope(|s| {
            let run = s.spawn(|| {
                let two = two.clone();
                one.run(move || {
                    let (mut to, from_here) = crate::stream(1);
                    let (mut back, mut from_there) = crate::stream(1);
                    let there = two.spawn(move || back.write(from_here.sum::<u32>()).is_ok());
                    let here = spawn(move || from_there.read());
                    let wrote = to.write(1).is_ok() && to.write(2).is_ok();
                    drop(to);
                    (wrote, here.join(), there.join())
                })
            });
            let inner = &*one.inner;
            while !run.is_finished() && (inner.living() < 2 || inner.active.load(Ordering::SeqCst) != 0) {
                std::thread::yield_now();
            }
            let judged = inner.judge();
            free.send(()).unwrap();
            (judged, run.join().unwrap())
        });
        assert!(holds.join().unwrap().is_ok());
        let (judged, result) = got;
        let (wrote, here, there) = result.unwrap();
        assert_eq!((judged, wrote, here.unwrap(), there.unwrap()), (false, true, Some(3), true));
    }
}
