//! Counts of the workers and blocking tasks that make progress, and the wait for quiescence.

use crate::runtime::Inner;
use crate::worker::IdleCount;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::{CachePadded, Condvar, Mutex, lock};

/// Activity of a runtime.
pub(crate) struct Activity {
    /// Number of workers that do not sleep indefinitely, and of blocking tasks that do not wait. A
    /// waker counts the sleeper before the sleeper can act. At 0, only a thread outside the runtime
    /// can cause progress.
    active: CachePadded<AtomicUsize>,
    /// Number of workers that sleep or are about to sleep.
    pub(crate) sleepers: CachePadded<AtomicUsize>,
    /// Number of workers that search for work.
    pub(crate) searching: AtomicUsize,
    pub(crate) idle: CachePadded<IdleCount>,
    quiet: Mutex<()>,
    is_quiet: Condvar,
}

impl Activity {
    pub(crate) fn new(active: usize) -> Activity {
        Activity {
            active: CachePadded::new(AtomicUsize::new(active)),
            sleepers: CachePadded::new(AtomicUsize::new(0)),
            searching: AtomicUsize::new(0),
            idle: CachePadded::default(),
            quiet: Mutex::new(()),
            is_quiet: Condvar::new(),
        }
    }

    /// Counts a worker or blocking task that resumes.
    pub(crate) fn resume(&self) {
        self.active.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether no worker and no blocking task makes progress.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.active.load(Ordering::SeqCst) == 0
    }

    /// Wakes the threads in [`Activity::wait_until_quiescent`]. Returns false if the runtime became
    /// active again.
    fn announce_quiescence(&self) -> bool {
        let _quiet = lock(&self.quiet);
        let is_quiescent = self.is_quiescent();
        if is_quiescent {
            self.is_quiet.notify_all();
        }
        is_quiescent
    }

    /// Blocks the calling thread until the runtime is quiescent and `is_done` returns true.
    pub(crate) fn wait_until_quiescent(&self, is_done: impl Fn() -> bool) {
        let mut quiet = lock(&self.quiet);
        while !(self.is_quiescent() && is_done()) {
            quiet = self.is_quiet.wait(quiet).unwrap_or_else(|e| e.into_inner());
        }
    }
}

impl Inner {
    /// Counts a sleeping worker that is woken, before the worker runs.
    pub(crate) fn count_woken_worker(&self) {
        self.activity.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.activity.resume();
    }

    /// Counts a worker or blocking task that pauses until it is woken. Returns whether it was the
    /// last active one.
    ///
    /// The last worker to pause checks for a deadlock after a delay (`check_late`): in most cases a
    /// thread outside the runtime causes progress soon, and the check takes time for each task.
    pub(crate) fn pause(&self) -> bool {
        let last = self.activity.active.fetch_sub(1, Ordering::SeqCst) == 1;
        if last {
            self.handle_quiescence();
        }
        last
    }

    #[cold]
    fn handle_quiescence(&self) {
        if self.activity.announce_quiescence() {
            self.check_at_quiescence();
        }
    }

    /// Wakes a worker because there is a task to steal. The caller posts the task before a `light`
    /// fence.
    pub(crate) fn wake_one_worker(&self) {
        let Activity { sleepers, searching, .. } = &self.activity;
        // Relaxed: ordered by the fences, see `worker`. A worker that searches finds the task.
        if sleepers.load(Ordering::Relaxed) > 0 && searching.load(Ordering::Relaxed) == 0 {
            let _ = self.workers.iter().any(|w| w.wake());
        }
    }
}
