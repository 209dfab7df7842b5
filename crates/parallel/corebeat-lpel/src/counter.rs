//! Counters that are always enabled. Each counter has one writer, so counting is a plain store.

use corebeat_sync::atomic::{AtomicU64, Ordering};

/// Numbers of events since a runtime was built, over all its workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Tasks that were spawned, blocking tasks included.
    pub spawned: u64,
    /// Tasks that have ended, blocking tasks included.
    pub ended: u64,
    /// Dispatches: times that a worker switched to a task.
    pub dispatches: u64,
    /// Times that a task became ready because an event happened that it waited for.
    pub wakeups: u64,
    /// Wake-ups that passed through the inbox of another worker.
    pub mails: u64,
    /// Times that an idle worker stole unstarted tasks, one or several, from another worker.
    pub steals: u64,
    /// Times that a worker went to sleep because it had no work.
    pub waits: u64,
    /// Times that a stream was grown to resolve an artificial deadlock.
    pub growths: u64,
    /// Stacks that tasks use, or that are ready for the next tasks.
    pub stacks: u64,
}

/// A counter with one writer.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        // One writer, so no atomic addition. Release: a thread that reads this count also reads
        // counts that were written before it, or later ones.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    pub(crate) fn get(&self) -> u64 {
        // Acquire: pairs with the release in `add`.
        self.0.load(Ordering::Acquire)
    }
}

/// Counters of one worker.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) spawned: Count,
    pub(crate) started: Count,
    pub(crate) ended: Count,
    pub(crate) dispatches: Count,
    pub(crate) wakeups: Count,
    pub(crate) mails: Count,
    pub(crate) steals: Count,
    pub(crate) waits: Count,
    pub(crate) stacks: Count,
}

impl Counts {
    /// Number of tasks that the worker has started and that have not ended.
    pub(crate) fn living(&self) -> u64 {
        self.started.get().saturating_sub(self.ended.get())
    }

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
