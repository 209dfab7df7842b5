//! The FastForward buffer: a slot itself says whether it is full, head and tail are private to their sides.
//!
//! Source: Giacomoni, Moseley, Vachharajani, FastForward for efficient pipeline parallelism, 2008, as used by Prokesch,
//! A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.4.2. The known value that marks an
//! empty slot there is a flag beside the item here, so that items may be of any type and size.
//!
//! ```text
//!            tail (the reader's)         head (the writer's)
//!             v                           v
//!   | empty | full | full | full | full | empty | empty |      next --> a larger segment, or null
//! ```
//!
//! A slot goes from empty to full by the writer only, and back by the reader only. A writer that was told to grow links
//! a larger segment when its own is full, and never writes to the old one again; a reader that finds its slot empty and
//! a next segment looks at the slot once more (it may have been filled before the link was set) and moves on. Segments
//! live as long as the stream: each is twice as large as the one before, so all old ones together are smaller than the last.

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
    /// Whether the reader may take. Acquire: pairs with the release in `fill`, so the item is there.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// The flag alone, for those who only wait for it to change.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.full
    }

    /// # Safety
    ///
    /// The caller is the writer, and saw the slot empty by [`Slot::is_full`] (which acquires the reader's release).
    #[inline(always)]
    pub(crate) unsafe fn fill(&self, item: T) {
        self.item.with_mut(|slot| {
            // SAFETY: an empty slot is the writer's alone.
            unsafe { (*slot).write(item) };
        });
        // Release: pairs with the reader's acquire in `is_full`.
        self.full.store(true, Ordering::Release);
    }

    /// # Safety
    ///
    /// The caller is the reader, or the writer after the reader is gone, and saw the slot full by [`Slot::is_full`].
    #[inline(always)]
    pub(crate) unsafe fn take(&self) -> T {
        // SAFETY: a full slot holds an item and is the reader's alone.
        let item = self.item.with(|slot| unsafe { (*slot).assume_init_read() });
        // Release: our read of the item is over before the writer, who acquires by `is_full`, may overwrite it.
        self.full.store(false, Ordering::Release);
        item
    }

    /// The item, which stays.
    ///
    /// # Safety
    ///
    /// As for [`Slot::take`]; the reference ends before the slot is taken.
    pub(crate) unsafe fn peek(&self) -> *const T {
        // SAFETY: a full slot holds an item.
        self.item.with(|slot| unsafe { (*slot).as_ptr() })
    }
}

/// A row of slots, and the larger one that follows it if the stream has grown.
pub(crate) struct Segment<T> {
    pub(crate) next: AtomicPtr<Segment<T>>,
    pub(crate) slots: Box<[Slot<T>]>,
}

impl<T> Segment<T> {
    /// Empty, with room for `capacity` items, at least 1.
    pub(crate) fn new(capacity: usize) -> Box<Self> {
        let slot = || Slot { full: AtomicBool::new(false), item: UnsafeCell::new(MaybeUninit::uninit()) };
        let mut slots = Vec::new();
        if slots.try_reserve_exact(capacity).is_err() {
            panic!("no memory for a stream with room for {capacity} items");
        }
        slots.extend((0..capacity).map(|_| slot()));
        Box::new(Segment { next: AtomicPtr::new(ptr::null_mut()), slots: slots.into_boxed_slice() })
    }
}

impl<T> Drop for Segment<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            if slot.is_full() {
                // SAFETY: nobody else has the segment any more.
                drop(unsafe { slot.take() });
            }
        }
    }
}

/// Where one side stands: at `slot`, of those from `first` up to `end`.
pub(crate) struct Cursor<T> {
    slot: *const Slot<T>,
    end: *const Slot<T>,
    first: *const Slot<T>,
    segment: *const Segment<T>,
}

impl<T> Cursor<T> {
    /// At the begin of `segment`, which outlives the cursor.
    pub(crate) fn new(segment: *const Segment<T>) -> Self {
        // SAFETY: the caller keeps the segment alive.
        let slots = unsafe { &(*segment).slots }.as_ptr_range();
        Cursor { slot: slots.start, end: slots.end, first: slots.start, segment }
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> &Slot<T> {
        // SAFETY: one of the segment's slots, which outlives us.
        unsafe { &*self.slot }
    }

    /// The slot `ahead` of ours, less than the capacity.
    pub(crate) fn slot_ahead(&self, ahead: usize) -> &Slot<T> {
        // SAFETY: both in the same row of slots.
        let at = unsafe { self.slot.offset_from_unsigned(self.first) } + ahead;
        let capacity = self.capacity();
        let at = if at >= capacity { at - capacity } else { at };
        assert!(at < capacity);
        // SAFETY: checked just now.
        unsafe { &*self.first.add(at) }
    }

    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        // SAFETY: at most one past the last.
        self.slot = unsafe { self.slot.add(1) };
        if self.slot == self.end {
            self.slot = self.first;
        }
    }

    /// Back to the slot before.
    pub(crate) fn retreat(&mut self) {
        if self.slot == self.first {
            self.slot = self.end;
        }
        // SAFETY: there is at least one slot, so there is one before the end, and before one that is not the first.
        self.slot = unsafe { self.slot.sub(1) };
    }

    pub(crate) fn capacity(&self) -> usize {
        // SAFETY: the two ends of one row of slots. A slot has a flag, so its size is not 0.
        unsafe { self.end.offset_from_unsigned(self.first) }
    }

    /// For the writer, whose slot is full: goes on in a new segment of twice the size.
    pub(crate) fn grow(&mut self) {
        let larger = Box::into_raw(Segment::new(self.capacity() * 2));
        // SAFETY: the segment outlives us. Release: pairs with the acquire in `follow`, so the new segment is there.
        unsafe { &(*self.segment).next }.store(larger, Ordering::Release);
        *self = Cursor::new(larger);
    }

    /// For the reader, whose slot was empty: moves to the next segment, if there is one and ours is used up.
    pub(crate) fn follow(&mut self) -> bool {
        // SAFETY: the segment outlives us. Acquire: pairs with the release in `grow`; what the writer put in the old
        // segment before is visible as well, hence the second look at our slot.
        let next = unsafe { &(*self.segment).next }.load(Ordering::Acquire);
        if next.is_null() || self.slot().is_full() {
            return false;
        }
        *self = Cursor::new(next);
        true
    }
}
