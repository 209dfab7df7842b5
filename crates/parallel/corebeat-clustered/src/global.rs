//! State that all threads share.

use crate::part::Parts;
use crate::registry::Registry;
use crate::retired::Dates;
use corebeat_reclaim::Orphans;
use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::{CachePadded, Mutex, const_unless_loom, shared_static};

pub(crate) struct Global {
    /// Number of scans of all threads. Values are dated by it.
    pub(crate) era: CachePadded<AtomicU64>,
    pub(crate) registry: Mutex<Registry>,
    /// Retired values of threads that have ended.
    pub(crate) orphans: Orphans<Dates>,
    pub(crate) parts: Mutex<Parts>,
}

impl Global {
    const_unless_loom! {
        fn new() -> Self {
            Global {
                era: CachePadded::new(AtomicU64::new(1)),
                registry: Mutex::new(Registry::new()),
                orphans: Orphans::new(),
                parts: Mutex::new(Parts::new()),
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
