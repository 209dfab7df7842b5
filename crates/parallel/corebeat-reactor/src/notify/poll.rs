//! `poll`: the program keeps the interest set and passes it to each call, and the kernel checks
//! every descriptor of the set.

use super::epoll::{bell, ring, timespec};
use super::{Event, Interest, Notify};
use corebeat_sync::{Mutex, lock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) struct Poll {
    entries: Mutex<Entries>,
    bell: OwnedFd,
}

#[derive(Default)]
struct Entries {
    places: HashMap<u64, usize>,
    /// The armed entries come first.
    list: Vec<Entry>,
    /// Number of armed entries.
    armed: usize,
    /// Whether a thread is in the system call, with a copy of the armed entries.
    is_waiting: bool,
    /// Position of the entry at which the next search for ready entries begins, so that each of
    /// them has its turn where a caller takes one at a time.
    next: usize,
}

struct Entry {
    key: u64,
    fd: RawFd,
    flags: PollFlags,
}

impl Entries {
    fn swap(&mut self, a: usize, b: usize) {
        self.list.swap(a, b);
        self.places.insert(self.list[a].key, a);
        self.places.insert(self.list[b].key, b);
    }

    /// Disarms the entry with this key. Returns whether it was armed.
    fn disarm(&mut self, key: u64) -> bool {
        let Some(&place) = self.places.get(&key).filter(|place| **place < self.armed) else {
            return false;
        };
        self.armed -= 1;
        self.swap(place, self.armed);
        true
    }
}

impl Poll {
    pub(crate) fn new() -> io::Result<Poll> {
        Ok(Poll { entries: Mutex::default(), bell: bell()? })
    }

    /// Interrupts a system call in progress, whose copy of the set is outdated.
    fn renew(&self, is_waiting: bool) {
        if is_waiting {
            ring(&self.bell);
        }
    }

    fn empty_bell(&self) {
        // The only failure is that the bell was not rung.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }
}

impl Notify for Poll {
    fn add(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        let mut entries = lock(&self.entries);
        let place = entries.list.len();
        entries.list.push(Entry { key, fd: fd.as_raw_fd(), flags: PollFlags::empty() });
        entries.places.insert(key, place);
        drop(entries);
        self.rearm(fd, key, interest, false)
    }

    fn rearm(&self, _: BorrowedFd<'_>, key: u64, interest: Interest, _: bool) -> io::Result<()> {
        let mut entries = lock(&self.entries);
        let Some(&place) = entries.places.get(&key) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP, interest.read);
        flags.set(PollFlags::OUT, interest.write);
        entries.list[place].flags = flags;
        let armed = entries.armed;
        if place >= armed {
            entries.swap(place, armed);
            entries.armed += 1;
        }
        let is_waiting = entries.is_waiting;
        drop(entries);
        self.renew(is_waiting);
        Ok(())
    }

    fn remove(&self, _: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        let mut entries = lock(&self.entries);
        entries.disarm(key);
        let Some(place) = entries.places.get(&key).copied() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let last = entries.list.len() - 1;
        entries.swap(place, last);
        entries.list.pop();
        entries.places.remove(&key);
        // The call in progress must not report another file with the number of this one.
        let is_waiting = entries.is_waiting;
        drop(entries);
        self.renew(is_waiting);
        Ok(())
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize, time: Option<Duration>) -> io::Result<()> {
        events.clear();
        let mut entries = lock(&self.entries);
        let keys: Vec<u64> = entries.list[..entries.armed].iter().map(|entry| entry.key).collect();
        let polled = |entry: &Entry| {
            // SAFETY: the number is only passed to the system call. If the descriptor is closed
            // meanwhile, the call reports a state that no entry receives, because the entry was
            // removed before.
            PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(entry.fd) }, entry.flags)
        };
        let mut polled: Vec<PollFd<'_>> =
            entries.list[..entries.armed].iter().map(polled).collect();
        polled.push(PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN));
        entries.is_waiting = true;
        drop(entries);
        let result = poll(&mut polled, timespec(time).as_ref());
        let mut entries = lock(&self.entries);
        entries.is_waiting = false;
        match result {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(why) => return Err(why.into()),
        }
        if polled.pop().is_some_and(|bell| !bell.revents().is_empty()) {
            self.empty_bell();
        }
        let first = entries.next.min(keys.len());
        let mut order = (first..keys.len()).chain(0..first);
        while events.len() < max
            && let Some(at) = order.next()
        {
            let flags = polled[at].revents();
            // An entry that was disarmed or removed meanwhile is not reported.
            if !flags.is_empty() && entries.disarm(keys[at]) {
                events.push(event(keys[at], flags));
                entries.next = at + 1;
            }
        }
        Ok(())
    }

    fn wake(&self) {
        ring(&self.bell);
    }
}

pub(super) fn event(key: u64, flags: PollFlags) -> Event {
    use PollFlags as F;
    let broken = F::HUP | F::ERR | F::NVAL;
    Event {
        key,
        readable: flags.intersects(F::IN | F::PRI | F::RDHUP | broken),
        writable: flags.intersects(F::OUT | broken),
        is_final: flags.intersects(F::RDHUP | F::PRI | broken),
    }
}
