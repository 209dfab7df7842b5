//! How transactions went.

use crate::slot::Slots;

/// Why an attempt came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// It wanted to read what another was writing.
    ReadConflict,
    /// It wanted to write what another was writing.
    WriteConflict,
    /// What it had read was written by another before it could commit.
    Validation,
    /// What it had read was written by another before it met something newer.
    Extension,
    /// Another asked it to give way.
    Killed,
    /// Nobody could commit, because another is irrevocable or had failed too often.
    Gate,
    /// It was begun as a [`snapshot`](crate::snapshot), and needs a full transaction.
    Snapshot,
    /// It asked for it: [`Tx::retry`](crate::Tx::retry).
    Retry,
    /// It panicked.
    Panic,
    /// It was given up by its program, in C: `stm_abort`.
    Explicit,
}

impl Cause {
    /// All of them, in the order of [`Counters::aborts`].
    pub const ALL: [Cause; 10] = [
        Cause::ReadConflict,
        Cause::WriteConflict,
        Cause::Validation,
        Cause::Extension,
        Cause::Killed,
        Cause::Gate,
        Cause::Snapshot,
        Cause::Retry,
        Cause::Panic,
        Cause::Explicit,
    ];

    /// What it is called in traces.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cause::ReadConflict => "read conflict",
            Cause::WriteConflict => "write conflict",
            Cause::Validation => "validation",
            Cause::Extension => "extension",
            Cause::Killed => "killed",
            Cause::Gate => "gate",
            Cause::Snapshot => "snapshot",
            Cause::Retry => "retry",
            Cause::Explicit => "explicit",
            Cause::Panic => "panic",
        }
    }
}

/// How many transactions were committed, and how many attempts came to nothing, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Transactions that took place.
    pub commits: u64,
    /// Attempts that did not, by cause, in the order of [`Cause::ALL`].
    pub aborts: [u64; Cause::ALL.len()],
}

impl Counters {
    /// Attempts that came to nothing for this cause.
    pub fn of(&self, cause: Cause) -> u64 {
        self.aborts[cause as usize]
    }

    /// Attempts that came to nothing.
    pub fn aborted(&self) -> u64 {
        self.aborts.iter().sum()
    }
}

/// What all threads of the process have done so far. Those that are at it may be off by one.
pub fn counters() -> Counters {
    Slots::counters()
}
