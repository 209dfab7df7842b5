//! The time until which a call waits for the daemon.

use crate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Longest time that a client waits for the daemon. The daemon answers from memory, so a longer
/// delay indicates a failure. A daemon that is this late itself assumes an overloaded host and
/// undoes its changes.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The time until which a call waits for the daemon, however many messages and threads it waits
/// for. Signals do not extend it.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// 2 s from now.
    #[expect(clippy::new_without_default, reason = "each call returns another time")]
    pub fn new() -> Deadline {
        Deadline(Instant::now() + TIMEOUT)
    }

    /// A deadline that has passed.
    pub fn passed() -> Deadline {
        Deadline(Instant::now())
    }

    /// The remaining time.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if none remains.
    pub fn left(self) -> Result<Duration, Error> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Error::TimedOut) } else { Ok(left) }
    }

    /// Waits until a socket is ready.
    pub(crate) fn wait(self, socket: BorrowedFd<'_>, ready: PollFlags) -> Result<(), Error> {
        loop {
            let left = self.left()?;
            // At most 2 s, so the conversions are exact.
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::from_borrowed_fd(socket, ready)], Some(&left)) {
                Ok(0) => return Err(Error::TimedOut),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::system("wait for the daemon", e)),
            }
        }
    }
}
