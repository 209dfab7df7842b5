//! Sizes of stacks. A closure must find as much stack on another thread as on the thread of its
//! caller; otherwise a deep recursion that the sequential program survives would overflow.

use corebeat_sync::wait;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smallest stack of helpers: that of threads of the standard library.
const LEAST: usize = 2 << 20;
/// Largest stack of helpers. Only touched pages use memory. No helper takes the closures of threads
/// with larger stacks.
const MOST: usize = 1 << 30;
/// Stack of helpers for an unlimited stack.
const UNLIMITED: usize = 64 << 20;
/// Bytes that the frames of this crate and of the task take beyond those of the sequential program.
#[cfg(not(feature = "rayon"))]
const MARGIN: usize = 64 << 10;

/// Largest stack of a caller until now.
static LARGEST: AtomicUsize = AtomicUsize::new(LEAST);

/// Returns the stack that helpers which start now have, in bytes.
#[cfg(not(feature = "rayon"))]
pub(crate) fn helper_bytes() -> usize {
    // Relaxed: the caller that pushes a job has stored its own size before.
    let bytes = LARGEST.load(Ordering::Relaxed) + MARGIN;
    bytes.next_multiple_of(LEAST).min(MOST)
}

/// Returns the size of the caller's stack in bytes, and makes later helpers at least as large.
pub(crate) fn of_caller() -> usize {
    // The stack of a task of LPEL is not that of its thread. Tasks have smaller stacks than helpers
    // unless their program requests otherwise.
    let bytes = if wait::task().is_some() { 0 } else { of_thread() };
    let bytes = if bytes == usize::MAX { UNLIMITED } else { bytes };
    // Relaxed: only the value matters.
    LARGEST.fetch_max(bytes.min(MOST), Ordering::Relaxed);
    bytes
}

/// Size of the stack of the calling thread; 0 if the system does not report it.
fn of_thread() -> usize {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // SAFETY: no arguments.
        let is_main = unsafe { libc::getpid() as libc::c_long == libc::syscall(libc::SYS_gettid) };
        if is_main { of_main_thread() } else { of_other_thread() }
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    0
}

/// The C library reads a file of the system to find the stack of the main thread; its limit is
/// sufficient here.
#[cfg(all(target_os = "linux", not(miri)))]
fn of_main_thread() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    if result == 0 { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 0 }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn of_other_thread() -> usize {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut size = 0;
    // SAFETY: the pointers are valid, and the attributes are initialised before their use.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 {
            libc::pthread_attr_getstacksize(attributes.as_ptr(), &raw mut size);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
    }
    size
}
