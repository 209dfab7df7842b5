//! Descriptors of this library inside a program that has closed its standard ones.
//!
//! The kernel returns the smallest free number. A program that was started with a closed standard
//! input, output or error, or has closed it, would write its output to a socket of the library.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The smallest number that is not the one of standard input, output or error.
const NUMBER_MIN: libc::c_int = 3;

/// Returns the descriptor with a number that is not the one of standard input, output or error.
/// Each function of the libraries that opens a file which stays open calls this function at once.
///
/// # Errors
/// The process has no descriptor left (`EMFILE`).
pub fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() >= NUMBER_MIN {
        return Ok(fd);
    }
    // SAFETY: the descriptor is open.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, NUMBER_MIN) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor is new, so that no other value owns it.
        moved => Ok(unsafe { OwnedFd::from_raw_fd(moved) }),
    }
}

/// While this value exists, no file that is opened gets a standard descriptor: those that were free
/// refer to `/dev/null`. For values whose descriptors cannot be moved.
#[derive(Debug)]
pub struct StandardTaken {
    _files: Vec<File>,
}

impl StandardTaken {
    /// Opens `/dev/null` until no standard descriptor is free.
    ///
    /// # Errors
    /// `/dev/null` cannot be opened, or the process has no descriptor left (`EMFILE`).
    pub fn new() -> io::Result<StandardTaken> {
        let mut files = Vec::new();
        loop {
            let file = File::open("/dev/null")?;
            if file.as_raw_fd() >= NUMBER_MIN {
                return Ok(StandardTaken { _files: files });
            }
            files.push(file);
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::fork::{KeptOut, Process};
    use corebeat_test_group::in_child;

    #[test]
    fn descriptor_is_none_of_the_standard_ones_if_these_are_closed() {
        let open = || File::open("/dev/null");
        // Another test may use the module for the first time during the fork.
        Process::current();
        assert!(in_child(|| {
            for fd in 0..NUMBER_MIN {
                // SAFETY: the child uses none of the descriptors until its end.
                unsafe { libc::close(fd) };
            }
            let moved = above_standard(open().unwrap().into()).unwrap();
            let (_kept, file) = KeptOut::file(open).unwrap();
            // SAFETY: the call only reads the flags of the descriptor.
            let flags = unsafe { libc::fcntl(moved.as_raw_fd(), libc::F_GETFD) };
            let is_closed = open().unwrap().as_raw_fd() == 0;
            let taken = StandardTaken::new().unwrap();
            let above = open().unwrap();
            drop(taken);
            above.as_raw_fd() >= NUMBER_MIN
                && open().unwrap().as_raw_fd() == 0
                && moved.as_raw_fd() >= NUMBER_MIN
                && file.as_raw_fd() >= NUMBER_MIN
                && flags == libc::FD_CLOEXEC
                && is_closed
        }));
    }
}
