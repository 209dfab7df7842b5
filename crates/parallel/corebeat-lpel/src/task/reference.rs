//! References to tasks, and wakers of async tasks.
//!
//! The runtime and the join handle of a task have one counted reference in common. The word of the
//! joiner decides which of the two drops it: the later one, as with the result. Thus a task that is
//! spawned and joined needs one atomic exchange. Tokens and wakers of async tasks have references
//! of their own.

use super::Header;
use crate::current;
use crate::retired;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::task::{RawWaker, RawWakerVTable, Waker};

/// Number of references to a task.
pub(crate) struct References(AtomicUsize);

impl References {
    /// One reference.
    pub(crate) fn one() -> References {
        References(AtomicUsize::new(1))
    }

    /// Adds a reference, made from another one.
    pub(crate) fn add(&self) {
        // Relaxed: the existing reference keeps the task alive.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a reference. Returns whether it was the last one: its owner frees the task.
    #[must_use]
    pub(crate) fn remove(&self) -> bool {
        // References are only made from others, so the last one needs no exchange. Acquire: pairs
        // with the release of the exchanges. AcqRel: all uses by others precede the free.
        self.0.load(Ordering::Acquire) == 1 || self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn count(&self) -> usize {
        // Acquire: pairs with the release of removed references.
        self.0.load(Ordering::Acquire)
    }
}

/// A new or started task, as the runtime holds it: its part of the reference that it has in common
/// with the join handle. [`publish_end`](super::publish_end) ends the task. A dropped value leaks
/// the task, whose handle remains valid.
#[must_use = "a task that does not end is leaked"]
pub(crate) struct Unended(NonNull<Header>);

// SAFETY: the header is Sync, and body and result are Send.
unsafe impl Send for Unended {}

impl Unended {
    #[inline(always)]
    pub(crate) fn into_raw(self) -> *const Header {
        self.0.as_ptr()
    }

    /// # Safety
    ///
    /// `task` has not ended, and the result is the only value that ends it.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(task: *const Header) -> Unended {
        // SAFETY: the task is alive, so the pointer is not null.
        Unended(unsafe { NonNull::new_unchecked(task.cast_mut()) })
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: a task is alive until it ends.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *const Header {
        self.0.as_ptr()
    }
}

/// A counted reference to a task.
pub(crate) struct TaskRef(NonNull<Header>);

// SAFETY: the header is Sync, and body and result are Send.
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

impl TaskRef {
    pub(crate) fn into_raw(self) -> *const Header {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// # Safety
    ///
    /// `task` owns a reference, which the result takes over.
    pub(crate) unsafe fn from_raw(task: *const Header) -> TaskRef {
        // SAFETY: the caller has a reference, so the pointer is not null.
        TaskRef(unsafe { NonNull::new_unchecked(task.cast_mut()) })
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: this reference keeps the task alive.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn as_ptr(&self) -> *const Header {
        self.0.as_ptr()
    }

    /// Returns the async task of a waker, if the waker is from this crate.
    pub(crate) fn of_waker(waker: &Waker) -> Option<TaskRef> {
        ptr::eq(waker.vtable(), &WAKER).then(|| {
            // SAFETY: the data of such a waker is a live task.
            let task = ManuallyDrop::new(unsafe { TaskRef::from_raw(waker.data().cast()) });
            TaskRef::clone(&task)
        })
    }

    /// Returns a waker of a running async task. It owns no reference, so it must not be dropped.
    ///
    /// # Safety
    ///
    /// The task is alive as long as the result is used.
    pub(super) unsafe fn borrowed_waker(task: *const Header) -> ManuallyDrop<Waker> {
        // SAFETY: the vtable implements the contract of wakers.
        ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(task.cast(), &WAKER)) })
    }

    /// Requests another poll of an async task.
    pub(crate) fn notify(&self) {
        if self.header().take_await() {
            // SAFETY: the task awaited, and this call ended the await.
            unsafe { current::deliver(self.as_ptr()) };
        }
    }
}

impl Clone for TaskRef {
    fn clone(&self) -> TaskRef {
        self.header().refs.add();
        TaskRef(self.0)
    }
}

impl Drop for TaskRef {
    #[inline]
    fn drop(&mut self) {
        if self.header().refs.remove() {
            // SAFETY: the task was removed from the table of its worker when it ended. Its parts
            // are Send.
            unsafe { retired::retire(Memory(self.0)) };
        }
    }
}

/// The memory of a task without references.
struct Memory(NonNull<Header>);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: there are no references to the task.
        unsafe { (self.0.as_ref().vtable.free)(self.0.as_ptr()) };
    }
}

/// Functions of wakers. The data of a waker is a task; the waker owns a reference to it.
static WAKER: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: the data is a task that the waker owns a reference to.
        let task = ManuallyDrop::new(unsafe { TaskRef::from_raw(data.cast()) });
        RawWaker::new(TaskRef::clone(&task).into_raw().cast(), &WAKER)
    },
    // SAFETY: as above; this function takes the reference over.
    |data| unsafe { TaskRef::from_raw(data.cast()) }.notify(),
    // SAFETY: as above; the waker keeps the reference.
    |data| ManuallyDrop::new(unsafe { TaskRef::from_raw(data.cast()) }).notify(),
    // SAFETY: as above; this function takes the reference over.
    |data| drop(unsafe { TaskRef::from_raw(data.cast()) }),
);
