//! Threads that wait until something that they have read is written (`retry`).
//!
//! | who waits | who commits |
//! | --- | --- |
//! | puts itself on the list, counts itself | releases its locks |
//! | `heavy` | `light` |
//! | looks at the locks of what it read: unchanged, sleeps | reads the count: 0, goes on |
//!
//! One of the two fences is first: either the one sees the other's locks, or the other sees the count. Nobody looks at locks
//! while it sleeps, because what they belong to may be freed then: who commits compares addresses.

use crate::global::{GLOBAL, lock};
use crate::slot::Slot;
use corebeat_sync::Mutex;
use corebeat_sync::asymmetric;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::thread::{self, Thread};
use std::ptr;

pub(crate) struct Waiters {
    count: AtomicUsize,
    list: Mutex<Vec<Waiter>>,
}

struct Waiter {
    slot: &'static Slot,
    thread: Thread,
    /// The bits of the locks ([`Lock::bit`](crate::lock::Lock::bit)) of what it has read.
    bits: u64,
}

impl Waiters {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Waiters { count: AtomicUsize::new(0), list: Mutex::new(Vec::new()) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Waiters { count: AtomicUsize::new(0), list: Mutex::default() }
    }

    /// On the list; it may sleep if what it has read is unchanged after this.
    pub(crate) fn join(&self, slot: &'static Slot, bits: u64) {
        let mut list = lock(&self.list);
        list.push(Waiter { slot, thread: thread::current(), bits });
        // Relaxed: the fence orders it.
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        asymmetric::heavy();
    }

    /// It need not sleep.
    pub(crate) fn leave(&self, slot: &'static Slot) {
        let mut list = lock(&self.list);
        list.retain(|waiter| !ptr::eq(waiter.slot, slot));
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        slot.was_woken();
    }

    /// Sleeps until it is woken, and taken from the list by who does that.
    pub(crate) fn sleep(&self, slot: &'static Slot) {
        while !slot.was_woken() {
            thread::park();
        }
    }

    /// Wakes those who wait for one of these locks, which have been released.
    #[inline(always)]
    pub(crate) fn wake(&self, bits: impl FnOnce() -> u64) {
        asymmetric::light();
        // Relaxed: the fence orders it.
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake_some(bits());
        }
    }

    #[cold]
    fn wake_some(&self, bits: u64) {
        let mut woken = Vec::new();
        let mut list = lock(&self.list);
        list.retain(|waiter| {
            let stays = waiter.bits & bits == 0;
            if !stays {
                waiter.slot.wake();
                woken.push(waiter.thread.clone());
            }
            stays
        });
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        woken.iter().for_each(Thread::unpark);
    }
}

/// For the end of a commit.
#[inline(always)]
pub(crate) fn wake(bits: impl FnOnce() -> u64) {
    GLOBAL.waiters.wake(bits);
}
