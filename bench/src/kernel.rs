//! Runs an embedded kernel or its naive version in a separate process, which the bench can end and
//! which begins with fresh memory.

use crate::line::{cpus, pin};
use corebeat_workload::{Size, Workload};
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) threads: NonZeroUsize,
    pub(crate) scale: f64,
    /// Runs the naive version, on one thread.
    pub(crate) naive: bool,
}

/// Returns the seconds that the kernel takes, and its checksum.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let workload = Workload::by_name(&options.name).ok_or("there is no such workload")?;
    let size = Size::scaled(options.scale).map_err(|e| e.to_string())?;
    if options.naive || options.threads.get() == 1 {
        cpus().first().map(|&cpu| pin(cpu));
    }
    let outcome = match options.naive {
        true => workload.run_naive(size),
        false => workload.run(options.threads, size).map_err(|e| e.to_string())?,
    };
    Ok((outcome.elapsed.as_secs_f64(), outcome.checksum))
}
