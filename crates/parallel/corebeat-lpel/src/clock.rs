//! Clock of a runtime: real, or virtual in deterministic runtimes.

use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub(crate) enum Clock {
    Real {
        begin: Instant,
    },
    /// Nanoseconds since the begin.
    Virtual(AtomicU64),
}

impl Clock {
    pub(crate) fn new(is_virtual: bool) -> Clock {
        if is_virtual {
            Clock::Virtual(AtomicU64::new(0))
        } else {
            Clock::Real { begin: Instant::now() }
        }
    }

    /// Nanoseconds since the begin.
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Clock::Real { begin } => u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX),
            // Relaxed: one thread at a time drives the runtime.
            Clock::Virtual(now_ns) => now_ns.load(Ordering::Relaxed),
        }
    }

    /// Advances virtual time by a duration. Real time is unaffected.
    pub(crate) fn advance(&self, duration_ns: u64) {
        self.advance_to(self.now_ns().saturating_add(duration_ns));
    }

    /// Advances virtual time to a point in time. Real time is unaffected.
    pub(crate) fn advance_to(&self, time_ns: u64) {
        if let Clock::Virtual(now_ns) = self {
            now_ns.fetch_max(time_ns, Ordering::Relaxed);
        }
    }
}
