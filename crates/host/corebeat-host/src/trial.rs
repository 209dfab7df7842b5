//! A short run of a program with some thread count, observed through one window. A search compares
//! such runs.

use crate::clock::now_ns;
use crate::control::Periods;
use crate::error::Error;
use crate::supervisor::{Input, Supervisor, null};
use corebeat_linux::{Launch, LinuxMachine, Options};
use corebeat_machine::{ProgramId, ProgramSample, Snapshot};
use corebeat_policy::reinforcer::{Profile, Trial};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Marker for the thread count on the command line.
pub const PLACEHOLDER: &str = "{threads}";

/// Time from one observation of a starting program to the next, in nanoseconds.
const START_PERIOD_NS: u64 = 5_000_000;

/// Time from one sample to the next within the window, in nanoseconds.
const SAMPLE_NS: u64 = 10_000_000;

/// Number of consecutive observations with the same thread count after which the program has
/// started its threads.
const STEADY_OBSERVATIONS: u32 = 3;

/// A command line with a marker for the thread count.
#[derive(Debug, Clone)]
pub struct Template {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Names of environment variables that get the thread count.
    pub env: Vec<OsString>,
    /// A shell command whose output is the program's input.
    pub input: Option<String>,
}

impl Template {
    /// Command line for a thread count.
    pub fn command(&self, threads: u32) -> Vec<OsString> {
        self.command.iter().map(|argument| fill(argument, threads)).collect()
    }

    /// Environment variables for a thread count.
    pub fn env(&self, threads: u32) -> Vec<(OsString, OsString)> {
        self.env.iter().map(|name| (name.clone(), threads.to_string().into())).collect()
    }

    /// Whether the command line or a variable depends on the thread count.
    pub fn takes_threads(&self) -> bool {
        !self.env.is_empty() || self.command.iter().any(|argument| fill(argument, 1) != *argument)
    }

    /// Starts the input command, if there is one. The supervisor of the program that reads the
    /// input ends the command.
    ///
    /// # Errors
    /// The shell cannot be started.
    pub fn open_input(&self) -> Result<Option<Input>, Error> {
        let Some(shell) = &self.input else { return Ok(None) };
        let failed = |e| Error::failed(format!("cannot run the input command '{shell}': {e}"));
        let mut child = Command::new("/bin/sh")
            .args(["-c", shell])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let out =
            child.stdout.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        Ok(Some(Input { pid: child.id() as i32, file: File::from(OwnedFd::from(out)) }))
    }
}

fn fill(argument: &OsStr, threads: u32) -> OsString {
    let (bytes, mark) = (argument.as_bytes(), PLACEHOLDER.as_bytes());
    let mut filled = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(mark) {
            filled.extend(threads.to_string().bytes());
            at += mark.len();
        } else {
            filled.push(bytes[at]);
            at += 1;
        }
    }
    OsString::from_vec(filled)
}

/// How a trial is observed.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// CPUs of the machine.
    pub cpus: u32,
    /// Length of the observation.
    pub length: Duration,
    /// Length if other programs keep CPUs busy: the kernel needs some tenths of a second to
    /// distribute the threads of a program beside others.
    pub beside_load: Duration,
    /// Time limit for the start of the threads.
    pub serial_max: Duration,
    /// Time before the window of a run with one thread, whose start cannot be distinguished from
    /// its work.
    pub skip: Duration,
}

impl Window {
    /// Returns a window of this length or, if it is `None`, of 100 ms, as in the thesis, and of 300
    /// ms beside other programs.
    pub fn new(cpus: u32, length: Option<Duration>, serial_max: Duration) -> Window {
        let default = |ms| length.unwrap_or(Duration::from_millis(ms));
        let (length, beside_load) = (default(100), default(300));
        Window { cpus, length, beside_load, serial_max, skip: Duration::ZERO }
    }
}

/// The result of a trial.
#[derive(Debug, Clone)]
pub struct TrialResult {
    /// Profile of the program, or its failure.
    pub trial: Trial,
    /// Time from the start until the program had its threads, in seconds.
    pub serial_s: f64,
    /// Length of the observation, in seconds.
    pub window_s: f64,
    /// Whether the program ended before the window.
    pub ended: bool,
    /// Whether the program never had more than one thread although more were requested.
    pub stayed_serial: bool,
    /// CPUs that other programs kept busy in the window.
    pub others_busy: Option<f64>,
    /// Status of a process that ends by the signal that requested the end of Corebeat, if one did.
    pub interrupted: Option<ExitStatus>,
}

/// A source of trials: this host, or a fake for tests.
pub trait Trials {
    /// Runs the program with a thread count, and observes it through one window.
    ///
    /// # Errors
    /// The trial could not be made. A program that fails is a result.
    fn run(&mut self, threads: u32, window: Window) -> Result<TrialResult, Error>;

    /// Waits, so that a disturbance by other programs can pass.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Trials on this host.
pub struct HostTrials<'a> {
    supervisor: Supervisor,
    template: &'a Template,
}

impl<'a> HostTrials<'a> {
    /// Creates the machine on which all trials are observed.
    ///
    /// # Errors
    /// The host cannot be observed.
    pub fn new(template: &'a Template) -> Result<HostTrials<'a>, Error> {
        let options =
            Options { counters: true, spin: true, allowed_cpus: true, ..Options::default() };
        let mut machine = LinuxMachine::new(options)?;
        machine.count_host();
        let supervisor = Supervisor::new(machine, Periods::default());
        Ok(HostTrials { supervisor, template })
    }

    /// Starts the program of the template.
    fn start(&mut self, threads: u32) -> Result<ProgramId, Error> {
        // Before the supervisor takes signals: the input command would inherit the blocked signals.
        let input = self.template.open_input()?;
        let command = self.template.command(threads);
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| Error::invalid("a program is missing; write it after --"))?;
        let mut launch = Launch::new(program, arguments.iter().cloned());
        launch.keep_orphans = true;
        input.iter().for_each(|input| self.supervisor.feed(input));
        launch.stdin = Some(input.map_or_else(null, |i| Ok(i.file))?);
        (launch.stdout, launch.stderr) = (Some(null()?), Some(null()?));
        launch.env = self.template.env(threads).into_iter().map(|(k, v)| (k, Some(v))).collect();
        self.supervisor.hold(&launch)
    }

    /// Waits until the program has its threads: more than one, and a constant number of them.
    /// Returns whether there was more than one, and the last snapshot if the program ended or a
    /// signal requested the end.
    fn wait_for_threads(
        &mut self,
        id: ProgramId,
        wanted: u32,
        window: Window,
    ) -> Result<(bool, Option<Snapshot>), Error> {
        let start_ns = now_ns();
        let (mut count, mut steady) = (0, 0);
        let periods = Periods { observe_ns: START_PERIOD_NS, sample_ns: u64::MAX };
        loop {
            let (snapshot, early) = self.supervisor.span(periods)?;
            if early {
                return Ok((count > 1, Some(snapshot)));
            }
            let now = self.supervisor.machine().thread_count(id);
            steady = if now == count { steady + 1 } else { 0 };
            count = now;
            let waited = Duration::from_nanos(now_ns() - start_ns);
            let parallel = if wanted > 1 { count > 1 } else { waited >= window.skip };
            if (parallel && steady >= STEADY_OBSERVATIONS) || waited > window.serial_max {
                return Ok((count > 1, None));
            }
        }
    }

    /// Releases the program, observes it through the window, and ends it.
    fn observe(
        &mut self,
        id: ProgramId,
        threads: u32,
        window: Window,
    ) -> Result<TrialResult, Error> {
        let start_ns = now_ns();
        self.supervisor.release()?;
        let (grew, last) = self.wait_for_threads(id, threads, window)?;
        let serial_s = seconds_since(start_ns);
        let window_ns = now_ns();
        let snapshot = match last {
            Some(snapshot) => snapshot,
            None => {
                let observe_ns = window.length.as_nanos() as u64;
                self.supervisor.span(Periods { observe_ns, sample_ns: SAMPLE_NS })?.0
            }
        };
        let window_s = seconds_since(window_ns);
        let ended = self.supervisor.status(id).map(|status| (status, seconds_since(start_ns)));
        self.supervisor.terminate()?;
        Ok(TrialResult {
            trial: trial(&snapshot, id, window.cpus, ended),
            serial_s,
            window_s,
            ended: ended.is_some(),
            stayed_serial: threads > 1 && !grew,
            others_busy: snapshot.host.others_busy,
            interrupted: self.supervisor.end_request(),
        })
    }
}

impl Trials for HostTrials<'_> {
    fn run(&mut self, threads: u32, window: Window) -> Result<TrialResult, Error> {
        let result = self.start(threads).and_then(|id| self.observe(id, threads, window));
        // However the trial ended: its programs must not disturb the next trial.
        let cleared = self.supervisor.clear();
        let result = result?;
        cleared?;
        Ok(result)
    }
}

fn seconds_since(ns: u64) -> f64 {
    (now_ns() - ns) as f64 / 1e9
}

/// Result of a trial from its window. `ended` is the status of a program that ended, and its run
/// time in seconds.
fn trial(snapshot: &Snapshot, id: ProgramId, cpus: u32, ended: Option<(ExitStatus, f64)>) -> Trial {
    let failed = ended.map(|(status, _)| status).filter(|status| !status.success());
    if let Some(status) = failed {
        return Trial::Failed(match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit status {}", status.code().unwrap_or(1)),
        });
    }
    let program: Option<&ProgramSample> = snapshot.program(id);
    // The run time is the only measurement of a program that ended before the first observation.
    let unobserved = ended.map(|_| Profile::default());
    let profile = program.and_then(|p| Profile::of(p, snapshot, cpus)).or(unobserved);
    let Some(profile) = profile else {
        return Trial::Failed("no observation of the program".into());
    };
    // All trials measure progress in one unit: in instructions wherever these are counted.
    let counted = snapshot.host.counters.instructions.is_some()
        || program.is_some_and(|p| p.threads.iter().any(|t| t.counters.instructions.is_some()));
    let whole = ended.filter(|&(_, s)| !counted && s > 0.0).map(|(_, s)| 1.0 / s);
    Trial::Ran(Profile { progress: profile.progress.or(whole), ..profile })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(command: &[&str], env: &[&str]) -> Template {
        let owned = |s: &[&str]| s.iter().map(OsString::from).collect();
        Template { command: owned(command), env: owned(env), input: None }
    }

    #[test]
    fn template_replaces_every_placeholder() {
        let arguments = ["p", "-kfp{threads}", "{threads}x{threads}", "{thread}"];
        let t = template(&arguments, &["OMP_NUM_THREADS"]);
        assert_eq!(t.command(12), ["p", "-kfp12", "12x12", "{thread}"].map(OsString::from));
        assert_eq!(t.env(3), [("OMP_NUM_THREADS".into(), "3".into())]);
        assert!(t.takes_threads());
        assert!(!template(&["p", "8"], &[]).takes_threads());
    }
}
