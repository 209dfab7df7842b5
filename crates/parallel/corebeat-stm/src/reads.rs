//! The read log of an attempt.

use crate::TCell;
use crate::lock::Lock;
use crate::log::Log;
use std::ptr::NonNull;

/// Which reads are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Logging {
    #[default]
    None,
    /// Every read, for validation.
    All,
    /// Reads for the trace only: of adjacent cells, the first and the last.
    Rows,
}

/// Locks of the cells that were read, in order. With [`Logging::Rows`], a row of adjacent cells is
/// two entries:
///
/// ```text
///   | a | b | c       | d, LAST | e |       a, b, all from c to d, e
/// ```
#[repr(C)]
pub(crate) struct Reads {
    /// Closed with [`Logging::Rows`].
    locks: Log<NonNull<Lock>>,
    /// With [`Logging::None`] each read overwrites the entry of the previous one, so that no branch
    /// is necessary.
    step_bytes: usize,
    logging: Logging,
    /// The lock that would continue the current row.
    next: Option<NonNull<Lock>>,
}

// As in `stm_inline.h` of corebeat-c.
const _: () = assert!(std::mem::offset_of!(Reads, step_bytes) == 4 * size_of::<usize>());

/// Marks the last lock of a row, in an unused bit of the aligned address.
const LAST: usize = 1;
/// Distance from one cell to the next one.
const STEP_BYTES: usize = size_of::<TCell<u64>>();

fn is_last(lock: &NonNull<Lock>) -> bool {
    lock.addr().get() & LAST != 0
}

impl Reads {
    /// An empty log without memory.
    pub(crate) const CLOSED: Reads =
        Reads { locks: Log::CLOSED, step_bytes: 0, logging: Logging::None, next: None };

    /// Creates an empty log, with [`Logging::None`].
    pub(crate) fn new() -> Reads {
        let mut reads = Reads { locks: Log::new(), ..Reads::CLOSED };
        reads.set_logging(Logging::None);
        reads
    }

    /// Sets which reads are logged from here on. Entries stay in the log, so `Rows` requires an
    /// empty log.
    pub(crate) fn set_logging(&mut self, logging: Logging) {
        self.logging = logging;
        self.step_bytes = if logging == Logging::None { 0 } else { size_of::<NonNull<Lock>>() };
        self.next = None;
        self.locks.set_open(logging != Logging::Rows);
        if logging == Logging::None && !self.locks.has_room() {
            self.locks.reserve();
        }
    }

    /// Logs a read if the log has capacity for it, and does not have rows without `LOGS_ROWS`.
    /// Returns whether the read is logged as required. The inlined code of each read therefore
    /// contains no call of the allocator.
    #[inline(always)]
    pub(crate) fn try_push<const LOGS_ROWS: bool>(&mut self, lock: &Lock) -> bool {
        if self.locks.has_room() {
            // SAFETY: as checked.
            unsafe { self.locks.put(lock.into(), self.step_bytes) };
            return true;
        }
        let is_row = LOGS_ROWS && self.logging == Logging::Rows;
        if is_row {
            self.push_to_row(lock.into());
        }
        is_row
    }

    /// Logs a read.
    pub(crate) fn push(&mut self, lock: &Lock) {
        match self.logging {
            Logging::None => {}
            Logging::All => self.locks.push(lock.into()),
            Logging::Rows => self.push_to_row(lock.into()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Returns the locks to validate. Panics with [`Logging::Rows`] in debug builds.
    #[inline(always)]
    pub(crate) fn to_check(&self) -> &[NonNull<Lock>] {
        debug_assert!(self.logging != Logging::Rows, "addresses in rows contain marks");
        &self.locks
    }

    /// Number of locks to validate; 0 with [`Logging::Rows`].
    pub(crate) fn count_to_check(&self) -> usize {
        if self.logging == Logging::Rows { 0 } else { self.locks.len() }
    }

    pub(crate) fn retain(&mut self, keeps: impl FnMut(&NonNull<Lock>) -> bool) {
        self.locks.edit(|locks| locks.retain(keeps));
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.locks.clear();
    }

    // ---- rows

    #[inline(always)]
    fn push_to_row(&mut self, lock: NonNull<Lock>) {
        if self.next == Some(lock) {
            // Computed from `lock` and not from `self.next`, so that a read does not depend on the
            // previous one.
            self.next = following(lock);
        } else {
            self.begin_row(lock);
        }
    }

    #[inline(never)]
    fn begin_row(&mut self, lock: NonNull<Lock>) {
        self.end_row();
        self.locks.push(lock);
        self.next = following(lock);
    }

    /// Logs the end of the current row.
    fn end_row(&mut self) {
        let Some(next) = self.next.take() else { return };
        let last = next.as_ptr().wrapping_byte_sub(STEP_BYTES);
        if self.locks.last().is_some_and(|first| first.as_ptr() != last) {
            // The address is aligned, so the bit is free.
            if let Some(last) = NonNull::new(last.map_addr(|addr| addr | LAST)) {
                self.locks.push(last);
            }
        }
    }

    // ---- recording

    /// Passes single reads to `one`, and rows to `row` as their first lock and their length.
    #[inline(always)]
    pub(crate) fn record(
        &mut self,
        one: impl Fn(&[NonNull<Lock>]),
        row: impl Fn(NonNull<Lock>, u32),
    ) {
        let mut rest = &self.locks[..];
        if self.logging == Logging::Rows {
            self.end_row();
            rest = &self.locks[..];
            while let Some(at) = rest.iter().position(is_last) {
                // The first lock of the row precedes its last one.
                let (first, count) = row_of(rest[at - 1], rest[at]);
                one(&rest[..at - 1]);
                row(first, count);
                rest = &rest[at + 1..];
            }
        }
        one(rest);
    }

    /// Number of reads in the log.
    pub(crate) fn count(&mut self) -> usize {
        if self.logging != Logging::Rows {
            return self.locks.len();
        }
        self.end_row();
        let rows = self.locks.windows(2).filter(|pair| is_last(&pair[1]));
        // The first and the last lock are counted already.
        self.locks.len() + rows.map(|pair| row_of(pair[0], pair[1]).1 as usize - 2).sum::<usize>()
    }
}

/// Returns the lock of the cell that follows the cell of `lock` in memory.
#[inline(always)]
fn following(lock: NonNull<Lock>) -> Option<NonNull<Lock>> {
    NonNull::new(lock.as_ptr().wrapping_byte_add(STEP_BYTES))
}

/// Returns the first lock and the length of a row.
fn row_of(first: NonNull<Lock>, last: NonNull<Lock>) -> (NonNull<Lock>, u32) {
    let bytes = last.addr().get() - first.addr().get();
    (first, (bytes / STEP_BYTES) as u32 + 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    proptest! {
        #[test]
        fn recorded_rows_contain_exactly_the_reads(
            steps in prop::collection::vec((0..40usize, 1..6usize), 0..20)
        ) {
            let cells: Vec<TCell<u64>> = (0..50).map(TCell::new).collect();
            let mut reads = Reads::new();
            // A row that is never recorded leaves no entry.
            reads.set_logging(Logging::Rows);
            reads.push(cells[0].parts().0);
            for logging in [Logging::All, Logging::Rows, Logging::All] {
                reads.clear();
                reads.set_logging(logging);
                let read: Vec<usize> =
                    steps.iter().flat_map(|&(first, count)| first..first + count).collect();
                for index in &read {
                    reads.push(cells[*index].parts().0);
                }
                prop_assert_eq!(reads.count(), read.len());
                let to_check = if logging == Logging::All { read.len() } else { 0 };
                prop_assert_eq!(reads.count_to_check(), to_check);
                let recorded = RefCell::new(Vec::new());
                let begin = (&raw const cells[0]).addr();
                let index = |lock: NonNull<Lock>| (lock.addr().get() - begin) / STEP_BYTES;
                reads.record(
                    |locks| recorded.borrow_mut().extend(locks.iter().map(|lock| index(*lock))),
                    |first, count| {
                        assert!(count > 1);
                        recorded.borrow_mut().extend(index(first)..index(first) + count as usize);
                    },
                );
                prop_assert_eq!(recorded.into_inner(), read);
            }
        }
    }
}
