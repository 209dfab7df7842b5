//! Values that transactions have replaced and that older attempts may still read.
//!
//! Each attempt of a transaction is an epoch of its thread: an odd number while the attempt lasts.
//! A thread that frees values first commits the transactions that unlink them, then executes a
//! heavy fence and loads the epochs of all threads. Attempts that begin later cannot find the
//! values. So the thread may free the values when every attempt that it observed is over. The
//! proof, and the protocol's model, are those of [`corebeat_reclaim`]. A fence serves many values
//! ([`WEIGHT_MAX`]), and no thread waits for another one.
//!
//! The grace period of many values ends at once, but each commit frees only a few: as many as it
//! retires, and half as many again, so that the number of values that wait is bounded, and at least
//! one. `malloc` keeps a few free blocks for each thread; many at once would go through its locks,
//! on which the threads would wait for each other.
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

/// Weight of a value, whose size is unknown.
const WEIGHT: usize = 4;

/// Weight of the values of one grace period, so that there are 128. Blocks of a C program are
/// smaller than values may be, and there are more of them: each node of a list is one. So there are
/// 512 blocks, or a mebibyte.
const WEIGHT_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 128 } * WEIGHT;

/// Bytes of a block that add 1 to its weight.
#[cfg(not(loom))]
const BYTES: usize = 2048;

/// Number of values of one grace period, of a thread that was alone the last time.
const BATCH_ALONE: usize = if cfg!(any(loom, miri)) { 2 } else { 8 };

/// The retired values of a thread.
#[derive(Default)]
pub(crate) struct RetiredList {
    /// Unlinked since epochs were last loaded.
    fresh: Vec<Retired>,
    weight: usize,
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
}

impl RetiredList {
    pub(crate) fn push(&mut self, retired: Retired) {
        self.add(retired, WEIGHT);
    }

    /// Adds a block of a C program, of this size if it is known.
    #[cfg(not(loom))]
    pub(crate) fn push_block(&mut self, block: Retired, bytes: Option<usize>) {
        self.add(block, bytes.map_or(WEIGHT, |bytes| 1 + bytes / BYTES));
    }

    fn add(&mut self, retired: Retired, weight: usize) {
        self.fresh.push(retired);
        self.weight += weight;
        self.due += 1;
    }

    fn is_full(&self) -> bool {
        if self.was_alone { self.fresh.len() >= BATCH_ALONE } else { self.weight >= WEIGHT_MAX }
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
        if self.is_freeing {
            // Its transaction frees nothing. The next one does.
            return 0;
        }
        let due = mem::take(&mut self.due);
        if self.was_alone { self.free.len() } else { (due + due.div_ceil(2)).max(1) }
    }

    /// Number of values whose grace periods are over.
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
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
        self.weight = 0;
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
