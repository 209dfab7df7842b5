//! The global version clock, and the gate for exclusive commits.
//!
//! A commit does not advance the clock: its version is the clock's time plus one, and other commits
//! may have the same version. A transaction that reads a version from the future advances the clock
//! to that version (Dice, Shalev, Shavit, *Transactional Locking II*, 2006, section 2, GV5). So
//! threads that access different memory rarely write this cache line.
//!
//! ```text
//!   63   62                                0
//!   +----+---------------------------------+
//!   |gate|              time               |
//!   +----+---------------------------------+
//! ```
//!
//! While the gate is closed, only the transaction that closed it commits.

use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::const_unless_loom;

const GATE: u64 = 1 << 63;

pub(crate) struct Clock(AtomicU64);

/// State of the clock.
pub(crate) struct Now {
    /// Versions are this time plus one.
    pub(crate) time: u64,
    /// Whether the gate is closed.
    pub(crate) is_closed: bool,
}

impl Clock {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Clock(AtomicU64::new(0))
        }
    }

    /// Returns the time and the state of the gate.
    #[inline(always)]
    pub(crate) fn now(&self) -> Now {
        let word = load_latest(&self.0);
        Now { time: word & !GATE, is_closed: word & GATE != 0 }
    }

    /// Advances the clock to at least `time`.
    pub(crate) fn advance_to(&self, time: u64) {
        let mut word = load_latest(&self.0);
        while word & !GATE < time {
            match self.0.compare_exchange(
                word,
                word & GATE | time,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return,
                Err(other) => word = other,
            }
        }
    }

    /// Closes the gate. Returns `false` if the gate is closed already.
    pub(crate) fn close_gate(&self) -> bool {
        let mut word = load_latest(&self.0);
        while word & GATE == 0 {
            match self.0.compare_exchange(word, word | GATE, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) => word = other,
            }
        }
        false
    }

    /// Opens the gate, which the caller has closed.
    pub(crate) fn open_gate(&self) {
        self.0.fetch_sub(GATE, Ordering::SeqCst);
    }
}

/// Returns the value of the word in the total order of all `SeqCst` accesses.
///
/// loom treats a `SeqCst` load as an `Acquire` load. In a model this function is a
/// read-modify-write operation that changes nothing: it also reads the latest value, and adds no
/// other guarantee.
#[inline(always)]
#[cfg_attr(loom, track_caller)]
pub(crate) fn load_latest(word: &AtomicU64) -> u64 {
    #[cfg(loom)]
    return word.fetch_add(0, Ordering::Acquire);
    #[cfg(not(loom))]
    word.load(Ordering::SeqCst)
}
