//! Edge-triggered epoll: reports each change of a descriptor's state once. No system call re-arms a
//! descriptor that was used until it was not ready any more.

use super::set::{Set, flags};
use super::{Event, Interest, Notify};
use rustix::event::epoll::EventFlags;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub(crate) struct Edge(Set);

impl Edge {
    pub(crate) fn new() -> io::Result<Edge> {
        Set::new().map(Edge)
    }
}

impl Notify for Edge {
    fn add(&self, fd: BorrowedFd<'_>, key: u64, _: Interest) -> io::Result<()> {
        // Both directions, so that a change of the interest needs no system call.
        self.0.add(fd, key, flags(Interest::BOTH) | EventFlags::ET)
    }

    fn rearm(&self, fd: BorrowedFd<'_>, key: u64, _: Interest, is_drained: bool) -> io::Result<()> {
        if is_drained {
            return Ok(());
        }
        // The kernel checks the state of a descriptor when its entry changes, and reports it.
        self.0.modify(fd, key, flags(Interest::BOTH) | EventFlags::ET)
    }

    fn remove(&self, fd: BorrowedFd<'_>, _: u64) -> io::Result<()> {
        self.0.remove(fd)
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize, time: Option<Duration>) -> io::Result<()> {
        self.0.wait(events, max, time)
    }

    fn wake(&self) {
        self.0.wake();
    }
}
