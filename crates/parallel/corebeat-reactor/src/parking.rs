//! Wait of a thread in a system call that other threads interrupt.
//!
//! ```text
//!   AWAKE -- park --> PARKED          unpark in AWAKE:  UNPARKED, no system call
//!     ^                 |             unpark in PARKED: UNPARKED, interrupts the call
//!     +---- swap -------+
//! ```
//!
//! The thread changes the state by an exchange before its system call, and so does an unparking
//! thread. If the exchange of the unparking thread is first, the thread finds `UNPARKED`, and does
//! not wait. If it is second, the unparking thread finds `PARKED`, and interrupts the call. An
//! interruption that arrives after the end of the call ends the next call early.

use corebeat_sync::atomic::{AtomicU8, Ordering};
use corebeat_sync::const_unless_loom;
use std::time::Duration;

const AWAKE: u8 = 0;
const PARKED: u8 = 1;
const UNPARKED: u8 = 2;

pub(crate) struct Parking(AtomicU8);

impl Parking {
    const_unless_loom! {
        pub(crate) fn new() -> Parking {
            Parking(AtomicU8::new(AWAKE))
        }
    }

    /// Calls `wait` with the time for which the caller may wait: `time`, or zero if the caller was
    /// unparked.
    pub(crate) fn park(&self, time: Option<Duration>, wait: impl FnOnce(Option<Duration>)) {
        // AcqRel: one of the two exchanges reads the other. Acquire: the effects of the unparking
        // thread are visible.
        let is_parked =
            self.0.compare_exchange(AWAKE, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        wait(if is_parked { time } else { Some(Duration::ZERO) });
        // AcqRel: as above.
        self.0.swap(AWAKE, Ordering::AcqRel);
    }

    /// Ends the current wait, or makes the next one end at once. Calls `interrupt` if the thread
    /// may be in the system call.
    pub(crate) fn unpark(&self, interrupt: impl FnOnce()) {
        // AcqRel: pairs with the exchanges in `park`.
        if self.0.swap(UNPARKED, Ordering::AcqRel) == PARKED {
            interrupt();
        }
    }
}
