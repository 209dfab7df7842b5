//! Children of fork.

#![cfg(not(miri))]

use corebeat_stm::trace::{self, Detail};
use corebeat_stm::{TCell, atomically, atomically_timeout, counters};
use corebeat_test_group::{SetOnDrop, in_child};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const FORKS: usize = 200;

/// The transactions of other threads use other cells, so no fork is too early for the child.
#[test]
fn child_commits_whatever_threads_that_begin_and_end_did() {
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

/// Other threads hold the locks of the list of waiting threads and of the list of call sites.
#[test]
fn child_waits_and_records_whatever_threads_that_wait_and_record_did() {
    let wait = |cell: &TCell<u64>| {
        atomically_timeout(Duration::from_micros(1), |tx| {
            tx.read(cell)?;
            tx.retry::<()>()
        })
    };
    // Each call begins another trace, of which the next transaction of a thread numbers its site.
    let record = |cell: &TCell<u64>| {
        trace::set(Detail::Reduced);
        atomically(|tx| tx.read(cell)) == 1
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for number in 0..4 {
            let is_over = &is_over;
            scope.spawn(move || {
                let own = TCell::new(1);
                while !is_over.load(Ordering::Relaxed) {
                    assert!(if number % 2 == 0 { wait(&own).is_err() } else { record(&own) });
                }
            });
        }
        let own = TCell::new(1);
        let failed = (0..FORKS).find(|_| !in_child(|| wait(&own).is_err() && record(&own)));
        assert_eq!(failed, None, "number of the fork that failed");
    });
    trace::set(Detail::Off);
}
