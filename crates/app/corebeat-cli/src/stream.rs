//! Standard streams that are closed at the start.
//!
//! The standard library opens `/dev/null` in place of a closed standard stream before `main`. The
//! programs that Corebeat starts must find the stream closed, as they do without Corebeat: a write
//! to it is an error, which a program may report by its exit status.

use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each standard stream that was closed at the start.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs before the standard library opens the streams.
#[used]
// SAFETY: the section holds pointers to functions of this type, which the C library calls before
// `main`, on the only thread.
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = {
    extern "C" fn record() {
        for stream in 0..3 {
            // SAFETY: the call takes no pointer.
            if unsafe { libc::fcntl(stream, libc::F_GETFD) } < 0 {
                // Relaxed: there is one thread.
                CLOSED.fetch_or(1 << stream, Ordering::Relaxed);
            }
        }
    }
    record
};

/// Closes the streams that were closed at the start when this process executes a program.
pub(crate) fn keep_closed_in_programs() {
    // Relaxed: the threads of this process start later.
    let closed = CLOSED.load(Ordering::Relaxed);
    for stream in (0..3).filter(|stream| closed & (1 << stream) != 0) {
        // SAFETY: the call takes no pointer. The descriptor is the `/dev/null` of the standard
        // library.
        unsafe { libc::fcntl(stream, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
