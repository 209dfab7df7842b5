//! An embedded kernel or its naive version, in a process of its own: it can be ended, and begins with fresh memory.

use crate::line::{cpus, pin};
use corebeat_workload::{Size, Workload};
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    name: String,
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    #[arg(long)]
    scale: f64,
    /// The naive version, on one thread
    #[arg(long)]
    naive: bool,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    let workload = Workload::by_name(&options.name).ok_or("there is no such workload")?;
    let size = Size::scaled(options.scale).map_err(|e| e.to_string())?;
    if options.naive || options.threads.get() == 1 {
        cpus().first().map(|&cpu| pin(cpu));
    }
    let outcome = match options.naive {
        true => workload.run_naive(size),
        false => workload.run(options.threads, size).map_err(|e| e.to_string())?,
    };
    println!("checksum {:016x} seconds {}", outcome.checksum, outcome.elapsed.as_secs_f64());
    Ok(ExitCode::SUCCESS)
}
