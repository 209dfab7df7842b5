//! A word beside a lock. Whoever holds the lock writes it; others may read at any time, and look at the lock before and after.

use corebeat_sync::atomic::{AtomicPtr, Ordering};

#[repr(transparent)]
pub(crate) struct Place(AtomicPtr<()>);

impl Place {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: *mut ()) -> Self {
        Place(AtomicPtr::new(value))
    }

    #[cfg(loom)]
    pub(crate) fn new(value: *mut ()) -> Self {
        Place(AtomicPtr::new(value))
    }

    /// What is there, of whoever wrote it.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut () {
        // Acquire: pairs with the Release in `put`.
        self.0.load(Ordering::Acquire)
    }

    /// What is there, for who holds the lock, or has the place for himself.
    #[inline(always)]
    pub(crate) fn own(&self) -> *mut () {
        // Relaxed: whoever wrote it has released the lock, or is this thread.
        self.0.load(Ordering::Relaxed)
    }

    /// Writes it, for who holds the lock.
    #[inline(always)]
    pub(crate) fn put(&self, value: *mut ()) {
        // Release: who gets this sees that the lock is held, or newer, when it looks again.
        self.0.store(value, Ordering::Release);
    }
}
