//! A virtual interest set, by the rules of each mechanism.

use super::{Fault, World, world};
use crate::notify::{Event, Interest, LISTENER, Notify};
use crate::server::Mechanism;
use corebeat_sync::{lock as lock_std, wait};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

pub(super) struct VirtualSet {
    world: Arc<World>,
    mechanism: Mechanism,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<u64, Entry>,
    is_rung: bool,
    waiters: Vec<Waker>,
}

struct Entry {
    fd: RawFd,
    interest: Interest,
    /// Whether a report has not disabled the entry.
    is_armed: bool,
    /// Whether the set has a report for the next wait.
    is_pending: bool,
}

/// Returns a set of the simulation of this thread; `None` without one.
pub(crate) fn notify(mechanism: Mechanism) -> Option<Box<dyn Notify>> {
    let world = world()?;
    let set = VirtualSet { world: world.clone(), mechanism, inner: Mutex::default() };
    let set = Arc::new(set);
    lock_std(&world.state).network.sets.push(Arc::downgrade(&set));
    Some(Box::new(set))
}

impl VirtualSet {
    /// Whether a report disables its entry.
    fn is_one_shot(&self) -> bool {
        matches!(self.mechanism, Mechanism::OneShot | Mechanism::Poll)
    }

    /// Returns the report of a descriptor for which it is ready.
    fn event(&self, key: u64, entry: &Entry) -> Option<Event> {
        let (is_readable, is_writable, is_final) =
            lock_std(&self.world.state).network.ready(entry.fd);
        // Other mechanisms report both directions always.
        let interest = if self.is_one_shot() { entry.interest } else { Interest::BOTH };
        let event = Event {
            key,
            readable: is_readable && interest.read,
            writable: is_writable && interest.write,
            is_final: is_final || self.mechanism == Mechanism::IoUring,
        };
        (event.readable || event.writable || is_final).then_some(event)
    }

    /// Notes that a descriptor, or the listener, has changed.
    pub(super) fn note_change(&self, fd: Option<RawFd>) {
        let mut inner = lock_std(&self.inner);
        let is_changed = |key: &u64, entry: &Entry| match fd {
            Some(fd) => *key != LISTENER && entry.fd == fd,
            None => *key == LISTENER,
        };
        let mut has_news = false;
        for (key, entry) in &mut inner.entries {
            if is_changed(key, entry) && entry.is_armed && self.event(*key, entry).is_some() {
                entry.is_pending = true;
                has_news = true;
            }
        }
        if has_news {
            wake(inner);
        }
    }

    /// Takes reports, from a random place on.
    fn take(&self, events: &mut Vec<Event>, max: usize) {
        let mut inner = lock_std(&self.inner);
        let pending = inner.entries.iter().filter(|(_, entry)| entry.is_pending);
        let mut keys: Vec<u64> = pending.map(|(key, _)| *key).collect();
        lock_std(&self.world.state).random.shuffle(&mut keys);
        for key in keys {
            let Some(entry) = inner.entries.get_mut(&key) else { continue };
            if events.len() == max {
                break;
            }
            entry.is_pending = false;
            // The state at this time, as that of epoll.
            if let Some(event) = self.event(key, entry) {
                entry.is_armed = !self.is_one_shot();
                events.push(event);
            }
        }
    }

    /// Changes an entry, and reports it if `checks` and it is ready.
    fn arm(&self, key: u64, entry: Entry, checks: bool) {
        let mut inner = lock_std(&self.inner);
        let was_pending = inner.entries.get(&key).is_some_and(|old| old.is_pending);
        let is_ready = checks && self.event(key, &entry).is_some();
        let is_pending = was_pending || is_ready;
        inner.entries.insert(key, Entry { is_pending, ..entry });
        if is_ready {
            wake(inner);
        }
    }

    /// Lets other threads run. The threads that change the listener have locked it.
    fn step(&self, key: u64) {
        if key != LISTENER {
            self.world.step();
        }
    }
}

fn wake(mut inner: std::sync::MutexGuard<'_, Inner>) {
    let waiters = std::mem::take(&mut inner.waiters);
    drop(inner);
    waiters.into_iter().for_each(Waker::wake);
}

impl Notify for Arc<VirtualSet> {
    fn add(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        self.step(key);
        let entry = Entry { fd: fd.as_raw_fd(), interest, is_armed: true, is_pending: false };
        let is_lost = self.world.has(Fault::LostEntry) && key != LISTENER && self.world.draws(2);
        self.arm(key, entry, !is_lost);
        self.step(key);
        Ok(())
    }

    fn rearm(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        interest: Interest,
        is_drained: bool,
    ) -> io::Result<()> {
        self.step(key);
        if self.world.has(Fault::LostRearm) && key != LISTENER && self.world.draws(4) {
            return Ok(());
        }
        if self.is_one_shot() || !is_drained {
            let entry = Entry { fd: fd.as_raw_fd(), interest, is_armed: true, is_pending: false };
            self.arm(key, entry, true);
        }
        self.step(key);
        Ok(())
    }

    fn remove(&self, _: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.step(key);
        match lock_std(&self.inner).entries.remove(&key) {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize, time: Option<Duration>) -> io::Result<()> {
        events.clear();
        self.world.step();
        // An interruption.
        if self.world.draws(32) {
            return Ok(());
        }
        loop {
            self.take(events, max);
            let mut inner = lock_std(&self.inner);
            let is_rung = std::mem::take(&mut inner.is_rung);
            let Some(mut task) = wait::task() else { return Ok(()) };
            if !events.is_empty() || is_rung {
                return Ok(());
            }
            inner.waiters.push(task.waker());
            drop(inner);
            let is_woken = self.world.suspend(&mut *task, time);
            self.world.hold();
            if !is_woken {
                return Ok(());
            }
        }
    }

    fn wake(&self) {
        if self.world.has(Fault::LostWake) && self.world.draws(2) {
            return;
        }
        let mut inner = lock_std(&self.inner);
        inner.is_rung = true;
        wake(inner);
    }
}
