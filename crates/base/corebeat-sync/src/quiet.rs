//! Threads of a library that do not receive the signals of the program that uses the library.
//!
//! The system delivers a signal for a process to any thread that does not block the signal. The
//! handlers of a program should run on threads of the program, and a thread that waits for a signal
//! (`sigwait`, `signalfd`) should receive it.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// Signals that a fault of the thread itself causes. The program's handlers may report them; if
/// they were blocked, the system would end the process without a report.
const SYNCHRONOUS: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Starts a thread in which all signals except those of its own faults are blocked, from its first
/// instruction on.
///
/// # Errors
/// The error of the system, if it cannot start the thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(|| Builder::new().name(name.into()).spawn(run))
}

/// Calls a function that starts a thread, which receives no signals as that of [`spawn`].
pub fn start<T>(start: impl FnOnce() -> T) -> T {
    // A new thread inherits the signal mask of its creator. A drop restores the mask also if
    // `start` panics. Miri has no signals.
    let _restored = (!cfg!(miri)).then(|| Restored(block()));
    start()
}

/// Blocks signals in this thread, and returns the previous mask.
fn block() -> libc::sigset_t {
    let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both pointers refer to memory for a set. The first set is filled before its use, and
    // the call fills the second one; with a valid request it cannot fail.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in SYNCHRONOUS {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// The signal mask of this thread after the drop of this value.
struct Restored(libc::sigset_t);

impl Drop for Restored {
    fn drop(&mut self) {
        // SAFETY: the system filled the set, and the null pointer requests no copy of the old mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn blocked() -> Vec<libc::c_int> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: without a new set the call only fills the old one.
        let set = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
            set.assume_init()
        };
        // SAFETY: the set is filled.
        (1..32).filter(|signal| unsafe { libc::sigismember(&set, *signal) } == 1).collect()
    }

    #[test]
    fn spawned_thread_receives_only_signals_of_its_own_faults() {
        let before = blocked();
        let in_thread = spawn("quiet", blocked).unwrap().join().unwrap();
        assert_eq!(blocked(), before);
        for signal in (1..32).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
            assert_eq!(
                in_thread.contains(&signal),
                !SYNCHRONOUS.contains(&signal),
                "signal {signal}"
            );
        }
    }
    #[test]
    fn signals_are_not_blocked_after_a_panic() {
        let before = blocked();
        std::panic::catch_unwind(|| start(|| panic!("as planned"))).unwrap_err();
        assert_eq!(blocked(), before);
    }
}
