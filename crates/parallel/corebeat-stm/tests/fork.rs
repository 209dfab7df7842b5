//! Children of fork.

#![cfg(not(miri))]

use corebeat_stm::{TCell, atomically, counters};
use corebeat_test_group::{SetOnDrop, in_child};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The transactions of other threads use other cells, so no fork is too early for the child.
#[test]
fn child_commits_whatever_threads_that_begin_and_end_did() {
    const FORKS: usize = 200;
    let add = |cell: &TCell<Arc<u64>>| {
        atomically(|tx| {
            let sum = *tx.read(cell)? + 1;
            tx.write(cell, Arc::new(sum))?;
            Ok(sum)
        })
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                let own = TCell::new(Arc::new(0));
                while !is_over.load(Ordering::Relaxed) {
                    thread::scope(|scope| scope.spawn(|| add(&own)).join().unwrap());
                }
            });
        }
        // Reads the states of all threads.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                counters();
            }
        });
        let own = TCell::new(Arc::new(1));
        let fork = || in_child(|| add(&own) == 2);
        // With a thread that has committed before, and with threads that have not.
        add(&TCell::new(Arc::new(0)));
        let by_others = || thread::scope(|scope| scope.spawn(fork).join().unwrap_or(false));
        let failed = (0..FORKS).find(|n| !if n % 2 == 0 { fork() } else { by_others() });
        assert_eq!(failed, None, "number of the fork that failed");
    });
}
