//! Futures of the network's tasks.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use corebeat_lpel::{Error, Task};

use super::context::Context;

/// An entity that runs as a task. Boxes, observers and the function that receives faults are called
/// such that their panics lose no other record. Any other panic, such as that of a value's
/// destructor, ends the task; it is reported here, because the task has no joiner.
struct Entity<F> {
    // Dropped before the future, and so before its streams end.
    end: End,
    future: F,
}

/// Reports the end of an entity that has not finished: its task was cancelled while it waited, or
/// before it started.
struct End {
    name: Arc<str>,
    context: Arc<Context>,
    is_known: bool,
}

thread_local! {
    /// State of the spawn that runs on this thread.
    static SPAWN: Cell<Spawn> = const { Cell::new(Spawn::None) };
}

#[derive(Clone, Copy, PartialEq)]
enum Spawn {
    None,
    /// The call has not returned. If it fails, it drops the entity, and the caller reports that.
    Runs,
    /// The entity was dropped in the call.
    Dropped,
}

impl Drop for End {
    fn drop(&mut self) {
        if self.is_known {
            return;
        }
        match SPAWN.get() {
            Spawn::None => self.context.end_unfinished(&self.name),
            Spawn::Runs | Spawn::Dropped => SPAWN.set(Spawn::Dropped),
        }
    }
}

/// Spawns a task that runs an entity.
pub(crate) fn spawn(
    task: Task<'_>,
    name: Arc<str>,
    context: Arc<Context>,
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let task = task.name(name.clone()).stack_size(context.stack_size);
    let end = End { name: name.clone(), context: context.clone(), is_known: false };
    SPAWN.set(Spawn::Runs);
    let spawned = task.spawn_async(Entity { end, future }).map(drop);
    // The task of a runtime that ends is dropped at once, without an error.
    if SPAWN.replace(Spawn::None) == Spawn::Dropped && spawned.is_ok() {
        context.end_unfinished(&name);
    }
    spawned
}

impl<F: Future<Output = ()>> Future for Entity<F> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, waker: &mut task::Context<'_>) -> Poll<()> {
        // SAFETY: no field is moved out of the entity, which has no destructor and is `Unpin` only
        // if the future is.
        let Entity { end, future } = unsafe { self.get_unchecked_mut() };
        // SAFETY: the future is pinned because the entity is.
        let future = unsafe { Pin::new_unchecked(future) };
        // Unwind safe: a future that has panicked is only dropped.
        let polled = catch_unwind(AssertUnwindSafe(|| future.poll(waker)));
        end.is_known |= !matches!(polled, Ok(Poll::Pending));
        polled.unwrap_or_else(|payload| {
            end.context.end_early(&end.name, payload);
            Poll::Ready(())
        })
    }
}
