//! One facade for atomics, fences, locks and threads: the standard library's, or loom's model of them under `cfg(loom)`.
//!
//! Place in the loop: base; stands on nothing of ours.
//!
//! A protocol written against this crate runs at full speed in a program, and is checked over every interleaving in a
//! loom model (`RUSTFLAGS="--cfg loom" cargo test`), from the same source.
//!
//! # Example
//!
//! ```
//! use corebeat_sync::{CachePadded, atomic::{AtomicBool, Ordering}, thread};
//!
//! let ready = CachePadded::new(AtomicBool::new(true));
//! while !ready.load(Ordering::Acquire) {
//!     thread::yield_now();
//! }
//! ```
//!
//! # Planted bugs
//!
//! Under loom there is a module `fault`: it weakens orderings and leaves out fences, by kind and place. A model is worth
//! something if it fails then.
//!
//! # Signals
//!
//! [`quiet`] starts threads in which the program's handlers do not run.
//!
//! # Tasks
//!
//! [`wait`] tells code that switches tasks where a task must not wait.
//!
//! # Limits
//!
//! loom does not model every `SeqCst` access: use fences there. [`asymmetric`] needs Linux to be free for its light side.

pub mod asymmetric;
#[cfg(loom)]
pub mod fault;
#[cfg(loom)]
mod model;
pub mod quiet;
pub mod wait;

/// Atomic types, fences and memory orderings.
pub mod atomic {
    #[cfg(loom)]
    pub use crate::model::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(not(loom))]
    pub use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Memory that several threads share under rules of their own.
pub mod cell {
    #[cfg(loom)]
    pub use loom::cell::UnsafeCell;

    /// As `std::cell::UnsafeCell`, with accesses in closures, so that a model knows when each begins and ends.
    #[cfg(not(loom))]
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
    impl<T> UnsafeCell<T> {
        /// Holds `value`.
        #[inline(always)]
        pub const fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }
    }

    #[cfg(not(loom))]
    impl<T: ?Sized> UnsafeCell<T> {
        /// Reads it: nobody may write meanwhile.
        #[inline(always)]
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Writes it: nobody may read or write meanwhile.
        #[inline(always)]
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

/// Threads, parking, and the hint that one is spinning.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{Builder, JoinHandle, Thread, current, park, spawn, yield_now};
    #[cfg(not(loom))]
    pub use std::thread::{Builder, JoinHandle, Thread, current, park, park_timeout, spawn, yield_now};

    /// There is no time in a model: others run, and then it is over.
    #[cfg(loom)]
    pub fn park_timeout(_: std::time::Duration) {
        yield_now();
    }
}

#[cfg(loom)]
#[doc(hidden)]
pub use loom;
#[cfg(loom)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
#[cfg(loom)]
pub use model::OnceLock;
#[cfg(not(loom))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, mpsc};
#[cfg(not(loom))]
pub use std::thread_local;

pub use crossbeam_utils::CachePadded;

/// As the standard library's, of a model's threads.
#[cfg(loom)]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = const $value:block;)*) => {
        $crate::loom::thread_local! { $($(#[$attribute])* $visible static $name: $type = $value;)* }
    };
}
