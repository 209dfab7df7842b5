//! How a worker goes to sleep, and how it is roused.
//!
//! ```text
//!   awake -- begin --> asleep -- rouse --> roused -- counted --> awake
//!     ^                  |
//!     +------ end -------+
//! ```
//!
//! Whoever rouses a worker counts it as one that moves *before* it is awake, so that the count is never 0 while something
//! moves: at 0, tasks that wait are believed to wait for each other. So a worker that was roused is not awake at once.
//!
//! | worker | who has news |
//! | --- | --- |
//! | `begin`: says that it sleeps | posts them |
//! | `heavy` | `light` |
//! | looks everywhere again | `rouse`: asleep? wakes it |
//!
//! One of the two fences is first. If the worker's is, it is found asleep. If the other is, the worker finds the news.

use corebeat_sync::asymmetric::heavy;
use corebeat_sync::atomic::{AtomicU8, Ordering};
use corebeat_sync::thread::{self, Thread};
use std::sync::OnceLock;
use std::time::Duration;

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
/// Somebody has taken it upon himself to wake it.
const ROUSED: u8 = 2;

/// Where a worker sleeps.
pub(crate) struct Sleep {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Sleep {
    pub(crate) fn new() -> Sleep {
        Sleep { state: AtomicU8::new(AWAKE), thread: OnceLock::new() }
    }

    /// This thread is the worker's.
    pub(crate) fn settle(&self) {
        let _ = self.thread.set(thread::current());
    }

    // ---- the worker

    /// From here on others rouse it. It looks for news after this.
    pub(crate) fn begin(&self) {
        // Relaxed: ordered by the fence.
        self.state.store(ASLEEP, Ordering::Relaxed);
        heavy();
    }

    /// Ends by itself. False: somebody has roused it, and counted.
    pub(crate) fn end(&self) -> bool {
        // AcqRel: one wins.
        let alone = self.state.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        while !alone && !self.is_over() {
            thread::park();
        }
        alone
    }

    /// Whether it was roused.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire: pairs with the release in `rouse`, so it was counted.
        self.state.load(Ordering::Acquire) == AWAKE
    }

    /// Waits to be roused, at most for `time` if there is one. It may end too early.
    pub(crate) fn wait(&self, time: Option<Duration>) {
        match time {
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }

    // ---- others

    /// Wakes it if it sleeps, after it was counted. The news were posted before a `light`.
    pub(crate) fn rouse(&self, count: impl FnOnce()) -> bool {
        // Relaxed: ordered by the fences. AcqRel: one wins.
        let wins = self.state.load(Ordering::Relaxed) == ASLEEP
            && self.state.compare_exchange(ASLEEP, ROUSED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if wins {
            count();
            // Release: pairs with the acquire in `is_over`.
            self.state.store(AWAKE, Ordering::Release);
            if let Some(thread) = self.thread.get() {
                thread.unpark();
            }
        }
        wins
    }
}
