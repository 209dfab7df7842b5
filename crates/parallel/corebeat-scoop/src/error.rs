//! Errors of calls.

use crate::processor::drop_quietly;
use corebeat_lpel::ends_task;
use corebeat_sync::{Mutex, lock};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Error of a query.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The processor has failed: this call or an earlier one panicked, and its objects are dropped.
    #[error("{processor} has failed: {why}")]
    Failed {
        /// The failed processor.
        processor: Name,
        /// The panic.
        why: Cause,
    },
    /// Waiting for the result would never end. The call was not logged.
    #[error("{0}")]
    Deadlock(Cycle),
    /// The result, or the condition, did not come within the time limit. A call that was logged
    /// runs later, and its result is dropped.
    #[error("the time limit ended before the result of the call, or before the condition held")]
    TimedOut,
    /// The system is that of a parent process.
    #[error("{FORKED}")]
    Forked,
    /// The caller is unwinding, or its runtime has ended.
    #[error("the query was abandoned because its caller is unwinding")]
    Unwinding,
    /// The caller is a finaliser. The call was not logged: the collector, or the task of a
    /// processor, would have to wait.
    #[error("a finaliser cannot wait for a result: log a command instead")]
    Finaliser,
}

/// Reason for which a processor has failed. Clones are equal; other causes differ.
#[derive(Clone)]
pub struct Cause(Arc<Failed>);

struct Failed {
    message: Box<str>,
    /// Payload of the panic, until a caller takes it.
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Drop for Failed {
    fn drop(&mut self) {
        // The processor may be freed by the collector, which must not unwind.
        drop_quietly(lock(&self.payload).take());
    }
}

impl Cause {
    pub(crate) fn message_only(message: &str) -> Cause {
        Cause(Arc::new(Failed { message: message.into(), payload: Mutex::new(None) }))
    }

    /// Keeps the payload of a panic. The end of a task has a payload that belongs to LPEL, and is
    /// returned.
    pub(crate) fn of_panic(payload: Box<dyn Any + Send>) -> (Cause, Option<Box<dyn Any + Send>>) {
        if ends_task(&*payload) {
            return (Cause::message_only("the task of a call was ended"), Some(payload));
        }
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("a call panicked, with a payload that is no text").into();
        (Cause(Arc::new(Failed { message, payload: Mutex::new(Some(payload)) })), None)
    }

    /// Returns the message of the panic.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Takes the payload of the panic, for [`resume_unwind`](std::panic::resume_unwind) or a
    /// downcast. All errors of a processor share one payload: later calls return `None`, as does
    /// the cause of a failure without a panic.
    pub fn take_payload(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.0.payload).take()
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cause({:?})", self.message())
    }
}

pub(crate) const FORKED: &str = "the system was created before a fork, and its threads do not \
                                 exist in this child: create systems in the child";

/// Name of a processor or a client in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// Number of the processor or client, unique in its process.
    pub id: u64,
    /// Type of the processor's first object; `None` for a client that is not a processor.
    pub of: Option<&'static str>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Some(of) => write!(f, "processor {} ({of})", self.id),
            None => write!(f, "client {}", self.id),
        }
    }
}

/// A cycle of processors and clients, each of which waits for the next one. The query of the first
/// one failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle(pub(crate) Arc<[Name]>);

impl Cycle {
    /// Returns the members; the query of the first one failed.
    pub fn members(&self) -> &[Name] {
        &self.0
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A cycle may be very long.
        const SHOWN_MAX: usize = 16;
        write!(f, "deadlock: ")?;
        for (n, name) in self.0.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{}{name}", if n == 0 { "" } else { " would wait for " })?;
        }
        if self.0.len() > SHOWN_MAX {
            write!(f, " and {} more", self.0.len() - SHOWN_MAX)?;
        }
        write!(f, " would wait for {}", self.0[0])
    }
}
