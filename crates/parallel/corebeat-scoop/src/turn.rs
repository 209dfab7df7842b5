//! Exclusive access to a region, for its processor or the collector; and requests for work by the
//! owner.
//!
//! One word with two bits:
//!
//! ```text
//!                 try_take                       request
//!    free  --------------------->  taken  --------------------->  taken, requested
//!     ^                           |     ^                              |
//!     +--------- release ---------+     +-------- take_work -----------+
//! ```
//!
//! [`Turn::release`] fails while there is a request; [`Turn::release_with_request`] leaves a
//! request to the next owner. Both bits are in one word, so no request is lost: either the owner
//! observes the request, or the requester finds the turn free and takes it.

use corebeat_sync::atomic::{AtomicU32, Ordering};
use corebeat_sync::cell::UnsafeCell;

const TAKEN: u32 = 1;
const REQUESTED: u32 = 2;

/// A value with one owner at a time. Taking the turn never waits.
pub(crate) struct Turn<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the owner of the turn uses the value, and the turn passes by release and acquire.
unsafe impl<T: Send> Sync for Turn<T> {}

impl<T> Turn<T> {
    /// Creates a turn that the caller owns.
    pub(crate) fn taken(value: T) -> Self {
        Turn { word: AtomicU32::new(TAKEN), value: UnsafeCell::new(value) }
    }

    /// Takes the turn, if it is free.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        // Relaxed: this load only avoids a write. Acquire: pairs with the release of the last
        // owner.
        self.word.load(Ordering::Relaxed) & TAKEN == 0
            && self.word.fetch_or(TAKEN, Ordering::Acquire) & TAKEN == 0
    }

    /// Requests work by the owner. Returns `true` if the turn is free: then the caller must take
    /// the turn and do the work.
    pub(crate) fn request(&self) -> bool {
        // Release: pairs with the acquire in `take_work`: the description of the work is visible.
        self.word.fetch_or(REQUESTED, Ordering::Release) & TAKEN == 0
    }

    /// Returns whether work was requested since the last call. Only for the owner.
    #[inline]
    pub(crate) fn take_work(&self) -> bool {
        // Relaxed: this load only avoids a write; a later request is observed before the release of
        // the turn. Acquire: see `request`.
        self.word.load(Ordering::Relaxed) & REQUESTED != 0
            && self.word.fetch_and(!REQUESTED, Ordering::Acquire) & REQUESTED != 0
    }

    /// Releases the turn. Returns `false` if there is a request: then the caller still owns the
    /// turn.
    pub(crate) fn release(&self) -> bool {
        // Release: pairs with the acquire of the next owner.
        self.word.compare_exchange(TAKEN, 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Releases the turn with a request to the next owner.
    pub(crate) fn release_with_request(&self) {
        // Release: see `release`.
        self.word.swap(REQUESTED, Ordering::Release);
    }

    /// Returns the value.
    ///
    /// # Safety
    ///
    /// The caller owns the turn, and has no other reference to the value.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the turn makes the reference exclusive")]
    pub(crate) unsafe fn value(&self) -> &mut T {
        // SAFETY: the caller guarantees it.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    /// Passes the value to `f`, so that a model observes the duration of the access.
    #[cfg(all(test, loom))]
    pub(crate) unsafe fn use_value<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller guarantees it.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}
