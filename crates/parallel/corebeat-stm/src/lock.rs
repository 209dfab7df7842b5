//! A versioned lock: the version of the memory that the lock covers, or the slot of the transaction
//! that writes there.
//!
//! ```text
//!   63   62                                0
//!   +----+---------------------------------+
//!   | 0  |    version of the last commit   |   free
//!   | 1  |    slot of the holder           |   held
//!   +----+---------------------------------+
//! ```
//!
//! So one comparison checks that the lock is free and its version old enough. The versions of a
//! lock never decrease. The sole writer may repeat a version that is above the clock (`clock`).

use crate::clock::load_latest;
use crate::slot::Slot;
use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::const_unless_loom;

const HELD: u64 = 1 << 63;

/// Highest version of a free lock.
pub(crate) const VERSION_MAX: u64 = HELD - 1;

pub(crate) struct Lock(AtomicU64);

impl Lock {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Lock(AtomicU64::new(0))
        }
    }

    /// Returns the content. Everything written before the lock was released happens before.
    #[inline(always)]
    pub(crate) fn load(&self) -> u64 {
        load_latest(&self.0)
    }

    /// Returns whether the content is still `observed`, after an Acquire load of memory that the
    /// lock covers.
    #[inline(always)]
    pub(crate) fn is_unchanged(&self, observed: u64) -> bool {
        // Relaxed: if the value came from a holder of the lock, the Acquire load of the value
        // synchronizes with a store that follows the acquisition of the lock.
        self.0.load(Ordering::Relaxed) == observed
    }

    /// Acquires the lock if its content is still `observed`, which is a version.
    #[inline(always)]
    pub(crate) fn try_acquire(&self, observed: u64, owner: u64) -> bool {
        self.0.compare_exchange(observed, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock: the memory that the lock covers has this version.
    #[inline(always)]
    pub(crate) fn release(&self, version: u64) {
        // Release: pairs with `load`, so that a reader of the version reads the values, too. In
        // models, loads are read-modify-write operations, and the position of this store among them
        // is defined only if it is one as well.
        #[cfg(not(loom))]
        self.0.store(version, Ordering::Release);
        #[cfg(loom)]
        self.0.swap(version, Ordering::Release);
    }

    /// Writes to the memory of the lock, and leaves its content as it is.
    #[cfg(not(loom))]
    pub(crate) fn touch(&self) {
        // Relaxed: the content does not change. Without the black box, the compiler replaces the
        // access by a fence.
        self.0.fetch_or(std::hint::black_box(0), Ordering::Relaxed);
    }

    /// Returns one of 64 bits, by a hash of the address (Fibonacci hashing).
    pub(crate) fn filter_bit(&self) -> u64 {
        let hash = (self as *const Lock).addr().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1 << (hash >> 58)
    }
}

/// Returns the content of locks that this slot holds.
pub(crate) fn owner(slot: &'static Slot) -> u64 {
    HELD | (slot as *const Slot).expose_provenance() as u64
}

/// Returns the holder of a lock with this content, or `None` if the lock is free.
pub(crate) fn holder(content: u64) -> Option<&'static Slot> {
    let slot = std::ptr::with_exposed_provenance::<Slot>((content & !HELD) as usize);
    // SAFETY: `owner` made the content from a slot, and slots are never freed.
    (content & HELD != 0).then(|| unsafe { &*slot })
}
