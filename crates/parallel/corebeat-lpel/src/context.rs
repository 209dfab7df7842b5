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
use crate::task;

/// Runs the current task until it ends or awaits. Returns false if there is none, which ends the
/// carrier.
fn carry() -> bool {
    let task = current::with(|c| c.task.get());
    if task.is_null() {
        return false;
    }
    // SAFETY: the worker has dispatched the task, and is suspended.
    let outcome = unsafe { task::run(task) };
    current::with(|c| c.outcome.set(outcome));
    true
}
