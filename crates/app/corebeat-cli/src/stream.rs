//! Standard streams that are closed at the start.
//!
//! The standard library opens `/dev/null` in place of a closed standard stream before `main`. The
//! programs that Corebeat starts must find the stream closed, as they do without Corebeat: a write
//! to it is an error, which a program may report by its exit status. Corebeat's own output to a
//! closed stream must be an error, too. The standard library ignores `EBADF` for standard output,
//! so a socket without a peer replaces it, which refuses each write.

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

/// Keeps the streams closed that were closed at the start: for the programs that this process
/// executes, and standard output also for this process.
pub(crate) fn keep_closed() {
    // Relaxed: the threads of this process start later.
    let closed = CLOSED.load(Ordering::Relaxed);
    let is_closed = |stream: &i32| closed & (1 << stream) != 0;
    for stream in (0..3).filter(is_closed) {
        // SAFETY: the call takes no pointer. The descriptor is the `/dev/null` of the standard
        // library.
        unsafe { libc::fcntl(stream, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    if is_closed(&libc::STDOUT_FILENO) {
        // SAFETY: the calls take no pointer, and no thread uses the replaced descriptor. Without a
        // free descriptor, both calls fail.
        unsafe {
            let refusing = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            libc::dup3(refusing, libc::STDOUT_FILENO, libc::O_CLOEXEC);
            libc::close(refusing);
        }
    }
}
