//! Sleep and wake-up of a worker.
//!
//! ```text
//!   awake -- begin --> asleep -- wake --> waking -- counted --> awake
//!     ^                  |
//!     +------ end -------+
//! ```
//!
//! A waker counts the worker as active *before* the worker is awake. Thus the count is never 0
//! while a worker makes progress: at 0, the runtime checks for a deadlock. The intermediate state
//! `waking` exists for this reason.
//!
//! | worker | waker |
//! | --- | --- |
//! | `begin`: stores that it sleeps | posts the work |
//! | `heavy` | `light` |
//! | checks for work everywhere again | `wake`: if the worker sleeps, wakes it |
//!
//! One of the two fences is first. If the worker's fence is first, the waker finds the worker
//! asleep. If the waker's fence is first, the worker finds the work.

use crate::park::Park;
use corebeat_sync::asymmetric::heavy_fence;
use corebeat_sync::atomic::{AtomicU8, Ordering};
use corebeat_sync::thread::{self, Thread};
use std::sync::OnceLock;
use std::time::Duration;

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
/// A waker has taken over the wake-up, and has not finished it.
const WAKING: u8 = 2;

/// Sleep state of a worker.
pub(crate) struct Sleep {
    state: AtomicU8,
    thread: OnceLock<Thread>,
    /// Replaces the wait of the thread.
    park: Option<Box<dyn Park>>,
}

impl Sleep {
    pub(crate) fn new(park: Option<Box<dyn Park>>) -> Sleep {
        Sleep { state: AtomicU8::new(AWAKE), thread: OnceLock::new(), park }
    }

    /// Makes the calling thread the one that is woken.
    pub(crate) fn set_thread(&self) {
        let _ = self.thread.set(thread::current());
        self.park.iter().for_each(|park| park.enter());
    }

    /// Ends the use of this value by the worker.
    pub(crate) fn leave(&self) {
        self.park.iter().for_each(|park| park.leave());
    }

    /// Handles the events that [`Park`] detects. Returns at once without a `Park`.
    #[inline]
    pub(crate) fn poll(&self) {
        if let Some(park) = &self.park {
            park.poll();
        }
    }

    // ---- for the worker

    /// Begins to sleep: from here on, wakers can wake the worker. The worker checks for work after
    /// this call.
    pub(crate) fn begin(&self) {
        // Relaxed: ordered by the fence.
        self.state.store(ASLEEP, Ordering::Relaxed);
        heavy_fence();
    }

    /// Ends the sleep without a waker. Returns false if a waker has woken and counted the worker.
    pub(crate) fn end(&self) -> bool {
        // AcqRel: either the worker or a waker succeeds.
        let alone =
            self.state.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        while !alone && !self.is_over() {
            self.wait(None);
        }
        alone
    }

    /// Returns whether a waker has woken the worker.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire: pairs with the release in `rouse`, so the worker was counted.
        self.state.load(Ordering::Acquire) == AWAKE
    }

    /// Waits for a waker, at most for `time` if it is given. May return early.
    pub(crate) fn wait(&self, time: Option<Duration>) {
        match (&self.park, time) {
            (Some(park), _) => park.park(time),
            (None, Some(time)) => thread::park_timeout(time),
            (None, None) => thread::park(),
        }
    }

    // ---- for wakers

    /// Wakes the worker if it sleeps, after `count` counted it. The caller posted the work before a
    /// `light` fence.
    pub(crate) fn wake(&self, count: impl FnOnce()) -> bool {
        let wakes = self.rouse(count);
        if wakes {
            match (&self.park, self.thread.get()) {
                (Some(park), _) => park.unpark(),
                (None, thread) => thread.into_iter().for_each(Thread::unpark),
            }
        }
        wakes
    }

    /// Ends the sleep as [`Sleep::wake`], but leaves the wait of the thread: for `wake`, and for
    /// the worker itself, whose next wait would otherwise end at once.
    pub(crate) fn rouse(&self, count: impl FnOnce()) -> bool {
        // Relaxed: ordered by the fences. AcqRel: one waker succeeds.
        let wakes = self.state.load(Ordering::Relaxed) == ASLEEP
            && self
                .state
                .compare_exchange(ASLEEP, WAKING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if wakes {
            count();
            // Release: pairs with the acquire in `is_over`.
            self.state.store(AWAKE, Ordering::Release);
        }
        wakes
    }
}
