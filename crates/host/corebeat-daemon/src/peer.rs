//! Identity of the process behind a socket, as the kernel reports it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A process that has connected.
#[derive(Debug)]
pub(crate) struct Peer {
    /// User at the time of the connection.
    pub(crate) uid: u32,
    /// Process number.
    pub(crate) pid: i32,
    /// Descriptor of the process, independent of a reused number.
    pidfd: OwnedFd,
}

impl Peer {
    /// Reads the identity of the process that connected to a socket.
    ///
    /// # Errors
    /// The process is outside of the PID namespace of the daemon, and so has no number.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
        // SAFETY: the kernel fills this option with such a struct, of which all bytes are a value.
        let who: libc::ucred = unsafe { option(socket, libc::SO_PEERCRED) }?;
        let pid = Pid::from_raw(who.pid).ok_or(Errno::SRCH)?;
        // SAFETY: the kernel fills this option with an int.
        let pidfd = match unsafe { option::<libc::c_int>(socket, libc::SO_PEERPIDFD) } {
            // SAFETY: the kernel has just created the descriptor for this call; it has no other
            // owner.
            Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
            // Before Linux 6.5, only the number is available. If another process has it by now, the
            // process that connected has ended, and the socket is closed, unless a child holds it
            // open. That case cannot be detected.
            Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
                if is_ready(socket, PollFlags::empty()) {
                    return Err(Errno::SRCH.into());
                }
                pidfd
            }
            Err(e) => return Err(e),
        };
        Ok(Peer { uid: who.uid, pid: who.pid, pidfd })
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        is_ready(self.pidfd.as_fd(), PollFlags::IN)
    }
}

/// Whether one of these events, or a hang-up, is present now.
fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

impl AsFd for Peer {
    /// Readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Reads an option of a socket.
///
/// # Safety
/// The bytes that the kernel writes must be a value of the type.
unsafe fn option<T>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    let (fd, into) = (socket.as_raw_fd(), value.as_mut_ptr().cast());
    // SAFETY: `into` has space for `length` bytes.
    if unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, into, &mut length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<T>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel has written all bytes, and the caller guarantees that they are a value.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_is_the_process_that_connected() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = Peer::of(near.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert!(!peer.has_ended());
    }
}
