//! What can go wrong before a workload starts; once started it ends.

use crate::{SCALE_MAX, THREADS_MAX};

/// Why a workload did not run.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The scale is not a number that a workload can be made of.
    #[error("a scale of {0:?} makes no workload; give a number above 0 and at most {SCALE_MAX}")]
    Scale(f64),
    /// More threads than [`THREADS_MAX`].
    #[error("{0} threads are too many; give at most {THREADS_MAX}")]
    Threads(usize),
    /// The system would not start that many threads. Those that were started have ended without doing anything.
    #[error(
        "the system started {started} of {wanted} threads ({source}); use fewer, or raise the limit (ulimit -u, pids.max)"
    )]
    Spawn {
        /// How many were started.
        started: usize,
        /// How many were wanted.
        wanted: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// It has run, but not all of its threads could emit heartbeats.
    #[error("not all threads could emit heartbeats: {0}")]
    Pulse(#[source] corebeat_heartbeat::Error),
}
