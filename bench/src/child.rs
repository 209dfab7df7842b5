//! Child processes that never outlive their limit, nor this program.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open,
    set_parent_process_death_signal,
};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// From the request to end until the end by force.
const GRACE: Duration = Duration::from_secs(3);

/// So much of what a child prints is read.
const PRINTED_MAX: usize = 64 << 20;

/// A child and all that it starts, in a process group of their own. Ended when this goes away.
pub(crate) struct Running {
    child: Child,
    pidfd: OwnedFd,
    begin: Instant,
    stdout: File,
    stderr: File,
    is_reaped: bool,
}

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// From just before it was started until it had ended, or was ended.
    pub(crate) wall_s: f64,
    /// `None` if it was ended at its limit.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    /// Starts a program with no input, or with an empty one that stays open.
    pub(crate) fn start(mut command: Command, open_input: bool) -> Result<Running, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = || tempfile::tempfile().map_err(|e| format!("no temporary file: {e}"));
        let copy = |file: &File| file.try_clone().map_err(|e| format!("no file descriptor: {e}"));
        let (stdout, stderr) = (file()?, file()?);
        command.stdin(if open_input { Stdio::piped() } else { Stdio::null() });
        command.stdout(copy(&stdout)?).stderr(copy(&stderr)?).process_group(0);
        // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let begin = Instant::now();
        let mut child = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        match pidfd_open(pid_of(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Running { child, pidfd, begin, stdout, stderr, is_reaped: false }),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("cannot watch {name}: {e}"))
            }
        }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of the child so far, all its threads, without its own children, in seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64, String> {
        match cpu_s(self.pid()) {
            Some(cpu_s) if !self.has_ended() => Ok(cpu_s),
            _ => Err(format!(
                "it ended while it was being measured: {}",
                last_line(&read(&self.stderr))
            )),
        }
    }

    /// The standard output so far.
    pub(crate) fn printed(&self) -> String {
        read(&self.stdout)
    }

    /// Waits until it has printed something, a given text.
    pub(crate) fn wait_for(&self, text: &str, limit: Duration) -> Result<(), String> {
        let begin = Instant::now();
        while !self.printed().contains(text) {
            if self.has_ended() {
                return Err(format!(
                    "it ended before it printed '{text}': {}",
                    last_line(&read(&self.stderr))
                ));
            }
            if begin.elapsed() > limit {
                return Err(format!("it did not print '{text}' within {limit:?}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Closes its input.
    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Asks it to end, as from the keyboard.
    pub(crate) fn interrupt(&self) {
        // One that has ended already has done what it is asked.
        let _ = kill_process(pid_of(&self.child), Signal::INT);
    }

    /// Waits until it ends, or ends it when it has run for `limit`.
    pub(crate) fn wait(mut self, limit: Duration) -> Result<Ended, String> {
        let ended = self.ends_within(limit.saturating_sub(self.begin.elapsed()));
        let wall_s = self.begin.elapsed().as_secs_f64();
        let status = if ended { Some(self.reap()?) } else { None };
        if !ended {
            self.end();
        }
        Ok(Ended { wall_s, status, stdout: read(&self.stdout), stderr: read(&self.stderr) })
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Whether it ends within a time. It stays to be reaped.
    fn ends_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&timeout)) {
                Ok(n) => return n > 0,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Takes the status of a child that has ended, or is about to.
    fn reap(&mut self) -> Result<ExitStatus, String> {
        // Its descendants end with it. Until it is reaped, no other process has its number.
        let _ = kill_process_group(pid_of(&self.child), Signal::KILL);
        let status = self.child.wait().map_err(|e| format!("its status was lost: {e}"))?;
        self.is_reaped = true;
        Ok(status)
    }

    /// Ends it and all that it started: asks first, so that Corebeat can put back what it changed.
    fn end(&mut self) {
        if self.is_reaped {
            return;
        }
        let group = pid_of(&self.child);
        let _ = kill_process_group(group, Signal::TERM);
        if !self.ends_within(GRACE) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.reap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ended {
    /// Whether it ended well by itself, or why not.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{status}: {}", last_line(&self.stderr))),
            None => Err(format!("it was ended after {:.1} s", self.wall_s)),
        }
    }
}

/// CPU time of a process so far, all its threads, without those that it has started, in seconds.
pub(crate) fn cpu_s(pid: u32) -> Option<f64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the pointer is to a variable of this frame.
    let failed = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    let is_known = failed == 0 && unsafe { libc::clock_gettime(clock, &mut time) } == 0;
    is_known.then(|| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The content of a file that another process writes; the offset of that process stays unchanged.
fn read(file: &File) -> String {
    let size = file.metadata().map_or(0, |m| m.len() as usize).min(PRINTED_MAX);
    let mut bytes = vec![0; size];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

/// The relevant part of an error message.
pub(crate) fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn running_past_its_limit_is_ended() {
        // The shell starts another process, which must go as well.
        let running = Running::start(shell("sleep 600 & echo $!; wait"), false).unwrap();
        running.wait_for("\n", Duration::from_secs(30)).unwrap();
        let sleeper = running.printed().trim().to_owned();
        let ended = running.wait(Duration::from_millis(10)).unwrap();
        assert!(ended.status.is_none() && ended.check().is_err());
        let state = || std::fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
        // The signal may still be pending, and init may reap an orphan late.
        let is_there = || !state().is_empty() && !state().contains(" Z ");
        (0..3000)
            .take_while(|_| is_there())
            .for_each(|_| std::thread::sleep(Duration::from_millis(10)));
        assert!(!is_there(), "{}", state());
    }

    #[test]
    fn running_to_its_end_gives_status_and_output() {
        let ended = Running::start(shell("echo out; echo why >&2; exit 3"), false).unwrap();
        let ended = ended.wait(Duration::from_secs(30)).unwrap();
        assert_eq!((ended.stdout.as_str(), ended.status.unwrap().code()), ("out\n", Some(3)));
        assert!(ended.check().unwrap_err().ends_with("why"));
    }

    #[test]
    fn running_with_open_input_ends_when_it_is_closed() {
        let mut running = Running::start(shell("read line; echo closed"), true).unwrap();
        assert!(running.cpu_s().is_ok());
        running.close_input();
        assert_eq!(running.wait(Duration::from_secs(30)).unwrap().stdout, "closed\n");
    }

    #[test]
    fn program_that_is_missing_is_an_error() {
        assert!(Running::start(Command::new("/nowhere/program"), false).is_err());
    }
}
