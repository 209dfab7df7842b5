//! A table of the operating system that counts what threads do.

use crate::CpuId;
use std::fmt::Debug;

/// A table in which the operating system counts what threads do. A machine with such a table reads
/// the rows of its threads instead of files.
pub trait ThreadTable: Debug + Send {
    /// Starts to count a thread, by its number. Counting ends when the row is dropped.
    ///
    /// # Errors
    /// The reason in one line: the table is full, or has the thread already, or the operating
    /// system refuses the thread.
    fn add(&mut self, tid: i32) -> Result<Box<dyn ThreadRow>, String>;
}

/// The row of a thread.
pub trait ThreadRow: Debug + Send {
    /// Returns the counts up to `now_ns`, on the monotonic clock, or up to the end of the thread.
    /// `None` as long as it is not known whether the thread runs: before its first event, unless
    /// [`begin_blocked`](Self::begin_blocked) has stated that it sleeps.
    fn read(&self, now_ns: u64) -> Option<ThreadCounts>;

    /// States that the thread was found blocked after it was added. The time since then counts as
    /// blocked if the thread has had no event. Returns `false` if it has.
    fn begin_blocked(&self, cause: BlockedCause) -> bool;
}

/// Cause for which a thread is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockedCause {
    /// In a futex call that waits for a lock.
    Lock,
    /// In another futex call.
    Park,
    /// Elsewhere.
    Sleep,
    /// Stopped by a signal or a debugger.
    Stopped,
}

/// State of a counted thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedState {
    /// On a CPU.
    Runs,
    /// In a run queue.
    Waits,
    /// Neither.
    Blocked,
    /// The thread has ended.
    Ended,
}

/// Times and numbers of a thread since it was added to a table. The times add up to the time since
/// its first event, or since it was added if it was blocked then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCounts {
    /// State at the end of the counts.
    pub state: CountedState,
    /// End of the counts, on the monotonic clock.
    pub at_ns: u64,
    /// CPU of the last run; `None` before the first.
    pub cpu: Option<CpuId>,
    /// Time on CPUs, in nanoseconds.
    pub run_ns: u64,
    /// Time in run queues, in nanoseconds.
    pub wait_ns: u64,
    /// Blocked time by [cause](BlockedCause), in nanoseconds.
    pub lock_ns: u64,
    /// As `lock_ns`, in other futex calls.
    pub park_ns: u64,
    /// As `lock_ns`, elsewhere.
    pub sleep_ns: u64,
    /// As `lock_ns`, while the thread was stopped.
    pub stopped_ns: u64,
    /// Number of times that the thread left a CPU because it blocked.
    pub voluntary: u64,
    /// Number of times that the thread left a CPU although it was runnable.
    pub involuntary: u64,
    /// Number of moves to other CPUs.
    pub migrations: u64,
}
