//! A list whose push is a comparison, a store and an addition, also in code of C (`word`).

use std::mem::{ManuallyDrop, forget, replace};
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::slice;

/// Number of items for which a log has memory from the begin.
const CAPACITY: usize = if cfg!(any(loom, miri)) { 2 } else { 64 };

/// A list that [`put`](Log::put) extends. While it is closed, only [`push`](Log::push) does.
///
/// ```text
///   begin            next               end
///     | a | b | c | d |   |   |   |   |  |       limit: end, or null while the log is closed
/// ```
#[repr(C)]
pub(crate) struct Log<T: Copy> {
    next: *mut T,
    limit: *mut T,
    begin: *mut T,
    end: *mut T,
}

const _: () = {
    use std::mem::offset_of;
    // As in `stm_inline.h` of corebeat-c.
    assert!(offset_of!(Log<usize>, next) == 0);
    assert!(offset_of!(Log<usize>, limit) == size_of::<usize>());
};

impl<T: Copy> Log<T> {
    /// An empty log without memory, which is closed.
    pub(crate) const CLOSED: Log<T> = {
        let none = NonNull::dangling().as_ptr();
        Log { next: none, limit: null_mut(), begin: none, end: none }
    };

    /// Creates an empty log, which is closed.
    pub(crate) fn new() -> Log<T> {
        let mut log = Log::CLOSED;
        log.edit(|items| items.reserve(CAPACITY));
        log
    }

    /// Opens or closes the log for `put`.
    pub(crate) fn set_open(&mut self, is_open: bool) {
        self.limit = if is_open { self.end } else { null_mut() };
    }

    /// Makes room for one more item.
    pub(crate) fn reserve(&mut self) {
        self.edit(|items| items.reserve(1));
    }

    /// Whether the log is open and has room for one more item.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.next < self.limit
    }

    /// Writes an item at the end, and moves the end by this number of bytes: 0 or the size of an
    /// item.
    ///
    /// # Safety
    ///
    /// The log has memory for one more item.
    #[inline(always)]
    pub(crate) unsafe fn put(&mut self, item: T, step_bytes: usize) {
        // SAFETY: the caller guarantees that the place is in the memory of the log, so that the
        // place after it is there or at its end.
        unsafe {
            self.next.write(item);
            self.next = self.next.byte_add(step_bytes);
        }
    }

    /// Adds an item.
    pub(crate) fn push(&mut self, item: T) {
        if self.next == self.end {
            self.reserve();
        }
        // SAFETY: there is memory for one more item.
        unsafe { self.put(item, size_of::<T>()) };
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.next = self.begin;
    }

    /// Changes the log as a vector.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Vec<T>)) {
        let is_open = !self.limit.is_null();
        let mut items = self.take();
        change(&mut items);
        let mut items = ManuallyDrop::new(items);
        self.begin = items.as_mut_ptr();
        // SAFETY: both are in the memory of the vector, or at its end.
        unsafe {
            self.next = self.begin.add(items.len());
            self.end = self.begin.add(items.capacity());
        }
        self.set_open(is_open);
    }

    fn take(&mut self) -> Vec<T> {
        let (begin, length) = (self.begin, self.len());
        // SAFETY: both pointers are of the same memory, which is not before its begin.
        let capacity = unsafe { self.end.offset_from_unsigned(begin) };
        // The old log has no memory any more.
        forget(replace(self, Log::CLOSED));
        // SAFETY: the memory and its size come from a vector (`edit`), or are those of an empty
        // one. The items up to the length are initialized.
        unsafe { Vec::from_raw_parts(begin, length, capacity) }
    }
}

impl<T: Copy> Deref for Log<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `put` and `edit` have initialized the items from the begin to the next one.
        unsafe { slice::from_raw_parts(self.begin, self.next.offset_from_unsigned(self.begin)) }
    }
}

impl<T: Copy> DerefMut for Log<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { slice::from_raw_parts_mut(self.begin, self.next.offset_from_unsigned(self.begin)) }
    }
}

impl<T: Copy> Drop for Log<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
