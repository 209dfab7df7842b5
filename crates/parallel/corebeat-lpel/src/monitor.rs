//! Records of what tasks and workers do, delivered to listeners.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, 4.3.4, 4.4.4 and 5.4.3. After each dispatch of a task, the worker passes a [`Dispatch`] to
//! its own [`Listener`]. After each sleep, the worker passes a [`Wait`]. Workers share nothing here
//! and format nothing. [`TextLog`] records the same data in a trace, and writes it as text
//! afterwards.

mod cost;
mod end_use;
mod event;
mod export;
mod line;
mod log;
mod watch;

pub use cost::costs;
pub(crate) use end_use::EndUse;
#[cfg(test)]
use end_use::UNUSED;
pub use export::{Written, export_text};
pub use log::{LogError, TextLog, WhenFull};
pub(crate) use watch::Watch;

use crate::current;
use crate::task::Status;

/// Amount of recorded data: the levels of the thesis (5.4.3, a to d). Each level includes the
/// levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Execution times of marked tasks ([`Task::mark`](crate::Task::mark)). In S-Net, these are
    /// the boxes.
    Marked,
    /// Also the use of streams by marked tasks.
    MarkedStreams,
    /// Execution times and stream use of all tasks.
    All,
    /// Also the times that workers sleep.
    Workers,
}

/// Creates a listener for each worker.
pub trait Monitor: Send + Sync {
    /// Returns the amount of data to record.
    fn level(&self) -> Level;
    /// Returns the listener for the worker with this number. Only the thread of that worker uses
    /// the listener.
    fn listener(&self, worker: usize) -> Box<dyn Listener>;
}

/// Receives the records of one worker. A listener runs between two tasks, so a slow listener delays
/// the tasks of its worker.
pub trait Listener: Send {
    /// Handles the end of a dispatch.
    fn dispatched(&mut self, dispatch: &Dispatch<'_>);
    /// Handles the end of a sleep of the worker.
    fn waited(&mut self, wait: &Wait);
    /// Handles the end of the worker.
    fn ended(&mut self, end: &End);
}

/// One dispatch of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Dispatch<'a> {
    /// End of the dispatch, in nanoseconds of the monitor's clock. The clock starts with the
    /// runtime.
    pub end_ns: u64,
    /// Execution time, in nanoseconds.
    pub execution_ns: u64,
    /// Number of the task.
    pub task: u64,
    /// Name of the task, if the task has one.
    pub name: Option<&'a str>,
    /// Number of this dispatch among the dispatches of the task, from 1.
    pub number: u64,
    /// State of the task after the dispatch: ready, blocked, or ended (zombie).
    pub status: Status,
    /// Time of creation, in nanoseconds as `end_ns`. Present only in the last dispatch of a task.
    pub created_ns: Option<u64>,
    /// Stream ends through which items passed in this dispatch, or that the task opened, closed,
    /// blocked on or woke the other end of.
    pub streams: &'a [StreamUse],
}

/// An end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The reader.
    Read,
    /// The writer.
    Write,
}

/// Use of one stream end by a task in one dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamUse {
    /// Number of the stream.
    pub stream: u64,
    /// Which end of the stream.
    pub direction: Direction,
    /// Whether the task used this end for the first time.
    pub opened: bool,
    /// Whether the end was dropped.
    pub closed: bool,
    /// Whether the task is blocked on the stream (`?`).
    pub blocked: bool,
    /// Whether the task woke the task at the other end (`!`).
    pub woke: bool,
    /// Whether items passed through this end (`*`).
    pub moved: bool,
    /// Number of items that passed through this end so far, while monitored tasks used it.
    pub items: u64,
}

/// A sleep of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// Number of the worker.
    pub worker: usize,
    /// End of the sleep, in nanoseconds as [`Dispatch::end_ns`].
    pub end_ns: u64,
    /// Duration, in nanoseconds.
    pub wait_ns: u64,
    /// Number of this sleep among the sleeps of the worker, from 1.
    pub number: u64,
}

/// The end of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct End {
    /// Number of the worker.
    pub worker: usize,
    /// Time, in nanoseconds as [`Dispatch::end_ns`].
    pub end_ns: u64,
    /// Number of sleeps.
    pub waits: u64,
    /// Total duration of the sleeps, in nanoseconds.
    pub wait_ns: u64,
}

/// Excludes the time up to now from the execution time of the next task. Only for listeners.
///
/// A dispatch begins where the one before ends, so the time of a listener counts as execution
/// time. This is normally a few nanoseconds. A listener that waits calls this function afterwards.
pub fn exclude_elapsed() {
    if let Some(worker) = current::worker().filter(|_| !current::is_task()) {
        worker.restart_watch();
    }
}

/// Returns the clock of monitors: the cycle counter of the processor where it is usable, else the
/// clock of the system. Miri supports neither the counter nor the detection of processor features,
/// so the clock stands still there.
pub(crate) fn clock() -> quanta::Clock {
    if cfg!(miri) { quanta::Clock::mock().0 } else { quanta::Clock::new() }
}

#[cfg(test)]
mod tests;
