//! The public state of a thread: whether it is in a transaction, how its transaction stands in a
//! conflict, and counts of outcomes.

use crate::counter::{Cause, Counters};
use crate::global::GLOBAL;
use corebeat_reclaim::Presence;
use corebeat_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corebeat_sync::{CachePadded, const_unless_loom};

/// The public state of a thread. A slot is never freed; when its thread has ended, another thread
/// uses it.
#[derive(Default)]
pub(crate) struct Slot {
    /// Number of the slot, from 0.
    number: u32,
    owned: CachePadded<Owned>,
    shared: CachePadded<Shared>,
}

/// The part that the thread of the slot writes.
#[derive(Default)]
struct Owned {
    /// Number of begins and ends of attempts. While it is odd, the thread may read values that
    /// others unlink.
    epoch: Presence,
    karma: AtomicU64,
    since: AtomicU64,
    is_waiting: AtomicBool,
    aborts: [AtomicU64; Cause::ALL.len()],
    /// Commits that wrote, except those of the sole writer.
    writes: AtomicU64,
    /// For traces: the call site of the transaction.
    site: AtomicU64,
}

/// The part that other threads write.
#[derive(Default)]
struct Shared {
    /// The epoch that another transaction requests to end without success.
    doomed: AtomicU64,
    /// For traces: slot number and call site of that transaction.
    killer: AtomicU64,
}

/// Priority of a transaction in a conflict. A transaction publishes it at its conflicts, so the
/// values are those of its last conflict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// Number of cells that the transaction has opened, in all its attempts.
    pub karma: u64,
    /// Position among all transactions that ever had a conflict: a lower number is older. `None`
    /// means that the transaction has had no conflict.
    pub since: Option<u64>,
    /// Whether the transaction waits for another one.
    pub is_waiting: bool,
}

impl Slot {
    /// Begins an epoch in which the thread may read values that others unlink.
    #[inline(always)]
    pub(crate) fn begin(&self, epoch: u64) {
        self.owned.epoch.enter(epoch);
    }

    /// Begins it without a branch, as [`Presence::enter_free`] does.
    #[inline(always)]
    pub(crate) fn begin_free(&self, epoch: u64) {
        self.owned.epoch.enter_free(epoch);
    }

    /// Ends that epoch.
    #[inline(always)]
    pub(crate) fn end(&self, epoch: u64) {
        self.owned.epoch.leave(epoch);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.owned.epoch.load()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Requests that the transaction gives up the attempt of this epoch.
    pub(crate) fn doom(&self, epoch: u64, killer: &Slot) {
        // Relaxed, as all accesses below: these are hints, and nothing depends on when another
        // thread observes them.
        let killer = u64::from(killer.number) << 16 | u64::from(killer.site());
        self.shared.killer.store(killer, Ordering::Relaxed);
        self.shared.doomed.store(epoch, Ordering::Relaxed);
    }

    /// Returns the slot number and the call site of the transaction that last doomed this one.
    pub(crate) fn killer(&self) -> (u32, u16) {
        let killer = self.shared.killer.load(Ordering::Relaxed);
        ((killer >> 16) as u32, killer as u16)
    }

    /// Returns the call site of the transaction, as last published.
    pub(crate) fn site(&self) -> u16 {
        self.owned.site.load(Ordering::Relaxed) as u16
    }

    pub(crate) fn set_site(&self, site: u16) {
        self.owned.site.store(site.into(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn is_doomed(&self, epoch: u64) -> bool {
        self.shared.doomed.load(Ordering::Relaxed) == epoch
    }

    pub(crate) fn standing(&self) -> Standing {
        let since = self.owned.since.load(Ordering::Relaxed);
        Standing {
            karma: self.owned.karma.load(Ordering::Relaxed),
            since: (since != 0).then_some(since),
            is_waiting: self.owned.is_waiting.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn publish(&self, standing: Standing) {
        self.owned.karma.store(standing.karma, Ordering::Relaxed);
        self.owned.since.store(standing.since.unwrap_or(0), Ordering::Relaxed);
        self.owned.is_waiting.store(standing.is_waiting, Ordering::Relaxed);
    }

    pub(crate) fn count_abort(&self, cause: Cause) {
        let count = &self.owned.aborts[cause as usize];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts a commit that wrote.
    #[inline(always)]
    pub(crate) fn count_write(&self) {
        let count = &self.owned.writes;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn add_to(&self, counters: &mut Counters) {
        let attempts = self.owned.epoch.own() / 2;
        let mut aborts = 0;
        for (&cause, count) in Cause::ALL.iter().zip(&self.owned.aborts) {
            let count = count.load(Ordering::Relaxed);
            counters.aborts.add(cause, count);
            aborts += count;
        }
        counters.commits += attempts.saturating_sub(aborts);
    }
}

/// All slots, and those without a thread.
pub(crate) struct Slots {
    // Boxed: locks and lists contain their addresses.
    #[expect(clippy::vec_box, reason = "slots must not move")]
    all: Vec<Box<Slot>>,
    free: Vec<&'static Slot>,
}

impl Slots {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Slots { all: Vec::new(), free: Vec::new() }
        }
    }

    /// Assigns a slot to this thread.
    pub(crate) fn acquire() -> &'static Slot {
        let mut slots = GLOBAL.slots.lock();
        if let Some(slot) = slots.free.pop() {
            return slot;
        }
        let number = slots.all.len() as u32;
        slots.all.push(Box::new(Slot { number, ..Slot::default() }));
        let slot: *const Slot = &**slots.all.last().expect("a slot was pushed");
        // SAFETY: the slot is boxed, and no slot is ever removed from this static list.
        unsafe { &*slot }
    }

    /// Returns the slot of a thread that has ended.
    pub(crate) fn release(slot: &'static Slot) {
        GLOBAL.slots.lock().free.push(slot);
    }

    /// Returns whether at most one thread has a slot. A thread that acquires one later observes
    /// everything that happened before.
    pub(crate) fn has_one_user() -> bool {
        let slots = GLOBAL.slots.lock();
        slots.all.len() - slots.free.len() <= 1
    }

    /// Adds the slots of the threads that are in an attempt, and their epochs.
    pub(crate) fn active(into: &mut Vec<(&'static Slot, u64)>) {
        let slots = GLOBAL.slots.lock();
        for slot in &slots.all {
            let epoch = slot.epoch();
            if epoch % 2 == 1 {
                let slot: *const Slot = &**slot;
                // SAFETY: as in `acquire`.
                into.push((unsafe { &*slot }, epoch));
            }
        }
    }

    /// Number of commits that `count_write` has counted for all threads except this one.
    pub(crate) fn writes_of_others(own: &Slot) -> u64 {
        let slots = GLOBAL.slots.lock();
        let others = slots.all.iter().filter(|slot| slot.number != own.number);
        others.map(|slot| slot.owned.writes.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn counters() -> Counters {
        let mut counters = Counters::default();
        GLOBAL.slots.lock().all.iter().for_each(|slot| slot.add_to(&mut counters));
        counters
    }
}
