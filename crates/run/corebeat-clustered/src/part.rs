//! Parts of counters: each place of a thread has a block of numbers, in which a counter has the same slot everywhere.
//!
//! ```text
//!               slot 0     slot 1     slot 2
//!   place 1   [    3   ] [   17   ] [    0   ] ...     written by the thread that has the place, read by all
//!   place 2   [    4   ] [    0   ] [    5   ] ...
//! ```
//!
//! As the translation tables in Matthews, Coady, Appavoo, 2006, section 4, but with the part itself where those have a reference to it:
//! one look less.

use crate::global::{GLOBAL, lock};
use corebeat_sync::atomic::{AtomicU64, Ordering};

/// So many counters have a slot; those beyond have representatives.
pub(crate) const SLOTS: usize = if cfg!(loom) {
    2
} else if cfg!(miri) {
    16
} else {
    512
};
/// No slot.
pub(crate) const NONE: usize = usize::MAX;

/// What a place has of all counters. Processors fetch lines in pairs.
#[repr(align(128))]
pub(crate) struct Block([AtomicU64; SLOTS]);

impl Block {
    /// Where the part for a slot below [`SLOTS`] is.
    #[inline(always)]
    pub(crate) fn part(&self, slot: usize) -> &AtomicU64 {
        &self.0[slot]
    }
}

/// All blocks, and which slots are taken.
pub(crate) struct Parts {
    /// By place. They stay: who gets a place after another goes on with what is there.
    blocks: Vec<Option<Box<Block>>>,
    free: Vec<usize>,
    /// From here on, no slot was ever taken.
    fresh: usize,
}

impl Parts {
    pub(crate) const fn new() -> Parts {
        Parts { blocks: Vec::new(), free: Vec::new(), fresh: 0 }
    }

    /// The block of a place, which stays.
    pub(crate) fn block(&mut self, place: usize) -> *const Block {
        if place >= self.blocks.len() {
            self.blocks.resize_with(place + 1, || None);
        }
        let make = || Box::new(Block(std::array::from_fn(|_| AtomicU64::new(0))));
        &raw const **self.blocks[place].get_or_insert_with(make)
    }
}

/// A slot for a counter, with 0 in all its parts; or [`NONE`].
pub(crate) fn take() -> usize {
    let mut parts = lock(&GLOBAL.parts);
    if let Some(slot) = parts.free.pop() {
        return slot;
    }
    if parts.fresh == SLOTS {
        return NONE;
    }
    parts.fresh += 1;
    parts.fresh - 1
}

/// Nobody uses this slot any more, if it is one.
pub(crate) fn give_back(slot: usize) {
    if slot != NONE {
        let mut parts = lock(&GLOBAL.parts);
        // Relaxed: whoever gets it next gets it under the lock.
        parts.blocks.iter().flatten().for_each(|block| block.part(slot).store(0, Ordering::Relaxed));
        parts.free.push(slot);
    }
}

/// Goes through the parts of a slot, if it is one; always in the same order, and later there may be more.
pub(crate) fn fold<A>(slot: usize, begin: A, mut f: impl FnMut(A, u64) -> A) -> A {
    if slot == NONE {
        return begin;
    }
    // Relaxed: they are numbers, and nothing hangs on when they are seen.
    let look = |block: &Option<Box<Block>>| {
        block.as_ref().map_or(0, |block| block.part(slot).load(Ordering::Relaxed))
    };
    lock(&GLOBAL.parts).blocks.iter().fold(begin, |sum, block| f(sum, look(block)))
}
