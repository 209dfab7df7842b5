//! Signals to Corebeat that are meant for the program.

use crate::process::ancestors;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::{Signal, pidfd_send_signal};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::OnceLock;

/// The standard ones of [`ending_signals`]. After PIPE and XFSZ, the write returns an error.
const STANDARD: [i32; 16] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSYS,
];

/// Signals that end a process by default, by libc's numbers, with the real-time signals; without
/// KILL, and without those that report a fault of its own code (SEGV, BUS, FPE, ILL) or a failed
/// write (PIPE, XFSZ). A process that must undo its changes handles all of them. `abort` ends a
/// process that handles, blocks or ignores ABRT as well.
pub fn ending_signals() -> impl Iterator<Item = i32> {
    // The C library uses the real-time signals below SIGRTMIN itself.
    STANDARD.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Signals that Corebeat forwards as well. `SIGCHLD` only wakes
/// [`Started::attend`](super::Started::attend). `SIGTTIN` and `SIGTTOU` stop both Corebeat and the
/// program, as intended.
const OTHERS: [i32; 3] = [libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH];

/// Those of [`ending_signals`] that request the end of a process, also if a program handles them.
const REQUESTS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Ends of timers that the parent has set for the program: the kernel signals Corebeat alone.
const TIMERS: [i32; 3] = [libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF];

/// Queue of the signals of this process.
///
/// Create the queue before other threads start: they inherit the blocked signals, and a thread
/// without them would receive the signals. Dropping the queue unblocks the signals on this thread.
#[derive(Debug)]
pub struct Signals {
    queue: File,
    before: libc::sigset_t,
    end_requested: Cell<Option<i32>>,
    /// Not `Send`: the signals are blocked on the creating thread.
    not_send: PhantomData<*const ()>,
}

/// Requests by the signals that were forwarded.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The end of the programs.
    pub(super) end: bool,
    /// A stop by job control.
    pub(super) stop: bool,
}

impl Signals {
    /// Blocks and queues the signals of [`ending_signals`], TSTP, CONT, WINCH and CHLD.
    ///
    /// # Errors
    /// Fails if no descriptor is free.
    pub fn new() -> io::Result<Signals> {
        let set = set_of(ending_signals().chain(OTHERS).chain([libc::SIGCHLD]));
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are of the right type, `set` is initialised, and so is `before` if the
        // call succeeds.
        let before = unsafe {
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr()) {
                0 => before.assume_init(),
                e => return Err(io::Error::from_raw_os_error(e)),
            }
        };
        // SAFETY: -1 requests a new descriptor, and `set` is initialised.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            set_mask(&before);
            return Err(error);
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let queue = unsafe { OwnedFd::from_raw_fd(fd) }.into();
        Ok(Signals { queue, before, end_requested: Cell::new(None), not_send: PhantomData })
    }

    /// Returns the last signal that requested the end, by libc's number, unless it came from the
    /// program itself or is ignored here: INT, TERM, HUP, QUIT, and without a program that could
    /// handle it each of [`ending_signals`]. A caller that runs one program does not need this
    /// function: the program handles its signals.
    pub fn end_requested(&self) -> Option<i32> {
        self.end_requested.get()
    }

    /// Ignores further [`ending_signals`] until the process ends, if one requested the end: without
    /// this, the second of two requests would end the process while it writes its results, when the
    /// mask is restored. `timeout` sends two, to the process and to its group. QUIT ends the
    /// process from now on, also if it hangs.
    pub fn ignore_repeated_requests(&self) {
        if self.end_requested().is_none() {
            return;
        }
        for signal in ending_signals().filter(|&signal| !is_ignored(signal)) {
            // SAFETY: neither action runs a handler. Ignoring discards a pending signal.
            unsafe {
                let before = libc::signal(signal, libc::SIG_IGN);
                if signal == libc::SIGQUIT {
                    libc::signal(signal, before);
                }
            }
        }
        // SAFETY: the set is initialised.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_UNBLOCK,
                &set_of([libc::SIGQUIT]),
                std::ptr::null_mut(),
            );
        }
    }

    /// Forwards queued signals to programs that have not received them: a terminal signals its
    /// whole foreground group, including the programs.
    pub(super) fn forward(&self, pidfds: &[BorrowedFd<'_>]) -> Requests {
        self.forward_if(pidfds, |info| {
            let signal = info.ssi_signo as i32;
            info.ssi_code != libc::SI_KERNEL
                || TIMERS.contains(&signal)
                || signal == libc::SIGHUP && is_session_leader()
        })
    }

    /// Forwards queued signals to held programs, except stops, which would delay their exec. The
    /// terminal may have signalled its foreground group before the programs were in it. A held
    /// program blocks the signals: one that it receives twice is delivered once.
    pub(super) fn forward_to_held(&self, pidfds: &[BorrowedFd<'_>]) {
        self.forward_if(pidfds, |info| !OTHERS.contains(&(info.ssi_signo as i32)));
    }

    fn forward_if(
        &self,
        pidfds: &[BorrowedFd<'_>],
        is_missing: impl Fn(&libc::signalfd_siginfo) -> bool,
    ) -> Requests {
        let mut requests = Requests::default();
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut bytes = [0u8; SIZE];
        while (&self.queue).read(&mut bytes).is_ok_and(|n| n == SIZE) {
            // SAFETY: the kernel has filled all bytes with a struct of this type, for which all
            // bytes are valid.
            let info = unsafe { bytes.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() };
            let signal = info.ssi_signo as i32;
            if signal == libc::SIGCHLD || is_descendant(info.ssi_pid as i32) {
                continue;
            }
            // Blocked signals are queued even if they are ignored, as HUP is under nohup: these
            // request nothing.
            let is_request =
                REQUESTS.contains(&signal) || pidfds.is_empty() && !OTHERS.contains(&signal);
            if is_request && !is_ignored(signal) {
                self.end_requested.set(Some(signal));
                requests.end = true;
            }
            requests.stop |= signal == libc::SIGTSTP && !is_ignored(signal) && has_job_control();
            if is_missing(&info) {
                // SAFETY: the number is that of a received signal.
                let signal = unsafe { Signal::from_raw_unchecked(signal) };
                // The error of a program that has ended is ignored.
                for fd in pidfds {
                    let _ = pidfd_send_signal(fd, signal);
                }
            }
        }
        requests
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> i32 {
        self.queue.as_raw_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        set_mask(&self.before);
    }
}

/// Returns whether a process descends from this process. Signals of the program to its parent or to
/// its group are not forwarded to the program.
fn is_descendant(pid: i32) -> bool {
    let own = std::process::id() as i32;
    ancestors(pid).any(|ancestor| ancestor == own)
}

/// Returns whether a signal that has stopped the program is one of job control. Corebeat then stops
/// as well, so that the shell detects the stop. The shell continues both.
pub(super) fn is_of_job_control(signal: i32) -> bool {
    [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

/// Whether the next ancestor outside of the process group may be a shell, which continues the
/// group: the kernel does not stop the processes of an orphaned group.
fn has_job_control() -> bool {
    let own_group = group_of(0);
    ancestors(std::process::id() as i32)
        .find(|&pid| group_of(pid) != own_group)
        .is_some_and(|pid| session_of(pid) == session_of(0))
}

/// Whether this process leads its session. The kernel signals only the leader when the terminal
/// vanishes, and the foreground group when the leader ends.
fn is_session_leader() -> bool {
    session_of(0) == std::process::id() as i32
}

/// Returns the process group of a process (0: of this process); -1 if there is no such process. A
/// group from outside of this PID namespace has the number 0, for which rustix has no value.
fn group_of(pid: i32) -> i32 {
    // SAFETY: a plain system call.
    unsafe { libc::getpgid(pid) }
}

/// Same as [`group_of`], for the session.
fn session_of(pid: i32) -> i32 {
    // SAFETY: a plain system call.
    unsafe { libc::getsid(pid) }
}

/// Stops this process until it is continued.
pub(super) fn stop() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
}

/// Ends this process in the same way as the program: with its exit status, or by the same signal.
/// Destructors do not run: drop the [`Actuator`](crate::Actuator) before.
pub fn exit_as(status: ExitStatus) -> ! {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        Some(signal) => end_by(signal),
        None => std::process::exit(status.code().unwrap_or(1)),
    }
}

/// Ends this process by a signal that ends a process by default, so that its parent receives the
/// signal as the cause. Destructors do not run, and no core is written.
pub fn end_by(signal: i32) -> ! {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on values that live through them; the default action has no
    // handler.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set_of([signal]), std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// Signal state at the start of this process.
struct Initial {
    mask: libc::sigset_t,
    ignored: [(i32, bool); 2],
}

static INITIAL: OnceLock<Initial> = OnceLock::new();

/// Constructor that runs before `main`: the Rust runtime ignores `SIGPIPE` at start, but the
/// program must inherit the setting of the user. The C library calls the functions of this section
/// at start.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = {
    extern "C" fn remember() {
        let _ = INITIAL.set(Initial::now());
    }
    remember
};

impl Initial {
    fn now() -> Initial {
        let mut mask = set_of([]);
        // SAFETY: without a new set, the call only reads the mask into a set of the correct type.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask) };
        Initial { mask, ignored: [libc::SIGPIPE, libc::SIGCHLD].map(|s| (s, is_ignored(s))) }
    }
}

/// Returns whether this process ignores a signal, as its parent may have requested (`nohup`).
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action, the call only reads into a struct of the correct type, for
    // which zeros are valid.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Restores the signal mask and ignored signals of the start of this process, in the child before
/// exec. System calls only: safe between fork and exec.
pub(super) fn restore_in_child() {
    let Some(initial) = INITIAL.get() else { return };
    for (signal, ignored) in initial.ignored {
        let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: neither action runs a handler.
        unsafe { libc::signal(signal, action) };
    }
    set_mask(&initial.mask);
}

/// Keeps the exit status of children until it is read: if Corebeat was started with `SIGCHLD`
/// ignored, the kernel discards the status.
pub(super) fn keep_children() {
    // Names the constructor, so that the linker keeps it.
    std::hint::black_box(REMEMBER);
    if is_ignored(libc::SIGCHLD) {
        // SAFETY: the default action runs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

fn set_mask(set: &libc::sigset_t) {
    // SAFETY: `set` is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) };
}

fn set_of(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set; the others add valid signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        signals.into_iter().for_each(|s| {
            libc::sigaddset(set.as_mut_ptr(), s);
        });
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signal_requests_no_end() {
        for action in [libc::SIG_IGN, libc::SIG_DFL] {
            let signals = Signals::new().unwrap();
            // SAFETY: neither action runs a handler, and the signal is blocked on the receiving
            // thread.
            unsafe {
                libc::signal(libc::SIGHUP, action);
                libc::pthread_kill(libc::pthread_self(), libc::SIGHUP);
            }
            let requests = action == libc::SIG_DFL;
            assert_eq!(signals.forward(&[]).end, requests);
            assert_eq!(signals.end_requested(), requests.then_some(libc::SIGHUP));
        }
    }
}
