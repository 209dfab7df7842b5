//! Small cases of all functions: small enough for Miri, which is a thousand times slower.

mod common;

use common::beside_another;
use corebeat_stm::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Number of rounds of a loop.
const ROUNDS: usize = if cfg!(miri) { 16 } else { 20_000 };

/// Counts its live instances.
struct Counted(Arc<AtomicUsize>, u64);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, value: u64) -> Arc<Counted> {
        alive.fetch_add(1, Ordering::SeqCst);
        Arc::new(Counted(alive.clone(), value))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Reclaims until `rest` values are live. Other tests of this process may be in transactions.
fn reclaim_to(alive: &AtomicUsize, rest: usize) {
    while alive.load(Ordering::SeqCst) > rest {
        reclaim();
        thread::yield_now();
    }
    assert_eq!(alive.load(Ordering::SeqCst), rest);
}

#[test]
fn words_of_all_types_are_read_as_written() {
    fn check<W: Word + PartialEq + std::fmt::Debug>(words: &[W]) {
        let cell = TCell::new(words[0]);
        for &word in words {
            atomically(|tx| tx.write(&cell, word));
            assert_eq!(snapshot(|tx| tx.read(&cell)), word);
        }
        assert_eq!(Some(&cell.into_inner()), words.last());
    }
    check(&[0u8, u8::MAX]);
    check(&[i8::MIN, -1, i8::MAX]);
    check(&[i32::MIN, -1, 0]);
    check(&[u64::MAX, 1]);
    check(&[i64::MIN, i64::MAX]);
    check(&[usize::MAX]);
    check(&[true, false]);
    check(&['ä', '\u{10ffff}']);
    check(&[-0.5f64, f64::INFINITY]);
    check(&[1.25f32, -3.5]);
    check(&[()]);
    check(&[None, Some(0u32), Some(u32::MAX)]);
}

#[test]
fn two_threads_add_and_no_sum_is_lost() {
    let cells = [TCell::new(0u64), TCell::new(0u64)];
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    atomically(|tx| {
                        let n = tx.read(&cells[0])?;
                        tx.write(&cells[0], n + 1)?;
                        tx.update(&cells[1], |n| n + 1)
                    });
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let (a, b) = snapshot(|tx| Ok((tx.read(&cells[0])?, tx.read(&cells[1])?)));
                assert_eq!(a, b);
            }
        });
    });
    assert_eq!(cells.map(TCell::into_inner), [2 * ROUNDS as u64; 2]);
}

#[test]
fn attempt_never_reads_half_of_a_commit() {
    let cells = [TCell::new(0i64), TCell::new(0i64)];
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                atomically(|tx| {
                    tx.update(&cells[0], |n| n + 1)?;
                    tx.update(&cells[1], |n| n - 1)
                });
            }
        });
        for _ in 0..ROUNDS {
            atomically(|tx| {
                let sum = tx.read(&cells[0])? + tx.read(&cells[1])?;
                // Also in aborted attempts.
                assert_eq!(sum, 0);
                tx.update(&cells[0], |n| n)
            });
        }
    });
}

#[test]
fn values_are_dropped_once_after_their_last_read() {
    let alive = Arc::new(AtomicUsize::new(0));
    let cell = TCell::new(Counted::new(&alive, 0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for n in 1..=ROUNDS as u64 {
                    atomically(|tx| tx.write(&cell, Counted::new(&alive, n)));
                }
            });
        }
        for _ in 0..ROUNDS {
            assert!(snapshot(|tx| Ok(tx.read(&cell)?.1)) <= ROUNDS as u64);
            let kept = atomically(|tx| tx.share(&cell));
            assert!(kept.1 <= ROUNDS as u64);
        }
    });
    reclaim_to(&alive, 1);
    drop(cell);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn value_written_by_an_aborted_attempt_is_dropped() {
    let alive = Arc::new(AtomicUsize::new(0));
    let cell = TCell::new(None);
    let attempts = Cell::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| {
        atomically(|tx| {
            tx.write(&cell, Some(Counted::new(&alive, 1)))?;
            tx.write(&cell, Some(Counted::new(&alive, 2)))?;
            attempts.set(attempts.get() + 1);
            assert_eq!(tx.read(&cell)?.map(|c| c.1), Some(2));
            if attempts.get() == 1 {
                panic!("expected panic");
            }
            Ok(())
        })
    }));
    assert!(result.is_err());
    assert!(snapshot(|tx| Ok(tx.read(&cell)?.is_none())), "the write was undone");
    reclaim_to(&alive, 0);
    atomically(|tx| tx.write(&cell, Some(Counted::new(&alive, 3))));
    reclaim_to(&alive, 1);
}

struct Node {
    key: u64,
    next: TCell<Option<Arc<Node>>>,
}

fn insert(head: &TCell<Option<Arc<Node>>>, key: u64) {
    atomically(|tx| {
        let mut at = head;
        while let Some(node) = tx.read(at)? {
            if node.key >= key {
                break;
            }
            at = &node.next;
        }
        let next = TCell::new(tx.share(at)?);
        tx.write(at, Some(Arc::new(Node { key, next })))
    });
}

fn remove(head: &TCell<Option<Arc<Node>>>, key: u64) -> bool {
    atomically(|tx| {
        let mut at = head;
        while let Some(node) = tx.read(at)? {
            if node.key == key {
                let rest = tx.share(&node.next)?;
                tx.write(at, rest)?;
                return Ok(true);
            }
            at = &node.next;
        }
        Ok(false)
    })
}

#[test]
fn list_is_traversed_while_others_remove_nodes() {
    let head = TCell::new(None);
    (0..8).for_each(|key| insert(&head, key));
    thread::scope(|scope| {
        for parity in 0..2 {
            let head = &head;
            scope.spawn(move || {
                for round in 0..ROUNDS as u64 / 4 {
                    let key = round % 4 * 2 + parity;
                    assert!(remove(head, key));
                    insert(head, key);
                }
            });
        }
        for _ in 0..ROUNDS / 4 {
            let keys = snapshot(|tx| {
                let mut keys = Vec::new();
                let mut at = &head;
                while let Some(node) = tx.read(at)? {
                    keys.push(node.key);
                    at = &node.next;
                }
                Ok(keys)
            });
            assert!(keys.is_sorted() && (6..=8).contains(&keys.len()), "{keys:?}");
        }
    });
    assert!((0..8).all(|key| remove(&head, key)));
}

#[test]
fn retry_waits_until_a_read_cell_changes() {
    let (full, item) = (TCell::new(false), TCell::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..ROUNDS / 2 {
                atomically(|tx| {
                    if tx.read(&full)? {
                        return tx.retry();
                    }
                    tx.write(&item, n)?;
                    tx.write(&full, true)
                });
            }
        });
        for n in 0..ROUNDS / 2 {
            let got = snapshot(|tx| {
                if !tx.read(&full)? {
                    return tx.retry();
                }
                tx.write(&full, false)?;
                tx.read(&item)
            });
            assert_eq!(got, n);
        }
    });
}

#[test]
fn retry_ends_at_its_time_limit_or_with_a_change() {
    let (flag, written) = (TCell::new(false), TCell::new(0));
    let wait = |timeout| {
        atomically_timeout(timeout, |tx| {
            tx.update(&written, |n| n + 1)?;
            if tx.read(&flag)? { Ok(()) } else { tx.retry() }
        })
    };
    for timeout in [Duration::ZERO, Duration::from_millis(2)] {
        assert_eq!(wait(timeout), Err(TimedOut));
    }
    // Nothing is left of the time limit, also after a panic.
    let panics = || atomically_timeout::<()>(Duration::ZERO, |_| panic!("expected panic"));
    assert!(catch_unwind(panics).is_err());
    for timeout in [None, Some(Duration::from_secs(1_000_000)), Some(Duration::MAX)] {
        atomically(|tx| tx.write(&flag, false));
        let is_waiting = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_waiting.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                atomically(|tx| tx.write(&flag, true));
            });
            let waits = |tx: &mut Tx<'_, '_>| {
                is_waiting.store(true, Ordering::SeqCst);
                tx.retry()
            };
            match timeout {
                None => atomically(|tx| if tx.read(&flag)? { Ok(()) } else { waits(tx) }),
                Some(timeout) => {
                    atomically_timeout(
                        timeout,
                        |tx| {
                            if tx.read(&flag)? { Ok(()) } else { waits(tx) }
                        },
                    )
                    .unwrap()
                }
            }
        });
    }
    assert_eq!(wait(Duration::ZERO), Ok(()));
    assert_eq!(written.into_inner(), 1);
}

#[test]
fn retry_after_a_write_waits_for_others() {
    let (flag, scratch) = (TCell::new(false), TCell::new(0));
    let waits = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !waits.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            atomically(|tx| tx.write(&flag, true));
        });
        atomically(|tx| {
            tx.update(&scratch, |n| n + 1)?;
            let scratch = tx.read(&scratch)?;
            assert_eq!(scratch, 1);
            if !tx.read(&flag)? {
                waits.store(true, Ordering::SeqCst);
                return tx.retry();
            }
            tx.write(&flag, false)
        });
    });
    assert_eq!((flag.into_inner(), scratch.into_inner()), (false, 1));
}

#[test]
fn or_else_undoes_only_its_first_part() {
    let (a, b) = (TCell::new(1), TCell::new(Arc::new(1)));
    let result = atomically(|tx| {
        tx.write(&a, 2)?;
        tx.or_else(
            |tx| {
                tx.write(&a, 3)?;
                tx.write(&b, Arc::new(3))?;
                tx.or_else(
                    |tx| {
                        tx.write(&a, 4)?;
                        tx.retry()
                    },
                    |tx| {
                        assert_eq!(tx.read(&a)?, 3);
                        tx.retry()
                    },
                )
            },
            |tx| {
                assert_eq!((tx.read(&a)?, *tx.read(&b)?), (2, 1));
                tx.update(&b, |old| Arc::new(old + 4))?;
                Ok("second")
            },
        )
    });
    assert_eq!((result, a.into_inner(), *b.into_inner()), ("second", 2, 5));
}

#[test]
fn or_else_keeps_its_first_part() {
    let a = TCell::new(1);
    let first = atomically(|tx| {
        tx.or_else(
            |tx| {
                tx.write(&a, 3)?;
                tx.write(&a, 4)?;
                Ok(true)
            },
            |_| Ok(false),
        )
    });
    assert_eq!((first, a.into_inner()), (true, 4));
}

#[test]
fn irrevocable_transaction_runs_once() {
    let (cells, runs) = ([TCell::new(0u64), TCell::new(0u64)], AtomicUsize::new(0));
    let rounds = ROUNDS / 10;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    atomically(|tx| {
                        tx.update(&cells[1], |n| n + 1)?;
                        tx.update(&cells[0], |n| n + 1)
                    });
                }
            });
            scope.spawn(|| {
                for _ in 0..rounds {
                    atomically(|tx| {
                        let first = tx.read(&cells[0])?;
                        tx.irrevocable()?;
                        runs.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(tx.read(&cells[1])?, first);
                        tx.write(&cells[0], first + 1)?;
                        tx.update(&cells[1], |n| n + 1)
                    });
                }
            });
        }
    });
    assert_eq!(runs.into_inner(), 2 * rounds);
    assert_eq!(cells.map(TCell::into_inner), [2 * (ROUNDS + rounds) as u64; 2]);
}

#[test]
fn panic_undoes_the_attempt_and_propagates() {
    let (a, b) = (TCell::new(1), TCell::new(Arc::new(1)));
    for irrevocable in [false, true] {
        let result = catch_unwind(AssertUnwindSafe(|| {
            atomically(|tx| {
                if irrevocable {
                    tx.irrevocable()?;
                }
                tx.write(&a, 2)?;
                tx.update(&b, |_| panic!("expected panic"))
            })
        }));
        assert_eq!(result.unwrap_err().downcast_ref(), Some(&"expected panic"));
    }
    // All locks and the gate are free.
    thread::scope(|scope| {
        scope.spawn(|| atomically(|tx| tx.update(&a, |n| n + 1))).join().unwrap()
    });
    assert_eq!((a.into_inner(), *b.into_inner()), (2, 1));
}

#[test]
fn nested_transaction_panics() {
    let cell = TCell::new(1);
    let result = catch_unwind(AssertUnwindSafe(|| {
        atomically(|tx| {
            tx.write(&cell, 2)?;
            atomically(|tx| tx.write(&cell, 3));
            Ok(())
        })
    }));
    let why = *result.unwrap_err().downcast::<&str>().unwrap();
    assert!(why.contains("pass `tx` on"), "{why}");
    // If the closure catches the panic, the outer transaction continues.
    atomically(|tx| {
        tx.update(&cell, |n| n + 10)?;
        assert!(catch_unwind(|| atomically(|_| Ok(()))).is_err());
        tx.update(&cell, |n| n + 10)
    });
    assert_eq!(cell.into_inner(), 21);
}

#[test]
fn retry_without_a_read_panics() {
    let result = catch_unwind(|| atomically(|tx| tx.retry::<()>()));
    assert!(result.is_err());
    let cell = TCell::new(1);
    let result = catch_unwind(AssertUnwindSafe(|| {
        atomically(|tx| {
            tx.irrevocable()?;
            tx.write(&cell, 2)?;
            tx.retry::<()>()
        })
    }));
    assert!(result.is_err());
    assert_eq!(atomically(|tx| tx.read(&cell)), 1);
}

#[test]
fn attempt_that_ignores_an_error_does_not_commit() {
    let failed = TCell::new(0);
    let sum = snapshot(|tx| {
        // The first attempt is a snapshot, so the write fails.
        let _ = tx.write(&failed, 5);
        tx.read(&failed)
    });
    assert_eq!(sum, 5);
    for case in ["retry", "before or_else", "in or_else", "before irrevocable"] {
        let (cell, is_first) = (TCell::new(0), Cell::new(true));
        let read = atomically(|tx| {
            let read = tx.read(&cell)?;
            if !is_first.replace(false) {
                return Ok(read);
            }
            // So the transaction does not sleep.
            thread::scope(|scope| {
                scope.spawn(|| atomically(|tx| tx.write(&cell, 1)));
            });
            if case == "in or_else" {
                tx.or_else(|tx| Ok(tx.retry::<()>().is_err()), |_| Ok(false))?;
                return Ok(read);
            }
            let _ = tx.retry::<()>();
            match case {
                "before or_else" => drop(tx.or_else(|tx| tx.retry::<()>(), |_| Ok(()))),
                "before irrevocable" => drop(tx.irrevocable()),
                _ => {}
            }
            Ok(read)
        });
        assert_eq!(read, 1, "{case}");
    }
}

#[test]
fn destructors_may_run_transactions() {
    struct Last(Arc<TCell<u64>>);
    impl Drop for Last {
        fn drop(&mut self) {
            atomically(|tx| tx.update(&self.0, |n| n + 1));
        }
    }
    let dropped = Arc::new(TCell::new(0u64));
    let cell = TCell::new(Arc::new(Last(dropped.clone())));
    for _ in 0..ROUNDS {
        atomically(|tx| tx.write(&cell, Arc::new(Last(dropped.clone()))));
    }
    while snapshot(|tx| tx.read(&dropped)) < ROUNDS as u64 {
        reclaim();
        thread::yield_now();
    }
}

#[test]
fn destructors_do_not_nest_by_transactions_that_they_run() {
    thread_local! {
        static DEPTH: Cell<usize> = const { Cell::new(0) };
        static DEPTH_MAX: Cell<usize> = const { Cell::new(0) };
    }
    /// Replaces the value of a cell, and so retires another value.
    struct Replaces(Arc<TCell<Arc<u64>>>);
    impl Drop for Replaces {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() + 1);
            DEPTH_MAX.set(DEPTH_MAX.get().max(DEPTH.get()));
            atomically(|tx| tx.write(&self.0, Arc::new(1)));
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    let replaced = Arc::new(TCell::new(Arc::new(0)));
    let cell = TCell::new(Arc::new(Replaces(replaced.clone())));
    while DEPTH_MAX.get() == 0 {
        for _ in 0..ROUNDS {
            atomically(|tx| tx.write(&cell, Arc::new(Replaces(replaced.clone()))));
        }
    }
    assert_eq!(DEPTH_MAX.get(), 1);
}

#[test]
fn commit_frees_few_values_that_others_have_retired_long_ago() {
    /// More than a commit frees, and fewer than share a grace period.
    const FEW: usize = 16;
    beside_another(|| {
        let alive = Arc::new(AtomicUsize::new(0));
        let cell = TCell::new(Counted::new(&alive, 0));
        for _ in 0..ROUNDS {
            let before = alive.load(Ordering::SeqCst);
            atomically(|tx| tx.write(&cell, Counted::new(&alive, 0)));
            assert!(alive.load(Ordering::SeqCst) + FEW > before);
        }
    });
}

#[test]
fn retired_values_of_an_ended_thread_are_freed_by_others() {
    let alive = Arc::new(AtomicUsize::new(0));
    let cell = Arc::new(TCell::new(Counted::new(&alive, 0)));
    for n in 0..4 {
        let (cell, alive) = (cell.clone(), alive.clone());
        thread::spawn(move || atomically(|tx| tx.write(&cell, Counted::new(&alive, n))))
            .join()
            .unwrap();
    }
    reclaim_to(&alive, 1);
}

#[test]
fn counters_report_commits_and_causes() {
    let before = counters();
    let cell = TCell::new(0);
    for _ in 0..10 {
        atomically(|tx| tx.update(&cell, |n| n + 1));
    }
    snapshot(|tx| tx.write(&cell, 0));
    let after = counters();
    // Transactions of other tests are counted as well.
    assert!(after.commits >= before.commits + 11);
    assert!(after.aborts.snapshot > before.aborts.snapshot);
    assert_eq!(after.aborts.of(Cause::Snapshot), after.aborts.snapshot);
    assert!(after.aborts.total() > before.aborts.total());
}

#[test]
fn long_list_of_cells_is_dropped_on_a_small_stack() {
    struct Node {
        _next: TCell<Option<Arc<Node>>>,
        dropped: Arc<AtomicUsize>,
    }
    impl Drop for Node {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
    const NODES: usize = if cfg!(miri) { 100 } else { 200_000 };
    let dropped = Arc::new(AtomicUsize::new(0));
    let list = || {
        (0..NODES).fold(TCell::new(None), |next, _| {
            TCell::new(Some(Arc::new(Node { _next: next, dropped: dropped.clone() })))
        })
    };
    drop(list());
    assert_eq!(dropped.swap(0, Ordering::Relaxed), NODES);
    // A replaced list is dropped with all its nodes.
    let list = list();
    atomically(|tx| tx.write(&list, None));
    while dropped.load(Ordering::Relaxed) < NODES {
        reclaim();
    }
}

#[test]
fn cells_of_a_value_whose_destructor_panics_are_dropped() {
    struct Loud {
        _next: TCell<Option<Arc<Loud>>>,
        dropped: Arc<AtomicUsize>,
    }
    impl Drop for Loud {
        fn drop(&mut self) {
            // Every second destructor panics.
            if self.dropped.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
                && !thread::panicking()
            {
                std::panic::resume_unwind(Box::new(()));
            }
        }
    }
    const NODES: usize = 9;
    let dropped = Arc::new(AtomicUsize::new(0));
    for round in 1..3 {
        let list = (0..NODES).fold(TCell::new(None), |next, _| {
            TCell::new(Some(Arc::new(Loud { _next: next, dropped: dropped.clone() })))
        });
        assert!(catch_unwind(AssertUnwindSafe(|| drop(list))).is_err());
        assert_eq!(dropped.load(Ordering::Relaxed), round * NODES);
    }
}

#[test]
fn long_list_of_cells_is_dropped_on_a_small_stack_when_its_thread_ends() {
    struct Node {
        _next: TCell<Option<Arc<Node>>>,
    }
    const NODES: usize = if cfg!(miri) { 100 } else { 200_000 };
    let list = |nodes| {
        (0..nodes)
            .fold(TCell::new(None), |next, _| TCell::new(Some(Arc::new(Node { _next: next }))))
    };
    thread_local! {
        static LIST: Cell<Option<TCell<Option<Arc<Node>>>>> = const { Cell::new(None) };
    }
    let keeps = move || {
        LIST.set(Some(list(NODES)));
        // Thread-local data that the destructors use may be gone before the list.
        drop(list(1));
    };
    thread::spawn(keeps).join().unwrap();
}
