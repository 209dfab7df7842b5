//! Signals that reach Corebeat and are meant for the program.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::{Signal, pidfd_send_signal};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::OnceLock;

/// Taken off Corebeat and passed on. `SIGCHLD` only wakes [`Started::attend`](super::Started::attend). `SIGTTIN` and
/// `SIGTTOU` stop Corebeat and the program alike, as they should.
const PASSED: [i32; 9] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// Those of [`PASSED`] that ask a process to end.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signals of this process, as a queue to be read rather than as interruptions.
///
/// Make it before other threads are started: they inherit that the signals are blocked, and one that does not would be
/// hit by them. Dropping it lets them through again, on this thread.
#[derive(Debug)]
pub struct Signals {
    queue: File,
    before: libc::sigset_t,
    asked_to_end: Cell<Option<i32>>,
    /// The signals are blocked on the thread that made it.
    here: PhantomData<*const ()>,
}

impl Signals {
    /// Takes the signals INT, TERM, HUP, QUIT, USR1, USR2, TSTP, CONT, WINCH and CHLD off this process.
    ///
    /// # Errors
    /// Where no descriptor is free.
    pub fn new() -> io::Result<Signals> {
        let set = set_of(PASSED.iter().copied().chain([libc::SIGCHLD]));
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are of the right type, `set` is initialised, and so is `before` if the call succeeds.
        let before = unsafe {
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr()) {
                0 => before.assume_init(),
                e => return Err(io::Error::from_raw_os_error(e)),
            }
        };
        // SAFETY: -1 asks for a new descriptor, and `set` is initialised.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            set_mask(&before);
            return Err(error);
        }
        // SAFETY: the descriptor was just made and is nobody else's.
        let queue = unsafe { OwnedFd::from_raw_fd(fd) }.into();
        Ok(Signals { queue, before, asked_to_end: Cell::new(None), here: PhantomData })
    }

    /// The last signal that asked for the end (INT, TERM, HUP, QUIT), did not come from the program itself and is not ignored here, by
    /// libc's number. Whoever runs one program need not look: it decides what its signals mean.
    pub fn asked_to_end(&self) -> Option<i32> {
        self.asked_to_end.get()
    }

    /// Passes on what has come to those whom it has not reached: a terminal signals all of its foreground group, the
    /// programs included. Whether one of them asks for the end.
    pub(super) fn pass_on(&self, pidfds: &[BorrowedFd<'_>]) -> bool {
        let mut asks_to_end = false;
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut bytes = [0u8; SIZE];
        while (&self.queue).read(&mut bytes).is_ok_and(|n| n == SIZE) {
            // SAFETY: the kernel has filled all bytes with a struct of this type, which any bytes are a value of.
            let info = unsafe { bytes.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() };
            let signal = info.ssi_signo as i32;
            let to_group = info.ssi_code == libc::SI_KERNEL;
            if !PASSED.contains(&signal) || is_descendant(info.ssi_pid as i32) {
                continue;
            }
            // Blocked signals come although they are ignored, as HUP is under nohup: then nobody asks.
            if ENDING.contains(&signal) && !is_ignored(signal) {
                self.asked_to_end.set(Some(signal));
                asks_to_end = true;
            }
            if !to_group {
                // SAFETY: the number is one of `PASSED`, all of which are signals.
                let signal = unsafe { Signal::from_raw_unchecked(signal) };
                // A program that has ended needs no signals.
                for fd in pidfds {
                    let _ = pidfd_send_signal(fd, signal);
                }
            }
        }
        asks_to_end
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

/// Whether a process comes from this one. What the program sends to its parent, or to its group, is not for itself.
fn is_descendant(mut pid: i32) -> bool {
    let me = std::process::id() as i32;
    // Longer chains of parents are not followed: processes come and go, so that there could be a circle.
    for _ in 0..1000 {
        let parent = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let parent = parent.and_then(|s| s.get(s.rfind(')')? + 1..)?.split_whitespace().nth(1)?.parse().ok());
        match parent {
            Some(parent) if parent == me => return true,
            Some(parent) if parent > 0 => pid = parent,
            _ => return false,
        }
    }
    false
}

/// Stops Corebeat when job control has stopped the program, so that the shell sees it. It goes on with the program, as
/// the shell continues both. A program that was stopped by `SIGSTOP` alone is somebody else's affair.
pub(super) fn stop_like(signal: i32) {
    if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
    }
}

/// Ends this process as the program has ended: with its exit status, or by the same signal. Destructors do not run, so
/// drop the [`Hands`](crate::Hands) first.
pub fn exit_as(status: ExitStatus) -> ! {
    use std::os::unix::process::ExitStatusExt;
    let Some(signal) = status.signal() else { std::process::exit(status.code().unwrap_or(1)) };
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on values that live through them; the default action needs no handler.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set_of([signal]), std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// What this process began with.
struct Beginning {
    mask: libc::sigset_t,
    ignored: [(i32, bool); 2],
}

static BEGINNING: OnceLock<Beginning> = OnceLock::new();

/// Runs before `main`, because Rust's start-up ignores `SIGPIPE` for all of the process, and the program is to find it as
/// its user left it. What stands in this section is called by the C library's start-up code.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = {
    extern "C" fn remember() {
        let _ = BEGINNING.set(Beginning::now());
    }
    remember
};

impl Beginning {
    fn now() -> Beginning {
        let mut mask = set_of([]);
        // SAFETY: with no set given the mask is only read, into a set of the right type.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask) };
        Beginning { mask, ignored: [libc::SIGPIPE, libc::SIGCHLD].map(|s| (s, is_ignored(s))) }
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no action given it is only read, into a struct of the right type, of which zeros are a value.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// In the child, before it becomes the program: gives it mask and ignored signals as this process found them. System calls
/// only: fit for after a fork.
pub(super) fn hand_on() {
    let Some(beginning) = BEGINNING.get() else { return };
    for (signal, ignored) in beginning.ignored {
        let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: neither action runs code of ours.
        unsafe { libc::signal(signal, action) };
    }
    set_mask(&beginning.mask);
}

/// Makes sure that children which have ended wait to be asked how: whoever started Corebeat may have had `SIGCHLD`
/// ignored, and then the kernel throws that away.
pub(super) fn keep_children() {
    // Names the constructor, so that the linker keeps it.
    std::hint::black_box(REMEMBER);
    if is_ignored(libc::SIGCHLD) {
        // SAFETY: the default action runs no code of ours.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

fn set_mask(set: &libc::sigset_t) {
    // SAFETY: `set` is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) };
}

fn set_of(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set; the others put valid signals into it.
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
    fn signal_that_is_ignored_here_asks_nobody_to_end() {
        for action in [libc::SIG_IGN, libc::SIG_DFL] {
            let signals = Signals::new().unwrap();
            // SAFETY: neither action runs code of ours, and the signal is blocked on this thread, which it is for.
            unsafe {
                libc::signal(libc::SIGHUP, action);
                libc::pthread_kill(libc::pthread_self(), libc::SIGHUP);
            }
            let asks = action == libc::SIG_DFL;
            assert_eq!(signals.pass_on(&[]), asks);
            assert_eq!(signals.asked_to_end(), asks.then_some(libc::SIGHUP));
        }
    }
}
