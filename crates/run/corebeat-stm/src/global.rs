//! What all transactions of the process share.

use crate::clock::Clock;
use crate::contention::Choice;
use crate::limbo::Dead;
use crate::slot::Slots;
use crate::waiter::Waiters;
use corebeat_sync::atomic::AtomicU64;
use corebeat_sync::{CachePadded, Mutex, MutexGuard};
use std::sync::PoisonError;

pub(crate) struct Global {
    /// Alone in its line: everybody reads it, often.
    pub(crate) clock: CachePadded<Clock>,
    /// Likewise.
    pub(crate) waiters: CachePadded<Waiters>,
    pub(crate) slots: Mutex<Slots>,
    /// What threads that have ended could not free yet.
    pub(crate) orphans: Mutex<Vec<Dead>>,
    pub(crate) choice: Choice,
    /// How many transactions have met another.
    pub(crate) met: AtomicU64,
}

impl Global {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Global {
            clock: CachePadded::new(Clock::new()),
            waiters: CachePadded::new(Waiters::new()),
            slots: Mutex::new(Slots::new()),
            orphans: Mutex::new(Vec::new()),
            choice: Choice::new(),
            met: AtomicU64::new(0),
        }
    }

    #[cfg(loom)]
    fn new() -> Self {
        Global {
            clock: CachePadded::new(Clock::new()),
            waiters: CachePadded::new(Waiters::new()),
            slots: Mutex::default(),
            orphans: Mutex::default(),
            choice: Choice::new(),
            met: AtomicU64::new(0),
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
