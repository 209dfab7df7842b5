//! Models of the protocols: small cases, over every interleaving and every outcome that the memory
//! orderings allow.
//!
//! `cargo xtask ci --only loom` runs them. Planted faults show that the models detect mistakes:
//! each fault that is named here must fail its model.

use crate::contention::{self, Suicide};
use crate::descriptor::{Current, leave};
use crate::global::GLOBAL;
use crate::lock::{self, Lock};
use crate::place::Place;
use crate::slot::Slots;
use crate::waiter::wake;
use crate::{TCell, atomically, reclaim, snapshot};
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::fault::{self, Watched};
use corebeat_sync::thread::{self, JoinHandle, Thread};
use corebeat_sync::wait::Suspend;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// Checks a model with at most this number of `preemptions`.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    fault::check(preemptions, leave, move || {
        contention::set(&Suicide);
        model();
    });
}

fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    fault::spawn(leave, f)
}

/// Creates cells that several threads share.
fn cells<const N: usize>() -> Arc<[TCell<u64>; N]> {
    Arc::new(std::array::from_fn(|_| TCell::new(0)))
}

/// Reads one cell and writes another one in a transaction. Returns the value read.
fn read_and_write(from: &TCell<u64>, to: &TCell<u64>) -> u64 {
    atomically(|tx| {
        let read = tx.read(from)?;
        tx.write(to, 1)?;
        Ok(read)
    })
}

/// A reads both writes of B or neither, also in an attempt that aborts.
#[test]
fn loom_attempt_reads_all_of_a_commit_or_nothing() {
    check(2, || {
        let cells = cells::<2>();
        let own = cells.clone();
        let writer = spawn(move || {
            atomically(|tx| {
                tx.write(&own[0], 1)?;
                tx.write(&own[1], 1)
            });
        });
        let read = snapshot(|tx| {
            let read = (tx.read(&cells[0])?, tx.read(&cells[1])?);
            assert_eq!(read.0, read.1);
            Ok(read.0)
        });
        writer.join().unwrap();
        assert!(read <= 1);
        assert_eq!(atomically(|tx| tx.read(&cells[1])), 1);
    });
}

/// A third thread advances the clock during a commit.
#[test]
fn loom_commit_is_visible_when_the_clock_reaches_its_version() {
    check(2, || {
        let cells = cells::<3>();
        let (own, others) = (cells.clone(), cells.clone());
        let writer = spawn(move || {
            atomically(|tx| {
                tx.write(&own[0], 1)?;
                tx.write(&own[1], 1)
            });
        });
        let other = spawn(move || {
            // For the second transaction, the version of the first one is from the future.
            atomically(|tx| tx.write(&others[2], 1));
            atomically(|tx| tx.update(&others[2], |n| n + 1));
        });
        let read = snapshot(|tx| {
            let read = (tx.read(&cells[1])?, tx.read(&cells[2])?, tx.read(&cells[0])?);
            assert_eq!(read.0, read.2);
            Ok(read)
        });
        assert!(read.1 <= 2);
        writer.join().unwrap();
        other.join().unwrap();
    });
}

/// Each of two transactions reads the cell that the other writes: one of them comes first.
#[test]
fn loom_commits_that_read_from_each_other_have_an_order() {
    check(2, || {
        let cells = cells::<2>();
        let own = cells.clone();
        let other = spawn(move || read_and_write(&own[0], &own[1]));
        let read = read_and_write(&cells[1], &cells[0]);
        assert_eq!(read + other.join().unwrap(), 1);
    });
}

/// As above, and one of them is the sole writer, which does not validate its reads.
#[test]
fn loom_commit_of_the_sole_writer_has_an_order() {
    check(2, || {
        let cells = cells::<2>();
        let own = cells.clone();
        let other = spawn(move || read_and_write(&own[0], &own[1]));
        assert!(Current::take().get().claim());
        let read = read_and_write(&cells[1], &cells[0]);
        assert_eq!(read + other.join().unwrap(), 1);
    });
}

/// The sole writer reads its own last commit, whose version is from the future, and all of another
/// commit or nothing.
#[test]
fn loom_sole_writer_reads_all_of_a_commit_or_nothing() {
    check(2, || {
        let cells = cells::<3>();
        let own = cells.clone();
        let other = spawn(move || {
            atomically(|tx| {
                tx.write(&own[0], 1)?;
                tx.write(&own[1], 1)
            });
        });
        assert!(Current::take().get().claim());
        atomically(|tx| tx.write(&cells[2], 1));
        atomically(|tx| {
            let read = (tx.read(&cells[0])?, tx.read(&cells[2])?, tx.read(&cells[1])?);
            assert_eq!((read.0, read.1), (read.2, 1));
            tx.write(&cells[2], 2)
        });
        other.join().unwrap();
    });
}

/// No transaction reads the writes of an aborted attempt.
#[test]
fn loom_undone_write_is_not_read() {
    check(3, || {
        let cells = cells::<1>();
        let own = cells.clone();
        let writer = spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                atomically(|tx| {
                    tx.write(&own[0], 1)?;
                    // A panic without a message.
                    resume_unwind(Box::new(()));
                    #[expect(unreachable_code, reason = "the closure has a type")]
                    Ok(())
                })
            }));
            assert!(result.is_err());
        });
        assert_eq!(snapshot(|tx| tx.read(&cells[0])), 0);
        writer.join().unwrap();
        assert_eq!(atomically(|tx| tx.read(&cells[0])), 0);
    });
}

/// A value that was read between two loads of a free, unchanged lock is committed.
#[test]
fn loom_value_under_a_free_lock_is_committed() {
    check(3, || {
        let value = std::ptr::without_provenance_mut;
        let pair = Arc::new((Lock::new(), Place::new(value(0))));
        let own = pair.clone();
        let owner = lock::owner(Slots::acquire());
        let writer = spawn(move || {
            let (lock, place) = &*own;
            assert!(lock.try_acquire(0, owner));
            place.store(value(1));
            place.store(value(2));
            lock.release(1);
        });
        let (lock, place) = &*pair;
        let observed = lock.load();
        let read = place.load().addr();
        if lock.is_unchanged(observed) && observed <= lock::VERSION_MAX {
            assert_eq!((observed, read), if observed == 0 { (0, 0) } else { (1, 2) });
        }
        writer.join().unwrap();
    });
}

/// A waiting transaction is woken: otherwise the model ends in a deadlock.
#[test]
fn loom_retry_is_woken() {
    check(2, || {
        let cells = cells::<1>();
        let own = cells.clone();
        let waiter = spawn(move || {
            atomically(|tx| if tx.read(&own[0])? == 0 { tx.retry() } else { Ok(()) });
        });
        atomically(|tx| tx.write(&cells[0], 1));
        waiter.join().unwrap();
    });
}

/// As above, after a write that was undone, and by the sole writer: its next commit would have the
/// version of its last one.
#[test]
fn loom_retry_after_a_write_is_woken_by_the_sole_writer() {
    check(2, || {
        let cells = cells::<2>();
        let own = cells.clone();
        assert!(Current::take().get().claim());
        atomically(|tx| tx.write(&cells[1], 1));
        let waiter = spawn(move || {
            atomically(|tx| {
                if tx.read(&own[0])? != 0 {
                    return Ok(());
                }
                tx.write(&own[0], 2)?;
                tx.retry()
            });
        });
        atomically(|tx| tx.write(&cells[0], 1));
        waiter.join().unwrap();
    });
}

/// As `loom_retry_is_woken`, without a transaction.
#[test]
fn loom_waiter_is_woken() {
    check(3, || {
        let lock = Arc::new(Lock::new());
        let own = lock.clone();
        let waiter = thread::spawn(move || {
            let waiting = GLOBAL.waiters.add(own.filter_bit());
            if own.load() == 0 {
                waiting.sleep(None);
            }
        });
        lock.release(1);
        wake(|| lock.filter_bit());
        waiter.join().unwrap();
    });
}

/// A waiter is dropped while a commit wakes it, or does not, and another one waits: the list is
/// right afterwards, and the other waiter is woken.
#[test]
fn loom_dropped_waiter_leaves_the_list_as_it_is() {
    check(2, || {
        let lock = Arc::new(Lock::new());
        let (own, other) = (lock.clone(), lock.clone());
        let dropped = thread::spawn(move || drop(GLOBAL.waiters.add(own.filter_bit())));
        let waiter = thread::spawn(move || {
            let waiting = GLOBAL.waiters.add(other.filter_bit());
            if other.load() == 0 {
                assert!(waiting.sleep(None));
            }
        });
        lock.release(1);
        wake(|| lock.filter_bit());
        dropped.join().unwrap();
        waiter.join().unwrap();
        assert!(GLOBAL.waiters.is_empty());
    });
}

/// A task of a scheduler that suspends its tasks by parking their threads.
struct TestTask {
    event: Arc<Event>,
    /// Whether the time of each wait is over at once.
    is_late: bool,
}

struct Event {
    is_over: AtomicBool,
    thread: Thread,
}

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        // Release: pairs with the acquire in `suspend`.
        self.is_over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Suspend for TestTask {
    fn waker(&self) -> Waker {
        self.event.clone().into()
    }

    fn suspend(&mut self, _: Option<Duration>) -> bool {
        // Acquire: pairs with the release in `wake`.
        while !self.is_late && !self.event.is_over.load(Ordering::Acquire) {
            thread::park();
        }
        self.event.is_over.load(Ordering::Acquire)
    }
}

/// Checks a task that waits for a lock that another thread releases.
fn check_task(is_late: bool) {
    check(3, move || {
        let lock = Arc::new(Lock::new());
        let effect = Arc::new(AtomicBool::new(false));
        let (own, own_effect) = (lock.clone(), effect.clone());
        let waiter = thread::spawn(move || {
            let event = Event { is_over: AtomicBool::new(false), thread: thread::current() };
            let task = TestTask { event: Arc::new(event), is_late };
            let waiting = GLOBAL.waiters.add_caller(own.filter_bit(), Some(Box::new(task)));
            if own.load() == 0 {
                let is_woken = waiting.sleep(None);
                assert!(is_late || is_woken);
                // Relaxed: the wake-up makes the effect visible.
                assert!(!is_woken || own_effect.load(Ordering::Relaxed));
            }
        });
        effect.store(true, Ordering::Relaxed);
        lock.release(1);
        wake(|| lock.filter_bit());
        waiter.join().unwrap();
        assert!(GLOBAL.waiters.is_empty());
    });
}

#[test]
fn loom_suspended_task_is_woken() {
    check_task(false);
}

/// The time of the task is over while a commit wakes it, or before.
#[test]
fn loom_late_task_leaves_no_waiter() {
    check_task(true);
}

#[test]
fn loom_value_is_dropped_after_it_was_read() {
    check(2, || {
        let cell = Arc::new(TCell::new(Arc::new(Watched::new())));
        let own = cell.clone();
        let reader = spawn(move || snapshot(|tx| Ok(tx.read(&own)?.check())));
        atomically(|tx| tx.write(&cell, Arc::new(Watched::new())));
        reclaim();
        reader.join().unwrap();
    });
}

/// No transaction changes a cell that an irrevocable transaction has read.
#[test]
fn loom_irrevocable_transaction_does_not_fail() {
    check(2, || {
        let cells = cells::<2>();
        let own = cells.clone();
        let writer = spawn(move || {
            atomically(|tx| {
                tx.update(&own[0], |n| n + 1)?;
                tx.update(&own[1], |n| n + 1)
            });
        });
        let mut runs = 0;
        atomically(|tx| {
            tx.irrevocable()?;
            runs += 1;
            let read = tx.read(&cells[0])?;
            assert_eq!(tx.read(&cells[1])?, read);
            tx.write(&cells[0], read + 1)
        });
        assert_eq!(runs, 1);
        writer.join().unwrap();
        assert_eq!(atomically(|tx| Ok((tx.read(&cells[0])?, tx.read(&cells[1])?))), (2, 1));
    });
}

#[test]
fn loom_planted_faults_are_detected() {
    // A model cannot weaken `SeqCst` accesses: see `clock::load_latest`. `corebeat-reclaim`
    // contains the models of readers and retired values.
    fault::assert_noticed(&[
        ("loom_attempt_reads_all_of_a_commit_or_nothing", "acquire lock.rs"),
        ("loom_attempt_reads_all_of_a_commit_or_nothing", "release lock.rs"),
        ("loom_value_under_a_free_lock_is_committed", "acquire place.rs"),
        ("loom_value_under_a_free_lock_is_committed", "release place.rs"),
        ("loom_value_is_dropped_after_it_was_read", "light presence.rs"),
        ("loom_value_is_dropped_after_it_was_read", "heavy retired.rs"),
        ("loom_value_is_dropped_after_it_was_read", "acquire presence.rs"),
        ("loom_value_is_dropped_after_it_was_read", "release presence.rs"),
        ("loom_waiter_is_woken", "light waiter.rs"),
        ("loom_waiter_is_woken", "heavy waiter.rs"),
        ("loom_retry_is_woken", "heavy waiter.rs"),
        ("loom_dropped_waiter_leaves_the_list_as_it_is", "heavy waiter.rs"),
        ("loom_suspended_task_is_woken", "light waiter.rs"),
        ("loom_suspended_task_is_woken", "heavy waiter.rs"),
        ("loom_late_task_leaves_no_waiter", "acquire waiter.rs"),
    ]);
}
