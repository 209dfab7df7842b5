//! Creation of tasks.

use crate::builder::check_stack_size;
use crate::current;
use crate::error::Error;
use crate::placement::{Place, TaskInfo};
use crate::runtime::Inner;
use crate::scope::{Scope, ScopeCore};
use crate::task::{self, Awaited, Body, JoinHandle, Params, Plain, Priority, TaskRef};
use crate::worker::Worker;
use corebeat_sync::lock;
use std::future::Future;
use std::sync::Arc;

/// Parameters of a task to spawn.
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
    pub(crate) name: Option<Arc<str>>,
    pub(crate) stack_size: Option<usize>,
    priority: Option<Priority>,
    worker: Option<usize>,
    blocking: bool,
    marked: bool,
    scope: Option<Arc<ScopeCore>>,
    unscoped: bool,
}

impl Task<'_> {
    /// Returns default parameters for a task of the runtime that runs the calling task.
    pub fn new() -> Task<'static> {
        Task::default()
    }

    pub(crate) fn of(inner: &Inner) -> Task<'_> {
        Task { runtime: Some(inner), ..Task::default() }
    }

    /// Sets the name for dumps and logs. Placements treat tasks with equal names as one kind. An
    /// empty name is no name.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into()).filter(|name| !name.is_empty());
        self
    }

    /// Sets the stack size in bytes, from [`STACK_MIN`](crate::STACK_MIN) to
    /// [`STACK_MAX`](crate::STACK_MAX).
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets the urgency for [`Prioritised`](crate::scheduler::Prioritised). A task with a priority
    /// stays on the worker of its spawner, unless a placement decides otherwise.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets the worker that runs the task, from 0.
    pub fn worker(mut self, worker: usize) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Makes the task a blocking task: a task with a thread of its own, which may use all CPUs
    /// of the thread that built the runtime. It may call code that blocks the thread, and uses
    /// streams as other tasks do. Its stack is that of the thread; worker and priority have no
    /// effect. The task ends with its closure: destructors of its `thread_local!` data run later
    /// and cannot wait.
    pub fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }

    /// Sets the scope of the task, which must be of the same runtime. By default, a task belongs to
    /// the scope of its spawner, if there is one.
    pub fn scope(mut self, scope: &Scope) -> Self {
        self.scope = Some(scope.core.clone());
        self.unscoped = false;
        self
    }

    /// Makes the task belong to no scope, such as a task that serves callers of many scopes.
    pub fn unscoped(mut self) -> Self {
        self.scope = None;
        self.unscoped = true;
        self
    }

    /// Marks the task for the monitor: see [`Level`](crate::monitor::Level).
    pub fn mark(mut self) -> Self {
        self.marked = true;
        self
    }

    fn with_runtime<R>(&self, f: impl FnOnce(&Inner) -> Result<R, Error>) -> Result<R, Error> {
        let spawn = |inner: &Inner| {
            if !inner.process.is_current() {
                return Err(Error::Forked);
            }
            if self.runtime.is_some() {
                inner.note_spawner();
            }
            f(inner)
        };
        match (self.runtime, current::worker()) {
            (Some(inner), _) => spawn(inner),
            (None, Some(worker)) => spawn(worker.inner()),
            (None, None) => spawn(&*current::runtime().ok_or(Error::NoRuntime)?),
        }
    }

    /// Spawns the task. A panic in the task ends it, and the joiner receives the panic. If the
    /// runtime is being dropped, the task never runs, and the joiner receives
    /// [`Failure::Cancelled`](crate::Failure::Cancelled).
    ///
    /// # Errors
    ///
    /// A parameter is out of range; there is no memory, or no thread for a blocking task; the
    /// caller is no task; or this process is a child of fork that inherited the runtime.
    pub fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        self.with_runtime(|inner| {
            if self.blocking && inner.deterministic.is_none() {
                inner.spawn_blocking(self, f)
            } else {
                inner.spawn(self, Plain(f))
            }
        })
    }

    /// Spawns an async task. The task holds no stack while it awaits. If code in the task blocks,
    /// the task keeps its borrowed stack until the code continues.
    ///
    /// # Errors
    ///
    /// As for [`Task::spawn`]; or the task is a blocking task.
    pub fn spawn_async<F>(&self, future: F) -> Result<JoinHandle<F::Output>, Error>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if self.blocking {
            return Err(Error::AsyncBlocking);
        }
        self.with_runtime(|inner| inner.spawn(self, Awaited(future)))
    }
}

impl std::fmt::Debug for Task<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({:?})", self.name)
    }
}

/// Spawns a task in the runtime of the calling task.
///
/// # Panics
///
/// Panics if the caller is no task, or if there is no memory. [`Task::spawn`] returns these
/// conditions as errors.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Task::new().spawn(f).unwrap_or_else(|e| panic!("{e}"))
}

/// Spawns an async task in the runtime of the calling task.
///
/// # Panics
///
/// As for [`spawn`].
pub fn spawn_async<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Task::new().spawn_async(future).unwrap_or_else(|e| panic!("{e}"))
}

impl Inner {
    /// Notes whether a task of another runtime is about to spawn a task here: from then on, the
    /// two runtimes may exchange stream ends.
    fn note_spawner(&self) {
        if current::worker().is_some_and(|w| std::ptr::eq(w.inner(), self)) {
            return;
        }
        if let Some(other) = current::runtime().filter(|other| !std::ptr::eq(&**other, self)) {
            self.detector.note_shared_ends();
            other.detector.note_shared_ends();
        }
    }

    fn spawn<T: Send + 'static, B: Body<T>>(
        &self,
        task: &Task<'_>,
        body: B,
    ) -> Result<JoinHandle<T>, Error> {
        let spawner = current::worker().filter(|w| std::ptr::eq(w.inner(), self));
        let id = spawner.map_or_else(Inner::new_id, Worker::new_id);
        let place = self.place(task, id, spawner)?;
        let stack_size = check_stack_size(task.stack_size.unwrap_or(self.stack_size))?;
        let params = Params {
            name: task.name.clone(),
            priority: task.priority.unwrap_or_default(),
            stack_size: stack_size as u32,
            stealable: place == Place::Anywhere && task.priority.is_none(),
            marked: task.marked,
            is_from_outside: spawner.is_none(),
            created_ns: spawner.map_or(0, |w| w.monitor_ns()),
            runtime: self.number,
            scope: self.scope_of(task),
            ..Params::new(id)
        };
        let (new, handle) = task::create(params, body).ok_or(Error::NoMemory)?;
        if self.cancellation.is_ending() {
            task::end_unstarted(new);
        } else {
            self.hand_over(new, place, spawner);
        }
        Ok(handle)
    }

    /// Returns the scope of a new task.
    #[inline]
    pub(crate) fn scope_of(&self, task: &Task<'_>) -> Option<Arc<ScopeCore>> {
        if task.unscoped {
            return None;
        }
        task.scope.clone().or_else(current::scope).filter(|scope| scope.is_of(self))
    }

    /// Decides where a new task runs.
    #[inline(always)]
    fn place(&self, task: &Task<'_>, id: u64, spawner: Option<&Worker>) -> Result<Place, Error> {
        let workers = self.workers.len();
        let place = match (task.worker, &self.placement) {
            (Some(worker), _) => Place::Worker(worker),
            (None, Some(placement)) => {
                let priority = task.priority.unwrap_or_default();
                let spawner = spawner.map(|w| w.index);
                let info = TaskInfo { id, name: task.name.as_deref(), priority, spawner };
                lock(placement).place(&info, workers)
            }
            (None, None) => Place::Anywhere,
        };
        match place {
            Place::Worker(requested) if requested >= workers => {
                Err(Error::NoSuchWorker { requested, workers })
            }
            place => Ok(place),
        }
    }

    /// Passes a new task to its worker, or to the workers that steal.
    #[inline(always)]
    fn hand_over(&self, new: TaskRef, place: Place, spawner: Option<&Worker>) {
        let workers = self.workers.len();
        match (place, spawner) {
            (Place::Anywhere, Some(worker)) => worker.adopt(new),
            (Place::Worker(to), Some(worker)) if to == worker.index => worker.adopt(new),
            (Place::Worker(to), _) => {
                self.count_spawned(spawner);
                self.workers[to].send(new.into_raw());
            }
            (Place::Anywhere, None) if new.header().stealable.get() && workers > 1 => {
                self.count_spawned(None);
                self.inject(new);
            }
            (Place::Anywhere, None) => {
                self.count_spawned(None);
                self.workers[self.next_worker()].send(new.into_raw());
            }
        }
    }
}
