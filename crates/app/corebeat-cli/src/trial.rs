//! A short run of a program with some thread count, watched through one window: what a search goes by.

use crate::failure::Failure;
use crate::session::now_ns;
use corebeat_linux::{Launch, LinuxMachine, Options, Signals, Started};
use corebeat_machine::{Machine, ProgramId, ProgramSample, Snapshot};
use corebeat_policy::reinforcer::{Profile, Trial};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// What stands for the thread count on the command line.
pub(crate) const PLACEHOLDER: &str = "{threads}";

/// From one look at a starting program to the next.
const LOOK: Duration = Duration::from_millis(5);

/// So many looks in a row must show the same number of threads until it counts as grown.
const STEADY_LOOKS: u32 = 3;

/// A program that does not end when asked to is killed after this long.
const GRACE: Duration = Duration::from_millis(500);

/// A command with a thread count to be filled in.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) command: Vec<OsString>,
    /// Variables that get the count.
    pub(crate) env: Vec<OsString>,
    /// A shell command whose output is the program's input.
    pub(crate) input: Option<String>,
}

impl Template {
    /// The command line for a count.
    pub(crate) fn command(&self, threads: u32) -> Vec<OsString> {
        self.command.iter().map(|arg| fill(arg, threads)).collect()
    }

    /// The variables for a count.
    pub(crate) fn env(&self, threads: u32) -> Vec<(OsString, OsString)> {
        self.env.iter().map(|name| (name.clone(), threads.to_string().into())).collect()
    }

    /// Whether the count appears anywhere.
    pub(crate) fn takes_threads(&self) -> bool {
        !self.env.is_empty() || self.command.iter().any(|arg| fill(arg, 1) != *arg)
    }

    /// A fresh copy of the program's input, if it has one of its own.
    pub(crate) fn open_input(&self) -> Result<Option<Input>, Failure> {
        let Some(shell) = &self.input else { return Ok(None) };
        let failed = |e| Failure::own(format!("cannot run the input command '{shell}': {e}"));
        let mut child = Command::new("/bin/sh")
            .args(["-c", shell])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // It ends by itself, or by SIGPIPE when the program does; whoever reaps orphans reaps it.
        let out = child.stdout.take().expect("it was asked for");
        Ok(Some(Input { pid: child.id() as i32, file: File::from(OwnedFd::from(out)) }))
    }
}

/// The output of a command that a program reads.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) file: File,
    pid: i32,
}

impl Input {
    /// Watches the command as a program of its own, so that its processes are not taken for those of the program that
    /// reads: both are children of Corebeat. `None` if it has ended already.
    pub(crate) fn watch(&self, machine: &mut LinuxMachine) -> Option<ProgramId> {
        machine.watch(self.pid).ok()
    }
}

fn fill(arg: &OsStr, threads: u32) -> OsString {
    let (bytes, mark) = (arg.as_bytes(), PLACEHOLDER.as_bytes());
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

/// How trials are run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) cpus: u32,
    /// How long the program is watched.
    pub(crate) window: Duration,
    /// How long it may take until it is parallel.
    pub(crate) serial_max: Duration,
    /// How long one thread alone, whose start cannot be told from its work, is let run before the window begins.
    pub(crate) skip: Duration,
}

/// What a trial showed, and what is worth a note.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) trial: Trial,
    /// From the start until the program's threads were there.
    pub(crate) serial_s: f64,
    /// How long it was watched from then on.
    pub(crate) window_s: f64,
    /// Whether it ended before the window did.
    pub(crate) ended: bool,
    /// Whether it never had more than one thread although it was asked for more.
    pub(crate) stayed_serial: bool,
    /// CPUs that others kept busy.
    pub(crate) others_busy: Option<f64>,
    /// Corebeat was asked to end, whatever the program made of it: the status of who dies of that signal.
    pub(crate) interrupted: Option<ExitStatus>,
}

/// The machine that trials are watched on: one for all of them.
pub(crate) fn machine() -> Result<LinuxMachine, Failure> {
    let mut machine = LinuxMachine::new(Options { counters: true, spin: true, ..Options::default() })?;
    machine.count_host();
    Ok(machine)
}

/// Runs the program with a thread count, watches it through one window, and ends it.
pub(crate) fn run(
    machine: &mut LinuxMachine,
    template: &Template,
    threads: u32,
    watch: Watch,
) -> Result<Shown, Failure> {
    // Before signals are taken: the command inherits what is blocked.
    let input = template.open_input()?;
    let signals = Signals::new().map_err(Failure::own)?;
    let command = template.command(threads);
    let (program, args) =
        command.split_first().ok_or_else(|| Failure::usage("which program? Name one after --"))?;
    let mut launch = Launch::new(program, args.iter().cloned());
    launch.keep_orphans = true;
    let nowhere = || File::options().read(true).write(true).open("/dev/null").map_err(Failure::own);
    let feeder = input.as_ref().and_then(|i| i.watch(machine));
    launch.stdin = Some(input.map_or_else(nowhere, |i| Ok(i.file))?);
    (launch.stdout, launch.stderr) = (Some(nowhere()?), Some(nowhere()?));
    launch.env = template.env(threads).into_iter().map(|(k, v)| (k, Some(v))).collect();
    let started = launch.start()?;
    let id = machine.watch_launch(&started)?;
    let mut run = Running { machine, started, signals, id, feeder };
    let start_ns = now_ns();
    run.started.release()?;

    let (mut ended, grew) = run.wait_for_threads(threads, watch)?;
    let serial_s = seconds_since(start_ns);
    if ended.is_none() {
        // What was seen until now is the start, not the program.
        run.machine.observe()?;
    }
    let window_ns = now_ns();
    while ended.is_none()
        && run.signals.asked_to_end().is_none()
        && now_ns() - window_ns < watch.window.as_nanos() as u64
    {
        let left = watch.window.saturating_sub(Duration::from_nanos(now_ns() - window_ns));
        ended = run.started.attend(&run.signals, left.min(2 * LOOK))?;
        run.machine.glance();
    }
    let seen = run.machine.observe()?;
    let window_s = seconds_since(window_ns);
    let whole_s = seconds_since(start_ns);
    if ended.is_none() {
        run.stop()?;
    }
    Ok(Shown {
        trial: trial(&seen, id, watch.cpus, ended.map(|status| (status, whole_s))),
        serial_s,
        window_s,
        ended: ended.is_some(),
        stayed_serial: threads > 1 && !grew,
        others_busy: seen.host.others_busy,
        interrupted: run.signals.asked_to_end().map(ExitStatus::from_raw),
    })
}

fn seconds_since(ns: u64) -> f64 {
    (now_ns() - ns) as f64 / 1e9
}

/// What a trial came to. `ended` says how the program ended, if it did, and after how many seconds.
fn trial(seen: &Snapshot, id: ProgramId, cpus: u32, ended: Option<(ExitStatus, f64)>) -> Trial {
    match ended.map(|(status, _)| status) {
        Some(s) if s.signal().is_some() => Trial::Failed(format!("signal {}", s.signal().unwrap_or(0))),
        Some(s) if !s.success() => Trial::Failed(format!("exit status {}", s.code().unwrap_or(1))),
        _ => {
            let sample = |p: &&ProgramSample| p.id == id;
            let program = seen.programs.iter().find(sample);
            // Of one that ended well before anything could be seen, its time is all there is.
            let unseen = ended.map(|_| Profile::default());
            let profile = program.and_then(|p| Profile::of(p, seen, cpus)).or(unseen);
            match profile {
                Some(profile) => {
                    // Progress is told in one unit in all trials: by instructions wherever those are counted.
                    let counted = seen.host.counters.instructions.is_some()
                        || program
                            .is_some_and(|p| p.threads.iter().any(|t| t.counters.instructions.is_some()));
                    let whole = ended.filter(|&(_, s)| !counted && s > 0.0).map(|(_, s)| 1.0 / s);
                    Trial::Ran(Profile { progress: profile.progress.or(whole), ..profile })
                }
                None => Trial::Failed("nothing of it could be seen".into()),
            }
        }
    }
}

/// A trial under way.
struct Running<'a> {
    machine: &'a mut LinuxMachine,
    started: Started,
    signals: Signals,
    id: ProgramId,
    /// The command that makes its input.
    feeder: Option<ProgramId>,
}

impl Drop for Running<'_> {
    /// Nothing of a trial goes on beside the next one, however the trial ended.
    fn drop(&mut self) {
        for id in self.feeder.into_iter().chain([self.id]) {
            self.machine.signal(id, libc::SIGKILL);
            self.machine.unwatch(id);
        }
    }
}

impl Running<'_> {
    /// Waits until the program has its threads: more than one, and no more for some looks. Whether it ended meanwhile,
    /// and whether they came.
    fn wait_for_threads(&mut self, wanted: u32, watch: Watch) -> Result<(Option<ExitStatus>, bool), Failure> {
        let start_ns = now_ns();
        let (mut count, mut steady) = (0, 0);
        loop {
            if let Some(status) = self.started.attend(&self.signals, LOOK)? {
                return Ok((Some(status), count > 1));
            }
            self.machine.observe()?;
            let now = self.machine.thread_count(self.id);
            steady = if now == count { steady + 1 } else { 0 };
            count = now;
            if self.signals.asked_to_end().is_some() {
                return Ok((None, count > 1));
            }
            let waited = Duration::from_nanos(now_ns() - start_ns);
            let parallel = if wanted > 1 { count > 1 } else { waited >= watch.skip };
            if (parallel && steady >= STEADY_LOOKS) || waited > watch.serial_max {
                return Ok((None, count > 1));
            }
        }
    }

    /// Ends the program and all its processes.
    fn stop(&mut self) -> Result<(), Failure> {
        self.machine.signal(self.id, libc::SIGTERM);
        let deadline_ns = now_ns() + GRACE.as_nanos() as u64;
        while now_ns() < deadline_ns {
            if self.started.attend(&self.signals, LOOK)?.is_some() {
                return Ok(());
            }
        }
        self.machine.signal(self.id, libc::SIGKILL);
        self.started.wait()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(command: &[&str], env: &[&str]) -> Template {
        let own = |s: &[&str]| s.iter().map(OsString::from).collect();
        Template { command: own(command), env: own(env), input: None }
    }

    #[test]
    fn template_fills_in_every_mark() {
        let t = template(&["p", "-kfp{threads}", "{threads}x{threads}", "{thread}"], &["OMP_NUM_THREADS"]);
        assert_eq!(t.command(12), ["p", "-kfp12", "12x12", "{thread}"].map(OsString::from));
        assert_eq!(t.env(3), [("OMP_NUM_THREADS".into(), "3".into())]);
        assert!(t.takes_threads());
        assert!(!template(&["p", "8"], &[]).takes_threads());
    }
}
