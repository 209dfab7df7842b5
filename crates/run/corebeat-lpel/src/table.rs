//! The started tasks of a worker: changed by it alone, read by anybody who looks.

use crate::task::Header;
use corebeat_sync::OnceLock;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::cell::UnsafeCell;
use std::{array, ptr};

/// Places of the first bucket; each further one has twice as many as the one before.
const FIRST: usize = if cfg!(loom) { 1 } else { 64 };
/// Enough for 2^32 tasks.
const BUCKETS: usize = if cfg!(loom) { 3 } else { 27 };

/// Where a task can be found.
pub(crate) type Place = AtomicPtr<Header>;

pub(crate) struct Table {
    buckets: [OnceLock<Box<[Place]>>; BUCKETS],
    /// The worker's own: places where nobody is.
    free: UnsafeCell<Vec<*const Place>>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { buckets: array::from_fn(|_| OnceLock::new()), free: UnsafeCell::default() }
    }

    /// Only for the worker: puts a task in and returns its place, which is there as long as the table.
    #[inline]
    pub(crate) fn insert(&self, task: *const Header) -> *const Place {
        // SAFETY: only the worker's thread comes here, and this calls nobody.
        let free = unsafe { &mut *self.free.get() };
        let place = free.pop().unwrap_or_else(|| self.enlarge(free));
        // SAFETY: a place of ours. Release: who follows the pointer sees the task whole.
        unsafe { (*place).store(task.cast_mut(), Ordering::Release) };
        place
    }

    #[cold]
    fn enlarge(&self, free: &mut Vec<*const Place>) -> *const Place {
        let made = self.buckets.iter().take_while(|b| b.get().is_some()).count();
        assert!(made < BUCKETS, "more than 2^32 tasks on one worker");
        let places = (0..FIRST << made).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        let places: &[Place] = self.buckets[made].get_or_init(|| places);
        free.extend(places.iter().rev().map(ptr::from_ref));
        free.pop().expect("just made")
    }

    /// Only for the worker: from here on, who begins to look does not find the task that was put in at this place.
    #[inline]
    pub(crate) fn remove(&self, place: *const Place) {
        // SAFETY: a place of ours. Relaxed: the fences of `limbo` order it before the task is freed.
        unsafe { (*place).store(ptr::null_mut(), Ordering::Relaxed) };
        // SAFETY: as in `insert`.
        unsafe { (*self.free.get()).push(place) };
    }

    /// All tasks in it. They live as long as the caller looks (`limbo::Look`), or as the worker stands still.
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
    fn tasks_are_those_put_in_and_not_removed() {
        let table = Table::new();
        let task = |n: usize| ptr::without_provenance::<Header>(64 * n);
        let places: Vec<_> = (1..=1000).map(|n| table.insert(task(n))).collect();
        assert_eq!(table.tasks().count(), 1000);
        places.iter().skip(1).for_each(|&place| table.remove(place));
        assert_eq!(table.tasks().collect::<Vec<_>>(), [task(1)]);
        assert!(places.contains(&table.insert(task(2))), "free places are used again");
    }
}
