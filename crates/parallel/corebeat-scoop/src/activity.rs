//! The number of tasks of a system that have not ended, and the wait until no task is left.
//!
//! Tasks that calls spawn are not counted: they are tasks of the user.

use corebeat_lpel::{Reader, Writer, stream};
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::{Arc, CachePadded, Mutex, lock};

/// State in which no task is left, and a user may wait.
const WAITED: usize = 1;
/// A task, in the state.
const TASK: usize = 2;

#[derive(Default)]
pub(crate) struct Activity {
    /// [`TASK`] for each task that has not ended, plus [`WAITED`].
    state: CachePadded<AtomicUsize>,
    /// Streams that end when no task is left.
    waiters: Mutex<Vec<Writer<()>>>,
}

impl Activity {
    /// Counts a task, until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Running {
        // Relaxed: a waiter does not rely on tasks that begin while it waits.
        self.state.fetch_add(TASK, Ordering::Relaxed);
        Running(self.clone())
    }

    /// Returns a stream that ends when no task is left; `None` if no task is left now.
    pub(crate) fn end(&self) -> Option<Reader<()>> {
        let mut waiters = lock(&self.waiters);
        // Acquire: pairs with the release of each task in `Running::drop`. The mark stays: it only
        // makes one later task look for waiters.
        if self.state.fetch_or(WAITED, Ordering::Acquire) < TASK {
            return None;
        }
        let (writer, reader) = stream(1);
        waiters.push(writer);
        Some(reader)
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
pub(crate) struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        // Release: pairs with the acquires of those that find no task left.
        if self.0.state.fetch_sub(TASK, Ordering::Release) == TASK + WAITED {
            self.0.wake();
        }
    }
}
