//! Use of a stream end by a task, which the end counts and the worker reads after each dispatch.

use super::{Direction, StreamUse, Watch};
use corebeat_sync::asymmetric::is_free;
use std::cell::{Cell, UnsafeCell};
use std::ptr;

/// Entry of an end that was not used.
pub(super) const UNUSED: StreamUse = StreamUse {
    stream: 0,
    items: 0,
    direction: Direction::Read,
    opened: false,
    closed: false,
    blocked: false,
    woke: false,
    moved: false,
};

/// Use of an end by one task or thread. If another one uses the end, the end makes a new value.
pub(crate) struct EndUse {
    /// The monitor that records the end, of the task's worker; null without one.
    watch: *const Watch,
    /// Whether each item needs a `light` fence that was not free when the end was entered.
    fences: bool,
    /// Whether the monitor has the end in its list of this dispatch.
    is_listed: Cell<bool>,
    /// Whether an item only has to be counted.
    only_counts: Cell<bool>,
    /// The record of this dispatch.
    record: UnsafeCell<StreamUse>,
}

// SAFETY: only the thread of the user accesses the value: in the user, or between two tasks. The
// exception is `items`, which the next user of the end reads when the former one does not write any
// more; moving the end synchronises both.
unsafe impl Sync for EndUse {}
// SAFETY: as above. The monitor is used only by tasks of its worker.
unsafe impl Send for EndUse {}

impl EndUse {
    /// `items` have passed before.
    pub(crate) fn new(
        stream: u64,
        direction: Direction,
        items: u64,
        watch: Option<&Watch>,
    ) -> EndUse {
        EndUse {
            watch: watch.map_or(ptr::null(), ptr::from_ref),
            fences: !is_free(),
            is_listed: Cell::new(false),
            only_counts: Cell::new(false),
            record: UnsafeCell::new(StreamUse { stream, direction, items, ..UNUSED }),
        }
    }

    /// Returns the number of items that passed while monitors recorded the end. Only for the user
    /// of the end, or the next one.
    pub(crate) fn items(&self) -> u64 {
        // SAFETY: no thread writes the number meanwhile.
        unsafe { (*self.record.get()).items }
    }

    /// Counts items, if nothing else has to be done for them. Returns false otherwise:
    /// [`EndUse::count_first`] and a `light` fence must follow. Only for the user of the end, as
    /// all functions below.
    #[inline(always)]
    pub(crate) fn count(&self, items: u64) -> bool {
        let only_counts = self.only_counts.get();
        if only_counts {
            // SAFETY: only the user accesses the record.
            unsafe { (*self.record.get()).items += items };
        }
        only_counts
    }

    /// Counts the first items in a dispatch, and all that need a fence, if a monitor records the
    /// end.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_first(&self, items: u64) {
        self.change(|record| {
            record.items += items;
            record.moved = true;
        });
        self.only_counts.set(self.is_listed.get() && !self.fences);
    }

    /// Changes the record and adds the end to the list of this dispatch, if a monitor records it.
    /// Not inlined, so that callers without a monitor save no registers.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(&self, note: impl FnOnce(&mut StreamUse)) {
        self.change(note);
    }

    #[inline(always)]
    fn change(&self, note: impl FnOnce(&mut StreamUse)) {
        // SAFETY: the user is a task of the monitor's worker, which lives longer.
        if let Some(watch) = unsafe { self.watch.as_ref() } {
            // SAFETY: as in `count`; `note` does not use the end.
            note(unsafe { &mut *self.record.get() });
            if !self.is_listed.replace(true) {
                watch.list(self);
            }
        }
    }

    pub(super) fn is_listed(&self) -> bool {
        self.is_listed.get()
    }

    /// Returns the record of a dispatch that is over. Only for the monitor.
    #[inline(always)]
    pub(super) fn take(&self) -> StreamUse {
        self.is_listed.set(false);
        self.only_counts.set(false);
        // SAFETY: the task does not run. A next user only reads `items`, which this function does
        // not write.
        unsafe {
            let record = self.record.get();
            let taken = *record;
            (*record).opened = false;
            (*record).closed = false;
            (*record).blocked = false;
            (*record).woke = false;
            (*record).moved = false;
            taken
        }
    }
}
