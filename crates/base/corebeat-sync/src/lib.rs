//! One facade for atomics, locks and threads: the standard library's, or loom's model of them under `cfg(loom)`.
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
//! # Limits
//!
//! loom does not model every `SeqCst` access: use fences there.

/// Atomic types and memory orderings.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
}

/// Threads, and the hint that one is spinning.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{JoinHandle, spawn, yield_now};
    #[cfg(not(loom))]
    pub use std::thread::{JoinHandle, spawn, yield_now};
}

#[cfg(loom)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

pub use crossbeam_utils::CachePadded;
