//! `corebeat workload`: one of the embedded kernels, as a program of its own.

use crate::failure::{Done, Failure, print};
use corebeat_heartbeat::Group;
use corebeat_workload::{Size, Workload, WorkloadError};
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which kernel; without a name, all are listed
    name: Option<String>,
    /// How many threads
    #[arg(short, long, default_value = "1")]
    threads: NonZeroUsize,
    /// How much work: 1 is eight to ten seconds of one core
    #[arg(short, long, default_value_t = 1.0)]
    scale: f64,
    /// Emit heartbeats for this group
    #[arg(long, value_name = "NUMBER")]
    group: Option<u32>,
}

pub(crate) fn main(options: Options) -> Done {
    let Some(name) = options.name else {
        for w in Workload::all() {
            print(format_args!("{:<14} {} (stands for {})\n", w.name, w.summary, w.stands_for))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let workload = Workload::by_name(&name).ok_or_else(|| {
        Failure::usage(format!("there is no workload '{name}'; 'corebeat workload' lists those there are"))
    })?;
    let size = Size::scaled(options.scale).map_err(Failure::usage)?;
    let outcome = match options.group {
        Some(number) => workload.run_beating(options.threads, size, Group::new(number)),
        None => workload.run(options.threads, size),
    };
    let outcome = outcome.map_err(|e| match e {
        WorkloadError::Spawn { .. } | WorkloadError::Pulse(_) => Failure::own(e),
        WorkloadError::Scale(_) | WorkloadError::Threads(_) => Failure::usage(e),
    })?;
    print(format_args!(
        "{name}: checksum {:016x}, {} {} with {} threads in {:.3} s\n",
        outcome.checksum,
        outcome.work,
        workload.unit,
        options.threads,
        outcome.elapsed.as_secs_f64()
    ))?;
    Ok(ExitCode::SUCCESS)
}
