//! Parts of counters: each place of a thread has a block of numbers, in which a counter has the
//! same slot everywhere.
//!
//! ```text
//!               slot 0     slot 1     slot 2
//!   place 1   [    3   ] [   17   ] [    0   ] ...
//!   place 2   [    4   ] [    0   ] [    5   ] ...
//! ```
//!
//! The thread of a place writes the block, and all threads read it.
//!
//! The layout follows the translation tables of Matthews, Coady, Appavoo, 2006, section 4. A slot
//! contains the part itself instead of a reference to the part, which saves one load.

use crate::global::GLOBAL;
use corebeat_sync::atomic::{AtomicU64, Ordering};

/// Number of counters with a slot; all others have representatives.
pub(crate) const SLOTS: usize = if cfg!(loom) {
    2
} else if cfg!(miri) {
    16
} else {
    512
};
/// No slot.
pub(crate) const NONE: usize = usize::MAX;

/// The parts of all counters in a place. Aligned to two cache lines, because processors fetch lines
/// in pairs.
#[repr(align(128))]
pub(crate) struct Block([AtomicU64; SLOTS]);

impl Block {
    /// Returns the part for a slot below [`SLOTS`].
    #[inline(always)]
    pub(crate) fn part(&self, slot: usize) -> &AtomicU64 {
        &self.0[slot]
    }

    /// Returns the part for a slot that was compared already.
    ///
    /// # Safety
    ///
    /// The slot is below [`SLOTS`].
    #[inline(always)]
    pub(crate) unsafe fn part_unchecked(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: by the contract of this function.
        unsafe { self.0.get_unchecked(slot) }
    }
}

/// All blocks, and the slots in use.
pub(crate) struct Parts {
    /// By place. Blocks are never freed: the next thread in a place continues with its block.
    blocks: Vec<Option<Box<Block>>>,
    free: Vec<usize>,
    /// First slot that was never used.
    fresh: usize,
}

impl Parts {
    pub(crate) const fn new() -> Parts {
        Parts { blocks: Vec::new(), free: Vec::new(), fresh: 0 }
    }

    /// Returns the block of a place, which is never freed.
    pub(crate) fn block(&mut self, place: usize) -> *const Block {
        if place >= self.blocks.len() {
            self.blocks.resize_with(place + 1, || None);
        }
        let make = || Box::new(Block(std::array::from_fn(|_| AtomicU64::new(0))));
        &raw const **self.blocks[place].get_or_insert_with(make)
    }
}

/// Assigns a slot whose parts are all 0 to a counter; returns [`NONE`] if no slot is free.
pub(crate) fn acquire() -> usize {
    let mut parts = GLOBAL.parts.lock();
    if let Some(slot) = parts.free.pop() {
        return slot;
    }
    if parts.fresh == SLOTS {
        return NONE;
    }
    parts.fresh += 1;
    parts.fresh - 1
}

/// Releases a slot that is not in use any more. [`NONE`] is allowed.
pub(crate) fn release(slot: usize) {
    if slot != NONE {
        let mut parts = GLOBAL.parts.lock();
        // Relaxed: the next counter gets the slot under the lock.
        parts
            .blocks
            .iter()
            .flatten()
            .for_each(|block| block.part(slot).store(0, Ordering::Relaxed));
        parts.free.push(slot);
    }
}

/// Folds the parts of a slot, always in the same order. A later call may find more parts. [`NONE`]
/// has no parts.
pub(crate) fn fold<A>(slot: usize, start: A, mut f: impl FnMut(A, u64) -> A) -> A {
    if slot == NONE {
        return start;
    }
    // Relaxed: nothing depends on when the numbers are observed.
    let load = |block: &Option<Box<Block>>| {
        block.as_ref().map_or(0, |block| block.part(slot).load(Ordering::Relaxed))
    };
    GLOBAL.parts.lock().blocks.iter().fold(start, |sum, block| f(sum, load(block)))
}
