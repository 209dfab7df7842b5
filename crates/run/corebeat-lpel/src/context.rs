//! Carriers: what gives a task a stack and takes it back.
//!
//! A carrier is a coroutine that runs one task after another. It is on loan to a task from when that is dispatched without
//! one until it ends, or, for an async task, awaits. A task that blocks keeps its carrier.
//!
//! ```text
//!   worker's own stack            carrier's stack
//!   resume ---------------------> run the current task ... ended or awaits
//!          <--------------------- give way                 (the carrier is free again)
//!   resume ---------------------> run the current task ... block
//!          <--------------------- give way, in the midst   (the task keeps the carrier)
//! ```
//!
//! A started task stays on its worker's thread for ever: compiled code keeps addresses of thread-local data over a switch.

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

/// Runs the current task until it ends or awaits. False if there is none: the carrier is to end.
fn carry() -> bool {
    let task = current::with(|c| c.task.get());
    if task.is_null() {
        return false;
    }
    // SAFETY: the worker has dispatched it and waits for us.
    let outcome = unsafe { task::run(task) };
    current::with(|c| c.outcome.set(outcome));
    true
}
