//! Errors before the start of a workload. A started workload ends.

use crate::{SCALE_MAX, THREADS_MAX};

/// Reason why a workload did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The scale is out of range.
    #[error("scale {0:?} is out of range; use a number above 0 and at most {SCALE_MAX}")]
    Scale(f64),
    /// More threads than [`THREADS_MAX`].
    #[error("{0} threads are too many; use at most {THREADS_MAX}")]
    Threads(usize),
    /// The system refused to start all threads. The started threads ended without any work.
    #[error(
        "the system started {started} of {wanted} threads ({source}); use fewer, or raise the \
         limit (ulimit -u, pids.max)"
    )]
    Spawn {
        /// Number of started threads.
        started: usize,
        /// Number of requested threads.
        wanted: usize,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A thread could not attach to the group. No thread did any work.
    #[error(
        "the workload did not run, because its threads cannot emit heartbeats: {0}; without \
         --group the workload needs no daemon"
    )]
    Heartbeat(#[source] corebeat_heartbeat::Error),
}
