//! Errors of calls.

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
        /// Message of the panic.
        why: Arc<str>,
    },
    /// Waiting for the result would never end. The call was not logged.
    #[error("{0}")]
    Deadlock(Cycle),
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

pub(crate) const FORKED: &str = "the system was created before a fork, and its threads do not \
                                 exist in this child: create systems in the child";

/// Name of a processor or a client in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// Unique number of the processor or client.
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
