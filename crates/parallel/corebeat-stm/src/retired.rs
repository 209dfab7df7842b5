//! Values that transactions have replaced and that older attempts may still read.
//!
//! Each attempt of a transaction is an epoch of its thread: an odd number while the attempt lasts.
//! A thread that frees values first commits the transactions that unlink them, then executes a
//! heavy fence and loads the epochs of all threads. Attempts that begin later cannot find the
//! values. So the thread may free the values when every attempt that it observed is over. The
//! proof, and the protocol's model, are those of [`corebeat_reclaim`]. A fence serves [`BATCH`]
//! values, and no thread waits for another one.
//!
//! The grace period of many values ends at once, but each commit frees only a few: as many as it
//! retires, and half as many again, so that the number of values that wait is bounded. `malloc`
//! keeps a few free blocks for each thread; many at once would go through its locks, on which the
//! threads would wait for each other.
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

/// Number of values of one grace period.
const BATCH: usize = if cfg!(any(loom, miri)) { 2 } else { 128 };

/// The same, if there are blocks of a C program. They are smaller than values may be, and there are
/// more of them: each node of a list is one.
const BATCH_BLOCKS: usize = if cfg!(any(loom, miri)) { 2 } else { 512 };

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
    /// Values whose grace periods are over.
    free: Vec<Retired>,
    /// Number of these to free at the end of the transaction.
    due: usize,
    /// Whether a destructor of these runs.
    pub(crate) is_freeing: bool,
    /// Whether this thread was the only one with transactions when it last ended a grace period.
    was_alone: bool,
    has_blocks: bool,
}

impl RetiredList {
    pub(crate) fn push(&mut self, retired: Retired) {
        self.fresh.push(retired);
        self.due += 1;
    }

    /// Adds a block of a C program.
    #[cfg(not(loom))]
    pub(crate) fn push_block(&mut self, block: Retired) {
        self.has_blocks = true;
        self.push(block);
    }

    fn is_full(&self) -> bool {
        let batch = match (self.was_alone, self.has_blocks) {
            (true, _) => BATCH_ALONE,
            (false, true) => BATCH_BLOCKS,
            (false, false) => BATCH,
        };
        self.fresh.len() >= batch
    }

    fn is_grace_period_over(&mut self) -> bool {
        self.active.retain(|(slot, epoch)| slot.epoch() == *epoch);
        self.active.is_empty()
    }

    /// Ends grace periods if there are enough values, and returns the number of values that the
    /// caller frees with `next_free`.
    pub(crate) fn end_transaction(&mut self) -> usize {
        if self.is_full() {
            self.end_grace_period();
        }
        let due = mem::take(&mut self.due);
        if self.was_alone { self.free.len() } else { due + due.div_ceil(2) }
    }

    /// Takes a value whose grace period is over. The caller frees it outside of the thread's
    /// descriptor, because destructors are user code.
    pub(crate) fn next_free(&mut self) -> Option<Retired> {
        self.free.pop()
    }

    /// Ends the grace period that is in progress, unless attempts are active, and begins the next
    /// one.
    pub(crate) fn end_grace_period(&mut self) {
        if !self.is_grace_period_over() {
            return;
        }
        // Before the check: a thread that begins after it may abandon values that others still
        // read.
        GLOBAL.orphans.adopt(&mut self.fresh);
        self.was_alone = Slots::has_one_user();
        self.free.append(&mut self.waiting);
        if self.was_alone {
            self.free.append(&mut self.fresh);
        } else if !self.fresh.is_empty() {
            mem::swap(&mut self.waiting, &mut self.fresh);
            asymmetric::heavy_fence();
            Slots::active(&mut self.active);
            if self.active.is_empty() {
                self.free.append(&mut self.waiting);
            }
        }
    }
}

impl Drop for RetiredList {
    fn drop(&mut self) {
        // Other threads wait for the attempts that are still active.
        GLOBAL.orphans.abandon(&mut self.waiting);
        GLOBAL.orphans.abandon(&mut self.fresh);
        // Their destructors may use thread-local data, which ends now.
        GLOBAL.orphans.abandon(&mut self.free);
    }
}
