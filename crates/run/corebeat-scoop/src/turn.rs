//! Whose turn it is with a region: one at a time, its processor or the collector; and work that is left for whoever has it.
//!
//! One word, two bits:
//!
//! ```text
//!                 try_take                        ask: whoever wants something done there
//!    free  --------------------->  taken  --------------------->  taken, asked
//!     ^                           |     ^                              |
//!     +------- give_back ---------+     +-------- take_work -----------+
//! ```
//!
//! A turn with work is given back only after the work was looked into ([`Turn::give_back`] refuses), or with the work left
//! there for who takes it next ([`Turn::leave`]). As both bits are one word, work that is asked for is seen: by who has the
//! turn, or by who asked, which finds it free and takes it.

use corebeat_sync::atomic::{AtomicU32, Ordering};
use corebeat_sync::cell::UnsafeCell;

const TAKEN: u32 = 1;
const ASKED: u32 = 2;

/// Something that one uses at a time, and nobody waits for: it is there, or one comes again.
pub(crate) struct Turn<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only who has the turn uses the value, and the turn is handed over by release and acquire.
unsafe impl<T: Send> Sync for Turn<T> {}

impl<T> Turn<T> {
    /// Whoever makes it has the first turn.
    pub(crate) fn taken(value: T) -> Self {
        Turn { word: AtomicU32::new(TAKEN), value: UnsafeCell::new(value) }
    }

    /// Takes the turn, unless somebody has it.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        // Relaxed: only spares a write. Acquire: pairs with the release of who had it before.
        self.word.load(Ordering::Relaxed) & TAKEN == 0
            && self.word.fetch_or(TAKEN, Ordering::Acquire) & TAKEN == 0
    }

    /// Asks for something to be done. True if nobody has the turn: then whoever asks sees to it.
    pub(crate) fn ask(&self) -> bool {
        // Release: pairs with the acquire in `take_work`: what is to be done is there.
        self.word.fetch_or(ASKED, Ordering::Release) & TAKEN == 0
    }

    /// Whether something was asked for since this was last called. Only for who has the turn.
    #[inline]
    pub(crate) fn take_work(&self) -> bool {
        // Relaxed: only spares a write; what comes later is seen before the turn is given back. Acquire: see `ask`.
        self.word.load(Ordering::Relaxed) & ASKED != 0
            && self.word.fetch_and(!ASKED, Ordering::Acquire) & ASKED != 0
    }

    /// Gives the turn back. False if something was asked for: then it is still the caller's.
    pub(crate) fn give_back(&self) -> bool {
        // Release: pairs with the acquire of who takes it next.
        self.word.compare_exchange(TAKEN, 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Gives the turn back, with something to do for who takes it next.
    pub(crate) fn leave(&self) {
        // Release: see `give_back`.
        self.word.swap(ASKED, Ordering::Release);
    }

    /// Uses the value.
    ///
    /// # Safety
    ///
    /// The caller has the turn, and no other reference to the value.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the turn is what makes it exclusive")]
    pub(crate) unsafe fn value(&self) -> &mut T {
        // SAFETY: the caller's, as above.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    /// As [`Turn::value`], and a model knows how long.
    #[cfg(all(test, loom))]
    pub(crate) unsafe fn use_value<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller's, as above.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}
