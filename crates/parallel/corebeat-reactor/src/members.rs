//! Members of an interest set, until the set retires.
//!
//! ```text
//!   switch                thread that moves            thread with the turn of a member
//!     |                        |                            |
//!   publish the new regime     |                          process
//!     +----- set ----------> retire: mark the set,          |
//!                            take the members               |
//!                              |                          is the set retired?
//!                            begin the turn of each         | no: re-arm   | yes: enter a set of
//!                              | idle: enter a set of       |              |   the new regime
//!                              |   the new regime           |              |
//!                              | busy: mark ------------> end fails: process again
//! ```
//!
//! No member is left behind. A member that is inserted before the set retires is taken. A member
//! that comes later is refused, and its thread inserts it into a set of the present regime. A taken
//! member either has no turn, so that the thread that retires the set moves it, or its turn cannot
//! end before its thread has found that the set is retired.

use crate::table::Table;
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::{Mutex, lock};

pub(crate) struct Members<T> {
    /// `None` after the set has retired.
    table: Mutex<Option<Table<T>>>,
    is_retired: AtomicBool,
}

impl<T> Members<T> {
    pub(crate) fn new() -> Members<T> {
        Members { table: Mutex::new(Some(Table::default())), is_retired: AtomicBool::new(false) }
    }

    /// Inserts a member, and returns its key; `None` if the set has retired.
    pub(crate) fn insert(&self, member: T) -> Option<u64> {
        lock(&self.table).as_mut().map(|table| table.insert(member))
    }

    /// Removes a member, if the set has not retired.
    pub(crate) fn remove(&self, key: u64) {
        let removed = lock(&self.table).as_mut().and_then(|table| table.remove(key));
        drop(removed);
    }

    /// Retires the set, and returns its members. Their turns come afterwards.
    pub(crate) fn retire(&self) -> Vec<T> {
        let mut table = lock(&self.table);
        // Relaxed: the turn of a member, or its mark, publishes the store.
        self.is_retired.store(true, Ordering::Relaxed);
        table.take().map_or_else(Vec::new, |mut table| table.drain())
    }

    /// Returns whether the set has retired, for a thread that has the turn of a member.
    pub(crate) fn is_retired(&self) -> bool {
        // Relaxed: as in `retire`. A thread that misses the store cannot end the turn.
        self.is_retired.load(Ordering::Relaxed)
    }
}

impl<T: Clone> Members<T> {
    pub(crate) fn get(&self, key: u64) -> Option<T> {
        lock(&self.table).as_ref()?.get(key).cloned()
    }

    pub(crate) fn filter(&self, is_chosen: impl FnMut(&&T) -> bool) -> Vec<T> {
        let table = lock(&self.table);
        table.iter().flat_map(|table| table.iter()).filter(is_chosen).cloned().collect()
    }
}
