//! The time of all transactions: how many versions of memory there have been, more or less, and the gate.
//!
//! A commit does not move the clock: its version is one more than the clock shows, and others may use the same. Whoever
//! meets a version from the future brings the clock there (Dice, Shalev, Shavit, *Transactional Locking II*, 2006, section
//! 2, GV5). So threads that touch different memory hardly ever write this line.
//!
//! ```text
//!   63   62                                0
//!   +----+---------------------------------+
//!   |gate|              time               |
//!   +----+---------------------------------+
//! ```
//!
//! While the gate is shut, nobody commits but who shut it.

use corebeat_sync::atomic::{AtomicU64, Ordering};

const GATE: u64 = 1 << 63;

pub(crate) struct Clock(AtomicU64);

/// What a commit reads.
pub(crate) struct Now {
    /// What versions are one more than.
    pub(crate) time: u64,
    /// Whether somebody else may be the only one who commits.
    pub(crate) is_shut: bool,
}

impl Clock {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Clock(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Clock(AtomicU64::new(0))
    }

    /// The time, and the gate.
    #[inline(always)]
    pub(crate) fn now(&self) -> Now {
        let word = latest(&self.0);
        Now { time: word & !GATE, is_shut: word & GATE != 0 }
    }

    /// Is `time` at least, from now on.
    pub(crate) fn bring_to(&self, time: u64) {
        let mut word = latest(&self.0);
        while word & !GATE < time {
            match self.0.compare_exchange(word, word & GATE | time, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(other) => word = other,
            }
        }
    }

    /// Shuts the gate, if it is open.
    pub(crate) fn shut(&self) -> bool {
        let mut word = latest(&self.0);
        while word & GATE == 0 {
            match self.0.compare_exchange(word, word | GATE, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) => word = other,
            }
        }
        false
    }

    /// Opens the gate, which the caller has shut.
    pub(crate) fn open(&self) {
        self.0.fetch_sub(GATE, Ordering::SeqCst);
    }
}

/// What the word holds in the one order of all `SeqCst` accesses.
///
/// loom takes such a load for an `Acquire` one. There, it is an exchange that changes nothing: that, too, sees what is
/// last, and nobody sees more by it.
#[inline(always)]
#[cfg_attr(loom, track_caller)]
pub(crate) fn latest(word: &AtomicU64) -> u64 {
    #[cfg(loom)]
    return word.fetch_add(0, Ordering::Acquire);
    #[cfg(not(loom))]
    word.load(Ordering::SeqCst)
}
