//! Requests to end tasks early: at the end of a runtime, after a deadlock, and by request.

use crate::runtime::Inner;
use crate::task::{CANCEL_ENDING, Header};
use corebeat_sync::asymmetric::light_fence;
use corebeat_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corebeat_sync::lock;

/// Cancellation state of a runtime.
#[derive(Default)]
pub(crate) struct Cancellation {
    /// Number of requests so far. Workers compare it with the number that they have handled.
    requests: AtomicU64,
    /// New tasks end without running.
    ending: AtomicBool,
    /// Workers end when no task is left.
    over: AtomicBool,
}

impl Cancellation {
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        // Acquire: pairs with the store in `begin_end`.
        self.ending.load(Ordering::Acquire)
    }

    pub(crate) fn is_over(&self) -> bool {
        // Acquire: pairs with the store in `begin_end`.
        self.over.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn requests(&self) -> u64 {
        // Acquire: pairs with the release in `request_cancellation`, so the marks on tasks are
        // visible.
        self.requests.load(Ordering::Acquire)
    }
}

impl Inner {
    /// Cancels all tasks and lets workers end.
    pub(crate) fn begin_end(&self) {
        self.cancellation.ending.store(true, Ordering::SeqCst);
        for task in lock(&self.blocking.tasks).iter() {
            task.header().cancel.store(CANCEL_ENDING, Ordering::Release);
        }
        self.cancellation.over.store(true, Ordering::SeqCst);
        self.request_cancellation();
    }

    /// Makes every worker end its tasks that were aborted, and aborts selected blocking tasks.
    pub(crate) fn abort_tasks(&self, blocking: impl Fn(&Header) -> bool) {
        for task in lock(&self.blocking.tasks).iter().filter(|task| blocking(task.header())) {
            task.header().abort();
        }
        self.request_cancellation();
    }

    /// Makes every worker and blocking task check for cancelled tasks. The tasks were marked
    /// before.
    pub(crate) fn request_cancellation(&self) {
        // Release: after the marks.
        self.cancellation.requests.fetch_add(1, Ordering::Release);
        light_fence();
        for worker in &self.workers {
            worker.wake();
        }
        self.blocking.wake_all();
    }
}
