//! Threads that wait until a cell that they have read is written (`retry`).
//!
//! | waiting thread | committing thread |
//! | --- | --- |
//! | adds itself to the list and updates the count | releases its locks |
//! | `heavy` | `light` |
//! | loads the locks of the cells that it has read | loads the count |
//! | sleeps if the locks are unchanged | continues if the count is 0 |
//!
//! One of the two fences comes first: either the waiting thread observes the released locks, or the
//! committing thread observes the count. No thread accesses the locks of a sleeping thread, because
//! their memory may be freed meanwhile: the committing thread compares addresses.

use crate::global::GLOBAL;
use crate::slot::Slot;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::thread::{self, Thread};
use corebeat_sync::{Mutex, asymmetric, const_unless_loom, lock};
use std::ptr;
use std::time::{Duration, Instant};

pub(crate) struct Waiters {
    count: AtomicUsize,
    list: Mutex<Vec<Waiter>>,
}

struct Waiter {
    slot: &'static Slot,
    thread: Thread,
    /// The bits of the locks that the thread waits for
    /// ([`Lock::filter_bit`](crate::lock::Lock::filter_bit)).
    bits: u64,
}

impl Waiters {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Waiters { count: AtomicUsize::new(0), list: Mutex::new(Vec::new()) }
        }
    }

    /// Adds this thread to the list. The thread may sleep if, after this, the cells that it has
    /// read are unchanged.
    pub(crate) fn add(&self, slot: &'static Slot, bits: u64) {
        let mut list = lock(&self.list);
        list.push(Waiter { slot, thread: thread::current(), bits });
        // Relaxed: the fence orders the store.
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        asymmetric::heavy_fence();
    }

    /// Removes this thread from the list, because it does not sleep.
    pub(crate) fn remove(&self, slot: &'static Slot) {
        let mut list = lock(&self.list);
        list.retain(|waiter| !ptr::eq(waiter.slot, slot));
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        slot.take_wake();
    }

    /// Sleeps until another thread wakes this one and removes it from the list. Returns `false` if
    /// the deadline came first.
    pub(crate) fn sleep(&self, slot: &'static Slot, deadline: Option<Instant>) -> bool {
        while !slot.take_wake() {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => {
                    self.remove(slot);
                    return false;
                }
                Some(left) => thread::park_timeout(left),
            }
        }
        true
    }

    /// Wakes the threads that wait for one of these locks, which have been released.
    #[inline(always)]
    pub(crate) fn wake(&self, bits: impl FnOnce() -> u64) {
        asymmetric::light_fence();
        // Relaxed: the fence orders the load.
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

/// Wakes waiting threads at the end of a commit.
#[inline(always)]
pub(crate) fn wake(bits: impl FnOnce() -> u64) {
    GLOBAL.waiters.wake(bits);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptor::Current;
    use crate::{TCell, TimedOut, atomically, atomically_timeout};
    use std::panic::catch_unwind;

    /// Returns whether this thread is in the list.
    fn is_listed() -> bool {
        let slot = Current::take().get().slot();
        lock(&GLOBAL.waiters.list).iter().any(|waiter| ptr::eq(waiter.slot, slot))
    }

    #[test]
    fn wait_that_ends_without_a_change_leaves_no_waiting_thread() {
        let cell = TCell::new(0);
        let waits = atomically_timeout(Duration::from_millis(1), |tx| {
            tx.read(&cell)?;
            tx.retry::<()>()
        });
        assert_eq!(waits, Err(TimedOut));
        assert!(!is_listed());
        assert!(catch_unwind(|| atomically(|tx| tx.retry::<()>())).is_err());
        assert!(!is_listed());
    }
}
