//! What can go wrong.

use std::io;

/// Why probes are not switched, or calls not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pattern is no use.
    #[error("a pattern has 1 to {} bytes, on one line", crate::pattern::PATTERN_BYTES_MAX)]
    Pattern,
    /// The process has ended, or never was.
    #[error("there is no process {pid}; see 'ps -e' for those that run")]
    NoProcess {
        /// Which.
        pid: u32,
    },
    /// Nobody there listens.
    #[error("process {pid} has no door to its probes: it opens one with corebeat_probe::Door::open")]
    NoDoor {
        /// Which.
        pid: u32,
    },
    /// Somebody else listens there.
    #[error("what answers for process {pid} is another process: nothing was asked")]
    Impostor {
        /// For which.
        pid: u32,
    },
    /// The process does not do what it was asked.
    #[error("process {pid}: {why}")]
    Refused {
        /// Which.
        pid: u32,
        /// What it says.
        why: String,
    },
    /// The process cannot be asked.
    #[error("process {pid} cannot be asked: {source}")]
    Ask {
        /// Which.
        pid: u32,
        /// What the system says.
        source: io::Error,
    },
    /// There is a rule at work already.
    #[error("a keeper is at work already: drop it first")]
    Kept,
    /// There is no thread for a rule.
    #[error("no thread for the rule of probes: {0}")]
    Thread(#[source] io::Error),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] corebeat_trace::Error),
    /// There is too much in it.
    #[error(
        "the trace has more than {} calls: cut a piece of it (corebeat trace cut), or record fewer probes",
        crate::call::CALLS_MAX
    )]
    TooManyCalls,
}
