//! Values that are out of sight, and may still be read by transactions that began before.
//!
//! Each attempt of a transaction is a turn of its thread: odd while it lasts. Who has values to free looks at all turns after
//! they are out of sight; what began later cannot find them, so they are freed once every attempt that was seen is over.
//!
//! | who frees | who reads |
//! | --- | --- |
//! | puts the value out of sight, and commits | makes its turn odd |
//! | `heavy` | `light` |
//! | looks at the turns | looks for the value |
//!
//! One of the two fences is first: either the one sees the odd turn, or the other does not find the value. A fence for
//! [`BATCH`] values, and nobody waits for anybody (McKenney, Slingwine, *Read-copy update*, 1998).

use crate::global::{GLOBAL, lock};
use crate::slot::{Slot, Slots};
use corebeat_sync::asymmetric;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How many values are freed together.
const BATCH: usize = if cfg!(any(loom, miri)) { 2 } else { 128 };

/// A value that nobody can find any more, and what drops it.
#[derive(Clone, Copy)]
pub(crate) struct Dead {
    pub(crate) value: *mut (),
    pub(crate) drop: unsafe fn(*mut ()),
}

// SAFETY: values in cells are `Send`.
unsafe impl Send for Dead {}

impl Dead {
    /// # Safety
    ///
    /// Nobody reads it.
    unsafe fn bury(self) {
        // SAFETY: the function is the one for this value, and the caller vouches for the rest.
        let bury = || unsafe { (self.drop)(self.value) };
        if cfg!(loom) {
            // What panics is the model.
            return bury();
        }
        // A destructor is not ours. If it panics, the hook has told so.
        let _ = catch_unwind(AssertUnwindSafe(bury));
    }
}

/// What a thread is to free.
#[derive(Default)]
pub(crate) struct Limbo {
    /// Out of sight.
    fresh: Vec<Dead>,
    /// Out of sight before turns were looked at.
    resting: Vec<Dead>,
    /// Those that were in a transaction then.
    holdouts: Vec<(&'static Slot, u64)>,
}

impl Limbo {
    pub(crate) fn put(&mut self, dead: Dead) {
        self.fresh.push(dead);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.fresh.len() >= BATCH
    }

    fn is_over(&mut self) -> bool {
        self.holdouts.retain(|(slot, turn)| slot.turn() == *turn);
        self.holdouts.is_empty()
    }

    /// Takes out what may be freed now: to be buried where nothing of this thread's transactions is in use, because that runs
    /// code of others.
    pub(crate) fn sweep(&mut self) -> Graves {
        if !self.is_over() {
            return Graves(Vec::new());
        }
        let mut graves = mem::replace(&mut self.resting, mem::take(&mut self.fresh));
        self.resting.append(&mut lock(&GLOBAL.orphans));
        if !self.resting.is_empty() {
            asymmetric::heavy();
            Slots::holdouts(&mut self.holdouts);
            if self.holdouts.is_empty() {
                graves.append(&mut self.resting);
            }
        }
        Graves(graves)
    }
}

impl Drop for Limbo {
    fn drop(&mut self) {
        // Somebody else waits for those who are still at it.
        let mut orphans = lock(&GLOBAL.orphans);
        orphans.append(&mut self.resting);
        orphans.append(&mut self.fresh);
    }
}

/// Values that nobody reads.
#[must_use]
pub(crate) struct Graves(Vec<Dead>);

impl Graves {
    pub(crate) fn bury(self) -> usize {
        let count = self.0.len();
        // SAFETY: every attempt that could have found them is over (`sweep`).
        self.0.into_iter().for_each(|dead| unsafe { dead.bury() });
        count
    }
}
