//! `corebeat demo`: what Corebeat brings on the embedded kernels, before and after, side by side.

mod pulse;
mod trace;

use crate::failure::{Done, Failure, print};
use crate::session::{self, How, PolicyName, now_ns};
use crate::trial::{Template, Watch};
use crate::tune::{self, OTHERS_BUSY, Searched};
use corebeat_linux::exit_as;
use corebeat_loop::Periods;
use corebeat_policy::reinforcer::Limits;
use corebeat_workload::{THREADS_MAX, Workload};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use rustix::time::Timespec;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// A run before is cut after this long: threads that spin for each other on too few CPUs may take hours.
const PLAIN_MAX: Duration = Duration::from_secs(12);

/// Threads of the run before, for each CPU: a count that suits a machine four times as large.
const BEFORE_PER_CPU: u32 = 4;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Which kernels; all where none is named
    name: Vec<String>,
    /// How much work each run does: 1 is eight to ten seconds of one core
    #[arg(short, long, default_value_t = 0.5)]
    scale: f64,
}

#[derive(clap::Subcommand)]
enum Other {
    /// Programs with goals, side by side: left alone, and steered towards them
    Pulse(pulse::Options),
    /// A bank whose transactions tell of themselves: traced, exported, opened by babeltrace2
    Trace(trace::Options),
}

/// A run: seconds, and the result that it printed, unless it was cut.
struct Ran {
    wall_s: f64,
    checksum: Option<String>,
    /// CPUs that other programs kept busy meanwhile, where somebody looked.
    others_busy: Option<f64>,
}

impl Ran {
    /// Seconds, or that it took longer than those.
    fn text(&self) -> String {
        format!("{}{:.2}", if self.checksum.is_none() { ">" } else { "" }, self.wall_s)
    }
}

pub(crate) fn main(options: Options) -> Done {
    match options.other {
        Some(Other::Pulse(options)) => return pulse::main(options),
        Some(Other::Trace(options)) => return trace::main(&options),
        None => {}
    }
    corebeat_workload::Size::scaled(options.scale).map_err(Failure::usage)?;
    let by_name = |name: &String| {
        Workload::by_name(name).ok_or_else(|| {
            Failure::usage(format!("there is no workload '{name}'; 'corebeat workload' lists them"))
        })
    };
    let chosen: Vec<&Workload> = match options.name.is_empty() {
        true => Workload::all().iter().collect(),
        false => options.name.iter().map(by_name).collect::<Result<_, _>>()?,
    };
    let myself = std::env::current_exe().map_err(Failure::own)?;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpus = cpus.min(THREADS_MAX as u32);
    let many = (cpus * BEFORE_PER_CPU).min(THREADS_MAX as u32);
    print(format_args!(
        "Each kernel: {many} threads and {cpus} threads as they are, then the count that Corebeat finds, under its\n\
         policies. {cpus} CPUs; seconds from start to end; 'of {many}' and 'of {cpus}' compare Corebeat's run with those.\n\n\
         {:<18} {:>11} {:>11}   {:>10} {:>7} {:>7}   {:>7} {:>7}\n",
        "",
        format!("{many} threads"),
        format!("{cpus} threads"),
        "corebeat",
        "threads",
        "search",
        format!("of {many}"),
        format!("of {cpus}")
    ))?;
    let (mut logs, mut others) = ((0.0, 0.0), 0.0_f64);
    for workload in &chosen {
        let template = Template {
            command: [
                myself.as_os_str().to_owned(),
                "workload".into(),
                workload.name.into(),
                "--threads".into(),
                "{threads}".into(),
                "--scale".into(),
                options.scale.to_string().into(),
            ]
            .into(),
            env: vec![],
            input: None,
        };
        let show = |text: String| print(text).and_then(|()| std::io::stdout().flush().map_err(Failure::own));
        show(format!("{:<18}", workload.name))?;
        let before = plain(&template.command(many))?;
        show(format!(" {:>11}", before.text()))?;
        let one_each = plain(&template.command(cpus))?;
        show(format!(" {:>11}", one_each.text()))?;
        let watch = Watch {
            cpus,
            window: Duration::from_millis(100),
            serial_max: Duration::from_millis(2_000),
            skip: Duration::ZERO,
        };
        let found = match tune::search(&template, Limits::of(cpus), watch, false)? {
            Searched::Found(found) => found,
            Searched::Interrupted(status) => exit_as(status),
        };
        let best = found.best.ok_or_else(|| Failure::own(&found.reason))?;
        let after = steered(&template.command(best))?;
        let (of_many, of_cpus) = (after.wall_s / before.wall_s, after.wall_s / one_each.wall_s);
        show(format!(
            "   {:>10.2} {best:>7} {:>6.2}s   {of_many:>6.2}x {of_cpus:>6.2}x\n",
            after.wall_s, found.search_s
        ))?;
        let differs = |run: &Ran| run.checksum.as_ref().is_some_and(|c| Some(c) != after.checksum.as_ref());
        if differs(&before) || differs(&one_each) {
            return Err(Failure::own(format!(
                "{} gave different results; please report this",
                workload.name
            )));
        }
        logs = (logs.0 + of_many.ln(), logs.1 + of_cpus.ln());
        others += after.others_busy.unwrap_or(0.0);
    }
    let n = chosen.len() as f64;
    print(format_args!(
        "\n{:<76} {:>6.2}x {:>6.2}x\n\
         All results were the same in each run. One run each; 'cargo run --release -p bench' repeats and spreads.\n",
        "geometric mean",
        (logs.0 / n).exp(),
        (logs.1 / n).exp()
    ))?;
    if others / n > OTHERS_BUSY {
        print(format_args!(
            "Other programs kept {:.1} CPUs busy meanwhile: these figures are for now, and others on a quiet machine.\n",
            others / n
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The result in what a workload printed.
fn checksum(text: &str) -> Result<String, Failure> {
    let found = text.split("checksum ").nth(1).and_then(|rest| rest.split(',').next());
    found
        .map(str::to_owned)
        .ok_or_else(|| Failure::own(format!("a workload printed no result but '{}'", text.trim())))
}

/// Runs a command as it is, for a bounded time.
fn plain(command: &[OsString]) -> Result<Ran, Failure> {
    let failed = |e: std::io::Error| Failure::own(format!("cannot run a workload: {e}"));
    let start_ns = now_ns();
    let mut plain = Command::new(&command[0]);
    plain.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
    let with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: the hook makes one system call. Without it, a run that takes hours would outlive a demo that is killed.
    unsafe { plain.pre_exec(with_us) };
    let mut child = plain.spawn().map_err(failed)?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
    let limit = Timespec { tv_sec: PLAIN_MAX.as_secs() as i64, tv_nsec: 0 };
    let ended =
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).map_err(|e| failed(e.into()))?;
    let wall_s = (now_ns() - start_ns) as f64 / 1e9;
    if ended == 0 {
        child.kill().map_err(failed)?;
        child.wait().map_err(failed)?;
        return Ok(Ran { wall_s, checksum: None, others_busy: None });
    }
    let done = child.wait_with_output().map_err(failed)?;
    let checksum = checksum(&String::from_utf8_lossy(&done.stdout))?;
    Ok(Ran { wall_s, checksum: Some(checksum), others_busy: None })
}

/// Runs a command under all policies.
fn steered(command: &[OsString]) -> Result<Ran, Failure> {
    let memory = || memfd_create("corebeat-demo", MemfdFlags::CLOEXEC).map(File::from);
    let mut printed =
        memory().map_err(|e| Failure::own(format!("no memory for a workload's output: {e}")))?;
    let how = How {
        policy: PolicyName::Auto,
        periods: Periods::default(),
        env: vec![],
        exact_locks: false,
        memory: None,
        input: None,
        stdout: Some(printed.try_clone().map_err(Failure::own)?),
    };
    let (status, report) = session::run(command, how)?;
    if !status.success() {
        exit_as(status);
    }
    let mut text = String::new();
    printed.rewind().and_then(|()| printed.read_to_string(&mut text)).map_err(Failure::own)?;
    Ok(Ran { wall_s: report.wall_s, checksum: Some(checksum(&text)?), others_busy: report.others_busy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_found_or_missed_with_a_message() {
        assert_eq!(checksum("triad: checksum 00ff, 3 x").unwrap(), "00ff");
        assert!(checksum("no such thing").unwrap_err().to_string().contains("no such thing"));
    }
}
