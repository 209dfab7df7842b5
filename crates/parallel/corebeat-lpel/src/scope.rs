//! Scopes: groups of tasks that are waited for, and cancelled, together.
//!
//! A task belongs to at most one scope: that of its parameters, else that of its spawner. The scope
//! counts its tasks. Threads and tasks that wait for a scope read from a stream whose other end the
//! scope drops when no task is left.

use crate::current;
use crate::error::{Error, Failure, assert_not_forked};
use crate::runtime::Inner;
use crate::spawn::Task;
use crate::stream::{Writer, stream};
use crate::task::{Header, JoinHandle};
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corebeat_sync::{Mutex, lock};
use std::sync::Arc;
use std::time::Duration;

/// A group of tasks, such as those of one network on a shared runtime. Tasks that a task of the
/// scope spawns belong to the scope as well, and so do scopes that such a task creates. Clones are
/// handles of the same scope; dropping them affects no task.
///
/// ```
/// use corebeat_lpel::{Runtime, spawn, stream};
///
/// let shared = Runtime::new()?;
/// let network = shared.scope();
/// let (never, mut reader) = stream::<u8>(1);
/// let waits = network.spawn(move || spawn(move || reader.read()).join());
/// assert_eq!(shared.scope().run(|| 42).unwrap(), 42); // waits only for its own tasks
/// network.cancel();
/// network.wait();
/// assert!(waits.join().is_err() && never.is_closed());
/// # Ok::<(), corebeat_lpel::Error>(())
/// ```
#[derive(Clone)]
pub struct Scope {
    pub(crate) core: Arc<ScopeCore>,
}

/// State of a scope, which its tasks share.
pub(crate) struct ScopeCore {
    inner: Arc<Inner>,
    /// The scope of the task that created this scope. It contains this one.
    parent: Option<Arc<ScopeCore>>,
    /// Number of tasks that were spawned and have not ended.
    living: AtomicUsize,
    cancelled: AtomicBool,
    /// Ends that are dropped when no task is left.
    waiters: Mutex<Vec<Writer<()>>>,
}

impl ScopeCore {
    /// Returns this scope and those that contain it.
    fn all(&self) -> impl Iterator<Item = &ScopeCore> {
        std::iter::successors(Some(self), |scope| scope.parent.as_deref())
    }

    /// Counts a task that is about to be spawned.
    pub(crate) fn begin_task(&self) {
        for scope in self.all() {
            // Relaxed: the spawner is a task of the scope, or has a handle, so no waiter relies on
            // it.
            scope.living.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a task that has ended.
    pub(crate) fn end_task(&self) {
        for scope in self.all() {
            // AcqRel: the effects of all tasks are visible when the waiters continue.
            if scope.living.fetch_sub(1, Ordering::AcqRel) == 1 {
                let waiters = std::mem::take(&mut *lock(&scope.waiters));
                drop(waiters);
            }
        }
    }

    /// Returns whether a task of the scope has not ended.
    pub(crate) fn has_tasks(&self) -> bool {
        // Acquire: the effects of all tasks are visible.
        self.living.load(Ordering::Acquire) > 0
    }

    /// Returns whether the tasks of the scope must end.
    pub(crate) fn is_cancelled(&self) -> bool {
        // Acquire: pairs with the release in `cancel`.
        self.all().any(|scope| scope.cancelled.load(Ordering::Acquire))
    }

    /// Returns whether this is a scope of that runtime.
    pub(crate) fn is_of(&self, inner: &Inner) -> bool {
        std::ptr::eq(&*self.inner, inner)
    }
}

impl Scope {
    pub(crate) fn new(inner: &Arc<Inner>) -> Scope {
        let parent = current::scope().filter(|scope| scope.is_of(inner)).cloned();
        Scope {
            core: Arc::new(ScopeCore {
                inner: inner.clone(),
                parent,
                living: AtomicUsize::new(0),
                cancelled: AtomicBool::new(false),
                waiters: Mutex::default(),
            }),
        }
    }

    /// Returns default parameters for a task of this scope. An async task is spawned by
    /// `scope.task().spawn_async(future)`.
    pub fn task(&self) -> Task<'_> {
        Task::of(&self.core.inner).scope(self)
    }

    /// Returns the workers in turn for tasks that run in parallel, without end. Returns none if the
    /// runtime has a placement of its own.
    pub(crate) fn workers_in_turn(&self) -> impl Iterator<Item = usize> {
        let inner = &self.core.inner;
        let workers = if inner.placement.is_none() { inner.workers.len() } else { 0 };
        let first = if workers > 0 { inner.next_worker() } else { 0 };
        (0..workers).cycle().skip(first)
    }

    /// Spawns a task in this scope.
    ///
    /// # Panics
    ///
    /// Panics if there is no memory.
    pub fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.task().spawn(f).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs `f` as a task of this scope, waits until no task of the scope is left, and returns the
    /// result of `f`. Other tasks of the runtime may continue.
    ///
    /// Deadlocks are reported as by [`Runtime::run`](crate::Runtime::run): when no task of the
    /// whole runtime can continue.
    ///
    /// # Errors
    ///
    /// The reason why `f` has no result.
    ///
    /// # Panics
    ///
    /// Panics if the task cannot be spawned, or in a task of the scope. A deterministic runtime
    /// executes its tasks in this call, so the call panics inside a task of such a runtime.
    pub fn run<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let inner = &self.core.inner;
        if !inner.process.is_current() {
            return Err(Failure::Forked);
        }
        self.assert_not_inside();
        let _run = inner.detector.begin_run(Some(self.core.clone()));
        let handle = self.spawn(f);
        self.wait();
        inner.detector.print_report();
        handle.join()
    }

    /// Waits until no task of the scope is left, and what they owned has been dropped: results
    /// whose handles were dropped, and items of streams of which both ends were dropped. Returns
    /// whether no task is left: false if another thread has spawned a task in the scope since, or
    /// if the caller must not wait, because it is unwinding.
    ///
    /// On a thread that is no task, this call executes the tasks of a deterministic runtime,
    /// until no task of the scope is left: see [`Builder::deterministic`].
    ///
    /// # Panics
    ///
    /// In a task of the scope, which would wait for its own end; in a child of fork that inherited
    /// the runtime; or if the runtime is deterministic and has unfinished tasks that another thread
    /// has started.
    ///
    /// [`Builder::deterministic`]: crate::Builder::deterministic
    pub fn wait(&self) -> bool {
        self.wait_with(None)
    }

    /// Waits as [`Scope::wait`] does, at most for `time`, which is virtual on a deterministic
    /// runtime. Returns whether no task is left.
    ///
    /// # Panics
    ///
    /// As [`Scope::wait`].
    pub fn wait_timeout(&self, time: Duration) -> bool {
        self.wait_with(Some(time))
    }

    /// Checks that the calling task is not in this scope.
    fn assert_not_inside(&self) {
        let own = current::scope();
        let is_inside = own.is_some_and(|own| own.all().any(|s| std::ptr::eq(s, &*self.core)));
        assert!(
            !is_inside,
            "a task cannot wait for its own scope, because it would wait for its own end: wait \
             outside the scope, or join the other tasks"
        );
    }

    fn wait_with(&self, time: Option<Duration>) -> bool {
        let inner = &self.core.inner;
        assert_not_forked(inner.process);
        if !std::thread::panicking() {
            self.assert_not_inside();
        }
        let is_empty = || !self.core.has_tasks();
        if let (Some(driver), None) = (&inner.deterministic, current::worker())
            && !std::thread::panicking()
        {
            if !is_empty() {
                inner.run_steps(driver, time, &is_empty);
            }
            return is_empty();
        }
        let (mut end, at_end) = stream::<()>(1);
        let mut at_end = at_end.signals("the end of all tasks of a scope");
        if !inner.is_current() {
            // The runtime of the caller does not observe the tasks of this scope.
            end = end.outside();
        }
        let mut waiters = lock(&self.core.waiters);
        if is_empty() {
            return true;
        }
        // Earlier waiters whose time was over.
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(end);
        drop(waiters);
        match time {
            Some(time) => drop(at_end.read_timeout(time)),
            None => drop(at_end.read()),
        }
        is_empty()
    }

    /// Cancels the tasks of this scope, now and in future: each task is unwound where it waits, or
    /// at its next wait, and fails with [`Failure::Aborted`]. Its streams close. Tasks that have
    /// not started never run. A task that returns a result afterwards fails as well, because it may
    /// have read streams that ended early; only the caller keeps its result, if it does not wait
    /// again. Takes time for each task of the runtime.
    pub fn cancel(&self) {
        assert_not_forked(self.core.inner.process);
        // SAFETY: the running task is alive.
        if let Some(task) = unsafe { current::with(|c| c.task.get()).as_ref() }
            && task.scope().is_some_and(|scope| Arc::ptr_eq(scope, &self.core))
        {
            task.has_cancelled.set(true);
        }
        // Release: pairs with the acquire in `is_cancelled`.
        self.core.cancelled.store(true, Ordering::Release);
        let is_inside = |task: &Header| task.scope().is_some_and(|s| s.is_cancelled());
        self.core.inner.abort_tasks(is_inside);
    }

    /// Returns whether [`Scope::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.core.is_cancelled()
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scope({} tasks)", self.core.living.load(Ordering::Relaxed))
    }
}

/// Returns a new scope for tasks of the caller's runtime, such as a part of a network. If the
/// caller is in a scope, that scope contains the new one.
///
/// # Errors
///
/// The caller is no task.
pub fn scope() -> Result<Scope, Error> {
    current::runtime().map(|inner| Scope::new(&inner)).ok_or(Error::NoRuntime)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Runtime;

    #[test]
    fn waits_whose_time_was_over_leave_nothing() {
        let runtime = Runtime::new().unwrap();
        let scope = runtime.scope();
        let (open, mut reader) = stream::<u8>(1);
        let task = scope.spawn(move || reader.read());
        for _ in 0..3 {
            assert!(!scope.wait_timeout(Duration::ZERO));
        }
        assert_eq!(lock(&scope.core.waiters).len(), 1);
        drop(open);
        assert!(task.join().is_ok());
    }
}
