//! The number of tasks of a system that have not ended, and the wait until no task is left.
//!
//! Tasks that calls spawn are not counted: they are tasks of the user.

use corebeat_lpel::Writer;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::{CachePadded, Mutex, lock};
use std::sync::Arc;

/// State in which no task is left, and a waiter may exist.
const WAITED: usize = 1;
/// A task, in the state.
const TASK: usize = 2;

pub(crate) struct Activity<W = Writer<()>> {
    /// [`TASK`] for each task that has not ended, plus [`WAITED`].
    state: CachePadded<AtomicUsize>,
    /// Values that are dropped when no task is left, and whose drop wakes a thread or task.
    waiters: Mutex<Vec<W>>,
}

impl<W> Activity<W> {
    pub(crate) fn new() -> Self {
        Activity { state: CachePadded::new(AtomicUsize::new(0)), waiters: Mutex::new(Vec::new()) }
    }

    /// Counts a task, until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Running<W> {
        // Relaxed: a waiter does not rely on tasks that begin while it waits.
        self.state.fetch_add(TASK, Ordering::Relaxed);
        Running(self.clone())
    }

    /// Keeps `waiter` until no task is left. Returns false, and drops `waiter`, if no task is left
    /// now.
    pub(crate) fn watch(&self, waiter: W) -> bool {
        let mut waiters = lock(&self.waiters);
        // Acquire: pairs with the release of each task in `Running::drop`. The mark stays: it only
        // makes one later task look for waiters.
        let is_active = self.state.fetch_or(WAITED, Ordering::Acquire) >= TASK;
        if is_active {
            waiters.push(waiter);
        }
        is_active
    }

    #[cold]
    fn wake(&self) {
        let mut waiters = lock(&self.waiters);
        // If this fails, a newer task wakes the waiters, or another thread has woken them.
        // AcqRel: the effects of all tasks are visible to the waiters.
        let ended =
            self.state.compare_exchange(WAITED, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let woken = if ended { std::mem::take(&mut *waiters) } else { Vec::new() };
        drop(waiters);
        drop(woken);
    }
}

/// A task that has not ended.
pub(crate) struct Running<W = Writer<()>>(Arc<Activity<W>>);

impl<W> Drop for Running<W> {
    fn drop(&mut self) {
        // Release: pairs with the acquires of those that find no task left.
        if self.0.state.fetch_sub(TASK, Ordering::Release) == TASK + WAITED {
            self.0.wake();
        }
    }
}
