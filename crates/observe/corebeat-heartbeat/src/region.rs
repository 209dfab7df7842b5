//! A region: the counters of one process for one group. Only that process writes it.
//!
//! ```text
//!     line 0        magic, and the number of slots that were ever used
//!     line 1        slot 0: count, tid        a thread's private cache line
//!     ...
//!     line 1023     slot 1022
//! ```
//!
//! A slot belongs to the thread whose ID is in `tid`; 0 marks a free slot. A reused slot continues
//! its count: counts only grow, so no beat is lost when a thread ends.

use crate::Error;
use crate::raw::{self, Layout, View};
use rustix::process::Pid;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Limit on the threads of a process that can beat for one group at a time.
pub const SLOTS: usize = 1023;

/// "CBHBREG" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"CBHBREG1");

/// The memory layout. Every ordering is Relaxed: no other data depends on a count, and a count that
/// is read late is counted one sample later.
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
    /// Number of slots that were ever used.
    used: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    count: AtomicU64,
    tid: AtomicU32,
}

// SAFETY: 64 KiB of atomics, which accept every bit pattern.
unsafe impl Layout for Region {
    const NAME: &'static str = "region of counters";
    const BYTES: usize = 64 << 10;
}

const _: () = assert!(size_of::<Region>() == Region::BYTES);

/// The owner's side. Only one thread at a time takes or returns slots.
impl Region {
    pub(crate) fn begin(&self) {
        self.head.magic.store(MAGIC, Ordering::Relaxed);
    }

    /// Assigns a slot to this thread, which has none. Slots of threads that ended without returning
    /// them are free.
    ///
    /// # Errors
    /// [`Error::TooMany`] threads.
    pub(crate) fn take(&self, tid: Pid) -> Result<usize, Error> {
        let is_free =
            |slot: &Slot| slot.owner().is_none_or(|owner| owner == tid || !raw::is_alive(owner));
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

    /// Returns a slot.
    pub(crate) fn give_back(&self, index: usize) {
        self.slots[index].tid.store(0, Ordering::Relaxed);
    }

    /// Whether a running thread has a slot.
    pub(crate) fn is_used(&self) -> bool {
        self.slots.iter().filter_map(Slot::owner).any(raw::is_alive)
    }

    /// The counter of a slot, which only its thread writes.
    pub(crate) fn counter(&self, index: usize) -> &AtomicU64 {
        &self.slots[index].count
    }
}

impl Slot {
    fn owner(&self) -> Option<Pid> {
        Pid::from_raw(self.tid.load(Ordering::Relaxed).cast_signed())
    }
}

/// The monitor's side: a received region, and the last value of each counter. The contents are not
/// trusted: decreasing counts are treated as unchanged, and the number of slots is limited to
/// [`SLOTS`].
#[derive(Debug)]
pub(crate) struct Watched {
    region: View<Region>,
    /// Last counts of the slots that were ever used.
    counts: Vec<u64>,
}

/// The result of sampling a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Observed {
    /// Beats since the last sample.
    pub(crate) beats: u64,
    /// Number of threads that have slots.
    pub(crate) threads: u32,
}

impl Watched {
    /// Starts to watch a region. Earlier beats are not counted.
    ///
    /// # Errors
    /// [`Error::BadMemory`] if the memory does not contain a region.
    pub(crate) fn new(region: View<Region>) -> Result<Watched, Error> {
        // SAFETY: only a Relaxed load.
        if unsafe { region.get() }.head.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(Error::BadMemory { what: Region::NAME, why: "it has the wrong layout" });
        }
        let mut watched = Watched { region, counts: Vec::new() };
        watched.sample();
        Ok(watched)
    }

    /// Samples the region.
    pub(crate) fn sample(&mut self) -> Observed {
        // SAFETY: only Relaxed loads.
        let region = unsafe { self.region.get() };
        let used =
            (region.head.used.load(Ordering::Relaxed) as usize).min(SLOTS).max(self.counts.len());
        self.counts.resize(used, 0);
        let mut observed = Observed::default();
        for (slot, last) in region.slots.iter().zip(&mut self.counts) {
            let count = slot.count.load(Ordering::Relaxed);
            observed.beats = observed.beats.saturating_add(count.saturating_sub(*last));
            *last = count.max(*last);
            observed.threads += u32::from(slot.tid.load(Ordering::Relaxed) != 0);
        }
        observed
    }
}
