//! What can go wrong, and how tasks end.

use crate::deadlock::Deadlock;
use std::any::Any;
use std::{fmt, io};
use thiserror::Error;

/// A runtime could not be built, or a task not be spawned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A runtime of no workers.
    #[error("a runtime needs at least one worker: leave `workers` out for one a CPU")]
    NoWorkers,
    /// Workers were to be bound to CPUs, but to none.
    #[error("the list of CPUs is empty: leave `cpus` out for all that this process may use")]
    NoCpus,
    /// More workers than there may be.
    #[error("{asked} workers are more than a runtime may have ({WORKERS_MAX})")]
    TooManyWorkers {
        /// How many were asked for.
        asked: usize,
    },
    /// The task was to run on a worker that is not there.
    #[error("there is no worker {asked}: this runtime has {workers}, counted from 0")]
    NoSuchWorker {
        /// Which was asked for.
        asked: usize,
        /// How many there are.
        workers: usize,
    },
    /// Less than a task needs to run at all.
    #[error("a stack of {asked} bytes is too small: give it at least {STACK_MIN}")]
    StackTooSmall {
        /// How many bytes were asked for.
        asked: usize,
    },
    /// More than any task needs.
    #[error("a stack of {asked} bytes is too large: {STACK_MAX} is the most")]
    StackTooLarge {
        /// How many bytes were asked for.
        asked: usize,
    },
    /// A worker could not be bound to its CPU.
    #[error(
        "worker {worker} cannot run on CPU {cpu} ({source}): name CPUs that this process may use, or set `pin(false)`"
    )]
    Pin {
        /// Its number.
        worker: usize,
        /// Where it should have run.
        cpu: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A thread for a worker or a wrapper could not be started.
    #[error("no thread for {what}: {source}")]
    Thread {
        /// What it was for.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system has no memory for one more task.
    #[error("no memory for one more task")]
    NoMemory,
    /// `spawn` was called by a thread that is no task.
    #[error("spawn was called outside a task: call it on a Runtime, or inside Runtime::run")]
    NoRuntime,
    /// An async task was to have a thread of its own.
    #[error("a wrapper has a thread of its own, and nothing to await with: spawn it as a closure")]
    AsyncWrapper,
}

/// Most workers of a runtime.
pub const WORKERS_MAX: usize = 4096;
/// Smallest stack of a task, in bytes.
pub const STACK_MIN: usize = 8 << 10;
/// Largest stack of a task, in bytes.
pub const STACK_MAX: usize = 1 << 30;

/// Why a task has no result.
#[non_exhaustive]
pub enum Failure {
    /// It panicked.
    Panicked(Panic),
    /// It called [`exit`](crate::exit).
    Exited,
    /// It waited for others that waited for it.
    Deadlock(Deadlock),
    /// The runtime was dropped before it had ended.
    Cancelled,
    /// It may go on, but whoever joins it is unwinding, and may not wait.
    Unwinding,
    /// The system had no memory for its stack.
    NoStack(io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Panicked(panic) => match panic.message() {
                Some(message) => write!(f, "the task panicked: {message}"),
                None => write!(f, "the task panicked"),
            },
            Failure::Exited => write!(f, "the task exited without a result"),
            Failure::Deadlock(deadlock) => write!(f, "{deadlock}"),
            Failure::Cancelled => write!(f, "the task was ended with its runtime"),
            Failure::Unwinding => write!(f, "nobody waited for the task: its joiner is unwinding"),
            Failure::NoStack(why) => write!(
                f,
                "no memory for the task's stack ({why}): spawn fewer tasks, smaller stacks, or tasks that await"
            ),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self})")
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Failure::NoStack(why) => Some(why),
            _ => None,
        }
    }
}

/// What a task panicked with.
pub struct Panic {
    payload: Box<dyn Any + Send>,
    message: Option<String>,
}

// SAFETY: the payload is handed out by value only, so two threads cannot have references to it.
unsafe impl Sync for Panic {}

impl Panic {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> Panic {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Panic { payload, message }
    }

    /// The text, if it was one, as with `panic!`.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The payload, for [`resume_unwind`](std::panic::resume_unwind) or a downcast.
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Panic({:?})", self.message)
    }
}

/// The reader is gone; here is the item back.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("the stream is closed: its reader is gone")]
pub struct Closed<T>(pub T);

impl<T> fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Closed(..)")
    }
}

/// Why [`Writer::try_write`](crate::Writer::try_write) did not write; here is the item back.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum TryWriteError<T> {
    /// There is no room now.
    #[error("the stream is full")]
    Full(T),
    /// The reader is gone.
    #[error("the stream is closed: its reader is gone")]
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

/// Why [`Reader::try_read`](crate::Reader::try_read) has no item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TryReadError {
    /// There is none now.
    #[error("the stream is empty")]
    Empty,
    /// There will be none: the writer is gone.
    #[error("the stream is at its end: its writer is gone")]
    Closed,
}
