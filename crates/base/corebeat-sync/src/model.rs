//! loom's atomic types with support for planted faults, and types that loom lacks.

use crate::fault::{self, Kind};
pub use loom::sync::atomic::Ordering;
use std::panic::Location;

/// Executes a fence.
#[track_caller]
pub fn fence(ordering: Ordering) {
    if !fault::is_planted(Kind::Fence, Location::caller()) {
        loom::sync::atomic::fence(ordering);
    }
}

/// Wraps an atomic type of loom: its name, its value and its fetch operations.
macro_rules! atomic {
    ($name:ident$(<$of:ident>)?, $value:ty $(, $fetch:ident)*) => {
        /// Atomic type of loom with support for planted faults.
        #[derive(Debug)]
        pub struct $name$(<$of>)?(loom::sync::atomic::$name$(<$of>)?);

        impl$(<$of>)? $name$(<$of>)? {
            /// Creates an atomic that contains `value`.
            #[track_caller]
            pub fn new(value: $value) -> Self {
                $name(loom::sync::atomic::$name::new(value))
            }

            /// Equivalent of the standard library's function.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(fault::weaken(order, Location::caller()))
            }

            /// Equivalent of the standard library's function.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, fault::weaken(order, Location::caller()));
            }

            /// Equivalent of the standard library's function.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, fault::weaken(order, Location::caller()))
            }

            /// Equivalent of the standard library's function.
            ///
            /// # Errors
            ///
            /// The value that the atomic contained, if it was not `current`.
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

            /// Equivalent of the standard library's function, without spurious failures.
            ///
            /// # Errors
            ///
            /// The value that the atomic contained, if it was not `current`.
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
                /// Equivalent of the standard library's function.
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
atomic!(AtomicUsize, usize, fetch_add, fetch_sub, fetch_max, fetch_or);

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

/// Equivalent of the standard library's type, for cells that one thread at a time initializes.
#[derive(Debug, Default)]
pub struct OnceLock<T> {
    filled: loom::sync::atomic::AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// Creates an empty cell.
    pub fn new() -> Self {
        OnceLock {
            filled: loom::sync::atomic::AtomicBool::new(false),
            value: std::sync::OnceLock::new(),
        }
    }

    /// Equivalent of the standard library's function.
    pub fn get(&self) -> Option<&T> {
        if self.filled.load(Ordering::Acquire) { self.value.get() } else { None }
    }

    /// Equivalent of the standard library's function.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(make);
        self.filled.store(true, Ordering::Release);
        value
    }
}
