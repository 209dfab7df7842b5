//! A table of the operating system that counts what threads do.

use crate::CpuId;
use std::fmt::Debug;

/// A table in which the operating system counts what threads do. A machine with such a table reads
/// the rows of its threads instead of files.
pub trait ThreadTable: Debug + Send {
    /// Adds a thread, by its number, and copies its counts. The row ends when it is dropped. A
    /// thread that is added twice has the later row.
    ///
    /// # Errors
    /// The reason in one line: the table is full, or the operating system refuses the thread.
    fn add(&mut self, tid: i32) -> Result<Box<dyn ThreadRow>, String>;

    /// Copies the present counts of all threads to their rows.
    ///
    /// # Errors
    /// The reason in one line. The rows keep their counts then.
    fn refresh(&mut self) -> Result<(), String>;
}

/// The row of a thread.
pub trait ThreadRow: Debug + Send {
    /// Returns the counts at the last copy, or at the end of the thread. `None` if the thread ended
    /// before it was added.
    fn read(&self) -> Option<ThreadCounts>;
}

/// State of a counted thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedState {
    /// On a CPU.
    Runs,
    /// In a run queue.
    Waits,
    /// Neither.
    Blocked(BlockedCause),
    /// The thread has ended.
    Ended,
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

/// Length of the name of a thread, in bytes; zeros fill shorter names.
pub const THREAD_NAME_BYTES: usize = 16;

/// Times and numbers of a thread since its start, except for `lock_ns` and `park_ns`, which count
/// since it was added to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCounts {
    /// State at the end of the counts.
    pub state: CountedState,
    /// End of the counts, on the monotonic clock.
    pub at_ns: u64,
    /// CPU of the last run.
    pub cpu: CpuId,
    /// Time on CPUs, in nanoseconds; up to a scheduler tick late while the thread runs.
    pub run_ns: u64,
    /// Time in run queues, in nanoseconds.
    pub wait_ns: u64,
    /// Whether `lock_ns` and `park_ns` are counted. Otherwise these are 0, and only the state shows
    /// a cause.
    pub has_causes: bool,
    /// Blocked time in futex calls that wait for a lock, in nanoseconds.
    pub lock_ns: u64,
    /// Blocked time in other futex calls, in nanoseconds.
    pub park_ns: u64,
    /// Run time in user mode and in the kernel, in nanoseconds, as scheduler ticks find it.
    pub user_ns: u64,
    /// As `user_ns`, in the kernel.
    pub system_ns: u64,
    /// Number of times that the thread left a CPU because it blocked.
    pub voluntary: u64,
    /// Number of times that the thread left a CPU although it was runnable.
    pub involuntary: u64,
    /// Number of moves to other CPUs.
    pub migrations: u64,
    /// Name.
    pub name: [u8; THREAD_NAME_BYTES],
}
