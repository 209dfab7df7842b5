//! The started tasks of a worker: changed by it alone, read by anybody who looks.

use crate::task::Header;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::OnceLock;

/// Places of the first bucket; each further one has twice as many as the one before.
const FIRST: usize = 64;
/// Enough for 2^32 tasks.
const BUCKETS: usize = 27;

pub(crate) struct Table {
    buckets: [OnceLock<Box<[AtomicPtr<Header>]>>; BUCKETS],
    /// The worker's own: places that are free again, and the first that was never used.
    free: RefCell<Vec<usize>>,
    used: Cell<usize>,
}

/// Which bucket has a place, and where in it.
fn locate(place: usize) -> (usize, usize) {
    let bucket = (place / FIRST + 1).ilog2() as usize;
    (bucket, place - FIRST * ((1 << bucket) - 1))
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { buckets: [const { OnceLock::new() }; BUCKETS], free: RefCell::default(), used: Cell::new(0) }
    }

    fn slot(&self, place: usize) -> &AtomicPtr<Header> {
        let (bucket, at) = locate(place);
        let slots = self.buckets[bucket]
            .get_or_init(|| (0..FIRST << bucket).map(|_| AtomicPtr::new(ptr::null_mut())).collect());
        &slots[at]
    }

    /// Only for the worker: puts a task in and returns its place.
    pub(crate) fn insert(&self, task: *const Header) -> usize {
        let place = self.free.borrow_mut().pop().unwrap_or_else(|| self.used.replace(self.used.get() + 1));
        // Release: who follows the pointer sees the task whole.
        self.slot(place).store(task.cast_mut(), Ordering::Release);
        place
    }

    /// Only for the worker: from here on, who begins to look does not find the task.
    pub(crate) fn remove(&self, place: usize) {
        // Release: pairs with nothing that matters; the fences of `limbo` order it before the task is freed.
        self.slot(place).store(ptr::null_mut(), Ordering::Release);
        self.free.borrow_mut().push(place);
    }

    /// All tasks in it. They live as long as the caller looks (`limbo::Look`), or as the worker stands still.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = *const Header> {
        let slots = self.buckets.iter().map_while(|b| b.get()).flatten();
        // Acquire: pairs with the release in `insert`.
        slots.map(|s| s.load(Ordering::Acquire).cast_const()).filter(|t| !t.is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_in_its_bucket() {
        let mut expected = (0, 0);
        for place in 0..100_000 {
            assert_eq!(locate(place), expected);
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }
}
