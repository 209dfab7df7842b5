//! The descriptor of a claim, which stays the same when the claim moves to another arbiter.

use corebeat_sync::descriptor::above_standard;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Readable while a change may be pending: a set of descriptors (`epoll(7)`) that contains an event
/// and, for a claim at the daemon, the socket of its connection.
#[derive(Debug)]
pub(crate) struct Signal {
    set: OwnedFd,
    event: OwnedFd,
}

impl Signal {
    pub(crate) fn new() -> io::Result<Signal> {
        let set = above_standard(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        let signal = Signal { set, event: event()? };
        signal.include(signal.event.as_fd())?;
        Ok(signal)
    }

    /// Makes the descriptor readable, until it is reset.
    pub(crate) fn raise(&self) {
        raise(&self.event);
    }

    pub(crate) fn reset(&self) {
        reset(&self.event);
    }

    /// Makes the descriptor readable whenever this socket is readable or closed by its peer.
    pub(crate) fn include(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.set, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    /// Removes a socket. Its close does not suffice: a child of fork may have a copy. Must not be
    /// called in such a child, which shares the set with its parent.
    pub(crate) fn exclude(&self, socket: BorrowedFd<'_>) {
        // Fails only for a socket that is not included.
        let _ = epoll::delete(&self.set, socket);
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// An event descriptor, which `poll(2)` can wait for.
pub(crate) fn event() -> io::Result<OwnedFd> {
    above_standard(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

pub(crate) fn raise(event: &OwnedFd) {
    // The write fails only if the counter of the event would overflow.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

pub(crate) fn reset(event: &OwnedFd) {
    // The read fails only if the event was not raised.
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}
