//! Servers that adapt to their load: what such a server measures, and what it can change.

use serde::Serialize;

/// Division of the work between the threads of a server (Strebelow and Prehofer, *Analysis of Event
/// Processing Design Patterns and Their Performance Dependency on I/O Notification Mechanisms*,
/// 2012, section 3, and today's common practice).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub enum Pattern {
    /// One thread detects events, and the others process them. Needs two threads.
    HalfSyncHalfAsync,
    /// The threads take turns at detecting one event, which they process.
    LeaderFollowers,
    /// Each thread detects and processes the events of its own connections.
    #[default]
    ThreadPerCore,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 3] =
        [Pattern::HalfSyncHalfAsync, Pattern::LeaderFollowers, Pattern::ThreadPerCore];

    /// Returns the number of threads that only detect events.
    pub fn detectors(self) -> usize {
        usize::from(self == Pattern::HalfSyncHalfAsync)
    }
}

/// Mechanism by which a server detects events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub enum Mechanism {
    /// Edge-triggered epoll.
    #[default]
    Edge,
    /// Level-triggered epoll, one-shot, which a system call re-arms.
    OneShot,
    /// `poll`, whose interest set is in the memory of the program.
    Poll,
    /// Multishot poll requests of io_uring, where the system permits it.
    IoUring,
}

impl Mechanism {
    /// All mechanisms.
    pub const ALL: [Mechanism; 4] =
        [Mechanism::Edge, Mechanism::OneShot, Mechanism::Poll, Mechanism::IoUring];
}

/// The properties of a server that can change while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Variant {
    /// Division of the work between the threads.
    pub pattern: Pattern,
    /// Mechanism by which events are detected.
    pub mechanism: Mechanism,
    /// Number of all threads, from 1; from 2 for [`Pattern::HalfSyncHalfAsync`].
    pub threads: usize,
}

impl Variant {
    /// Returns the number of threads that process events.
    pub fn workers(self) -> usize {
        self.threads.saturating_sub(self.pattern.detectors())
    }
}

/// Activity of a server in a span.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// Duration of the span, in nanoseconds.
    pub span_ns: u64,
    /// Variant at the end of the span.
    pub variant: Variant,
    /// The threads that run in this variant. With [`Pattern::HalfSyncHalfAsync`], the first one
    /// detects events.
    pub threads: Vec<ThreadLoad>,
}

/// Activity of one thread of a server in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ThreadLoad {
    /// Waits for events that returned at least one (wake-ups).
    pub waits: u64,
    /// Events that these waits returned.
    pub events: u64,
    /// Time in those of these waits that found events at once, in nanoseconds. With
    /// [`Pattern::LeaderFollowers`], such waits are the serial section.
    pub serial_ns: u64,
    /// Sum over these waits of the events in the queue of [`Pattern::HalfSyncHalfAsync`] after the
    /// wait.
    pub queued: u64,
    /// Requests that the thread has processed.
    pub requests: u64,
    /// Time on a CPU, in nanoseconds; `None` if the system does not report it.
    pub ran_ns: Option<u64>,
    /// Time in which the thread was ready to run but did not run (run-queue wait), in nanoseconds;
    /// `None` if the system does not report it.
    pub waited_ns: Option<u64>,
}
