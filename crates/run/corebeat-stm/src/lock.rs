//! A versioned lock: says when the memory beside it was last written, or who is writing it.
//!
//! ```text
//!   63   62                                0
//!   +----+---------------------------------+
//!   | 0  |     version, of who was last    |   free
//!   | 1  |     slot of who holds it        |   held
//!   +----+---------------------------------+
//! ```
//!
//! So one comparison tells that it is free and old enough. Versions of a lock only grow.

use crate::clock::latest;
use crate::slot::Slot;
use corebeat_sync::atomic::{AtomicU64, Ordering};

const HELD: u64 = 1 << 63;

/// A free lock has no version beyond this one.
pub(crate) const VERSION_MAX: u64 = HELD - 1;

pub(crate) struct Lock(AtomicU64);

impl Lock {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Lock(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Lock(AtomicU64::new(0))
    }

    /// What it holds. Sees everything that was written before it was released.
    #[inline(always)]
    pub(crate) fn look(&self) -> u64 {
        latest(&self.0)
    }

    /// Whether it is as it was, after something beside it has been read with Acquire.
    #[inline(always)]
    pub(crate) fn is_still(&self, seen: u64) -> bool {
        // Relaxed: if what was read is from somebody who holds the lock, the acquiring read has brought us behind where it
        // was taken.
        self.0.load(Ordering::Relaxed) == seen
    }

    /// Takes it, if it is as it was, and free.
    #[inline(always)]
    pub(crate) fn take(&self, seen: u64, owner: u64) -> bool {
        self.0.compare_exchange(seen, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Gives it back: what is beside it has this version.
    #[inline(always)]
    pub(crate) fn release(&self, version: u64) {
        // Release: pairs with `look`, so that who sees the version sees what was written. In models, looks are exchanges, and
        // where this stands among them is clear only if it is one as well.
        #[cfg(not(loom))]
        self.0.store(version, Ordering::Release);
        #[cfg(loom)]
        self.0.swap(version, Ordering::Release);
    }

    /// A bit of 64 that stands for this lock.
    pub(crate) fn bit(&self) -> u64 {
        let hash = (self as *const Lock).addr().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1 << (hash >> 58)
    }
}

/// How a slot is written in the locks that it holds.
pub(crate) fn owner(slot: &'static Slot) -> u64 {
    HELD | (slot as *const Slot).expose_provenance() as u64
}

/// Who holds a lock, if anybody does.
pub(crate) fn holder(seen: u64) -> Option<&'static Slot> {
    let slot = std::ptr::with_exposed_provenance::<Slot>((seen & !HELD) as usize);
    // SAFETY: `owner` made it from a slot, and slots stay for ever.
    (seen & HELD != 0).then(|| unsafe { &*slot })
}
