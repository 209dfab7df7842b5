//! How far a run has come, for other threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The numbers of a run or a query so far. Other threads may read them while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    matches: AtomicU64,
    rewrites: AtomicU64,
}

impl Progress {
    /// Number of matches that queries have found. Searches report them in portions.
    pub fn matches(&self) -> u64 {
        self.matches.load(Relaxed)
    }

    /// Number of rewrites.
    pub fn rewrites(&self) -> u64 {
        self.rewrites.load(Relaxed)
    }

    // Relaxed: the numbers publish no data.
    pub(crate) fn add_matches(&self, count: u64) {
        self.matches.fetch_add(count, Relaxed);
    }

    pub(crate) fn add_rewrites(&self, count: u64) {
        self.rewrites.fetch_add(count, Relaxed);
    }
}
