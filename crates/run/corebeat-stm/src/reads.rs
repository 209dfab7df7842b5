//! What an attempt has read.

use crate::TCell;
use crate::lock::Lock;
use std::ptr::NonNull;

/// Which reads are noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Notes {
    #[default]
    None,
    /// Each, to be looked at again.
    All,
    /// To be told only: of cells in a row, the first and the last.
    Rows,
}

/// Locks of what was read, in order. Where rows are noted, those stand there as two:
///
/// ```text
///   | a | b | c       | d, LAST | e |       a, b, all from c to d, e
/// ```
#[derive(Default)]
pub(crate) struct Reads {
    notes: Notes,
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
    /// From here on these are noted. Those that were before stay, so rows are for who has read nothing.
    #[inline(always)]
    pub(crate) fn note(&mut self, notes: Notes) {
        self.notes = notes;
        if notes == Notes::Rows {
            self.next = None;
        }
    }

    /// Notes one as it is to be, if that needs no new room. Whether it did.
    #[inline(always)]
    pub(crate) fn push_at_once(&mut self, lock: &Lock) -> bool {
        match self.notes {
            Notes::None => {}
            Notes::All => return push_where_room(&mut self.locks, lock.into()),
            Notes::Rows => self.push_to_row(lock.into()),
        }
        true
    }

    /// Notes one as it is to be.
    pub(crate) fn push(&mut self, lock: &Lock) {
        match self.notes {
            Notes::None => {}
            Notes::All => self.locks.push(lock.into()),
            Notes::Rows => self.push_to_row(lock.into()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Those that are to be looked at again. Rows are not: who has them may not ask.
    #[inline(always)]
    pub(crate) fn to_check(&self) -> &[NonNull<Lock>] {
        debug_assert!(self.notes != Notes::Rows, "locks with marks in their addresses");
        &self.locks
    }

    /// How many they are; 0 where rows are noted.
    pub(crate) fn count_to_check(&self) -> usize {
        if self.notes == Notes::Rows { 0 } else { self.locks.len() }
    }

    pub(crate) fn retain(&mut self, keeps: impl FnMut(&NonNull<Lock>) -> bool) {
        self.locks.retain(keeps);
    }

    pub(crate) fn clear(&mut self) {
        self.locks.clear();
    }

    // ---- rows

    #[inline(always)]
    fn push_to_row(&mut self, lock: NonNull<Lock>) {
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

    // ---- what is told

    /// Hands on what was read: some one by one, and some as the first of so many in a row.
    #[inline(always)]
    pub(crate) fn tell(&mut self, one: impl Fn(&[NonNull<Lock>]), row: impl Fn(NonNull<Lock>, u32)) {
        let mut rest = &self.locks[..];
        if self.notes == Notes::Rows {
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
    pub(crate) fn count(&mut self) -> usize {
        if self.notes != Notes::Rows {
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
            reads.note(Notes::Rows);
            reads.push(cells[0].parts().0);
            for notes in [Notes::All, Notes::Rows, Notes::All] {
                reads.clear();
                reads.note(notes);
                let read: Vec<usize> = steps.iter().flat_map(|&(first, count)| first..first + count).collect();
                for index in &read {
                    reads.push(cells[*index].parts().0);
                }
                prop_assert_eq!(reads.count(), read.len());
                prop_assert_eq!(reads.count_to_check(), if notes == Notes::All { read.len() } else { 0 });
                let told = RefCell::new(Vec::new());
                let index = |lock: NonNull<Lock>| (lock.addr().get() - (&raw const cells[0]).addr()) / STEP_BYTES;
                reads.tell(
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
