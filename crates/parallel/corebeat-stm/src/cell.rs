//! Cells: memory that transactions read and write.

use crate::lock::Lock;
use crate::place::Place;
use crate::value::Value;
use corebeat_reclaim::Retired;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::{fmt, mem, ptr};

/// A memory cell that transactions read and write: a lock and a value in one cache line.
///
/// ```text
///   +----------------+----------------+
///   | version, or    | value, or      |
///   | writer         | pointer to it  |
///   +----------------+----------------+
/// ```
///
/// The value is a [`Word`](crate::Word), an [`Arc`](std::sync::Arc), or an `Option` of an `Arc`.
// Two words with the alignment of two words: a cell never spans two cache lines.
#[repr(C, align(16))]
pub struct TCell<V: Value> {
    lock: Lock,
    place: Place,
    value: PhantomData<V>,
}

impl<V: Value> TCell<V> {
    /// Creates a cell that contains `value`.
    pub fn new(value: V) -> Self {
        TCell { lock: Lock::new(), place: Place::new(value.into_pointer()), value: PhantomData }
    }

    /// Returns the value of a cell that has no other user. Transactions may still use an `Arc` that
    /// was in another cell before, so [`Arc::try_unwrap`](std::sync::Arc::try_unwrap) may fail.
    pub fn into_inner(self) -> V {
        let pointer = self.place.load_owned();
        // SAFETY: the pointer is the value of the cell, which is dropped after it was cloned.
        let value = unsafe { V::clone_from_pointer(pointer) };
        drop(self);
        value
    }

    #[inline(always)]
    pub(crate) fn parts(&self) -> (&Lock, &Place) {
        (&self.lock, &self.place)
    }
}

impl<V: Value> Drop for TCell<V> {
    fn drop(&mut self) {
        if V::DROPS {
            // SAFETY: the pointer is the value of the cell, and `V::drop` belongs to it. The cell
            // has no other user: transactions that may still read it prevent its destruction.
            unsafe { drop_flat(Retired::new(self.place.load_owned(), V::drop, ())) };
        }
    }
}

corebeat_sync::thread_local! {
    /// While the value of a cell is dropped: the values of cells inside it, which are dropped
    /// afterwards; otherwise null. So a list of cells of any length needs the stack of one cell.
    /// This has no destructor, so that it exists until the end of the thread.
    static DEFERRED: Cell<*const RefCell<Vec<Retired>>> = const { Cell::new(ptr::null()) };
}

/// Drops the value of a cell, then the values of cells inside it.
///
/// # Safety
///
/// The value has no other user.
unsafe fn drop_flat(value: Retired) {
    DEFERRED.with(|place| {
        // SAFETY: the pointer is null, or points to the stack of a call of this thread, which
        // resets the pointer before it returns.
        if let Some(deferred) = unsafe { place.get().as_ref() } {
            deferred.borrow_mut().push(value);
            return;
        }
        let deferred = RefCell::default();
        place.set(&deferred);
        let _rest = Rest(&deferred);
        // SAFETY: the caller guarantees it.
        unsafe { value.free_or_unwind() };
    });
}

/// Drops the deferred values, also after a destructor has panicked.
struct Rest<'d>(&'d RefCell<Vec<Retired>>);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let next = || self.0.borrow_mut().pop();
        while let Some(value) = next() {
            let rest = Rest(self.0);
            // SAFETY: the callers of `drop_flat` guarantee it.
            unsafe { value.free_or_unwind() };
            mem::forget(rest);
        }
        DEFERRED.with(|place| place.set(ptr::null()));
    }
}

impl<V: Value + Default> Default for TCell<V> {
    fn default() -> Self {
        TCell::new(V::default())
    }
}

impl<V: Value> From<V> for TCell<V> {
    fn from(value: V) -> Self {
        TCell::new(value)
    }
}

impl<V: Value> fmt::Debug for TCell<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only transactions may read the value.
        f.debug_struct("TCell").finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<TCell<u64>>() == 16);
