//! State that all transactions of the process share.

use crate::clock::Clock;
use crate::contention::Choice;
use crate::slot::Slots;
use crate::waiter::Waiters;
use corebeat_reclaim::Orphans;
use corebeat_sync::atomic::AtomicU64;
use corebeat_sync::fork::ForkMutex;
use corebeat_sync::{CachePadded, const_unless_loom, shared_static};

pub(crate) struct Global {
    /// In its own cache line: every thread reads it often.
    pub(crate) clock: CachePadded<Clock>,
    /// In its own cache line, for the same reason.
    pub(crate) waiters: CachePadded<Waiters>,
    pub(crate) slots: ForkMutex<Slots>,
    /// Retired values of threads that have ended.
    pub(crate) orphans: Orphans,
    pub(crate) choice: Choice,
    /// Number of transactions that have had a conflict.
    pub(crate) conflicts: AtomicU64,
}

impl Global {
    const_unless_loom! {
        fn new() -> Self {
            Global {
                clock: CachePadded::new(Clock::new()),
                waiters: CachePadded::new(Waiters::new()),
                slots: ForkMutex::new(Slots::new()),
                orphans: Orphans::new(),
                choice: Choice::new(),
                conflicts: AtomicU64::new(0),
            }
        }
    }
}

shared_static! {
    pub(crate) static GLOBAL: Global = Global::new();
}
