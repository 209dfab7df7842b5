//! A word that a lock covers. The holder of the lock writes the word. Others may read it at any
//! time, and load the lock before and after.

use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::const_unless_loom;

#[repr(transparent)]
pub(crate) struct Place(AtomicPtr<()>);

impl Place {
    const_unless_loom! {
        pub(crate) fn new(value: *mut ()) -> Self {
            Place(AtomicPtr::new(value))
        }
    }

    /// Returns the value, whichever thread wrote it.
    #[inline(always)]
    pub(crate) fn load(&self) -> *mut () {
        // Acquire: pairs with the Release in `store`.
        self.0.load(Ordering::Acquire)
    }

    /// Returns the value, for the holder of the lock or the only user of the place.
    #[inline(always)]
    pub(crate) fn load_owned(&self) -> *mut () {
        // Relaxed: the writer has released the lock, or is this thread.
        self.0.load(Ordering::Relaxed)
    }

    /// Writes the value, for the holder of the lock.
    #[inline(always)]
    pub(crate) fn store(&self, value: *mut ()) {
        // Release: a reader of this value finds the lock held, or newer, at its second load.
        self.0.store(value, Ordering::Release);
    }
}
