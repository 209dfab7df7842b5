//! Values that transactions have replaced and that older attempts may still read.
//!
//! Each attempt of a transaction is an epoch of its thread: an odd number while the attempt lasts.
//! A thread that frees values first commits the transactions that unlink them, then executes a
//! heavy fence and loads the epochs of all threads. Attempts that begin later cannot find the
//! values. So the thread frees the values when every attempt that it observed is over. The proof,
//! and the protocol's model, are those of [`corebeat_reclaim`]. A fence serves [`BATCH`] values,
//! and no thread waits for another one.
//!
//! A thread that is the only one with transactions needs neither fence nor grace period: attempts
//! of others are over, and a thread that begins to use transactions acquires its slot under the
//! same lock, so its attempts do not find the values. It frees them soon, while they are in its
//! caches.

use crate::global::GLOBAL;
use crate::slot::{Slot, Slots};
use corebeat_reclaim::Retired;
use corebeat_sync::asymmetric;
use std::mem;

/// Number of values that are freed together.
const BATCH: usize = if cfg!(any(loom, miri)) { 2 } else { 128 };

/// The same, of a thread that was alone the last time.
const BATCH_ALONE: usize = if cfg!(any(loom, miri)) { 2 } else { 8 };

/// The retired values of a thread.
#[derive(Default)]
pub(crate) struct RetiredList {
    /// Unlinked since epochs were last loaded.
    fresh: Vec<Retired>,
    /// Unlinked before epochs were loaded.
    waiting: Vec<Retired>,
    /// The attempts that were observed then and are not over yet.
    active: Vec<(&'static Slot, u64)>,
    /// Whether this thread was the only one with transactions when it last freed values.
    was_alone: bool,
}

impl RetiredList {
    pub(crate) fn push(&mut self, retired: Retired) {
        self.fresh.push(retired);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.fresh.len() >= if self.was_alone { BATCH_ALONE } else { BATCH }
    }

    fn is_grace_period_over(&mut self) -> bool {
        self.active.retain(|(slot, epoch)| slot.epoch() == *epoch);
        self.active.is_empty()
    }

    /// Takes the values whose grace periods are over. The caller frees them outside of the thread's
    /// descriptor, because destructors are user code.
    pub(crate) fn take_free(&mut self) -> Vec<Retired> {
        // Before the check: a thread that begins after it may abandon values that others still
        // read.
        GLOBAL.orphans.adopt(&mut self.fresh);
        self.was_alone = Slots::has_one_user();
        if self.was_alone {
            self.active.clear();
            let mut free = mem::take(&mut self.waiting);
            free.append(&mut self.fresh);
            return free;
        }
        if !self.is_grace_period_over() {
            return Vec::new();
        }
        let mut free = mem::replace(&mut self.waiting, mem::take(&mut self.fresh));
        if !self.waiting.is_empty() {
            asymmetric::heavy_fence();
            Slots::active(&mut self.active);
            if self.active.is_empty() {
                free.append(&mut self.waiting);
            }
        }
        free
    }
}

impl Drop for RetiredList {
    fn drop(&mut self) {
        // Other threads wait for the attempts that are still active.
        GLOBAL.orphans.abandon(&mut self.waiting);
        GLOBAL.orphans.abandon(&mut self.fresh);
    }
}
