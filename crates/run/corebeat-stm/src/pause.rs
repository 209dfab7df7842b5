//! Short pauses.

use crate::fault::pass;
use corebeat_sync::thread;

/// More spins than these are given to others: who is waited for may have no CPU.
const SPINS_MAX: u32 = 512;

/// Waits a moment.
pub(crate) fn pause(spins: u32) {
    if pass() {
        // A test goes on elsewhere.
    } else if spins > SPINS_MAX || cfg!(any(loom, miri)) {
        thread::yield_now();
    } else {
        (0..spins).for_each(|_| std::hint::spin_loop());
    }
}

/// Marsaglia, *Xorshift RNGs*, 2003. So that those who failed together do not meet again.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// From 0 to `bound`, exclusive; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u32
    }
}
