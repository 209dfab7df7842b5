//! `corebeat workload`: runs one of the embedded kernels.

use corebeat_command::{Done, Failure, print};
use corebeat_heartbeat::Group;
use corebeat_workload::{Size, Workload, WorkloadError};
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Kernel to run [default: list all]
    name: Option<String>,
    /// Number of threads
    #[arg(short, long, default_value = "1")]
    threads: NonZeroUsize,
    /// Amount of work: 1 takes eight to ten seconds of one core
    #[arg(short, long, default_value_t = 1.0)]
    scale: f64,
    /// Emit heartbeats for this group
    #[arg(long, value_name = "NUMBER")]
    group: Option<u32>,
    /// End the process with SIGALRM after this time
    #[arg(long, value_name = "SECONDS", hide = true)]
    limit: Option<u32>,
}

pub(crate) fn main(options: Options) -> Done {
    let Some(name) = options.name else {
        for w in Workload::all() {
            print(format_args!("{:<14} {} (represents {})\n", w.name, w.summary, w.represents))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let workload = Workload::by_name(&name).ok_or_else(|| {
        Failure::usage(format!("no workload is named '{name}'; 'corebeat workload' lists all"))
    })?;
    if let Some(seconds) = options.limit {
        // SAFETY: the call takes no pointer.
        unsafe { libc::alarm(seconds) };
    }
    let size = Size::scaled(options.scale).map_err(Failure::usage)?;
    let outcome = match options.group {
        Some(number) => workload.run_beating(options.threads, size, Group::new(number)),
        None => workload.run(options.threads, size),
    };
    let outcome = outcome.map_err(|e| match e {
        WorkloadError::Scale(_) | WorkloadError::Threads(_) => Failure::usage(e),
        _ => Failure::internal(e),
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
