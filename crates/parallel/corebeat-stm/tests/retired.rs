//! Number of retired values while a second thread has transactions, but no attempt. No other test
//! may run in this process meanwhile.

mod common;

use common::beside_another;
use corebeat_stm::{TCell, atomically};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Counts the values of this type that exist.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Arc<Counted> {
        alive.fetch_add(1, SeqCst);
        Arc::new(Counted(alive.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[test]
fn values_are_bounded_whose_destructors_retire_others() {
    struct Replaces {
        cell: Arc<TCell<Arc<Counted>>>,
        _counted: Arc<Counted>,
        alive: Arc<AtomicUsize>,
    }
    impl Drop for Replaces {
        fn drop(&mut self) {
            // More values than a commit frees without those of destructors.
            for _ in 0..3 {
                atomically(|tx| tx.write(&self.cell, Counted::new(&self.alive)));
            }
        }
    }
    beside_another(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let replaced = Arc::new(TCell::new(Counted::new(&alive)));
        let new = || {
            Arc::new(Replaces {
                cell: replaced.clone(),
                _counted: Counted::new(&alive),
                alive: alive.clone(),
            })
        };
        let cell = TCell::new(new());
        for _ in 0..20_000 {
            atomically(|tx| tx.write(&cell, new()));
            assert!(alive.load(SeqCst) < 1000);
        }
    });
}

#[test]
fn commits_that_retire_no_value_free_some() {
    beside_another(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let cell = TCell::new(Counted::new(&alive));
        // A grace period frees values of the other test, whose thread has ended, too.
        let is_freed_without_retiring = || {
            let mut most = 0;
            // Until the end of a grace period.
            while alive.load(SeqCst) > most {
                most = alive.load(SeqCst);
                atomically(|tx| tx.write(&cell, Counted::new(&alive)));
            }
            let left = alive.load(SeqCst);
            (0..2000).for_each(|_| atomically(|_| Ok(())));
            alive.load(SeqCst) < left
        };
        assert!((0..10).any(|_| is_freed_without_retiring()));
    });
}
