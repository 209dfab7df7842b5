//! Counts of commits and aborts.

use crate::slot::Slots;

/// Defines the causes of aborts: documentation, variant, field, and name in traces.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident, $field:ident, $name:literal;)*) => {
        /// Cause of an aborted attempt.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Cause {
            $($(#[$doc])* $cause,)*
        }

        impl Cause {
            /// All causes.
            pub const ALL: &[Cause] = &[$(Cause::$cause),*];

            /// Name of the cause in traces.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Cause::$cause => $name,)*
                }
            }
        }

        /// Number of aborted attempts by cause.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Aborts {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Aborts {
            /// Returns the number of attempts that aborted for this cause.
            pub fn of(&self, cause: Cause) -> u64 {
                match cause {
                    $(Cause::$cause => self.$field,)*
                }
            }

            /// Adds to the number of attempts that aborted for this cause.
            pub fn add(&mut self, cause: Cause, count: u64) {
                match cause {
                    $(Cause::$cause => self.$field += count,)*
                }
            }
        }
    };
}

causes! {
    /// The attempt needed to read a cell that another transaction was writing.
    ReadConflict, read_conflict, "read conflict";
    /// The attempt needed to write a cell that another transaction was writing.
    WriteConflict, write_conflict, "write conflict";
    /// Another transaction wrote a cell that the attempt had read, before the attempt committed.
    Validation, validation, "validation";
    /// Another transaction wrote a cell that the attempt had read, before the attempt read a newer
    /// value.
    Extension, extension, "extension";
    /// The contention manager of another transaction decided that this one aborts.
    Killed, killed, "killed";
    /// The gate was closed by a transaction that is irrevocable or had failed too often.
    Gate, gate, "gate";
    /// The attempt began as a [`snapshot`](crate::snapshot) and needs a full transaction.
    Snapshot, snapshot, "snapshot";
    /// The closure called [`Tx::retry`](crate::Tx::retry).
    Retry, retry, "retry";
    /// The closure panicked.
    Panic, panic, "panic";
    /// The program aborted the transaction explicitly (in C: `stm_abort`).
    Explicit, explicit, "explicit";
}

impl Aborts {
    /// Returns the number of aborted attempts.
    pub fn total(&self) -> u64 {
        Cause::ALL.iter().map(|&cause| self.of(cause)).sum()
    }
}

/// Number of committed transactions, and of aborted attempts by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Number of committed transactions.
    pub commits: u64,
    /// Number of aborted attempts by cause.
    pub aborts: Aborts,
}

/// Returns the counts of all threads of the process. The count of a thread that is in a transaction
/// may be off by one.
///
/// ```
/// use corebeat_stm::{TCell, counters, snapshot};
///
/// let (before, cell) = (counters(), TCell::new(0));
/// snapshot(|tx| tx.write(&cell, 1)); // restarts as a full transaction
/// assert!(counters().aborts.snapshot > before.aborts.snapshot);
/// ```
pub fn counters() -> Counters {
    Slots::counters()
}
