//! Mechanisms that detect which descriptors of an interest set are ready.
//!
//! | mechanism | after a report | file |
//! | --- | --- | --- |
//! | edge-triggered epoll | reports the descriptor again when its state changes | [`epoll`] |
//! | one-shot epoll | does not report it until it is re-armed, by a system call | [`epoll`] |
//! | `poll` | does not report it until it is re-armed, in the memory of the program | [`poll`] |
//! | io_uring | reports the descriptor again when its state changes | [`uring`] |
//!
//! The third mechanism is the select of Strebelow and Prehofer, *Analysis of Event Processing
//! Design Patterns and Their Performance Dependency on I/O Notification Mechanisms*, 2012, section
//! 2: the program keeps the interest set and passes it to each call. `poll` has no limit of 1024
//! descriptors, which is why it replaces `select` here.

mod epoll;
mod poll;
mod uring;

pub(crate) use epoll::{Epoll, Trigger};
pub(crate) use poll::Poll;
pub(crate) use uring::Uring;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Directions in which a descriptor is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    pub(crate) const READ: Interest = Interest { read: true, write: false };
    pub(crate) const WRITE: Interest = Interest { read: false, write: true };
    pub(crate) const BOTH: Interest = Interest { read: true, write: true };
}

/// Report that a descriptor is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// Key with which the descriptor was added.
    pub(crate) key: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has closed a direction, the connection has failed, or urgent data has arrived.
    /// After that, a short read is no proof that the next read would find nothing.
    pub(crate) is_final: bool,
}

/// An interest set. One thread at a time waits; any thread changes the set.
pub(crate) trait Notify: Send + Sync {
    /// Adds a descriptor, which is reported at once if it is ready. The key
    /// [`RESERVED`] is not used.
    fn add(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()>;

    /// Lets a descriptor be reported again, after a report. `is_drained` states that the caller has
    /// used the descriptor until it was not ready any more.
    fn rearm(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        interest: Interest,
        is_drained: bool,
    ) -> io::Result<()>;

    /// Removes a descriptor before it is closed. The caller is a thread of the server.
    fn remove(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()>;

    /// Removes a descriptor that stays open until [`Notify::settle`]. Any thread may call this
    /// function. Late reports are possible.
    fn release(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.remove(fd, key)
    }

    /// Completes earlier calls of [`Notify::release`]. The caller is a thread of the server.
    fn settle(&self) -> io::Result<()> {
        Ok(())
    }

    /// Waits until a descriptor is ready, [`Notify::wake`] is called, or `time` is over. Replaces
    /// `events` by at most `max` reports; none if the wait was interrupted.
    fn wait(&self, events: &mut Vec<Event>, max: usize, time: Option<Duration>) -> io::Result<()>;

    /// Interrupts the current wait; without one, the next.
    fn wake(&self);
}

/// Key of the bell of a set.
pub(crate) const RESERVED: u64 = u64::MAX;
/// Key of the listener of a server.
pub(crate) const LISTENER: u64 = u64::MAX - 1;
