//! One interface for atomics, fences, locks and threads: the standard library's types, or loom's
//! model of them under `cfg(loom)`.
//!
//! Place in the loop: base; uses no other crate of Corebeat.
//!
//! A protocol written against this crate runs at full speed in a program. A loom model checks the
//! same source over every interleaving (`RUSTFLAGS="--cfg loom" cargo test`).
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
//! # Contents
//!
//! - [`atomic`], [`cell`], [`thread`] and the locks: the interface itself. [`lock`] locks a mutex
//!   and ignores poisoning. [`const_unless_loom!`] and [`shared_static!`] define functions and
//!   statics that are constant in a program but cannot be constant in a model.
//! - [`asymmetric`]: fences for protocols with a frequent and a rare side.
//! - [`descriptor`]: descriptors that are none of the standard ones of the program.
//! - `fault` (only under loom): weakens orderings and removes fences, by kind and place. A useful
//!   model fails with such a planted fault.
//! - [`fork`]: memory, files and values that children of fork do not inherit, locks that children
//!   find free, and the process of a value.
//! - [`quiet`]: threads in which the signal handlers of the program do not run.
//! - [`wait`]: checks whether a task may wait at this point, and suspension of tasks.
//!
//! # Invariants
//!
//! 1. A light and a heavy fence are ordered with each other; two light fences are not
//!    (`loom_light_and_heavy_are_ordered`, `loom_two_light_fences_are_not_ordered`).
//! 2. A planted fault removes the fence that it names (`loom_planted_fault_removes_a_fence`).
//! 3. A thread of [`quiet`] receives only the signals of its own faults
//!    (`spawned_thread_receives_only_signals_of_its_own_faults`).
//!
//! 4. A child of fork has neither the memory nor the files that are kept out
//!    (`child_finds_zeros_in_memory_that_is_kept_out`, `child_inherits_no_file_that_is_kept_out`),
//!    and is another process than its ancestors (`child_is_another_process_than_its_ancestors`). It
//!    keeps the files of the program
//!    (`child_inherits_a_file_of_the_program_with_the_number_of_a_closed_file`), and finds each
//!    [`ForkMutex`](fork::ForkMutex) free (`child_finds_a_lock_free_and_its_value_consistent`).
//! 5. A descriptor of [`descriptor`], and that of a file that is kept out, is none of the standard
//!    ones (`descriptor_is_none_of_the_standard_ones_if_these_are_closed`).
//!
//! # Limits
//!
//! loom does not model every `SeqCst` access: use fences instead. The light side of [`asymmetric`]
//! is free only on Linux.

pub mod asymmetric;
pub mod descriptor;
#[cfg(loom)]
pub mod fault;
pub mod fork;
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

/// Memory that several threads share under the rules of a protocol.
pub mod cell {
    #[cfg(loom)]
    pub use loom::cell::UnsafeCell;

    /// Equivalent of `std::cell::UnsafeCell` with accesses in closures, so that a model can observe
    /// where each access begins and ends.
    #[cfg(not(loom))]
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
    impl<T> UnsafeCell<T> {
        /// Creates a cell that contains `value`.
        #[inline(always)]
        pub const fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }
    }

    #[cfg(not(loom))]
    impl<T: ?Sized> UnsafeCell<T> {
        /// Reads the value. No thread may write the value meanwhile.
        #[inline(always)]
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Writes the value. No other thread may read or write the value meanwhile.
        #[inline(always)]
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

/// Threads, parking and yielding.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{Builder, JoinHandle, Thread, current, park, spawn, yield_now};
    #[cfg(not(loom))]
    pub use std::thread::{
        Builder, JoinHandle, Thread, current, park, park_timeout, spawn, yield_now,
    };

    /// Yields to other threads: a model has no time.
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

/// Locks a mutex, also after a panic of a thread that held the lock. For data that is consistent
/// whenever the lock is free.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Defines functions that are `const` in a program and not in a model, because loom's constructors
/// are not.
#[macro_export]
macro_rules! const_unless_loom {
    ($(#[$attribute:meta])* $visible:vis fn $($function:tt)*) => {
        #[cfg(not(loom))]
        $(#[$attribute])*
        $visible const fn $($function)*

        #[cfg(loom)]
        $(#[$attribute])*
        $visible fn $($function)*
    };
}

/// Defines a static that is initialized at compile time in a program, and anew in each execution of
/// a model.
#[macro_export]
macro_rules! shared_static {
    // Visibilities are token trees, because loom's macro does not accept other ones.
    ($(pub($($visible:tt)+))? static $name:ident: $type:ty = $value:expr;) => {
        #[cfg(not(loom))]
        $(pub($($visible)+))? static $name: $type = $value;

        #[cfg(loom)]
        $crate::loom::lazy_static! {
            $(pub($($visible)+))? static ref $name: $type = $value;
        }
    };
}

/// Equivalent of the standard library's macro for the threads of a model.
#[cfg(loom)]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = const $value:block;)*) => {
        $crate::loom::thread_local! { $($(#[$attribute])* $visible static $name: $type = $value;)* }
    };
}
