//! loom's atomic types, with places for planted bugs; and what loom does not have.

use crate::fault::{self, Kind};
pub use loom::sync::atomic::Ordering;
use std::panic::Location;

/// Makes a fence.
#[track_caller]
pub fn fence(ordering: Ordering) {
    if !fault::is_planted(Kind::Fence, Location::caller()) {
        loom::sync::atomic::fence(ordering);
    }
}

/// A type of loom's: its name, what it holds, and which additions it knows.
macro_rules! atomic {
    ($name:ident$(<$of:ident>)?, $value:ty $(, $fetch:ident)*) => {
        /// loom's.
        #[derive(Debug)]
        pub struct $name$(<$of>)?(loom::sync::atomic::$name$(<$of>)?);

        impl$(<$of>)? $name$(<$of>)? {
            /// Holds `value`.
            #[track_caller]
            pub fn new(value: $value) -> Self {
                $name(loom::sync::atomic::$name::new(value))
            }

            /// As the standard library's.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(fault::weaken(order, Location::caller()))
            }

            /// As the standard library's.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, fault::weaken(order, Location::caller()));
            }

            /// As the standard library's.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, fault::weaken(order, Location::caller()))
            }

            /// As the standard library's.
            ///
            /// # Errors
            ///
            /// There was another value, which this is.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let place = Location::caller();
                let [success, failure] = [success, failure].map(|order| fault::weaken(order, place));
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As the standard library's, but it does not fail without cause.
            ///
            /// # Errors
            ///
            /// There was another value, which this is.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            $(
                /// As the standard library's.
                #[track_caller]
                pub fn $fetch(&self, value: $value, order: Ordering) -> $value {
                    self.0.$fetch(value, fault::weaken(order, Location::caller()))
                }
            )*
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicPtr<T>, *mut T);
atomic!(AtomicU8, u8, fetch_add, fetch_sub, fetch_max);
atomic!(AtomicU32, u32, fetch_add, fetch_sub, fetch_max, fetch_or, fetch_and);
atomic!(AtomicU64, u64, fetch_add, fetch_sub, fetch_max);
atomic!(AtomicUsize, usize, fetch_add, fetch_sub, fetch_max);

impl Default for AtomicBool {
    fn default() -> Self {
        AtomicBool::new(false)
    }
}

impl Default for AtomicU64 {
    fn default() -> Self {
        AtomicU64::new(0)
    }
}

/// As the standard library's, if one thread at a time comes to fill it.
#[derive(Debug, Default)]
pub struct OnceLock<T> {
    filled: loom::sync::atomic::AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// Empty.
    pub fn new() -> Self {
        OnceLock { filled: loom::sync::atomic::AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }

    /// As the standard library's.
    pub fn get(&self) -> Option<&T> {
        if self.filled.load(Ordering::Acquire) { self.value.get() } else { None }
    }

    /// As the standard library's.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(make);
        self.filled.store(true, Ordering::Release);
        value
    }
}
