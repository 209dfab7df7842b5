//! Starting a program so that it can be watched from its first instruction, and standing in for it towards its parent.
//!
//! ```text
//!  Launch::start ---- fork ----> child: tells its number, then waits at the gate
//!       |                          |
//!    Started  (attach sensors)     |
//!       |                          |
//!    release ---- opens gate ----> exec, or the reason why not
//!       |
//!    attend / wait: ends, stops, orphans; signals passed on
//! ```
//!
//! The standard library's `Command` does the fork and the exec: it finds the program as `env` does and brings the reason
//! back. Its `spawn` returns only after the exec, so it runs on a thread of its own, and a hook in the child keeps it at
//! the gate. If Corebeat dies there the gate closes and the child goes with it; after the release it lives on by itself.

mod signal;

pub use signal::{Signals, exit_as};

use crate::{Error, MemoryPolicy};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, wait, waitpid};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A program to start. Working directory, process group and, where nothing else is said, streams are Corebeat's own;
/// signal mask and ignored signals are those that Corebeat was started with.
#[derive(Debug, Default)]
pub struct Launch {
    /// What to run: a path, or a name to be looked for in `PATH`.
    pub program: OsString,
    /// Its arguments, without the name.
    pub args: Vec<OsString>,
    /// Variables to set, or with `None` to remove.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Where its memory is placed.
    pub memory: Option<MemoryPolicy>,
    /// Its standard input, where it is not Corebeat's own.
    pub stdin: Option<File>,
    /// Its standard output, likewise.
    pub stdout: Option<File>,
    /// Its standard error, likewise.
    pub stderr: Option<File>,
    /// Descendants whose parents end become children of this process, where they are still seen, and are reaped by
    /// [`Started::attend`]; with them *every* child of this process that ends: not for who waits for others.
    pub keep_orphans: bool,
}

/// A program that was started, or is held right before its first instruction.
///
/// Dropping one that is held ends it; dropping one that runs leaves it alone.
#[derive(Debug)]
pub struct Started {
    pid: Pid,
    pidfd: OwnedFd,
    gate: Option<OwnedFd>,
    spawner: Option<JoinHandle<io::Result<Child>>>,
    program: OsString,
    keep_orphans: bool,
    ended: Option<ExitStatus>,
}

impl Launch {
    /// A program with arguments, and nothing else changed.
    pub fn new(program: impl Into<OsString>, args: impl IntoIterator<Item = OsString>) -> Launch {
        Launch { program: program.into(), args: args.into_iter().collect(), ..Launch::default() }
    }

    /// Makes the process, and holds it before it becomes the program: it has its number, the thread that it begins with,
    /// and still Corebeat's name.
    ///
    /// # Errors
    /// Where no process can be made, or [`Error::Senseless`] for nodes that are not there. Whether the program can be run
    /// is known from [`Started::release`].
    pub fn start(&self) -> Result<Started, Error> {
        let failed = |source: io::Error| Error::Refused { what: "start a process".into(), source };
        if self.keep_orphans {
            let me = rustix::process::getpid();
            rustix::process::set_child_subreaper(Some(me)).map_err(|e| failed(e.into()))?;
        }
        signal::keep_children();
        let (told, tells) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let (waits, gate) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let copy = |file: &File| file.try_clone().map_err(failed);
        if let Some(file) = &self.stdin {
            command.stdin(copy(file)?);
        }
        if let Some(file) = &self.stdout {
            command.stdout(copy(file)?);
        }
        if let Some(file) = &self.stderr {
            command.stderr(copy(file)?);
        }
        let memory = self.memory.as_ref().map(MemoryPolicy::prepare).transpose()?;
        let files_max = crate::file::descriptor_limit_at_start();
        let open_gate = gate.as_raw_fd();
        let (mut tells, mut waits) = (File::from(tells), File::from(waits));
        let hold = move || {
            // The child's own copy: with it open, it would never learn that everybody else's are closed.
            // SAFETY: the child has this descriptor from the fork and uses it nowhere else.
            unsafe { libc::close(open_gate) };
            tells.write_all(&(std::process::id() as i32).to_ne_bytes())?;
            waits.read_exact(&mut [0])?;
            signal::hand_on();
            // Watching raises Corebeat's own limit of open files. Lowering it again is never refused.
            let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, files_max);
            memory.map_or(Ok(()), |m| m.set())
        };
        // SAFETY: between fork and exec the hook makes system calls only (close, write, getpid, read, sigaction, sigmask,
        // setrlimit, set_mempolicy) and touches no lock and no heap: errors are plain numbers or static.
        unsafe { command.pre_exec(hold) };
        let spawner = std::thread::Builder::new().name("launch".into()).spawn(move || command.spawn());
        let spawner = spawner.map_err(failed)?;
        let mut pid = [0; 4];
        if File::from(told).read_exact(&mut pid).is_err() {
            drop(gate);
            let why = spawner.join().map(|r| r.err()).ok().flatten();
            return Err(failed(why.unwrap_or_else(|| io::ErrorKind::Other.into())));
        }
        let pid = Pid::from_raw(i32::from_ne_bytes(pid)).expect("a child knows its number");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
        Ok(Started {
            pid,
            pidfd,
            gate: Some(gate),
            spawner: Some(spawner),
            program: self.program.clone(),
            keep_orphans: self.keep_orphans,
            ended: None,
        })
    }
}

impl Drop for Started {
    /// A process that was not released ends, and is waited for: were we gone before it, it would complain of that.
    fn drop(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        drop(gate);
        // Not by its spawner, which may wait for others (`release_all`).
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

impl Started {
    /// The number of the process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// A descriptor of the process, readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Lets the process become the program. Without effect from the second call on.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::NotExecutable`], after which the process is gone.
    pub fn release(&mut self) -> Result<(), Error> {
        Started::release_all(&mut [self])
    }

    /// As [`Started::release`], for several that were started one after the other. Whoever releases one of them while another is still
    /// held may wait for ever: a process that is held has copies of all that was open when it was made, and among these may be the end
    /// of the socket on which an earlier one's exec is awaited, if that was just being made.
    ///
    /// # Errors
    /// Of the first that cannot become its program. The others have become theirs.
    pub fn release_all(programs: &mut [&mut Started]) -> Result<(), Error> {
        for program in &mut *programs {
            if let Some(gate) = program.gate.take() {
                // If the child is gone, the spawner knows why.
                let _ = rustix::io::write(&gate, &[1]);
            }
        }
        let spawned = programs.iter_mut().map(|program| program.spawned());
        // All are waited for.
        spawned.fold(Ok(()), Result::and)
    }

    /// Waits for the exec.
    fn spawned(&mut self) -> Result<(), Error> {
        let Some(spawner) = self.spawner.take() else { return Ok(()) };
        let spawned = spawner.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        let program = || self.program.to_string_lossy().into_owned();
        match spawned {
            // Whoever waits does so by `pidfd`.
            Ok(_) => Ok(()),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(Error::NotFound { program: program() })
            }
            Err(source) => Err(Error::NotExecutable { program: program(), source }),
        }
    }

    /// Waits until the program ends, at most this long, and stands in for it meanwhile: passes signals on, stops when it
    /// stops, reaps orphans. `None` if it is still there; may return early.
    ///
    /// # Errors
    /// Where the program's status is lost, because somebody else in this process took it.
    pub fn attend(&mut self, signals: &Signals, timeout: Duration) -> Result<Option<ExitStatus>, Error> {
        Ok(Started::attend_all(&mut [self], signals, timeout)?.pop().flatten())
    }

    /// As [`Started::attend`], for several programs at once: until the first of them ends. Each gets every signal that is passed on.
    /// How they ended, in their order.
    ///
    /// # Errors
    /// As [`Started::attend`].
    pub fn attend_all(
        programs: &mut [&mut Started],
        signals: &Signals,
        timeout: Duration,
    ) -> Result<Vec<Option<ExitStatus>>, Error> {
        let until = Instant::now() + timeout;
        loop {
            let ended = programs.iter_mut().map(|p| p.look()).collect::<Result<Vec<_>, _>>()?;
            let pidfds: Vec<BorrowedFd<'_>> = programs.iter().map(|p| p.pidfd()).collect();
            if ended.iter().any(Option::is_some) {
                // One that is left unread would hit this process as soon as it takes its signals back.
                signals.pass_on(&pidfds);
                return Ok(ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            let wake = pidfds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
            let mut fds: Vec<_> = wake.chain([PollFd::new(signals, PollFlags::IN)]).collect();
            let left = left.try_into().unwrap_or(rustix::time::Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return programs.iter_mut().map(|p| p.look()).collect(),
                // Who is asked for the end may have something to tidy up for it.
                Ok(_) if signals.pass_on(&pidfds) => return programs.iter_mut().map(|p| p.look()).collect(),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    return Err(Error::Refused { what: "wait for the program".into(), source: e.into() });
                }
            }
        }
    }

    /// Waits until the program ends.
    ///
    /// # Errors
    /// As [`Started::attend`].
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        loop {
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            if let Some(status) = self.look()? {
                return Ok(status);
            }
        }
    }

    /// Takes up what has happened to the program, and to orphans.
    fn look(&mut self) -> Result<Option<ExitStatus>, Error> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        // Of any process group: a program may have left ours, as `timeout`, shells and daemons do.
        let next = || if self.keep_orphans { wait(options) } else { waitpid(Some(self.pid), options) };
        while self.ended.is_none() || self.keep_orphans {
            match next() {
                Ok(Some((pid, status))) if pid == self.pid => match status.stopping_signal() {
                    Some(signal) => signal::stop_like(signal),
                    None => self.ended = Some(ExitStatus::from_raw(status.as_raw())),
                },
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(rustix::io::Errno::CHILD) if self.ended.is_some() => break,
                Err(e) => {
                    let what = format!("learn how process {} ended", self.pid());
                    return Err(Error::Refused { what, source: e.into() });
                }
            }
        }
        Ok(self.ended)
    }
}
