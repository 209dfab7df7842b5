//! What all threads share.

use crate::limbo::Dead;
use crate::part::Parts;
use crate::registry::Registry;
use corebeat_sync::atomic::AtomicU64;
use corebeat_sync::{CachePadded, Mutex, MutexGuard};
use std::sync::PoisonError;

pub(crate) struct Global {
    /// How often threads were looked at. Values are dated by it.
    pub(crate) era: CachePadded<AtomicU64>,
    pub(crate) registry: Mutex<Registry>,
    /// What threads that have ended could not free yet.
    pub(crate) orphans: Mutex<Vec<Dead>>,
    pub(crate) parts: Mutex<Parts>,
}

impl Global {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Global {
            era: CachePadded::new(AtomicU64::new(1)),
            registry: Mutex::new(Registry::new()),
            orphans: Mutex::new(Vec::new()),
            parts: Mutex::new(Parts::new()),
        }
    }

    #[cfg(loom)]
    fn new() -> Self {
        Global {
            era: CachePadded::new(AtomicU64::new(1)),
            registry: Mutex::new(Registry::new()),
            orphans: Mutex::new(Vec::new()),
            parts: Mutex::new(Parts::new()),
        }
    }
}

#[cfg(not(loom))]
pub(crate) static GLOBAL: Global = Global::new();
#[cfg(loom)]
corebeat_sync::loom::lazy_static! {
    pub(crate) static ref GLOBAL: Global = Global::new();
}

/// What is behind our locks is whole whenever they are free.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The era that it is now.
pub(crate) fn era() -> u64 {
    // Acquire: pairs with the Release of who begins one.
    GLOBAL.era.load(corebeat_sync::atomic::Ordering::Acquire)
}
