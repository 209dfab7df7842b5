//! One facade for atomics, cells and threads: the standard library's, or loom's model of them under `cfg(loom)`.
//!
//! Place in the loop: base; stands on nothing of ours.
//!
//! A protocol written against this crate runs at full speed in a program, and is checked over every interleaving in a
//! loom model (`RUSTFLAGS="--cfg loom" cargo test`), from the same source.
//!
//! # Example
//!
//! ```
//! use corebeat_sync::{CachePadded, Backoff, atomic::{AtomicBool, Ordering}};
//!
//! let ready = CachePadded::new(AtomicBool::new(true));
//! let mut wait = Backoff::new();
//! while !ready.load(Ordering::Acquire) {
//!     wait.snooze();
//! }
//! ```
//!
//! # Limits
//!
//! [`UnsafeCell`] is reached through closures only (`with`, `with_mut`), as loom wants it. loom does not model every
//! `SeqCst` access: use fences there.

/// Atomic types and memory orderings.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

/// Threads, and the hint that one is spinning.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{JoinHandle, spawn, yield_now};
    #[cfg(not(loom))]
    pub use std::thread::{JoinHandle, spawn, yield_now};
}

#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

pub use crossbeam_utils::CachePadded;

/// The standard library's cell behind loom's interface.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Hands out a pointer for reading.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Hands out a pointer for writing.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Waits a little longer each time: spins, then gives the CPU to others.
#[derive(Debug, Default)]
pub struct Backoff {
    step: u32,
}

impl Backoff {
    /// Up to 2^6 spins (about 2 to 5 µs on current x86) before the CPU is given away: a futex wake-up costs about 6 µs.
    const SPIN_STEPS_MAX: u32 = 6;

    /// Starts short.
    pub const fn new() -> Self {
        Backoff { step: 0 }
    }

    /// Waits once. Under loom, yields to the model.
    pub fn snooze(&mut self) {
        #[cfg(not(loom))]
        if self.step <= Self::SPIN_STEPS_MAX {
            for _ in 0..1u32 << self.step {
                std::hint::spin_loop();
            }
            self.step += 1;
            return;
        }
        thread::yield_now();
    }

    /// Whether spinning has lasted long enough that the caller should block.
    pub fn is_done(&self) -> bool {
        self.step > Self::SPIN_STEPS_MAX
    }
}
