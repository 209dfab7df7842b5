//! Runtimes: the workers, the state that they share, and functions for threads and tasks.

use crate::activity::Activity;
use crate::blocking::BlockingTasks;
use crate::builder::Builder;
use crate::cancel::Cancellation;
use crate::clock::Clock;
use crate::counter::{Counters, Counts};
use crate::current;
use crate::deque::{Injector, Steal};
use crate::detector::Detector;
use crate::deterministic::Driver;
use crate::dump::Dump;
use crate::error::{Error, Failure, assert_not_forked};
use crate::placement::Placement;
use crate::scope::Scope;
use crate::spawn::Task;
use crate::task::{self, JoinHandle, Unended};
use crate::worker::{Worker, WorkerConfig};
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::fork::Process;
use corebeat_sync::{Mutex, lock, thread};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Next number of a task.
static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
/// Workers receive numbers in blocks of this size.
const ID_BLOCK: u64 = 256;

/// Existing runtimes, by number.
static RUNTIMES: std::sync::Mutex<BTreeMap<u32, Weak<Inner>>> =
    std::sync::Mutex::new(BTreeMap::new());

fn runtimes() -> std::sync::MutexGuard<'static, BTreeMap<u32, Weak<Inner>>> {
    RUNTIMES.lock().unwrap_or_else(|e| e.into_inner())
}

/// State that all parts of a runtime share.
pub(crate) struct Inner {
    /// Unique among existing runtimes.
    pub(crate) number: u32,
    /// The process that has the threads of the workers.
    pub(crate) process: Process,
    pub(crate) workers: Box<[Worker]>,
    me: Weak<Inner>,
    /// Tasks that threads outside spawned, for any worker.
    pub(crate) injector: Injector<Unended>,
    pub(crate) activity: Activity,
    pub(crate) cancellation: Cancellation,
    pub(crate) detector: Detector,
    pub(crate) blocking: BlockingTasks,
    pub(crate) clock: Clock,
    pub(crate) placement: Option<Mutex<Box<dyn Placement>>>,
    /// Random numbers that order the steps of a deterministic runtime.
    pub(crate) deterministic: Option<Mutex<Driver>>,
    pub(crate) stack_size: usize,
    /// Name of the option that enlarges stacks, for the message about a stack overflow.
    pub(crate) stack_option: &'static str,
    /// CPUs that the thread which built the runtime may use.
    pub(crate) cpus: Vec<usize>,
    /// Whether each worker is pinned to one of its CPUs.
    pub(crate) is_pinned: bool,
    next_worker: AtomicUsize,
    /// Counts of threads that are no workers.
    outside: Mutex<Counts>,
}

/// Parameters of a runtime beside those of its workers.
pub(crate) struct Settings {
    pub(crate) deterministic: Option<Rng>,
    pub(crate) placement: Option<Box<dyn Placement>>,
    pub(crate) stack_size: usize,
    pub(crate) stack_option: &'static str,
    pub(crate) cpus: Vec<usize>,
    pub(crate) is_pinned: bool,
}

impl Inner {
    /// Returns whether the caller is a task of this runtime.
    pub(crate) fn is_current(&self) -> bool {
        match current::worker() {
            Some(worker) => std::ptr::eq(worker.inner(), self),
            None => current::runtime().is_some_and(|runtime| std::ptr::eq(&*runtime, self)),
        }
    }

    pub(crate) fn new(configs: Vec<WorkerConfig>, settings: Settings) -> Arc<Inner> {
        let is_deterministic = settings.deterministic.is_some();
        let active = if is_deterministic { 0 } else { configs.len() };
        let mut runtimes = runtimes();
        let number = runtimes.last_key_value().map_or(1, |(last, _)| last.wrapping_add(1));
        let inner = Arc::new_cyclic(|me| Inner {
            number,
            process: Process::current(),
            workers: configs.into_iter().map(|config| Worker::new(config, me.as_ptr())).collect(),
            me: me.clone(),
            injector: Injector::new(),
            activity: Activity::new(active),
            cancellation: Cancellation::default(),
            detector: Detector::new(),
            blocking: BlockingTasks::new(),
            cpus: settings.cpus,
            is_pinned: settings.is_pinned,
            clock: Clock::new(is_deterministic),
            placement: settings.placement.map(Mutex::new),
            deterministic: settings.deterministic.map(|random| Mutex::new(Driver::new(random))),
            stack_size: settings.stack_size,
            stack_option: settings.stack_option,
            next_worker: AtomicUsize::new(0),
            outside: Mutex::new(Counts::default()),
        });
        runtimes.insert(number, Arc::downgrade(&inner));
        drop(runtimes);
        for worker in &inner.workers {
            worker.idleness.begin(&inner);
        }
        inner
    }

    pub(crate) fn to_arc(&self) -> Arc<Inner> {
        self.me.upgrade().expect("a running task keeps its runtime alive")
    }

    /// Returns the runtime with this number, if it still exists.
    pub(crate) fn with_number(number: u32) -> Option<Arc<Inner>> {
        runtimes().get(&number)?.upgrade()
    }

    /// Returns a number for a task that is spawned outside the workers.
    pub(crate) fn new_id() -> u64 {
        // Relaxed: numbers only have to be unique.
        IDS.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns numbers for tasks of a worker.
    pub(crate) fn new_ids() -> Range<u64> {
        // Relaxed: numbers only have to be unique.
        let first = IDS.fetch_add(ID_BLOCK, Ordering::Relaxed);
        first..first + ID_BLOCK
    }

    /// Returns the next worker in turn, for tasks without a place.
    pub(crate) fn next_worker(&self) -> usize {
        self.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers.len()
    }

    /// Counts a task that `spawner` spawned, or a thread outside.
    pub(crate) fn count_spawned(&self, spawner: Option<&Worker>) {
        match spawner {
            Some(worker) => worker.counts.spawned.add(1),
            None => lock(&self.outside).spawned.add(1),
        }
    }

    /// Counts a task that ended on a thread that is no worker.
    pub(crate) fn count_ended_outside(&self) {
        lock(&self.outside).ended.add(1);
    }

    /// Number of tasks that were spawned and have not ended.
    pub(crate) fn living(&self) -> u64 {
        let counters = self.counters();
        counters.spawned.saturating_sub(counters.ended)
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters { growths: self.detector.growths(), ..Counters::default() };
        // Ended tasks are read first, so that their number never exceeds that of spawned tasks.
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
}

/// A set of workers, and the tasks on them.
///
/// Dropping a runtime ends all its tasks: tasks that have not started never run, waiting tasks are
/// unwound where they wait, and the drop waits for running tasks. Blocking tasks end in the same
/// way, but the drop does not wait for them, because they may be in a system call. A task may drop
/// its own runtime; then the drop waits for no task.
///
/// In a child of fork, an inherited runtime has no threads: functions that return a `Result` fail
/// with [`Error::Forked`] or [`Failure::Forked`], other functions panic, and a drop leaks the
/// runtime.
pub struct Runtime {
    inner: Arc<Inner>,
    pub(crate) threads: Vec<thread::JoinHandle<()>>,
}

impl Runtime {
    /// Builds a runtime with one worker per CPU that this process may use, each pinned to its CPU.
    ///
    /// # Errors
    ///
    /// A thread cannot be started or pinned.
    pub fn new() -> Result<Runtime, Error> {
        Runtime::builder().build()
    }

    /// Returns default parameters for a runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn of(inner: Arc<Inner>) -> Runtime {
        Runtime { inner, threads: Vec::new() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Runs `f` as a task, waits until no task of this runtime is left, and returns the result of
    /// `f`. On a runtime that several networks share, [`Runtime::scope`] waits for one of them.
    ///
    /// `run` assumes that waiting tasks wait for tasks of this runtime, or for others that have
    /// used their end of a stream already. If all remaining tasks wait for each other, they are in
    /// a deadlock: `run` unwinds them, and each fails with [`Failure::Deadlock`], which lists the
    /// tasks and what they wait for. A line on the standard error reports the deadlock as well,
    /// because `f` may have returned and the other tasks may have no joiner.
    ///
    /// If tasks of this runtime have spawned tasks of another runtime, or the reverse, the other
    /// runtime may own any end. Then waiting tasks continue to wait, and [`Runtime::dump`] shows
    /// what they wait for.
    ///
    /// # Errors
    ///
    /// The reason why `f` has no result.
    ///
    /// # Panics
    ///
    /// Panics in a task, and in a blocking task of this runtime. Panics if the task cannot be
    /// spawned, see [`Task::spawn`].
    pub fn run<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let inner = &*self.inner;
        if !inner.process.is_current() {
            return Err(Failure::Forked);
        }
        let is_this = |other: Arc<Inner>| std::ptr::eq(&*other, inner);
        assert!(
            current::worker().is_none() && !current::runtime().is_some_and(is_this),
            "Runtime::run was called inside a task: use spawn and join in tasks"
        );
        let run = inner.detector.begin_run(None);
        let handle = self.spawn(f);
        match &inner.deterministic {
            Some(driver) => inner.run_steps(driver, None, &|| false),
            None => inner.activity.wait_until_quiescent(|| inner.living() == 0),
        }
        drop(run);
        inner.detector.print_report();
        handle.join()
    }

    /// Spawns a task from any thread.
    ///
    /// # Panics
    ///
    /// Panics if there is no memory, or in a child of fork. [`Task::spawn`] returns these
    /// conditions as errors.
    pub fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.task().spawn(f).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Spawns an async task from any thread.
    ///
    /// # Panics
    ///
    /// As for [`Runtime::spawn`].
    pub fn spawn_async<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.task().spawn_async(future).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Returns a new scope: a group of tasks of this runtime that are waited for, and cancelled,
    /// together. `runtime.scope().run(f)` waits for the tasks of one network, while other networks
    /// of the runtime continue. If the caller is a task of this runtime in a scope, that scope
    /// contains the new one.
    pub fn scope(&self) -> Scope {
        Scope::new(&self.inner)
    }

    /// Returns whether the caller is a task of this runtime. The detection of deadlocks does not
    /// observe the tasks of other runtimes: declare their ends of streams with
    /// [`Writer::outside`](crate::Writer::outside).
    pub fn is_current(&self) -> bool {
        self.inner.is_current()
    }

    /// Returns default parameters for a task of this runtime.
    pub fn task(&self) -> Task<'_> {
        Task::of(&self.inner)
    }

    /// Returns the counts of events since the runtime was built.
    pub fn counters(&self) -> Counters {
        assert_not_forked(self.inner.process);
        self.inner.counters()
    }

    /// Returns what each task does or waits for now. A dump stops no task, waits for no task or
    /// worker, and works while they are stuck. Concurrent dumps run one after another.
    pub fn dump(&self) -> Dump {
        assert_not_forked(self.inner.process);
        Dump::of(&self.inner)
    }

    /// Returns whether tasks are left, and none of them makes progress until a thread outside the
    /// runtime causes it: every task waits, and none waits for a point in time. The state lasts
    /// until then. Always `false` in a deterministic runtime.
    pub fn is_waiting(&self) -> bool {
        assert_not_forked(self.inner.process);
        let inner = &*self.inner;
        inner.deterministic.is_none() && inner.activity.is_quiescent() && inner.living() > 0
    }

    /// Returns the number of workers.
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
        if !inner.process.is_current() {
            // The threads do not exist here, so they cannot be joined or detached, and locks that
            // they held are never released.
            std::mem::forget((self.inner.clone(), std::mem::take(&mut self.threads)));
            return;
        }
        inner.begin_end();
        match &inner.deterministic {
            Some(driver) if !lock(driver).is_own() => std::mem::forget(self.inner.clone()),
            Some(driver) => {
                inner.run_steps(driver, None, &|| false);
                for worker in &inner.workers {
                    let _saved = worker.enter();
                    worker.leave();
                }
            }
            // The thread of a worker must not wait for itself. All tasks end without this thread's
            // help, the current task included.
            None => match current::worker().filter(|w| std::ptr::eq(w.inner(), inner)) {
                Some(worker) => worker.apply_cancellations(),
                None => self.threads.drain(..).for_each(|thread| drop(thread.join())),
            },
        }
        inner.detector.print_report();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        runtimes().remove(&self.number);
        let homes = self.workers.iter().map(|w| w.home());
        homes.chain([self.blocking.home]).for_each(current::release_home);
        for worker in &self.workers {
            // Tasks that were sent while the workers ended.
            worker.unstarted().for_each(task::end_unstarted);
        }
        while let Steal::Success(task) = self.injector.steal() {
            task::end_unstarted(task);
        }
    }
}

/// Returns what each task of the caller's runtime does or waits for now; `None` outside a task.
pub fn dump() -> Option<Dump> {
    current::runtime().map(|inner| Dump::of(&inner))
}

/// Lets other tasks run first. On a thread that is no task, this is the function of the system.
///
/// Does not return in a task that is cancelled.
pub fn yield_now() {
    if !current::is_task() {
        thread::yield_now();
    } else if current::may_block() {
        current::yield_task();
    }
    current::may_block();
}

/// Returns whether the calling task should spawn the rest of its work as a new task, and end: other
/// tasks are ready on its worker, another worker is idle, and no placement, priority or number of a
/// worker determines where the task runs. The idle worker steals the new task or the others.
///
/// A started task never changes its worker, so tasks that were light when they started, and became
/// heavy, may share a worker while others are idle. A task whose state can move, such as the stage
/// of a pipeline between two items, asks this after some 100 microseconds of work. Always `false`
/// outside a task, and in a deterministic runtime.
pub fn should_move() -> bool {
    // SAFETY: the running task is alive.
    let task = current::with(|c| unsafe { c.task.get().as_ref() });
    current::worker().zip(task).is_some_and(|(worker, task)| worker.should_move(task))
}

/// Suspends the calling task for a duration, or the calling thread if it is no task. Returns at
/// once if the caller is unwinding. An async task keeps its stack meanwhile.
pub fn sleep(time: Duration) {
    if !current::may_block() {
        return;
    }
    if !current::is_task() {
        current::sleep_thread(time);
    } else {
        current::sleep_task(current::nanos(time));
    }
    current::may_block();
}

/// Returns whether a payload that `catch_unwind` caught is the end of the task, and no panic:
/// [`exit`] and the end of the runtime unwind a task. Code that catches panics inside a task must
/// pass such a payload to [`resume_unwind`](std::panic::resume_unwind).
pub fn ends_task(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<task::Unwind>()
}

/// Ends the calling task: its stack is unwound, and its joiner receives [`Failure::Exited`].
///
/// # Panics
///
/// Panics outside a task.
pub fn exit() -> ! {
    assert!(current::is_any_task(), "exit was called outside a task: return instead");
    std::panic::resume_unwind(Box::new(task::Unwind::Exit))
}
