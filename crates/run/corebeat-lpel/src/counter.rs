//! Counters that are always on: one writer each, so that counting is a plain store.

use corebeat_sync::atomic::{AtomicU64, Ordering};

/// What happened since a runtime was built, over all its workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Tasks that were spawned, wrappers included.
    pub spawned: u64,
    /// Tasks that have ended, wrappers included.
    pub ended: u64,
    /// How often a worker gave a task its processor.
    pub dispatches: u64,
    /// How often a task became ready because of something that it waited for.
    pub wakeups: u64,
    /// How often such news went to another worker by mail.
    pub mails: u64,
    /// How often an idle worker took tasks that had not started, one or some at a time, from another.
    pub steals: u64,
    /// How often a worker went to sleep because it had nothing to do.
    pub waits: u64,
    /// How often a stream was made larger to resolve an artificial deadlock.
    pub growths: u64,
    /// Mappings' stacks on loan to tasks, or ready for the next ones.
    pub stacks: u64,
}

/// One of them, written by one thread.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        // No atomic addition: one writer. Release: who has read this reads of what came before no less than that.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    pub(crate) fn get(&self) -> u64 {
        // Acquire: pairs with the release in `add`.
        self.0.load(Ordering::Acquire)
    }
}

/// A worker's.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) spawned: Count,
    pub(crate) ended: Count,
    pub(crate) dispatches: Count,
    pub(crate) wakeups: Count,
    pub(crate) mails: Count,
    pub(crate) steals: Count,
    pub(crate) waits: Count,
    pub(crate) stacks: Count,
}

impl Counts {
    pub(crate) fn add_to(&self, sum: &mut Counters) {
        sum.spawned += self.spawned.get();
        sum.ended += self.ended.get();
        sum.dispatches += self.dispatches.get();
        sum.wakeups += self.wakeups.get();
        sum.mails += self.mails.get();
        sum.steals += self.steals.get();
        sum.waits += self.waits.get();
        sum.stacks += self.stacks.get();
    }
}
