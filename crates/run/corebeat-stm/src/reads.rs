//! What an attempt has read.

use crate::TCell;
use crate::lock::Lock;
use std::ptr::NonNull;

/// Which reads are noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notes {
    None,
    /// Each, to be looked at again.
    All,
    /// To be told only: of cells in a row, the first and the last.
    Rows,
}

/// Locks of what was read, in order. Rows stand there as two:
///
/// ```text
///   | a | b | c       | d, LAST | e |       a, b, all from c to d, e
/// ```
#[derive(Default)]
pub(crate) struct Reads {
    locks: Vec<NonNull<Lock>>,
    /// Behind the last one that was noted for a row.
    next: Option<NonNull<Lock>>,
}

/// Marks the last of a row, in an address of something that is aligned.
const LAST: usize = 1;
/// From one cell to that behind it.
const STEP_BYTES: usize = size_of::<TCell<u64>>();

fn is_last(lock: &NonNull<Lock>) -> bool {
    lock.addr().get() & LAST != 0
}

impl Reads {
    // ---- each

    /// Notes one, if that needs no new room.
    #[inline(always)]
    pub(crate) fn push_at_once(&mut self, lock: &Lock) -> bool {
        push_where_room(&mut self.locks, lock.into())
    }

    pub(crate) fn push(&mut self, lock: &Lock) {
        self.locks.push(lock.into());
    }

    /// All of them, where each was noted; where rows were, nothing is in there if nothing was read.
    #[inline(always)]
    pub(crate) fn all(&self) -> &[NonNull<Lock>] {
        &self.locks
    }

    pub(crate) fn retain(&mut self, keeps: impl FnMut(&NonNull<Lock>) -> bool) {
        self.locks.retain(keeps);
    }

    // ---- rows

    /// From here on they are noted.
    pub(crate) fn begin_rows(&mut self) {
        self.next = None;
    }

    #[inline(always)]
    pub(crate) fn push_to_row(&mut self, lock: &Lock) {
        let lock = NonNull::from(lock);
        if self.next == Some(lock) {
            // From where it is rather than from where it was expected: so reads need not wait for one another.
            self.next = behind(lock);
        } else {
            self.begin_row(lock);
        }
    }

    #[inline(never)]
    fn begin_row(&mut self, lock: NonNull<Lock>) {
        self.end_row();
        self.locks.push(lock);
        self.next = behind(lock);
    }

    /// The last one has its end.
    fn end_row(&mut self) {
        let Some(next) = self.next.take() else { return };
        let last = next.as_ptr().wrapping_byte_sub(STEP_BYTES);
        if self.locks.last().is_some_and(|first| first.as_ptr() != last) {
            // Aligned: nothing else is in that bit.
            let last = last.map_addr(|addr| addr | LAST);
            self.locks.extend(NonNull::new(last));
        }
    }

    // ---- both

    pub(crate) fn clear(&mut self) {
        self.locks.clear();
    }

    /// Hands on what was read: some one by one, and some as the first of so many in a row.
    #[inline(always)]
    pub(crate) fn tell(
        &mut self,
        notes: Notes,
        one: impl Fn(&[NonNull<Lock>]),
        row: impl Fn(NonNull<Lock>, u32),
    ) {
        let mut rest = &self.locks[..];
        if notes == Notes::Rows {
            self.end_row();
            rest = &self.locks[..];
            while let Some(at) = rest.iter().position(is_last) {
                // Behind its first.
                let (first, count) = row_of(rest[at - 1], rest[at]);
                one(&rest[..at - 1]);
                row(first, count);
                rest = &rest[at + 1..];
            }
        }
        one(rest);
    }

    /// How many they are.
    pub(crate) fn count(&mut self, notes: Notes) -> usize {
        if notes != Notes::Rows {
            return self.locks.len();
        }
        self.end_row();
        let rows = self.locks.windows(2).filter(|pair| is_last(&pair[1]));
        // Both are counted already.
        self.locks.len() + rows.map(|pair| row_of(pair[0], pair[1]).1 as usize - 2).sum::<usize>()
    }
}

/// The lock of the cell behind the one that this is of.
#[inline(always)]
fn behind(lock: NonNull<Lock>) -> Option<NonNull<Lock>> {
    NonNull::new(lock.as_ptr().wrapping_byte_add(STEP_BYTES))
}

/// The first of a row, and how many it has.
fn row_of(first: NonNull<Lock>, last: NonNull<Lock>) -> (NonNull<Lock>, u32) {
    let bytes = last.addr().get() - first.addr().get();
    (first, (bytes / STEP_BYTES) as u32 + 1)
}

/// Pushes, if that needs no new room. Keeps the way to the allocator out of the code of each read.
#[inline(always)]
pub(crate) fn push_where_room<T>(list: &mut Vec<T>, item: T) -> bool {
    let has_room = list.len() < list.capacity();
    if has_room {
        // SAFETY: there is room behind the last item, and then one item more.
        unsafe {
            list.as_mut_ptr().add(list.len()).write(item);
            list.set_len(list.len() + 1);
        }
    }
    has_room
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    proptest! {
        #[test]
        fn rows_are_told_as_what_was_read(steps in prop::collection::vec((0..40usize, 1..6usize), 0..20)) {
            let cells: Vec<TCell<u64>> = (0..50).map(TCell::new).collect();
            let mut reads = Reads::default();
            // One that is never told leaves nothing behind.
            reads.begin_rows();
            reads.push_to_row(cells[0].parts().0);
            for notes in [Notes::All, Notes::Rows, Notes::All] {
                reads.clear();
                if notes == Notes::Rows {
                    reads.begin_rows();
                }
                let read: Vec<usize> = steps.iter().flat_map(|&(first, count)| first..first + count).collect();
                for index in &read {
                    let lock = cells[*index].parts().0;
                    if notes == Notes::Rows { reads.push_to_row(lock) } else { reads.push(lock) }
                }
                prop_assert_eq!(reads.count(notes), read.len());
                let told = RefCell::new(Vec::new());
                let index = |lock: NonNull<Lock>| (lock.addr().get() - (&raw const cells[0]).addr()) / STEP_BYTES;
                reads.tell(
                    notes,
                    |locks| told.borrow_mut().extend(locks.iter().map(|lock| index(*lock))),
                    |first, count| {
                        assert!(count > 1);
                        told.borrow_mut().extend(index(first)..index(first) + count as usize);
                    },
                );
                prop_assert_eq!(told.into_inner(), read);
            }
        }
    }
}
