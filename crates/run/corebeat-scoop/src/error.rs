//! What can go wrong with calls.

use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why a query has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The processor has failed: a call panicked, this one or one before, and what it had is gone.
    #[error("{processor} has failed: {why}")]
    Failed {
        /// Which one.
        processor: Name,
        /// What it panicked with.
        why: Arc<str>,
    },
    /// Waiting for the answer would never end. The call was not made.
    #[error("{0}")]
    Deadlock(Cycle),
    /// Whoever asked is unwinding, or is ended with its runtime, and does not wait.
    #[error("nobody waits for the answer: whoever asked is unwinding")]
    Unwinding,
    /// Whoever asked is a finaliser. The call was not made: the collector, or a processor's task, would have to wait for it.
    #[error("a finaliser cannot wait for an answer: let it log a command")]
    Finaliser,
}

/// Who takes part in a deadlock, or has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// Its number: each processor and each client has one of its own.
    pub id: u64,
    /// The type of a processor's first object; `None` for a client that is none.
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

/// Processors and clients of which each waits for the next, and the last one for the first: that one was refused to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle(pub(crate) Arc<[Name]>);

impl Cycle {
    /// Who waits; the first one was refused.
    pub fn members(&self) -> &[Name] {
        &self.0
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A circle may be very long.
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
