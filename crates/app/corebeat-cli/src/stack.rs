//! A stack of sufficient size for the commands.
//!
//! The stack of the main thread has the size of `ulimit -s`, which may be less than parsing the
//! command line needs. The command then runs on a thread of its own. As on the main thread, every
//! signal of the process reaches this thread: the main thread blocks all signals and waits.

use rustix::process::{Resource, getrlimit};
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::thread::Builder;

/// Usual size of the stack of a main thread in bytes, which suffices. Unused pages take no memory.
const STACK_BYTES: usize = 8 << 20;

/// Exit status of the standard library for a panic of the main thread.
const PANICKED: u8 = 101;

/// Runs a function with a sufficient stack: on this thread, or else on another one. Other threads
/// must not exist.
pub(crate) fn with_sufficient_stack(run: fn() -> ExitCode) -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|bytes| bytes >= STACK_BYTES as u64) {
        return run();
    }
    let before = block_all();
    let on_thread = move || {
        set_mask(&before);
        run()
    };
    match Builder::new().name("corebeat".into()).stack_size(STACK_BYTES).spawn(on_thread) {
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(PANICKED)),
        Err(_) => {
            set_mask(&before);
            run()
        }
    }
}

/// Blocks all signals in this thread, and returns the previous mask.
fn block_all() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call fills the set that the second one reads, and the second one, which
    // cannot fail with a valid request, fills the other set.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the system filled the set; the null pointer requests no copy of the old mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
