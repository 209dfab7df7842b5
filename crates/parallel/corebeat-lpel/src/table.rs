//! Table of the started tasks of a worker. Only the worker changes it; inspections read it.

use crate::task::Header;
use corebeat_sync::OnceLock;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::cell::UnsafeCell;
use std::{array, ptr};

/// Number of places in the first bucket. Each further bucket has twice as many as the one before.
const FIRST: usize = if cfg!(loom) { 1 } else { 64 };
/// Number of buckets, sufficient for 2^32 tasks.
const BUCKETS: usize = if cfg!(loom) { 3 } else { 27 };

/// Place for a task.
pub(crate) type Place = AtomicPtr<Header>;

pub(crate) struct Table {
    buckets: [OnceLock<Box<[Place]>>; BUCKETS],
    /// Free places. Only the worker uses this field.
    free: UnsafeCell<Vec<*const Place>>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { buckets: array::from_fn(|_| OnceLock::new()), free: UnsafeCell::default() }
    }

    /// Inserts a task and returns its place, which lives as long as the table. Only for the
    /// worker.
    #[inline]
    pub(crate) fn insert(&self, task: *const Header) -> *const Place {
        // SAFETY: only the thread of the worker gets here, and no called code uses the list.
        let free = unsafe { &mut *self.free.get() };
        let place = free.pop().unwrap_or_else(|| self.enlarge(free));
        // SAFETY: a place of this table. Release: a thread that follows the pointer finds the task
        // initialised.
        unsafe { (*place).store(task.cast_mut(), Ordering::Release) };
        place
    }

    #[cold]
    fn enlarge(&self, free: &mut Vec<*const Place>) -> *const Place {
        let made = self.buckets.iter().take_while(|b| b.get().is_some()).count();
        assert!(made < BUCKETS, "a worker has more than 2^32 tasks");
        let places = (0..FIRST << made).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        let places: &[Place] = self.buckets[made].get_or_init(|| places);
        free.extend(places.iter().rev().map(ptr::from_ref));
        free.pop().expect("the new bucket has free places")
    }

    /// Removes a task. Inspections that begin afterwards do not find the task. Only for the worker.
    #[inline]
    pub(crate) fn remove(&self, place: *const Place) {
        // SAFETY: a place of this table. Relaxed: the fences of `retired` order the store before
        // the free of the task.
        unsafe { (*place).store(ptr::null_mut(), Ordering::Relaxed) };
        // SAFETY: as in `insert`.
        unsafe { (*self.free.get()).push(place) };
    }

    /// Returns all tasks in the table. They live during an inspection (`retired::Inspection`) of
    /// the caller, or while the worker runs no task.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = *const Header> {
        let places = self.buckets.iter().map_while(|b| b.get()).flatten();
        // Acquire: pairs with the release in `insert`.
        places.map(|p| p.load(Ordering::Acquire).cast_const()).filter(|t| !t.is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_returns_inserted_tasks_that_were_not_removed() {
        let table = Table::new();
        let task = |n: usize| ptr::without_provenance::<Header>(64 * n);
        let places: Vec<_> = (1..=1000).map(|n| table.insert(task(n))).collect();
        assert_eq!(table.tasks().count(), 1000);
        places.iter().skip(1).for_each(|&place| table.remove(place));
        assert_eq!(table.tasks().collect::<Vec<_>>(), [task(1)]);
        assert!(places.contains(&table.insert(task(2))), "free places are reused");
    }
}
