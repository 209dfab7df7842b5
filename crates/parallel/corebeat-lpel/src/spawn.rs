//! Creation of tasks.

use crate::builder::check_stack_size;
use crate::current;
use crate::error::Error;
use crate::placement::{Place, Placement, TaskInfo};
use crate::runtime::Inner;
use crate::scope::{Scope, ScopeCore};
use crate::task::{self, Awaited, Body, JoinHandle, Params, Plain, Priority, Unended};
use crate::worker::Worker;
use corebeat_sync::{Mutex, lock};
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
    pub(crate) scope: Option<Arc<ScopeCore>>,
    pub(crate) unscoped: bool,
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

    fn request(&self) -> Request<'_> {
        Request {
            name: self.name.as_ref(),
            stack_size: self.stack_size,
            priority: self.priority,
            worker: self.worker,
            marked: self.marked,
            scope: self.scope.as_ref(),
            unscoped: self.unscoped,
        }
    }

    /// Calls [`with_runtime`] for this task.
    fn with_runtime<R>(
        &self,
        f: impl FnOnce(&Inner, Option<&Worker>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        with_runtime(self.runtime, f)
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
        self.with_runtime(|inner, spawner| {
            if self.blocking && inner.deterministic.is_none() {
                inner.spawn_blocking(self, f)
            } else {
                inner.spawn(spawner, self.request(), Plain(f))
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
        self.with_runtime(|inner, spawner| inner.spawn(spawner, self.request(), Awaited(future)))
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
    let request = Request::default();
    with_runtime(None, |inner, spawner| inner.spawn(spawner, request, Plain(f)))
        .unwrap_or_else(|e| panic!("{e}"))
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
    let request = Request::default();
    with_runtime(None, |inner, spawner| inner.spawn(spawner, request, Awaited(future)))
        .unwrap_or_else(|e| panic!("{e}"))
}

/// Parameters of a task that is spawned now. They own nothing, so that the compiler removes those
/// that are constant.
#[derive(Default, Clone, Copy)]
struct Request<'a> {
    name: Option<&'a Arc<str>>,
    stack_size: Option<usize>,
    priority: Option<Priority>,
    worker: Option<usize>,
    marked: bool,
    scope: Option<&'a Arc<ScopeCore>>,
    unscoped: bool,
}

/// Calls `f` with the runtime of a new task, by default that of the caller, and with the spawner if
/// that is a worker of this runtime.
#[inline(always)]
fn with_runtime<R>(
    runtime: Option<&Inner>,
    f: impl FnOnce(&Inner, Option<&Worker>) -> Result<R, Error>,
) -> Result<R, Error> {
    let of_blocking_task;
    let (inner, spawner) = match (runtime, current::worker()) {
        (Some(inner), worker) => (inner, worker.filter(|w| std::ptr::eq(w.inner(), inner))),
        (None, Some(worker)) => (worker.inner(), Some(worker)),
        (None, None) => {
            of_blocking_task = current::runtime().ok_or(Error::NoRuntime)?;
            (&*of_blocking_task, None)
        }
    };
    if !inner.process.is_current() {
        return Err(Error::Forked);
    }
    if runtime.is_some() {
        inner.note_spawner();
    }
    f(inner, spawner)
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

    #[inline(always)]
    fn spawn<T: Send + 'static, B: Body<T>>(
        &self,
        spawner: Option<&Worker>,
        task: Request<'_>,
        body: B,
    ) -> Result<JoinHandle<T>, Error> {
        let id = spawner.map_or_else(Inner::new_id, Worker::new_id);
        let workers = self.workers.len();
        let place = self.place(task, id, spawner)?;
        let stack_size = task.stack_size.map_or(Ok(self.stack_size), check_stack_size)?;
        let params = Params {
            name: task.name,
            priority: task.priority.unwrap_or_default(),
            stack_size: stack_size as u32,
            stealable: place == Place::Anywhere && task.priority.is_none() && workers > 1,
            marked: task.marked,
            is_from_outside: spawner.is_none(),
            created_ns: spawner.map_or(0, |w| w.monitor_ns()),
            runtime: self.number,
            scope: self.scope_of(task.scope, task.unscoped),
            ..Params::new(id, self.process)
        };
        let (new, handle) = task::create(params, body).ok_or(Error::NoMemory)?;
        match spawner {
            _ if self.cancellation.is_ending() => task::end_unstarted(new),
            Some(worker) if place == Place::Anywhere => worker.adopt(new),
            _ => self.hand_over(new, place, spawner),
        }
        Ok(handle)
    }

    /// Returns the scope of a new task: the requested one, else that of the caller.
    #[inline(always)]
    pub(crate) fn scope_of<'a>(
        &self,
        requested: Option<&'a Arc<ScopeCore>>,
        unscoped: bool,
    ) -> Option<&'a Arc<ScopeCore>> {
        let scope: Option<&'a _> = match requested {
            _ if unscoped => None,
            None => current::scope(),
            requested => requested,
        };
        scope.filter(|scope| scope.is_of(self))
    }

    /// Decides where a new task runs.
    #[inline(always)]
    fn place(&self, task: Request<'_>, id: u64, spawner: Option<&Worker>) -> Result<Place, Error> {
        let workers = self.workers.len();
        let place = match (task.worker, &self.placement) {
            (Some(worker), _) => Place::Worker(worker),
            (None, Some(placement)) => {
                let priority = task.priority.unwrap_or_default();
                let spawner = spawner.map(|w| w.index);
                let info = TaskInfo { id, name: task.name.map(|n| &**n), priority, spawner };
                place_by(placement, &info, workers)
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

    /// Passes a new task to its worker, or to the workers that steal. Not for tasks that stay with
    /// their spawner.
    #[inline(never)]
    fn hand_over(&self, new: Unended, place: Place, spawner: Option<&Worker>) {
        match (place, spawner) {
            (Place::Worker(to), Some(worker)) if to == worker.index => worker.adopt(new),
            (Place::Worker(to), _) => {
                self.count_spawned(spawner);
                self.workers[to].send(new.into_raw());
            }
            (Place::Anywhere, _) if new.header().stealable.get() => {
                self.count_spawned(spawner);
                self.inject(new);
            }
            (Place::Anywhere, _) => {
                self.count_spawned(spawner);
                self.workers[self.next_worker()].send(new.into_raw());
            }
        }
    }
}

/// Asks the placement of a runtime for a place.
#[inline(never)]
fn place_by(placement: &Mutex<Box<dyn Placement>>, info: &TaskInfo<'_>, workers: usize) -> Place {
    lock(placement).place(info, workers)
}
