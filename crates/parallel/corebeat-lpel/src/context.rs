//! Carriers: coroutines that lend a stack to a task.
//!
//! A carrier runs one task after another. The worker lends a carrier to a task that is dispatched
//! without one. The loan ends when the task ends, or, for an async task, when it awaits. Then the
//! carrier continues with the next ready task, if that needs a carrier as well. A blocked task
//! keeps its carrier.
//!
//! ```text
//!   stack of the worker           stack of the carrier
//!   resume ---------------------> run the current task ... ends or awaits
//!                                 run the next task    ... ends or awaits
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

/// Runs a dispatched task until it ends or awaits. Returns the outcome, with which the carrier
/// returns to the worker, or `None` if the worker has dispatched another task to the carrier.
#[inline]
fn carry(task: NonNull<Header>) -> Option<Outcome> {
    // SAFETY: the worker has dispatched the task, and is suspended.
    let outcome = unsafe { task::run(task.as_ptr()) };
    let worker = current::worker().expect("carriers run on workers");
    if worker.continue_on_carrier(task.as_ptr(), outcome) { None } else { Some(outcome) }
}
