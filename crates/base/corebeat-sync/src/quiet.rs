//! Threads of a library in somebody else's program: its signals do not reach them.
//!
//! The system hands a signal for a process to any thread that does not block it. Handlers of a program are to run on threads of
//! the program, and who waits for a signal (`sigwait`, `signalfd`) is to get it.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// A thread's own mistakes, which its program's handlers may want to name: blocked, they would kill without a word.
const OWN: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Starts a thread in which all signals are blocked, from its very beginning, but those of its own mistakes.
///
/// # Errors
/// The system's, which starts no thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread has the mask of who starts it.
    let before = block();
    let thread = Builder::new().name(name.into()).spawn(run);
    restore(&before);
    thread
}

/// Blocks signals in this thread. What it had before.
fn block() -> libc::sigset_t {
    let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are room for one; the first is filled before it is used, the second by the call, which cannot fail: it is
    // asked to do something that there is.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in OWN {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: a set that the system has filled; the one that it replaces is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn blocked() -> Vec<libc::c_int> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: without a new set nothing changes, and the old one is filled.
        let set = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
            set.assume_init()
        };
        // SAFETY: a filled set.
        (1..32).filter(|signal| unsafe { libc::sigismember(&set, *signal) } == 1).collect()
    }

    #[test]
    fn thread_has_no_signals_but_of_its_own_mistakes_and_its_starter_has_as_before() {
        let before = blocked();
        let there = spawn("quiet", blocked).unwrap().join().unwrap();
        assert_eq!(blocked(), before);
        for signal in (1..32).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
            assert_eq!(there.contains(&signal), !OWN.contains(&signal), "signal {signal}");
        }
    }
}
