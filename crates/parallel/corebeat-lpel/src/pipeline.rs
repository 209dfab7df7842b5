//! Pipelines of stages that may fail, and maps that keep the order of items.

use crate::error::{Error, Failure};
use crate::scope::{Scope, scope};
use crate::spawn::Task;
use crate::stream::{Reader, Writer, stream};
use crate::task::JoinHandle;
use corebeat_sync::{Mutex, lock};
use std::sync::Arc;

/// Capacity of the streams between stages, in items.
const CAPACITY: usize = 64;
/// Largest number of tasks of a parallel stage. More tasks than workers help only if the calls
/// wait.
pub const PARALLEL_MAX: usize = 4096;

/// A pipeline that is being built: each stage is a task, or several, and runs while later stages
/// are added. The first error of a stage ends all stages.
///
/// ```
/// use corebeat_lpel::{Pipeline, PipelineError, Runtime};
///
/// let sum_of_squares = |text: &'static str| {
///     Runtime::new().unwrap().run(move || {
///         let lines = Pipeline::new(text.lines())?;
///         let numbers = lines.stage("parse", |line| line.parse::<u64>());
///         let squares = numbers.parallel("square", 4, |n| Ok(n * n)); // in the order of the lines
///         Ok(squares.collect()?.into_iter().sum::<u64>())
///     })
/// };
/// assert_eq!(sum_of_squares("1\n2\n3").unwrap().unwrap(), 14);
/// let failed = sum_of_squares("1\ntwo\n3").unwrap();
/// assert!(matches!(failed, Err(PipelineError::Stage { stage: "parse", .. })));
/// ```
pub struct Pipeline<T: Send + 'static, E> {
    output: Reader<T>,
    stages: Vec<(&'static str, JoinHandle<()>)>,
    state: State<E>,
}

/// Reason why a pipeline has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError<E> {
    /// A stage returned an error. It is the first one in time.
    #[error("stage '{stage}' failed: {error}")]
    Stage {
        /// Name of the stage.
        stage: &'static str,
        /// The error.
        error: E,
    },
    /// A stage panicked, or was cancelled.
    #[error("stage '{stage}' has no result: {failure}")]
    Task {
        /// Name of the stage.
        stage: &'static str,
        /// Reason for which it ended.
        failure: Failure,
    },
    /// The pipeline was built outside a task.
    #[error(transparent)]
    Spawn(#[from] Error),
}

/// Scope of the stages, and the first error.
struct State<E> {
    scope: Scope,
    error: Arc<Mutex<Option<(&'static str, E)>>>,
}

impl<E> Clone for State<E> {
    fn clone(&self) -> Self {
        State { scope: self.scope.clone(), error: self.error.clone() }
    }
}

impl<E: Send + 'static> State<E> {
    /// Returns the result of a stage, or saves its error and cancels all stages.
    fn check<T>(&self, stage: &'static str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(result) => Some(result),
            Err(error) => {
                lock(&self.error).get_or_insert((stage, error));
                self.scope.cancel();
                None
            }
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> Pipeline<T, E> {
    /// Begins a pipeline whose first stage, `source`, produces these items.
    ///
    /// # Errors
    ///
    /// The caller is no task.
    ///
    /// # Panics
    ///
    /// This function and those that add stages panic if there is no memory for a task.
    pub fn new<I>(items: I) -> Result<Pipeline<T, E>, Error>
    where
        I: IntoIterator<Item = T> + Send + 'static,
    {
        let state = State { scope: scope()?, error: Arc::default() };
        let (to, output) = stream(CAPACITY);
        let stages = vec![("source", spawn(&state.scope, "source", || write_all(items, to)))];
        Ok(Pipeline { output, stages, state })
    }

    /// Adds a stage, a task that calls `f` for each item in order.
    pub fn stage<U: Send + 'static>(
        self,
        name: &'static str,
        mut f: impl FnMut(T) -> Result<U, E> + Send + 'static,
    ) -> Pipeline<U, E> {
        let Pipeline { output: input, mut stages, state } = self;
        let (to, output) = stream(CAPACITY);
        let own = state.clone();
        let body =
            move || write_all(input.into_iter().map_while(|item| own.check(name, f(item))), to);
        stages.push((name, spawn(&state.scope, name, body)));
        Pipeline { output, stages, state }
    }

    /// Adds a stage of `tasks` tasks, which call `f` at the same time; 0 counts as 1. The results
    /// keep the order of the items. If several calls fail, the pipeline reports the error that was
    /// returned first, which need not be that of the earliest item.
    ///
    /// # Panics
    ///
    /// Panics if `tasks` is more than [`PARALLEL_MAX`].
    #[track_caller]
    pub fn parallel<U: Send + 'static>(
        self,
        name: &'static str,
        tasks: usize,
        f: impl Fn(T) -> Result<U, E> + Send + Sync + 'static,
    ) -> Pipeline<U, E> {
        let Pipeline { output: input, mut stages, state } = self;
        let own = state.clone();
        let f = move |item| own.check(name, f(item));
        let (output, tasks) = map_in_scope(&state.scope, name, input, tasks, f);
        stages.extend(tasks.into_iter().map(|task| (name, task)));
        Pipeline { output, stages, state }
    }

    /// Calls `f` in the calling task for each item that leaves the pipeline, and waits for the end
    /// of all stages.
    ///
    /// # Errors
    ///
    /// The first error in time of a stage or of `f`, whose stage is `sink`; or the reason why a
    /// stage has no result. Then all stages have ended early.
    pub fn for_each(
        mut self,
        mut f: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(), PipelineError<E>> {
        while let Some(item) = self.output.read() {
            if self.state.check("sink", f(item)).is_none() {
                break;
            }
        }
        drop(self.output);
        let ends = self.stages.into_iter().map(|(stage, task)| (stage, task.join()));
        let ends: Vec<_> = ends.collect();
        if let Some((stage, error)) = lock(&self.state.error).take() {
            return Err(PipelineError::Stage { stage, error });
        }
        let failed = ends.into_iter().find_map(|(stage, end)| Some((stage, end.err()?)));
        failed.map_or(Ok(()), |(stage, failure)| Err(PipelineError::Task { stage, failure }))
    }

    /// Returns all items that leave the pipeline.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::for_each`].
    pub fn collect(self) -> Result<Vec<T>, PipelineError<E>> {
        let mut items = Vec::new();
        self.for_each(|item| {
            items.push(item);
            Ok(())
        })?;
        Ok(items)
    }
}

impl<T: Send + 'static, E> std::fmt::Debug for Pipeline<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stages: Vec<_> = self.stages.iter().map(|(name, _)| name).collect();
        write!(f, "Pipeline({stages:?})")
    }
}

/// Calls `f` for each item in `tasks` tasks, where 0 counts as 1, and returns the results in the
/// order of the items. Tasks receive items in turn, so that one slow item delays the others as soon
/// as the streams are full.
///
/// If a call panics, or the scope of the caller is cancelled, the last result is the [`Failure`]
/// that a joiner of the task receives. Collect into a `Result` to obtain all results or the
/// failure; if the runtime is dropped, a reader outside reads the end without a failure. Use
/// [`Pipeline::parallel`] for calls that return errors themselves.
///
/// ```
/// use corebeat_lpel::{Runtime, map_ordered, spawn, stream};
///
/// let squares = Runtime::new()?.run(|| {
///     let (mut to, numbers) = stream(16);
///     spawn(move || (1..=5).try_for_each(|n| to.write(n)));
///     map_ordered(numbers, 4, |n: u64| n * n).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(squares?, [1, 4, 9, 16, 25]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
///
/// Panics if the caller is no task, if `tasks` is more than [`PARALLEL_MAX`], or if there is no
/// memory for a task.
#[track_caller]
pub fn map_ordered<T: Send + 'static, U: Send + 'static>(
    items: Reader<T>,
    tasks: usize,
    f: impl Fn(T) -> U + Send + Sync + 'static,
) -> Reader<Result<U, Failure>> {
    let name = "map_ordered";
    let scope = scope().unwrap_or_else(|e| panic!("{e}"));
    let (mut outputs, mut mappers) =
        distribute(&scope, name, items, tasks, move |item| Some(f(item)));
    let (mut to, results) = stream(CAPACITY);
    let of_items = scope.clone();
    let collect = move || {
        for from in (0..outputs.len()).cycle() {
            let Some(result) = outputs[from].read() else {
                // The mapper has ended: because no items are left, or too early. The distributor of
                // the items is the last task.
                let distributor = mappers.pop().map_or(Ok(()), JoinHandle::join);
                let ended = match mappers.swap_remove(from).join().and(distributor) {
                    Ok(()) if of_items.core.is_cancelled() => Err(Failure::Aborted),
                    ended => ended,
                };
                if let Err(failure) = ended {
                    drop(to.write(Err(failure)));
                }
                return;
            };
            if to.write(Ok(result)).is_err() {
                return;
            }
        }
    };
    // In no scope: if the scope is cancelled, this task reports that, after the results so far.
    let task = Task::new().unscoped().name(name);
    task.spawn(collect).unwrap_or_else(|e| panic!("{e}"));
    results
}

/// Spawns a task that distributes items, tasks that map them, and a task that collects the results.
/// An item without a result ends the results.
#[track_caller]
fn map_in_scope<T: Send + 'static, U: Send + 'static>(
    scope: &Scope,
    name: &'static str,
    items: Reader<T>,
    tasks: usize,
    f: impl Fn(T) -> Option<U> + Send + Sync + 'static,
) -> (Reader<U>, Vec<JoinHandle<()>>) {
    let (mut outputs, mut handles) = distribute(scope, name, items, tasks, f);
    let (to, results) = stream(CAPACITY);
    let in_order = (0..outputs.len()).cycle().map_while(move |from| outputs[from].read());
    handles.push(spawn(scope, name, || write_all(in_order, to)));
    (results, handles)
}

/// Spawns tasks that map items, and a task that distributes items to them in turn. Returns the
/// results of each task, and the handles in the same order. An item without a result ends its task.
#[track_caller]
fn distribute<T: Send + 'static, U: Send + 'static>(
    scope: &Scope,
    name: &'static str,
    mut items: Reader<T>,
    tasks: usize,
    f: impl Fn(T) -> Option<U> + Send + Sync + 'static,
) -> (Vec<Reader<U>>, Vec<JoinHandle<()>>) {
    assert!(
        tasks <= PARALLEL_MAX,
        "a parallel stage cannot have {tasks} tasks: request at most {PARALLEL_MAX}"
    );
    let f = Arc::new(f);
    let (mut mappers, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    let mut workers = scope.workers_in_turn();
    for _ in 0..tasks.max(1) {
        let (input, from) = stream(CAPACITY);
        let (to, output) = stream(CAPACITY);
        let f = f.clone();
        let body = move || write_all(from.into_iter().map_while(|item| f(item)), to);
        // The user requests tasks that run in parallel, so they are not neighbours on one worker.
        let task = Task::new().scope(scope).name(name);
        let task = workers.next().map_or(task.clone(), |worker| task.worker(worker));
        mappers.push(task.spawn(body).unwrap_or_else(|e| panic!("{e}")));
        inputs.push(input);
        outputs.push(output);
    }
    let distribute = move || {
        for to in (0..inputs.len()).cycle() {
            let Some(item) = items.read() else { return };
            if inputs[to].write(item).is_err() {
                return;
            }
        }
    };
    mappers.push(spawn(scope, name, distribute));
    (outputs, mappers)
}

/// Writes items until the reader is closed.
fn write_all<T: Send + 'static>(items: impl IntoIterator<Item = T>, mut to: Writer<T>) {
    drop(items.into_iter().try_for_each(|item| to.write(item)));
}

fn spawn(
    scope: &Scope,
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> JoinHandle<()> {
    Task::new().scope(scope).name(name).spawn(body).unwrap_or_else(|e| panic!("{e}"))
}
