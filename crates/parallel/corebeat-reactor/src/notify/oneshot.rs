//! Level-triggered epoll, one-shot: a reported descriptor is disabled until a system call re-arms
//! it, so that one thread at a time handles the descriptor.

use super::set::{Set, flags};
use super::{Event, Interest, Notify};
use rustix::event::epoll::EventFlags;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub(crate) struct OneShot(Set);

impl OneShot {
    pub(crate) fn new() -> io::Result<OneShot> {
        Set::new().map(OneShot)
    }
}

impl Notify for OneShot {
    fn add(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        self.0.add(fd, key, flags(interest) | EventFlags::ONESHOT)
    }

    fn rearm(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest, _: bool) -> io::Result<()> {
        self.0.modify(fd, key, flags(interest) | EventFlags::ONESHOT)
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
