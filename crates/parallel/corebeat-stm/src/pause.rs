//! Short pauses.

use crate::fault::run_pause_hook;
use corebeat_sync::thread;

/// Above this number of spins the thread yields: the other transaction may have no CPU.
const SPINS_MAX: u32 = 512;

/// Pauses for a number of spins, or yields.
pub(crate) fn pause(spins: u32) {
    if run_pause_hook() {
        // A test runs another thread instead.
    } else if spins > SPINS_MAX || cfg!(any(loom, miri)) {
        thread::yield_now();
    } else {
        (0..spins).for_each(|_| std::hint::spin_loop());
    }
}
