//! The FastForward buffer: each slot contains its own state, and head and tail are private to their
//! sides.
//!
//! Source: Giacomoni, Moseley, Vachharajani, FastForward for efficient pipeline parallelism, 2008,
//! as used by Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream
//! Processing, 2011, 4.4.2. FastForward marks an empty slot by a reserved value. Here a flag beside
//! the item marks it, so that items may be of any type and size.
//!
//! ```text
//!            tail (the reader's)         head (the writer's)
//!             v                           v
//!   | empty | full | full | full | full | empty | empty |      next --> a larger segment, or null
//! ```
//!
//! Only the writer changes a slot from empty to full, and only the reader changes it back. To grow
//! the stream, the writer links a larger segment when its own is full, and never writes to the old
//! one again. A reader that finds its slot empty and a next segment reads the slot once more,
//! because the slot may have been filled before the link was set, and then moves to the next
//! segment. Segments live as long as the stream. Each is twice as large as the one before, so all
//! old segments together are smaller than the last one.

use corebeat_sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use corebeat_sync::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

/// Room for one item.
pub(crate) struct Slot<T> {
    full: AtomicBool,
    item: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Slot<T> {
    /// Returns whether the slot holds an item.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        // Acquire: pairs with the releases in `fill` and `take`.
        self.full.load(Ordering::Acquire)
    }

    /// Returns the flag, for code that only waits until it changes.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.full
    }

    /// # Safety
    ///
    /// The caller is the writer, and [`Slot::is_full`] returned false (which acquires the release
    /// of the reader).
    #[inline(always)]
    pub(crate) unsafe fn fill(&self, item: T) {
        self.item.with_mut(|slot| {
            // SAFETY: only the writer uses an empty slot.
            unsafe { (*slot).write(item) };
        });
        // Release: pairs with the acquire of the reader in `is_full`.
        self.full.store(true, Ordering::Release);
    }

    /// # Safety
    ///
    /// The caller is the reader, or the writer after the reader was dropped, or the side that was
    /// dropped last, and [`Slot::is_full`] returned true.
    #[inline(always)]
    pub(crate) unsafe fn take(&self) -> T {
        // SAFETY: a full slot holds an item, and only the reader uses it.
        let item = self.item.with(|slot| unsafe { (*slot).assume_init_read() });
        // Release: the read of the item precedes the next write of the slot by the writer, which
        // acquires in `is_full`.
        self.full.store(false, Ordering::Release);
        item
    }

    /// Returns the item, which stays in the slot.
    ///
    /// # Safety
    ///
    /// As for [`Slot::take`]; the pointer is not used after the item is taken.
    pub(crate) unsafe fn peek(&self) -> *const T {
        // SAFETY: a full slot holds an item.
        self.item.with(|slot| unsafe { (*slot).as_ptr() })
    }
}

/// An array of slots, and the larger segment that follows it if the stream has grown. The first
/// segment is a part of the stream. The items are dropped before the segment, see
/// `Shared::end_side`.
pub(crate) struct Segment<T> {
    pub(crate) next: AtomicPtr<Segment<T>>,
    pub(crate) slots: Box<[Slot<T>]>,
}

impl<T> Segment<T> {
    /// Creates an empty segment with room for `capacity` items, at least 1.
    pub(crate) fn new(capacity: usize) -> Self {
        let slot =
            || Slot { full: AtomicBool::new(false), item: UnsafeCell::new(MaybeUninit::uninit()) };
        let mut slots = Vec::new();
        if slots.try_reserve_exact(capacity).is_err() {
            panic!("no memory for a stream with room for {capacity} items");
        }
        slots.extend((0..capacity).map(|_| slot()));
        Segment { next: AtomicPtr::new(ptr::null_mut()), slots: slots.into_boxed_slice() }
    }

    /// Returns the next segment, if the stream has grown.
    pub(crate) fn next(&self) -> Option<&Self> {
        // SAFETY: segments live as long as the stream. Acquire: pairs with the release in `grow`,
        // so the new segment is visible. Items that the writer put into this segment before are
        // visible as well.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

impl<T> Drop for Segment<T> {
    fn drop(&mut self) {
        // One after the other, without recursion. Relaxed: the drop of the last reference to the
        // stream precedes.
        let mut next = self.next.load(Ordering::Relaxed);
        while !next.is_null() {
            // SAFETY: from `Box::into_raw` in `grow`. Both ends were dropped.
            let owned = unsafe { Box::from_raw(next) };
            next = owned.next.swap(ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

/// Position of one side: at `slot`, within `first` to `end`.
pub(crate) struct Cursor<T> {
    slot: *const Slot<T>,
    end: *const Slot<T>,
    first: *const Slot<T>,
}

impl<T> Cursor<T> {
    /// Creates a cursor at the begin of `segment`, which outlives the cursor.
    pub(crate) fn new(segment: &Segment<T>) -> Self {
        let slots = segment.slots.as_ptr_range();
        Cursor { slot: slots.start, end: slots.end, first: slots.start }
    }

    /// Returns the segment of the cursor. `first` is the first segment of the stream.
    fn segment<'a>(&self, first: &'a Segment<T>) -> &'a Segment<T> {
        let mut segment = first;
        while !ptr::eq(segment.slots.as_ptr(), self.first) {
            segment = segment.next().expect("the cursor is in a segment of the stream");
        }
        segment
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> &Slot<T> {
        // SAFETY: a slot of the segment, which outlives the cursor.
        unsafe { &*self.slot }
    }

    /// Returns the slot at a distance of `ahead`, which is less than the capacity.
    pub(crate) fn slot_ahead(&self, ahead: usize) -> &Slot<T> {
        // SAFETY: both pointers are in the same array.
        let at = unsafe { self.slot.offset_from_unsigned(self.first) } + ahead;
        let capacity = self.capacity();
        let at = if at >= capacity { at - capacity } else { at };
        assert!(at < capacity);
        // SAFETY: the index was checked above.
        unsafe { &*self.first.add(at) }
    }

    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        // SAFETY: at most one past the last slot.
        self.slot = unsafe { self.slot.add(1) };
        if self.slot == self.end {
            self.slot = self.first;
        }
    }

    /// Moves back to the slot before.
    pub(crate) fn retreat(&mut self) {
        if self.slot == self.first {
            self.slot = self.end;
        }
        // SAFETY: there is at least one slot, so a slot precedes the end, and every slot but the
        // first.
        self.slot = unsafe { self.slot.sub(1) };
    }

    pub(crate) fn capacity(&self) -> usize {
        // SAFETY: both ends of one array. A slot has a flag, so its size is not 0.
        unsafe { self.end.offset_from_unsigned(self.first) }
    }

    /// Continues in a new segment of twice the size. Only for the writer, whose slot is full.
    /// `first` is the first segment of the stream.
    pub(crate) fn grow(&mut self, first: &Segment<T>) {
        let larger = Box::into_raw(Box::new(Segment::new(self.capacity() * 2)));
        // Release: pairs with the acquire in `Segment::next`.
        self.segment(first).next.store(larger, Ordering::Release);
        // SAFETY: segments live as long as the stream.
        *self = Cursor::new(unsafe { &*larger });
    }

    /// Moves to the next segment, if there is one and all items of this one were read. Only for the
    /// reader, whose slot was empty. `first` is the first segment of the stream.
    pub(crate) fn follow(&mut self, first: &Segment<T>) -> bool {
        match self.segment(first).next() {
            // The second read of the slot, after the link was found.
            Some(next) if !self.slot().is_full() => {
                *self = Cursor::new(next);
                true
            }
            _ => false,
        }
    }
}
