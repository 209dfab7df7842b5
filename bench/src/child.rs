//! Child processes that never outlive their limit or this program.

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

/// Time from the request to end until the forced end.
const GRACE: Duration = Duration::from_secs(3);

/// Limit of the output of a child that is read, in bytes.
const PRINTED_MAX: usize = 64 << 20;

/// A child and all its descendants, in a process group of their own. `drop` ends the group.
pub(crate) struct Running {
    child: Child,
    pidfd: OwnedFd,
    begin: Instant,
    stdout: File,
    stderr: File,
    is_reaped: bool,
}

#[derive(Debug)]
pub(crate) struct Ended {
    /// Seconds from just before the start until the child ended or was ended.
    pub(crate) wall_s: f64,
    /// `None` if the child was ended at its limit.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    /// Starts a program with no input, or with an empty input that stays open.
    pub(crate) fn start(mut command: Command, open_input: bool) -> Result<Running, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file =
            || tempfile::tempfile().map_err(|e| format!("cannot create a temporary file: {e}"));
        let copy = |file: &File| {
            file.try_clone().map_err(|e| format!("cannot copy a file descriptor: {e}"))
        };
        let (stdout, stderr) = (file()?, file()?);
        command.stdin(if open_input { Stdio::piped() } else { Stdio::null() });
        command.stdout(copy(&stdout)?).stderr(copy(&stderr)?).process_group(0);
        // SAFETY: between fork and exec the closure makes one system call and allocates no memory.
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
                Err(format!("cannot open a file descriptor of the process {name}: {e}"))
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of all threads of the child so far, without its own children, in seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64, String> {
        match cpu_s(self.pid()) {
            Some(cpu_s) if !self.has_ended() => Ok(cpu_s),
            _ => Err(format!(
                "the program ended during the measurement: {}",
                last_line(&read(&self.stderr))
            )),
        }
    }

    /// The standard output so far.
    pub(crate) fn printed(&self) -> String {
        read(&self.stdout)
    }

    /// Waits until the output of the child contains a text.
    pub(crate) fn wait_for(&self, text: &str, limit: Duration) -> Result<(), String> {
        let begin = Instant::now();
        while !self.printed().contains(text) {
            if self.has_ended() {
                return Err(format!(
                    "the program ended before it printed '{text}': {}",
                    last_line(&read(&self.stderr))
                ));
            }
            if begin.elapsed() > limit {
                return Err(format!("the program did not print '{text}' within {limit:?}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Closes the input of the child.
    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Sends SIGINT, as the keyboard does.
    pub(crate) fn interrupt(&self) {
        // A child that has already ended needs no signal, so an error is ignored.
        let _ = kill_process(pid_of(&self.child), Signal::INT);
    }

    /// Waits until the child ends, and ends the child when it has run for `limit`.
    pub(crate) fn wait(mut self, limit: Duration) -> Result<Ended, String> {
        let ended = self.ends_within(limit.saturating_sub(self.begin.elapsed()));
        let wall_s = self.begin.elapsed().as_secs_f64();
        let status = if ended { Some(self.reap()?) } else { None };
        if !ended {
            self.end();
        }
        Ok(Ended { wall_s, status, stdout: read(&self.stdout), stderr: read(&self.stderr) })
    }

    /// Whether the child has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Whether the child ends within a time. The child remains to be reaped.
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

    /// Takes the status of a child that has ended or is about to end.
    fn reap(&mut self) -> Result<ExitStatus, String> {
        // The descendants end with the child. Until the child is reaped, no other process has its
        // PID.
        let _ = kill_process_group(pid_of(&self.child), Signal::KILL);
        let status = self.child.wait().map_err(|e| format!("cannot read the exit status: {e}"))?;
        self.is_reaped = true;
        Ok(status)
    }

    /// Ends the child and its descendants. SIGTERM comes first, so that Corebeat can restore its
    /// changes.
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
    /// Returns why the child did not succeed, if it did not.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{status}: {}", last_line(&self.stderr))),
            None => Err(format!("the program was ended at its limit, after {:.1} s", self.wall_s)),
        }
    }
}

/// CPU time of all threads of a process so far, without its children, in seconds.
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

/// The last line of an error output, which usually states the reason.
pub(crate) fn last_line(text: &str) -> &str {
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("the program printed no reason")
        .trim()
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
        // The shell starts another process, which must end as well.
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
