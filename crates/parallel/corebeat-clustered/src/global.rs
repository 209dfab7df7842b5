//! State that all threads share.

use crate::part::Parts;
use crate::registry::Registry;
use crate::retired::Dates;
use corebeat_reclaim::Orphans;
use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::fork::ForkMutex;
use corebeat_sync::{CachePadded, const_unless_loom, shared_static};

pub(crate) struct Global {
    /// Number of scans of all threads. Values are dated by it.
    pub(crate) era: CachePadded<AtomicU64>,
    pub(crate) registry: ForkMutex<Registry>,
    /// Retired values of threads that have ended.
    pub(crate) orphans: Orphans<Dates>,
    pub(crate) parts: ForkMutex<Parts>,
}

impl Global {
    const_unless_loom! {
        fn new() -> Self {
            Global {
                era: CachePadded::new(AtomicU64::new(1)),
                registry: ForkMutex::new(Registry::new()),
                orphans: Orphans::new(),
                parts: ForkMutex::new(Parts::new()),
            }
        }
    }
}

shared_static! {
    pub(crate) static GLOBAL: Global = Global::new();
}

/// Returns the current era.
pub(crate) fn era() -> u64 {
    // Acquire: pairs with the Release of the scan that begins an era.
    GLOBAL.era.load(Ordering::Acquire)
}
