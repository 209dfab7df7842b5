//! Retired values and their destruction.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A value that no new reader can find, and the function that frees it. `S` is what the user needs
/// to determine the end of the grace period.
#[derive(Debug, Clone, Copy)]
pub struct Retired<S = ()> {
    value: *mut (),
    free: unsafe fn(*mut ()),
    /// Data for the grace period.
    pub stamp: S,
}

// SAFETY: `new` requires that any thread may free the value.
unsafe impl<S: Send> Send for Retired<S> {}

impl<S> Retired<S> {
    /// Retires a value.
    ///
    /// # Safety
    ///
    /// No new reader can find `value`. When no reader uses the value, `free` may be called with it,
    /// once, by any thread.
    pub unsafe fn new(value: *mut (), free: unsafe fn(*mut ()), stamp: S) -> Retired<S> {
        Retired { value, free, stamp }
    }

    /// Returns the address of the value.
    pub fn value(&self) -> *mut () {
        self.value
    }

    /// Frees the value. A panic of its destructor propagates.
    ///
    /// # Safety
    ///
    /// The grace period of the value is over, and no copy of this is freed.
    pub unsafe fn free_or_unwind(self) {
        // SAFETY: `new` and the caller guarantee what the function requires.
        unsafe { (self.free)(self.value) };
    }

    /// Frees the value. A panic of its destructor ends here: the destructor is the user's code, and
    /// its failure must not reach the thread that happens to free the value.
    ///
    /// # Safety
    ///
    /// As [`free_or_unwind`](Retired::free_or_unwind).
    pub unsafe fn free(self) {
        // SAFETY: the caller guarantees it.
        let free = || unsafe { self.free_or_unwind() };
        if cfg!(loom) {
            // In a model a panic is a failed assertion of the model.
            return free();
        }
        if let Err(payload) = catch_unwind(AssertUnwindSafe(free)) {
            // The payload is the user's as well, and its destructor may panic, too.
            mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
        }
    }
}

/// Frees all values, also if destructors panic, and returns their number.
///
/// # Safety
///
/// As [`Retired::free`], for each value.
pub unsafe fn free_all<S>(retired: Vec<Retired<S>>) -> usize {
    let count = retired.len();
    // SAFETY: the caller guarantees it.
    retired.into_iter().for_each(|retired| unsafe { retired.free() });
    count
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::panic_any;
    use std::rc::Rc;

    /// Panics when it is dropped, with a payload that does the same.
    struct Bomb(u32, Rc<()>);

    // SAFETY: the test uses one thread.
    unsafe impl Send for Bomb {}

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Bomb(self.0 - 1, self.1.clone()));
            }
        }
    }

    unsafe fn free(value: *mut ()) {
        // SAFETY: the test boxes a `Bomb`.
        drop(unsafe { Box::from_raw(value.cast::<Bomb>()) });
    }

    #[test]
    fn destructor_that_panics_does_not_stop_the_others() {
        let live = Rc::new(());
        let retired = (0..3).map(|depth| {
            let value = Box::into_raw(Box::new(Bomb(depth, live.clone()))).cast();
            // SAFETY: nothing else refers to the value.
            unsafe { Retired::new(value, free, ()) }
        });
        // SAFETY: no reader exists.
        assert_eq!(unsafe { free_all(retired.collect()) }, 3);
        // The payload of the last panic, which cannot be dropped, leaks.
        assert!(Rc::strong_count(&live) <= 2);
    }
}
