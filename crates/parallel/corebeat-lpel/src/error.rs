//! Errors, and ends of tasks without a result.

use crate::deadlock::Deadlock;
use corebeat_sync::fork::Process;
use std::any::Any;
use std::{fmt, io};
use thiserror::Error;

/// Reason why a runtime cannot be built, or a task cannot be spawned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of workers is 0.
    #[error("a runtime needs at least one worker: omit `workers` for one worker per CPU")]
    NoWorkers,
    /// The list of CPUs for workers is empty.
    #[error("the list of CPUs is empty: omit `cpus` for all CPUs that this process may use")]
    NoCpus,
    /// The number of workers is too large.
    #[error("a runtime cannot have {requested} workers: request at most {WORKERS_MAX}")]
    TooManyWorkers {
        /// Requested number.
        requested: usize,
    },
    /// The requested worker for a task does not exist.
    #[error("worker {requested} does not exist: this runtime has {workers}, counted from 0")]
    NoSuchWorker {
        /// Requested worker.
        requested: usize,
        /// Number of workers.
        workers: usize,
    },
    /// The stack size is smaller than a task needs.
    #[error("a stack of {requested} bytes is too small: request at least {STACK_MIN}")]
    StackTooSmall {
        /// Requested number of bytes.
        requested: usize,
    },
    /// The stack size is larger than any task needs.
    #[error("a stack of {requested} bytes is too large: request at most {STACK_MAX}")]
    StackTooLarge {
        /// Requested number of bytes.
        requested: usize,
    },
    /// A worker cannot be pinned to its CPU.
    #[error(
        "worker {worker} cannot be pinned to CPU {cpu} ({source}): list CPUs that this process \
         may use, or set `pin(false)`"
    )]
    Pin {
        /// Number of the worker.
        worker: usize,
        /// Number of the CPU.
        cpu: usize,
        /// Error of the system.
        source: io::Error,
    },
    /// The wait of a worker cannot be prepared (see [`Builder::park`](crate::Builder::park)).
    #[error("cannot prepare the wait of worker {worker} ({source}): start fewer workers")]
    Park {
        /// Number of the worker.
        worker: usize,
        /// Error of the function that prepares the wait.
        source: io::Error,
    },
    /// A thread for a worker or a blocking task cannot be started.
    #[error("cannot start a thread for {purpose}: {source}")]
    Thread {
        /// Purpose of the thread.
        purpose: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The system has no memory for a task.
    #[error("there is no memory for another task: spawn fewer tasks")]
    NoMemory,
    /// A thread that is no task called `spawn`.
    #[error("spawn was called outside a task: call it on a Runtime, or inside Runtime::run")]
    NoRuntime,
    /// A blocking task was spawned with a future.
    #[error("a blocking task cannot run a future: spawn the task with a closure")]
    AsyncBlocking,
    /// The runtime is that of a parent process.
    #[error("{FORKED}")]
    Forked,
}

const FORKED: &str = "the runtime or stream was created before a fork, and its threads do not \
                      exist in this child: create runtimes and streams in the child";

/// Checks that a runtime, task or stream is of this process.
///
/// # Panics
///
/// Panics in a child of fork that inherited it.
#[inline(always)]
pub(crate) fn assert_not_forked(process: Process) {
    /// Outside of the callers, which are hot.
    #[cold]
    #[inline(never)]
    fn forked() -> ! {
        panic!("{FORKED}")
    }

    if !process.is_current() {
        forked();
    }
}

/// Largest number of workers of a runtime.
pub const WORKERS_MAX: usize = 4096;
/// Smallest stack size of a task, in bytes.
pub const STACK_MIN: usize = 8 << 10;
/// Largest stack size of a task, in bytes.
pub const STACK_MAX: usize = 1 << 30;

/// Reason why a task has no result.
#[derive(Error)]
#[non_exhaustive]
pub enum Failure {
    /// The task panicked.
    #[error("the task panicked{}", .0.message().map_or(String::new(), |text| format!(": {text}")))]
    Panicked(Panic),
    /// The task called [`exit`](crate::exit).
    #[error("the task exited without a result")]
    Exited,
    /// The task was part of a deadlock.
    #[error("{0}")]
    Deadlock(Deadlock),
    /// The runtime was dropped before the end of the task.
    #[error("the task was cancelled: its runtime was dropped")]
    Cancelled,
    /// [`JoinHandle::abort`](crate::JoinHandle::abort) or [`Scope::cancel`](crate::Scope::cancel)
    /// ended the task.
    #[error("the task was aborted: its handle or its scope was cancelled")]
    Aborted,
    /// The task may continue, but its joiner is unwinding, and must not wait.
    #[error("the result of the task is unknown: its joiner is unwinding")]
    Unwinding,
    /// The runtime of the task is that of a parent process, so the task does not run here.
    #[error("{FORKED}")]
    Forked,
    /// The system had no memory for the stack of the task.
    #[error(
        "there is no memory for the stack of the task ({0}): spawn fewer tasks, use smaller \
         stacks, or use async tasks"
    )]
    NoStack(#[source] io::Error),
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self})")
    }
}

/// Panic of a task.
pub struct Panic {
    payload: Box<dyn Any + Send>,
    message: Option<String>,
}

// SAFETY: only `into_payload` returns the payload, by value, so two threads cannot have references
// to it.
unsafe impl Sync for Panic {}

impl Panic {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> Panic {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Panic { payload, message }
    }

    /// Returns the message, if the payload is a text, as with `panic!`.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Returns the payload, for [`resume_unwind`](std::panic::resume_unwind) or a downcast.
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Panic({:?})", self.message)
    }
}

/// Error of a write: the reader was dropped. Contains the item.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("the stream is closed: its reader was dropped")]
pub struct Closed<T>(pub T);

impl<T> fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Closed(..)")
    }
}

/// Reason why [`Writer::try_write`](crate::Writer::try_write) did not write. Contains the item.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum TryWriteError<T> {
    /// The stream has no room now.
    #[error("the stream is full")]
    Full(T),
    /// The reader was dropped.
    #[error("the stream is closed: its reader was dropped")]
    Closed(T),
}

impl<T> fmt::Debug for TryWriteError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryWriteError::Full(_) => "Full(..)",
            TryWriteError::Closed(_) => "Closed(..)",
        })
    }
}

/// Reason why [`Reader::try_read`](crate::Reader::try_read) returned no item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TryReadError {
    /// The stream has no item now.
    #[error("the stream is empty")]
    Empty,
    /// The stream is at its end: the writer was dropped.
    #[error("the stream is at its end: its writer was dropped")]
    Closed,
}
