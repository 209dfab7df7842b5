//! Readiness of one direction of a descriptor, and the waker of the task that waits for it.
//!
//! ```text
//!   state:  READY | FINAL | number of reports
//! ```
//!
//! A task uses the descriptor while `READY` is set. When the system has nothing more, the task
//! clears `READY` by a compare-and-swap from the state that it read *before* the system call: a
//! report that arrived since then changed the number, so the exchange fails and `READY` stays.
//! A task that waits stores its waker under a lock, and reads the state under the same lock. A
//! report sets `READY` before it takes the waker under that lock. Hence either the task finds
//! `READY`, or the report finds the waker.

use corebeat_sync::atomic::{AtomicU32, Ordering};
use corebeat_sync::{Mutex, lock};
use std::task::Waker;

const READY: u32 = 1;
/// A short read proves nothing any more (see [`Event::is_final`](crate::notify::Event)).
const FINAL: u32 = 2;
const REPORT: u32 = 4;

pub(crate) struct Slot {
    state: AtomicU32,
    waker: Mutex<Option<Waker>>,
}

/// State that a task read before a system call.
#[derive(Clone, Copy)]
pub(crate) struct View(u32);

impl View {
    pub(crate) fn is_ready(self) -> bool {
        self.0 & READY != 0
    }
}

impl Slot {
    /// The direction counts as ready until a system call finds the opposite.
    pub(crate) fn new() -> Slot {
        Slot { state: AtomicU32::new(READY), waker: Mutex::new(None) }
    }

    pub(crate) fn view(&self) -> View {
        // Acquire: pairs with the release in `report`, so that the system call follows the event.
        View(self.state.load(Ordering::Acquire))
    }

    /// The system call after `view` found nothing.
    pub(crate) fn clear(&self, view: View) {
        // Relaxed: if the exchange fails, the direction stays ready, and the next view acquires.
        let _ = self.state.compare_exchange(
            view.0,
            view.0 & !READY,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// The system call after `view` transferred less than was requested.
    pub(crate) fn drain(&self, view: View) {
        if view.0 & FINAL == 0 {
            self.clear(view);
        }
    }

    /// Notes a report. Returns the waker of the task that waits.
    pub(crate) fn report(&self, is_final: bool) -> Option<Waker> {
        let set = READY | if is_final { FINAL } else { 0 };
        // Release: pairs with the acquire in `view`. The number wraps around.
        let mut state = self.state.load(Ordering::Relaxed);
        while let Err(newer) = self.state.compare_exchange(
            state,
            state.wrapping_add(REPORT) | set,
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            state = newer;
        }
        lock(&self.waker).take()
    }

    /// Lets the next report wake `waker`. Returns true without an effect if the direction is ready.
    pub(crate) fn is_ready_or_wakes(&self, waker: &Waker) -> bool {
        let mut slot = lock(&self.waker);
        // Relaxed: the lock orders this load and a report that found no waker.
        if self.state.load(Ordering::Relaxed) & READY != 0 {
            return true;
        }
        if slot.as_ref().is_some_and(|before| before.will_wake(waker)) {
            return false;
        }
        let before = slot.replace(waker.clone());
        drop(slot);
        // Dropped after the lock, because the drop may end a task that owns sockets.
        drop(before);
        false
    }

    /// Returns whether a task waits.
    pub(crate) fn is_awaited(&self) -> bool {
        lock(&self.waker).is_some()
    }

    /// Discards the waker of a task that does not wait any more.
    pub(crate) fn discard(&self) {
        let waker = lock(&self.waker).take();
        drop(waker);
    }
}
