//! Starting a program that is watched from its first instruction, and representing the program
//! towards the parent of Corebeat.
//!
//! ```text
//!  Launch::start ---- fork ----> child: sends its number, then waits at the gate
//!       |                          |
//!    Started  (attach sensors)     |
//!       |                          |
//!    release ---- opens gate ----> exec, or its error
//!       |
//!    attend / wait: ends, stops, orphans; signals passed on
//! ```
//!
//! `Command` of the standard library does fork and exec: it finds the program as `env` does and
//! returns the error of exec. Its `spawn` returns after the exec, so it runs on a separate thread,
//! and a hook in the child waits at the gate. If Corebeat ends before the release, the gate closes
//! and the child ends; after the release the child is independent.

mod signal;

pub use signal::{Signals, end_by, ending_signals, exit_as, is_ignored};

use crate::actuator::setting::write_cpus;
use crate::process::{self, has_ended, is_halted, read_of_thread};
use crate::{Error, MemoryPolicy};
use corebeat_machine::CpuSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpriority_process, pidfd_open, pidfd_send_signal,
    setpriority_process, waitpid,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A program to start. The program inherits working directory, process group and, unless set,
/// streams of Corebeat; its signal mask and ignored signals are those at the start of Corebeat.
#[derive(Debug, Default)]
pub struct Launch {
    /// Program to run: a path, or a name to search in `PATH`.
    pub program: OsString,
    /// Arguments, without the name.
    pub args: Vec<OsString>,
    /// Variables to set, or to remove (`None`).
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Placement of its memory.
    pub memory: Option<MemoryPolicy>,
    /// CPUs on which it may run; `None` for those of Corebeat.
    pub cpus: Option<CpuSet>,
    /// Number to add to the nice value of Corebeat.
    pub nice: Option<i32>,
    /// Standard input; `None` for that of Corebeat.
    pub stdin: Option<File>,
    /// Standard output; `None` for that of Corebeat.
    pub stdout: Option<File>,
    /// Standard error; `None` for that of Corebeat.
    pub stderr: Option<File>,
    /// Whether descendants whose parents end become children of this process, which watches them.
    /// [`Started::attend`] then reaps *every* child of this process that ends: do not set this
    /// option in a process that waits for other children.
    pub keep_orphans: bool,
}

/// A program that runs, or is held before its first instruction.
///
/// Dropping a held program ends it; dropping a running program does not affect it.
#[derive(Debug)]
pub struct Started {
    pid: Pid,
    pidfd: OwnedFd,
    gate: Option<OwnedFd>,
    spawner: Option<JoinHandle<io::Result<Child>>>,
    program: OsString,
    keep_orphans: bool,
    ended: Option<ExitStatus>,
    /// Whether job control has stopped the program, and the next wait stops this process.
    is_stopping: bool,
    usage: Usage,
}

/// Resources that a program has used, as counted by the kernel: of the process that was started and
/// of its ended descendants. With [`Launch::keep_orphans`] orphans are included; without, they are
/// not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// CPU time in user mode, in seconds.
    pub user_s: f64,
    /// CPU time in the kernel, in seconds.
    pub system_s: f64,
    /// Number of voluntary context switches.
    pub voluntary_switches: u64,
    /// Number of involuntary context switches.
    pub involuntary_switches: u64,
    /// Bytes read and written by system calls; `None` if they may not be read.
    pub io_bytes: Option<u64>,
}

impl Usage {
    /// The usage of a program that has not ended.
    pub const NONE: Usage = Usage {
        user_s: 0.0,
        system_s: 0.0,
        voluntary_switches: 0,
        involuntary_switches: 0,
        io_bytes: Some(0),
    };

    /// Returns the sum of the usages of two programs.
    #[must_use]
    pub fn plus(self, other: Usage) -> Usage {
        let io_bytes = self.io_bytes.zip(other.io_bytes);
        Usage {
            user_s: self.user_s + other.user_s,
            system_s: self.system_s + other.system_s,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
            io_bytes: io_bytes.map(|(a, b)| a.saturating_add(b)),
        }
    }

    /// Returns the CPU time in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    fn of(usage: &libc::rusage, io_bytes: Option<u64>) -> Usage {
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        Usage {
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
            io_bytes,
        }
    }
}

impl Launch {
    /// Creates a launch of a program with arguments and default settings.
    pub fn new(program: impl Into<OsString>, args: impl IntoIterator<Item = OsString>) -> Launch {
        Launch { program: program.into(), args: args.into_iter().collect(), ..Launch::default() }
    }

    /// Creates the process and holds it before exec: the process has its number, its first thread,
    /// and still the name of Corebeat.
    ///
    /// # Errors
    /// [`Error::Refused`] if no process can be created. [`Error::InvalidArgument`] for missing
    /// nodes or CPUs, or a nice value that may not be set. [`Started::release`] reports whether
    /// the program can be executed.
    pub fn start(&self) -> Result<Started, Error> {
        let failed = |source: io::Error| Error::Refused { what: "start a process".into(), source };
        if self.keep_orphans {
            let me = rustix::process::getpid();
            rustix::process::set_child_subreaper(Some(me)).map_err(|e| failed(e.into()))?;
        }
        signal::keep_children();
        let (pid_reader, pid_writer) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let (gate_reader, gate) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
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
        let (mut pid_writer, mut gate_reader) = (File::from(pid_writer), File::from(gate_reader));
        let hold = move || {
            // With its own copy open, the child would not detect that all other copies are closed.
            // SAFETY: the child has this descriptor from the fork and uses it nowhere else.
            unsafe { libc::close(open_gate) };
            let pid = (std::process::id() as i32).to_ne_bytes();
            let released =
                pid_writer.write_all(&pid).and_then(|()| gate_reader.read_exact(&mut [0]));
            if released.is_err() {
                // Corebeat has ended. The standard library would abort, with a message, because it
                // could not pass an error on.
                // SAFETY: the call runs no code of this process.
                unsafe { libc::_exit(1) };
            }
            signal::restore_in_child();
            // Corebeat raises its limit of open files. Lowering a limit never fails.
            let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, files_max);
            memory.map_or(Ok(()), |m| m.set())
        };
        // SAFETY: between fork and exec the hook makes system calls only (close, write, getpid,
        // read, _exit, sigaction, sigmask, setrlimit, set_mempolicy) and uses neither locks nor the
        // heap: errors are numbers or static.
        unsafe { command.pre_exec(hold) };
        let spawner =
            std::thread::Builder::new().name("launch".into()).spawn(move || command.spawn());
        let spawner = spawner.map_err(failed)?;
        let mut pid = [0; 4];
        if File::from(pid_reader).read_exact(&mut pid).is_err() {
            drop(gate);
            let why = spawner.join().map(|r| r.err()).ok().flatten();
            return Err(failed(why.unwrap_or_else(|| io::ErrorKind::Other.into())));
        }
        let pid =
            Pid::from_raw(i32::from_ne_bytes(pid)).expect("the number of a child is positive");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
        let started = Started {
            pid,
            pidfd,
            gate: Some(gate),
            spawner: Some(spawner),
            program: self.program.clone(),
            keep_orphans: self.keep_orphans,
            ended: None,
            is_stopping: false,
            usage: Usage::NONE,
        };
        self.set_up(&started)?;
        Ok(started)
    }

    /// Sets CPUs and nice value of the held process. The program inherits both.
    fn set_up(&self, started: &Started) -> Result<(), Error> {
        if let Some(cpus) = &self.cpus {
            write_cpus(started.pid(), cpus).map_err(|e| {
                Error::InvalidArgument(format!(
                    "the program cannot run on the CPUs {cpus}: {e}; see 'nproc'"
                ))
            })?;
        }
        if let Some(nice) = self.nice {
            let pid = Some(started.pid);
            let set = getpriority_process(pid)
                .and_then(|now| setpriority_process(pid, now.saturating_add(nice)));
            set.map_err(|e| {
                Error::InvalidArgument(format!(
                    "the nice value {nice} cannot be set: {e}; use 0 to 19"
                ))
            })?;
        }
        Ok(())
    }
}

impl Drop for Started {
    /// Ends and reaps a process that was not released. Without the wait, the child would report an
    /// error about its closed gate.
    fn drop(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        drop(gate);
        // Not by the spawner thread, which may wait for other programs (`release_all`).
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

impl Started {
    /// Returns the number of the process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Returns what the program has used: complete when its end was reported.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns a descriptor of the process, which becomes readable when the process ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns whether job control has stopped the program (Ctrl-Z). The next [`Started::attend`]
    /// stops this process as well, so that the caller can observe the program before.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Releases the process to execute the program. Later calls have no effect.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::NotExecutable`]; the process has ended then.
    pub fn release(&mut self) -> Result<(), Error> {
        Started::release_all(&mut [self])
    }

    /// Same as [`Started::release`], for several programs. Releasing one program while another is
    /// held may block forever: a held process has copies of all descriptors that were open at its
    /// fork, possibly including the socket that reports the exec of an earlier program.
    ///
    /// # Errors
    /// The error of the first program that cannot be executed. The other programs run.
    pub fn release_all(programs: &mut [&mut Started]) -> Result<(), Error> {
        for program in &mut *programs {
            if let Some(gate) = program.gate.take() {
                // If the child has ended, the spawner thread returns the error.
                let _ = rustix::io::write(&gate, &[1]);
            }
        }
        let spawned = programs.iter_mut().map(|program| program.spawned());
        // `fold` waits for every program.
        spawned.fold(Ok(()), Result::and)
    }

    /// Forwards the signals that this process has received so far to held programs. Call it before
    /// the release: a terminal signals the programs only from their fork on.
    pub fn forward_to_held(programs: &[&mut Started], signals: &Signals) {
        let pidfds: Vec<BorrowedFd<'_>> = programs.iter().map(|p| p.pidfd()).collect();
        signals.forward_to_held(&pidfds);
    }

    /// Waits for the exec.
    fn spawned(&mut self) -> Result<(), Error> {
        let Some(spawner) = self.spawner.take() else { return Ok(()) };
        let spawned = spawner.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        let program = || self.program.to_string_lossy().into_owned();
        match spawned {
            // All waiting uses `pidfd`.
            Ok(_) => Ok(()),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(Error::NotFound { program: program() })
            }
            Err(source) => Err(Error::NotExecutable { program: program(), source }),
        }
    }

    /// Waits until the program ends, at most for `timeout`, and represents the program meanwhile:
    /// forwards signals, reaps orphans. If job control stops the program, returns early, and the
    /// next call stops this process until the program is continued. `None` if the program still
    /// runs; may return early.
    ///
    /// # Errors
    /// [`Error::Refused`] if other code of this process has taken the exit status.
    pub fn attend(
        &mut self,
        signals: &Signals,
        timeout: Duration,
    ) -> Result<Option<ExitStatus>, Error> {
        Ok(Started::attend_all(&mut [self], signals, timeout)?.pop().flatten())
    }

    /// Same as [`Started::attend`], for several programs, until the first of them ends. Each
    /// program receives every forwarded signal. Returns the exit statuses in the same order.
    ///
    /// # Errors
    /// Same as [`Started::attend`].
    pub fn attend_all(
        programs: &mut [&mut Started],
        signals: &Signals,
        timeout: Duration,
    ) -> Result<Vec<Option<ExitStatus>>, Error> {
        let mut stops = false;
        for program in &mut *programs {
            // If the program was continued since, nothing would continue this process.
            stops |= std::mem::take(&mut program.is_stopping) && program.is_stopped();
        }
        if stops {
            signal::stop();
            // The programs get the signal that has continued this process before their states are
            // read: the notice of a program that stopped last would stop this process again.
            let pidfds: Vec<BorrowedFd<'_>> = programs.iter().map(|p| p.pidfd()).collect();
            let requests = signals.forward(&pidfds);
            let ended =
                programs.iter_mut().map(|p| p.poll_status()).collect::<Result<Vec<_>, _>>()?;
            programs.iter_mut().for_each(|p| p.is_stopping &= p.is_stopped());
            if requests.end {
                programs.iter().for_each(|p| p.resume());
            }
            if requests.end || ended.iter().any(Option::is_some) {
                return Ok(ended);
            }
        }
        let until = Instant::now() + timeout;
        loop {
            let ended =
                programs.iter_mut().map(|p| p.poll_status()).collect::<Result<Vec<_>, _>>()?;
            let pidfds: Vec<BorrowedFd<'_>> = programs.iter().map(|p| p.pidfd()).collect();
            if ended.iter().any(Option::is_some) {
                // A signal that is left unread would hit this process when its mask is restored.
                signals.forward(&pidfds);
                return Ok(ended);
            }
            if programs.iter().any(|p| p.is_stopping) {
                return Ok(ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            let wake = pidfds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
            let mut fds: Vec<_> = wake.chain([PollFd::new(signals, PollFlags::IN)]).collect();
            let left =
                left.try_into().unwrap_or(rustix::time::Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return programs.iter_mut().map(|p| p.poll_status()).collect(),
                Ok(_) => {
                    let requests = signals.forward(&pidfds);
                    // A program that another signal has stopped does not stop again.
                    if requests.stop && programs.iter().all(|p| p.is_stopped()) {
                        programs.iter_mut().for_each(|p| p.is_stopping = true);
                    }
                    if requests.end {
                        programs.iter().for_each(|p| p.resume());
                        // The caller may have to clean up before the end.
                        return programs.iter_mut().map(|p| p.poll_status()).collect();
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    return Err(Error::Refused {
                        what: "wait for the program".into(),
                        source: e.into(),
                    });
                }
            }
        }
    }

    /// Waits until the program ends.
    ///
    /// # Errors
    /// Same as [`Started::attend`].
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        loop {
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            if let Some(status) = self.poll_status()? {
                return Ok(status);
            }
        }
    }

    /// Whether a signal or a debugger has stopped the program.
    fn is_stopped(&self) -> bool {
        is_halted(self.pid()) && !has_ended(&self.pidfd)
    }

    /// Continues a stopped program, which has received a signal that requests its end: a stopped
    /// process handles no signal, and a shell that waits for Corebeat cannot continue it.
    fn resume(&self) {
        if self.is_stopped() {
            let _ = pidfd_send_signal(&self.pidfd, Signal::CONT);
        }
    }

    /// Reads state changes of the program and of orphans.
    fn poll_status(&mut self) -> Result<Option<ExitStatus>, Error> {
        while self.ended.is_none() || self.keep_orphans {
            match self.next_change() {
                Ok(Some((pid, status))) if pid == self.pid() => match status.stopped_signal() {
                    Some(signal) => self.is_stopping |= signal::is_of_job_control(signal),
                    None => self.ended = Some(status),
                },
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) && self.ended.is_some() => break,
                Err(source) => {
                    let what = format!("read the exit status of process {}", self.pid());
                    return Err(Error::Refused { what, source });
                }
            }
        }
        Ok(self.ended)
    }

    /// Returns the next state change of the program or of an orphan, if there is one. Adds the
    /// usage of a process that has ended, and removes the process.
    fn next_change(&mut self) -> io::Result<Option<(i32, ExitStatus)>> {
        // Any process group: a program may change its group, as `timeout`, shells and daemons do.
        let pid = if self.keep_orphans { -1 } else { self.pid() };
        // A process is only readable until it was waited for.
        let ended = first_ended(pid)?;
        let io = ended.and_then(|ended| read_of_thread(ended, "io").ok().flatten());
        let mut status = 0;
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        let options = libc::WNOHANG | libc::WUNTRACED;
        // SAFETY: the kernel writes a number and a struct of the correct types, which live through
        // the call. Zeros are valid for the struct.
        let (changed, usage) = unsafe {
            let pid = ended.unwrap_or(pid);
            let changed = libc::wait4(pid, &raw mut status, options, usage.as_mut_ptr());
            (changed, usage.assume_init())
        };
        let status = ExitStatus::from_raw(status);
        match changed {
            ..0 => Err(io::Error::last_os_error()),
            0 => Ok(None),
            _ => {
                if status.stopped_signal().is_none() {
                    let io_bytes = io.and_then(|text| process::parse_io(&text));
                    self.usage = self.usage.plus(Usage::of(&usage, io_bytes));
                }
                Ok(Some((changed, status)))
            }
        }
    }
}

/// Returns a child that has ended, without waiting for it: this child, or any child for -1.
fn first_ended(pid: i32) -> io::Result<Option<i32>> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let kind = if pid < 0 { libc::P_ALL } else { libc::P_PID };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes a struct of this type, for which zeros are valid: the number is 0
    // if no child has ended.
    let (result, found) = unsafe {
        let result = libc::waitid(kind, pid.max(0) as libc::id_t, info.as_mut_ptr(), options);
        (result, info.assume_init().si_pid())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((found > 0).then_some(found)) }
}
