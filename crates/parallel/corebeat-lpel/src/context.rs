//! Carriers: coroutines that lend a stack to a task.
//!
//! A carrier runs one task after another. The worker lends a carrier to a task that is dispatched
//! without one. The loan ends when the task ends, or, for an async task, when it awaits. A blocked
//! task keeps its carrier.
//!
//! ```text
//!   stack of the worker           stack of the carrier
//!   resume ---------------------> run the current task ... ends or awaits
//!          <--------------------- suspend                  (the carrier is free)
//!   resume ---------------------> run the current task ... blocks
//!          <--------------------- suspend, inside the task (the task keeps the carrier)
//! ```
//!
//! A started task never changes its thread, because compiled code keeps addresses of thread-local
//! data over a switch.

#[cfg(any(miri, corebeat_threads))]
mod thread;
#[cfg(any(miri, corebeat_threads))]
pub(crate) use thread::{Carrier, suspend};

#[cfg(not(any(miri, corebeat_threads)))]
mod coroutine;
#[cfg(not(any(miri, corebeat_threads)))]
pub(crate) use coroutine::{Carrier, suspend};

use crate::current;
use crate::task::{self, Header, Outcome};
use std::ptr::NonNull;

/// Returns the task that the worker has dispatched to the calling carrier; `None` if the carrier
/// must end.
fn dispatched() -> Option<NonNull<Header>> {
    NonNull::new(current::with(|c| c.task.get()).cast_mut())
}

/// Runs a dispatched task until it ends or awaits.
#[inline]
fn carry(task: NonNull<Header>) -> Outcome {
    // SAFETY: the worker has dispatched the task, and is suspended.
    unsafe { task::run(task.as_ptr()) }
}
