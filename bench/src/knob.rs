//! Manual settings for an unmodified program: a slice, the batch class, one CPU for each thread.

use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::HashSet;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Set the time slice of the threads, in milliseconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100))]
    slice_ms: Option<u64>,
    /// Set the class SCHED_BATCH
    #[arg(long)]
    batch: bool,
    /// Pin each thread to one CPU, in turn
    #[arg(long)]
    pin: bool,
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Interval between two searches for new threads.
const SCAN_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    if options.slice_ms.is_some() || options.batch {
        schedule(options.slice_ms, options.batch)?;
    }
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    if options.pin {
        return run_pinned(command);
    }
    Err(format!("cannot start {}: {}", options.command[0], command.exec()))
}

/// Sets the slice and the class of this thread. A started program inherits both.
fn schedule(slice_ms: Option<u64>, batch: bool) -> Result<(), String> {
    // SAFETY: all fields are integers, for which 0 is valid.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attr) as u32;
    let failed = |call: &str| format!("{call}: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel writes at most `size` bytes to the structure.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) } != 0 {
        return Err(failed("sched_getattr"));
    }
    let runtime_ns = slice_ms.map_or(0, |ms| ms * 1_000_000);
    attr.sched_policy = if batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER } as u32;
    (attr.sched_flags, attr.sched_runtime) = (0, runtime_ns);
    (attr.sched_deadline, attr.sched_period, attr.sched_priority) = (0, 0, 0);
    // SAFETY: the kernel reads the structure, which contains its size.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) } != 0 {
        return Err(failed("sched_setattr"));
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) };
    if slice_ms.is_some() && attr.sched_runtime != runtime_ns {
        return Err("this kernel does not support slices; use Linux 6.12 or later".into());
    }
    Ok(())
}

/// Runs a program, and pins each new thread.
fn run_pinned(mut command: Command) -> Result<ExitCode, String> {
    let allowed = sched_getaffinity(None).map_err(|e| format!("sched_getaffinity: {e}"))?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| allowed.is_set(c)).collect();
    // SAFETY: between fork and exec the closure makes one system call and allocates no memory.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
    }
    let mut child = command.spawn().map_err(|e| format!("cannot start the program: {e}"))?;
    let tasks = format!("/proc/{}/task", child.id());
    let mut seen = HashSet::new();
    loop {
        for entry in std::fs::read_dir(&tasks).into_iter().flatten().flatten() {
            let Some(tid) = entry.file_name().to_str().and_then(|t| t.parse::<i32>().ok()) else {
                continue;
            };
            if seen.insert(tid) {
                let mut one = CpuSet::new();
                one.set(cpus[(seen.len() - 1) % cpus.len()]);
                // A thread that has already ended needs no CPU, so an error is ignored.
                let _ = sched_setaffinity(Pid::from_raw(tid), &one);
            }
        }
        if let Some(status) =
            child.try_wait().map_err(|e| format!("cannot read the exit status: {e}"))?
        {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            return Ok(ExitCode::from(code as u8));
        }
        std::thread::sleep(SCAN_INTERVAL);
    }
}
