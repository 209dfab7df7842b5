//! Turns: one thread at a time handles a connection, and no report is lost meanwhile.
//!
//! ```text
//!   IDLE -- begin --> BUSY -- begin by another thread --> AGAIN
//!    ^                 |                                   |
//!    +------ end ------+<-- end fails: handle it again ----+
//! ```
//!
//! Edge-triggered epoll reports a connection again while a thread still handles the previous
//! report, and another thread receives that report. The second thread leaves the mark `AGAIN`, and
//! the first one finds the mark at the end of its turn.

#[cfg(all(test, not(loom)))]
use crate::simulation::{self, Fault};
use corebeat_sync::atomic::{AtomicU8, Ordering};
use corebeat_sync::const_unless_loom;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const AGAIN: u8 = 2;

pub(crate) struct Turn(AtomicU8);

impl Turn {
    const_unless_loom! {
        pub(crate) fn new() -> Turn {
            Turn(AtomicU8::new(IDLE))
        }
    }

    /// Begins a turn. Returns false if another thread has the turn; that thread handles the report
    /// of the caller.
    pub(crate) fn begin(&self) -> bool {
        #[cfg(all(test, not(loom)))]
        if simulation::has(Fault::SharedTurn) {
            // Release: pairs with the acquire in `begin`.
            self.0.store(BUSY, Ordering::Release);
            return true;
        }
        // Acquire: pairs with the release in `end`, so that the connection is as it was left.
        if self.0.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return true;
        }
        // Release: pairs with the acquire in `end`, so that the other thread finds the event.
        // Acquire: as above, if the turn has ended in between. Then the caller has it.
        self.0.swap(AGAIN, Ordering::AcqRel) == IDLE
    }

    /// Begins a turn if no thread has it. Leaves no mark: a fault that the models must detect.
    #[cfg(all(test, loom))]
    pub(crate) fn try_begin(&self) -> bool {
        // Acquire: as in `begin`.
        self.0.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends the turn of the caller. Returns false if a report arrived meanwhile: the caller still
    /// has the turn, and handles the connection again.
    pub(crate) fn end(&self) -> bool {
        #[cfg(all(test, not(loom)))]
        if simulation::has(Fault::LostMark) {
            // Release: pairs with the acquire in `begin`.
            self.0.store(IDLE, Ordering::Release);
            return true;
        }
        // Release: pairs with the acquire in `begin`.
        if self.0.compare_exchange(BUSY, IDLE, Ordering::Release, Ordering::Relaxed).is_ok() {
            return true;
        }
        // Acquire: pairs with the release in `begin`.
        self.0.swap(BUSY, Ordering::Acquire);
        false
    }
}
