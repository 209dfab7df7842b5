//! A place in memory that transactions read and write.

use crate::limbo::Dead;
use crate::lock::Lock;
use crate::place::Place;
use crate::value::Value;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::{fmt, mem, ptr};

/// A place in memory that transactions read and write: a lock and a value, side by side in one cache line.
///
/// ```text
///   +----------------+----------------+
///   | version, or    | value, or      |
///   | who writes it  | pointer to it  |
///   +----------------+----------------+
/// ```
///
/// It holds a [`Word`](crate::Word), or an [`Arc`](std::sync::Arc) of anything, or none.
// Two words, aligned as such: it is never in two lines.
#[repr(C, align(16))]
pub struct TCell<V: Value> {
    lock: Lock,
    place: Place,
    value: PhantomData<V>,
}

impl<V: Value> TCell<V> {
    /// A cell that holds `value`.
    pub fn new(value: V) -> Self {
        TCell { lock: Lock::new(), place: Place::new(value.into_pointer()), value: PhantomData }
    }

    /// What it holds, where nobody else has the cell. An `Arc` that was taken out of another cell may be in use by
    /// transactions for a while: [`Arc::try_unwrap`](std::sync::Arc::try_unwrap) tells.
    pub fn into_inner(self) -> V {
        let pointer = self.place.own();
        // SAFETY: it is what the cell holds; from here on the one that we make stands for it.
        let value = unsafe { V::another(pointer) };
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
            // SAFETY: it is what the cell holds. Nobody else has the cell, and transactions that may still read in it keep it
            // from being dropped.
            unsafe { drop_flat(Dead { value: self.place.own(), drop: V::drop }) };
        }
    }
}

corebeat_sync::thread_local! {
    /// While a cell's value is dropped: where those of cells in it wait, else null. They have their turn after it, so that a list of cells,
    /// however long, takes no more of the stack than one. It has no destructor, so it is there also at the thread's end.
    static WAITING: Cell<*const RefCell<Vec<Dead>>> = const { Cell::new(ptr::null()) };
}

/// Drops what a cell has held, and then what was in cells in there.
///
/// # Safety
///
/// Nobody else has it.
unsafe fn drop_flat(dead: Dead) {
    WAITING.with(|place| {
        // SAFETY: null, or on the stack of a call of this thread, which takes it away before it ends.
        if let Some(waiting) = unsafe { place.get().as_ref() } {
            waiting.borrow_mut().push(dead);
            return;
        }
        let waiting = RefCell::default();
        place.set(&waiting);
        let _rest = Rest(&waiting);
        // SAFETY: the caller's.
        unsafe { (dead.drop)(dead.value) };
    });
}

/// Those that wait, when this goes: also where a destructor has panicked.
struct Rest<'w>(&'w RefCell<Vec<Dead>>);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let next = || self.0.borrow_mut().pop();
        while let Some(dead) = next() {
            let rest = Rest(self.0);
            // SAFETY: from `drop_flat`.
            unsafe { (dead.drop)(dead.value) };
            mem::forget(rest);
        }
        WAITING.with(|place| place.set(ptr::null()));
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
        // What it holds is for transactions.
        f.debug_struct("TCell").finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<TCell<u64>>() == 16);
