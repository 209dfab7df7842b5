//! The descriptor of the current thread.

use super::Descriptor;
use crate::counter::Cause;
use crate::slot::Slots;
use corebeat_sync::asymmetric;
use corebeat_sync::wait::{self, Span};
use std::cell::Cell;
use std::mem;
#[cfg(not(loom))]
use std::mem::ManuallyDrop;
use std::ptr;
#[cfg(not(loom))]
use std::ptr::NonNull;

/// Frees the descriptor when the thread ends.
struct Owner(Cell<*mut Descriptor>);

impl Owner {
    fn leave(&self) {
        let descriptor = self.0.replace(ptr::null_mut());
        if !descriptor.is_null() {
            CURRENT.with(|current| current.set(ptr::null_mut()));
            // SAFETY: `Current::create` made the descriptor from a box, and the thread has no other
            // pointer to it.
            let mut descriptor = unsafe { Box::from_raw(descriptor) };
            // A thread of a C program may end within a transaction.
            descriptor.abandon(Cause::Explicit);
            let slot = descriptor.slot;
            drop(descriptor);
            Slots::release(slot);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Ends a thread of a model: its destructors may run after those of statics.
#[cfg(all(test, loom))]
pub(crate) fn leave() {
    OWNER.with(Owner::leave);
}

corebeat_sync::thread_local! {
    /// Null before the first transaction, [`BUSY`] during a transaction.
    static CURRENT: Cell<*mut Descriptor> = const { Cell::new(ptr::null_mut()) };
    static OWNER: Owner = const { Owner(Cell::new(ptr::null_mut())) };
}

const BUSY: *mut Descriptor = ptr::without_provenance_mut(1);

/// Prevents that another task of this worker runs in the transaction of this one: a transaction of
/// that task would fail, and its other accesses would not be part of a transaction.
fn forbid_waiting() {
    assert!(
        CURRENT.with(Cell::get) != BUSY,
        "a task must not wait within a transaction: wait before or after the transaction"
    );
}

/// The variable of a thread that contains its descriptor. It exists as long as the thread. Its use
/// costs no call, as that of a thread-local variable in a library does.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub(crate) struct CurrentPlace(NonNull<Cell<*mut Descriptor>>);

#[cfg(not(loom))]
impl CurrentPlace {
    /// That of this thread.
    pub(crate) fn own() -> CurrentPlace {
        CurrentPlace(CURRENT.with(|current| NonNull::from(current)))
    }

    /// Begins a full transaction in the descriptor, if it is not in use and no slow path is needed.
    ///
    /// # Safety
    ///
    /// It is that of this thread.
    #[inline(always)]
    pub(crate) unsafe fn start_plain(self) -> Option<NonNull<Descriptor>> {
        // SAFETY: guaranteed by the caller; only this thread accesses the variable.
        let current = unsafe { self.0.as_ref() };
        let descriptor = NonNull::new(current.get()).filter(|it| it.as_ptr() != BUSY)?;
        // SAFETY: it lives as long as the thread, and is not in use.
        if !unsafe { &mut *descriptor.as_ptr() }.start_plain() {
            return None;
        }
        current.set(BUSY);
        Some(descriptor)
    }

    /// Returns the descriptor to the thread.
    ///
    /// # Safety
    ///
    /// It is that of this thread, and the descriptor, which `start_plain` or `into_raw` returned,
    /// is not used after this.
    #[inline(always)]
    pub(crate) unsafe fn put_back(self, descriptor: NonNull<Descriptor>) {
        // SAFETY: guaranteed by the caller; only this thread accesses the variable.
        unsafe { self.0.as_ref() }.set(descriptor.as_ptr());
    }
}

/// Exclusive access to the thread's descriptor.
pub(crate) struct Current(*mut Descriptor);

impl Current {
    /// Takes the descriptor of this thread.
    ///
    /// # Panics
    ///
    /// If the descriptor is in use.
    #[inline(always)]
    pub(crate) fn take() -> Current {
        let current = CURRENT.with(|current| current.replace(BUSY));
        if current.addr() <= BUSY.addr() {
            Current(Current::create(current))
        } else {
            Current(current)
        }
    }

    #[cold]
    fn create(current: *mut Descriptor) -> *mut Descriptor {
        assert!(
            current.is_null(),
            "a transaction begins inside another one of this thread: pass `tx` on instead"
        );
        // Makes `light` free, if the system supports that.
        asymmetric::heavy_fence();
        wait::forbid(Span::Transaction, forbid_waiting);
        let descriptor = Box::into_raw(Box::new(Descriptor::new()));
        // Destructors of thread-local data may run after `OWNER` is gone. Then the descriptor and
        // its slot leak.
        let _ = OWNER.try_with(|owner| owner.0.set(descriptor));
        descriptor
    }

    /// Keeps the descriptor for a transaction that outlives its caller.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) fn into_raw(self) -> NonNull<Descriptor> {
        let current = ManuallyDrop::new(self);
        // SAFETY: the pointer comes from a box (`create`).
        unsafe { NonNull::new_unchecked(current.0) }
    }

    /// Reverts `into_raw`.
    ///
    /// # Safety
    ///
    /// The pointer comes from `into_raw` in this thread, and is not used otherwise after this.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) unsafe fn from_raw(descriptor: NonNull<Descriptor>) -> Current {
        Current(descriptor.as_ptr())
    }

    #[inline(always)]
    pub(crate) fn get(&mut self) -> &mut Descriptor {
        // SAFETY: the descriptor lives as long as the thread, and this is the only access to it.
        unsafe { &mut *self.0 }
    }

    /// Returns the descriptor to the thread, and frees values whose grace periods are over.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        if self.get().needs_cleanup {
            self.clean_up();
        }
    }

    #[cold]
    fn clean_up(mut self) {
        let descriptor = self.get();
        descriptor.needs_cleanup = !descriptor.has_free_fences;
        descriptor.end_turn();
        let count = descriptor.retired.end_transaction();
        self.free(count);
    }

    /// Frees the values whose grace periods are over, and returns their number.
    pub(crate) fn reclaim(mut self) -> usize {
        let retired = &mut self.get().retired;
        retired.end_grace_period();
        // Destructors may retire others without end.
        let count = retired.free_count();
        self.free(count)
    }

    /// Frees at most `count` values whose grace periods are over, and returns their number.
    fn free(mut self, count: usize) -> usize {
        // Transactions of destructors free nothing, so that they do not nest deeply.
        if mem::replace(&mut self.get().retired.is_freeing, true) {
            return 0;
        }
        let mut freed = 0;
        while freed < count
            && let Some(retired) = self.get().retired.next_free()
        {
            // Destructors may run transactions.
            drop(self);
            // SAFETY: every attempt that could have found the value is over
            // (`end_grace_period`).
            unsafe { retired.free() };
            self = Current::take();
            freed += 1;
        }
        let descriptor = self.get();
        descriptor.retired.is_freeing = false;
        // The next transactions free the others.
        descriptor.needs_cleanup |= descriptor.retired.free_count() > 0;
        freed
    }
}

impl Drop for Current {
    #[inline(always)]
    fn drop(&mut self) {
        CURRENT.with(|current| current.set(self.0));
    }
}
