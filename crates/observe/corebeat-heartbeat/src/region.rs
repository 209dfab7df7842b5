//! A region: the counters of one process for one group, written by that process alone.
//!
//! ```text
//!     line 0        magic, and how many slots were ever used
//!     line 1        slot 0: count, tid        one thread's own cache line
//!     ...
//!     line 1023     slot 1022
//! ```
//!
//! A slot belongs to a thread while `tid` is that thread's, and is free when it is 0. It goes on counting when it is used
//! again: counts only grow, and nothing that was counted is lost with a thread.

use crate::Error;
use crate::raw::{self, Layout, View};
use rustix::process::Pid;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many threads of a process can beat for one group at a time.
pub const SLOTS: usize = 1023;

/// "CBHBREG" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"CBHBREG1");

/// Every ordering is Relaxed: a count says nothing about other memory, and one that is seen late is counted a sample later.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Region {
    head: Head,
    slots: [Slot; SLOTS],
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    /// Slots from here on were never used.
    used: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    count: AtomicU64,
    tid: AtomicU32,
}

// SAFETY: atomics alone, which have no bytes that they cannot be, and 64 KiB of them.
unsafe impl Layout for Region {
    const NAME: &'static str = "region of counters";
    const BYTES: usize = 64 << 10;
}

const _: () = assert!(size_of::<Region>() == Region::BYTES);

/// The owner's side. One thread at a time takes slots and gives them back.
impl Region {
    pub(crate) fn begin(&self) {
        self.head.magic.store(MAGIC, Ordering::Relaxed);
    }

    /// A slot for this thread, which has none. Slots of threads that have ended without giving them back are free.
    ///
    /// # Errors
    /// [`Error::TooMany`] threads.
    pub(crate) fn take(&self, tid: Pid) -> Result<usize, Error> {
        let is_free = |slot: &Slot| slot.owner().is_none_or(|owner| owner == tid || !raw::is_alive(owner));
        let index = self.slots.iter().position(is_free);
        let index = index.ok_or(Error::too_many("threads that beat for this group", SLOTS))?;
        self.give_to(index, tid);
        let used = self.head.used.load(Ordering::Relaxed).max(index as u32 + 1);
        self.head.used.store(used, Ordering::Relaxed);
        Ok(index)
    }

    pub(crate) fn give_to(&self, index: usize, tid: Pid) {
        self.slots[index].tid.store(tid.as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
    }

    /// Gives a slot back.
    pub(crate) fn give_back(&self, index: usize) {
        self.slots[index].tid.store(0, Ordering::Relaxed);
    }

    /// Whether a thread that is alive has a slot.
    pub(crate) fn is_used(&self) -> bool {
        self.slots.iter().filter_map(Slot::owner).any(raw::is_alive)
    }

    /// A slot's counter, which its thread alone writes.
    pub(crate) fn counter(&self, index: usize) -> &AtomicU64 {
        &self.slots[index].count
    }
}

impl Slot {
    fn owner(&self) -> Option<Pid> {
        Pid::from_raw(self.tid.load(Ordering::Relaxed).cast_signed())
    }
}

/// The monitor's side: a region that was handed over, and how far each of its counters has come. Nothing in it is believed:
/// counts that go back are as if they had stood still, and there are never more slots than [`SLOTS`].
#[derive(Debug)]
pub(crate) struct Watched {
    region: View<Region>,
    /// Of the slots that were ever used, as far as we know.
    counts: Vec<u64>,
}

/// What a look at a region gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// Beats since the last look.
    pub(crate) beats: u64,
    /// Threads that have slots.
    pub(crate) threads: u32,
}

impl Watched {
    /// What was counted until now is not counted.
    ///
    /// # Errors
    /// [`Error::BadMemory`], if it was not begun as a region.
    pub(crate) fn new(region: View<Region>) -> Result<Watched, Error> {
        // SAFETY: it loads, Relaxed.
        if unsafe { region.get() }.head.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(Error::BadMemory { what: Region::NAME, why: "it has another layout" });
        }
        let mut watched = Watched { region, counts: Vec::new() };
        watched.look();
        Ok(watched)
    }

    /// What happened since the last look.
    pub(crate) fn look(&mut self) -> Seen {
        // SAFETY: loads alone, Relaxed.
        let region = unsafe { self.region.get() };
        let used = (region.head.used.load(Ordering::Relaxed) as usize).min(SLOTS).max(self.counts.len());
        self.counts.resize(used, 0);
        let mut seen = Seen::default();
        for (slot, last) in region.slots.iter().zip(&mut self.counts) {
            let count = slot.count.load(Ordering::Relaxed);
            seen.beats = seen.beats.saturating_add(count.saturating_sub(*last));
            *last = count.max(*last);
            seen.threads += u32::from(slot.tid.load(Ordering::Relaxed) != 0);
        }
        seen
    }
}
