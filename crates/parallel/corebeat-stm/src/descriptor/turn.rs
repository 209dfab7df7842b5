//! The rule by which a thread becomes the sole writer (`clock`).

use super::Descriptor;
use crate::global::GLOBAL;
use crate::slot::{Slot, Slots};

/// Number of commits after which a thread counts those of others for the first time. Models claim
/// where they need it.
const COMMITS_MIN: u64 = if cfg!(loom) {
    u64::MAX
} else if cfg!(test) {
    1
} else {
    64
};
/// Limit on the number, which grows while others commit.
const COMMITS_MAX: u64 = if cfg!(test) { COMMITS_MIN } else { 4_096 };
/// A thread becomes the sole writer if it has committed this many times as often as all others
/// together. The end of a claim transfers a cache line twice, which a commit of others causes:
/// so the cost is small beside that of the commits between two claims.
const SHARE: u64 = 64;

/// Commits of this thread since it last counted those of others.
pub(super) struct Turn {
    /// Number of commits that are left.
    left: u64,
    length: u64,
    /// Commits of others, when they were last counted.
    others: u64,
}

impl Turn {
    pub(super) fn new(own: &Slot) -> Turn {
        Turn { left: COMMITS_MIN, length: COMMITS_MIN, others: Slots::writes_of_others(own) }
    }
}

impl Descriptor {
    /// Counts a commit that wrote and had to validate its reads.
    #[inline(always)]
    pub(super) fn count_write(&mut self) {
        self.slot.count_write();
        self.turn.left -= 1;
        if self.turn.left == 0 {
            // `end_turn` follows.
            self.needs_cleanup = true;
        }
    }

    /// Becomes the sole writer, if others have committed little in this turn. Has no effect before
    /// the end of the turn.
    pub(super) fn end_turn(&mut self) {
        let Turn { left: 0, length, others } = self.turn else { return };
        let now = Slots::writes_of_others(self.slot);
        let claims = (now - others).saturating_mul(SHARE) <= length && self.claim();
        // A longer turn after a failure, because its end reads the slots of all threads.
        self.turn.length = if claims { COMMITS_MIN } else { (length * 2).min(COMMITS_MAX) };
        self.turn.left = self.turn.length;
        self.turn.others = now;
    }

    /// Becomes the sole writer, unless another thread is. Returns whether this succeeded.
    pub(crate) fn claim(&mut self) -> bool {
        GLOBAL.clock.claim(self.writer)
    }
}
