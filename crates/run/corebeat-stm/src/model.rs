//! Models of the protocols: small cases, over every interleaving and every outcome that the memory orderings allow.
//!
//! `cargo xtask ci --only loom` runs them. That a model would notice a mistake is shown by planted ones: for each fault that
//! is named here, the model beside it must fail.

use crate::contention::{self, Suicide};
use crate::descriptor::leave;
use crate::global::GLOBAL;
use crate::limbo::{Dead, Limbo};
use crate::lock::{self, Lock};
use crate::place::Place;
use crate::slot::Slots;
use crate::value::{Value as Pointed, form::Form};
use crate::waiter::wake;
use crate::{TCell, atomically, reclaim, snapshot};
use corebeat_sync::asymmetric::{heavy, light};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fault;
use corebeat_sync::thread::{self, JoinHandle};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Runs a model. Beside the switches where a thread cannot go on, each execution has at most so many.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = fault::model(preemptions);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    let check = || {
        builder.check(move || {
            heavy();
            contention::set(&Suicide);
            let model = model.clone();
            // What is the first thread's own is dropped too late, after what is static.
            spawn(move || model()).join().expect("a panic would have ended it");
        });
    };
    fault::run(check);
}

fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    thread::spawn(move || {
        let result = f();
        leave();
        result
    })
}

/// Cells that several threads have.
fn cells<const N: usize>() -> Arc<[TCell<u64>; N]> {
    Arc::new(std::array::from_fn(|_| TCell::new(0)))
}

/// A reads what B writes, both of it or nothing, also if nothing comes of the attempt.
#[test]
fn loom_attempt_sees_all_of_a_commit_or_nothing() {
    check(2, || {
        let cells = cells::<2>();
        let own = cells.clone();
        let writer = spawn(move || {
            atomically(|tx| {
                tx.write(&own[0], 1)?;
                tx.write(&own[1], 1)
            });
        });
        let seen = snapshot(|tx| {
            let seen = (tx.read(&cells[0])?, tx.read(&cells[1])?);
            assert_eq!(seen.0, seen.1);
            Ok(seen.0)
        });
        writer.join().unwrap();
        assert!(seen <= 1);
        assert_eq!(atomically(|tx| tx.read(&cells[1])), 1);
    });
}

/// A third one moves the clock while a commit is under way.
#[test]
fn loom_commit_is_in_sight_when_the_clock_gets_there() {
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
            // Its own commit is from the future for the second.
            atomically(|tx| tx.write(&others[2], 1));
            atomically(|tx| tx.update(&others[2], |n| n + 1));
        });
        let seen = snapshot(|tx| {
            let seen = (tx.read(&cells[1])?, tx.read(&cells[2])?, tx.read(&cells[0])?);
            assert_eq!(seen.0, seen.2);
            Ok(seen)
        });
        assert!(seen.1 <= 2);
        writer.join().unwrap();
        other.join().unwrap();
    });
}

/// Each reads what the other writes: one of them comes first.
#[test]
fn loom_commits_that_read_from_each_other_have_an_order() {
    check(2, || {
        let cells = cells::<2>();
        let own = cells.clone();
        let other = spawn(move || {
            atomically(|tx| {
                let seen = tx.read(&own[0])?;
                tx.write(&own[1], 1)?;
                Ok(seen)
            })
        });
        let seen = atomically(|tx| {
            let seen = tx.read(&cells[1])?;
            tx.write(&cells[0], 1)?;
            Ok(seen)
        });
        assert_eq!(seen + other.join().unwrap(), 1);
    });
}

/// Nobody sees what was written by an attempt that came to nothing.
#[test]
fn loom_what_is_taken_back_is_not_seen() {
    check(3, || {
        let cells = cells::<1>();
        let own = cells.clone();
        let writer = spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                atomically(|tx| {
                    tx.write(&own[0], 1)?;
                    // As a panic, but silent.
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

/// What is read under a lock that was free before and after was written before.
#[test]
fn loom_value_under_a_free_lock_is_committed() {
    check(3, || {
        let value = std::ptr::without_provenance_mut;
        let pair = Arc::new((Lock::new(), Place::new(value(0))));
        let own = pair.clone();
        let owner = lock::owner(Slots::get());
        let writer = spawn(move || {
            let (lock, place) = &*own;
            assert!(lock.take(0, owner));
            place.put(value(1));
            place.put(value(2));
            lock.release(1);
        });
        let (lock, place) = &*pair;
        let seen = lock.look();
        let got = place.get().addr();
        if lock.is_still(seen) && seen <= lock::VERSION_MAX {
            assert_eq!((seen, got), if seen == 0 { (0, 0) } else { (1, 2) });
        }
        writer.join().unwrap();
    });
}

/// Who sleeps is woken: else the model ends in a deadlock.
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

/// The same, without a transaction.
#[test]
fn loom_waiter_is_woken() {
    check(3, || {
        let lock = Arc::new(Lock::new());
        let own = lock.clone();
        let waiter = thread::spawn(move || {
            let slot = Slots::get();
            GLOBAL.waiters.join(slot, own.bit());
            if own.look() == 0 {
                GLOBAL.waiters.sleep(slot);
            } else {
                GLOBAL.waiters.leave(slot);
            }
        });
        lock.release(1);
        wake(|| lock.bit());
        waiter.join().unwrap();
    });
}

/// A value that must not be read when it is dropped.
struct Value(UnsafeCell<u64>);

// SAFETY: it is written before it is shared, and when it is dropped: the model is about that.
unsafe impl Sync for Value {}

impl Value {
    fn read(&self) -> u64 {
        // SAFETY: the same.
        self.0.with(|value| unsafe { *value })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: the same; loom tells if it is not so.
        self.0.with_mut(|value| unsafe { *value = 0 });
    }
}

#[test]
fn loom_value_is_dropped_after_it_was_read() {
    check(2, || {
        let value = |n| Arc::new(Value(UnsafeCell::new(n)));
        let cell = Arc::new(TCell::new(value(1)));
        let own = cell.clone();
        let reader = spawn(move || {
            let read = snapshot(|tx| Ok(tx.read(&own)?.read()));
            assert!(read == 1 || read == 2);
        });
        atomically(|tx| tx.write(&cell, value(2)));
        reclaim();
        reader.join().unwrap();
    });
}

/// The same, without a transaction.
#[test]
fn loom_limbo_waits_for_turns() {
    check(3, || {
        let place = Arc::new(Place::new(Arc::new(Value(UnsafeCell::new(1))).into_pointer()));
        let own = place.clone();
        let reader = thread::spawn(move || {
            let slot = Slots::get();
            slot.begin(1);
            light();
            let pointer = own.get();
            if !pointer.is_null() {
                // SAFETY: the model is about that.
                assert_eq!(unsafe { <Arc<Value> as Pointed>::from_pointer(pointer) }.read(), 1);
            }
            slot.end(2);
        });
        let pointer = place.own();
        place.put(std::ptr::null_mut());
        let mut limbo = Limbo::default();
        limbo.put(Dead { value: pointer, drop: <Arc<Value> as Form>::drop });
        let buried = limbo.sweep().bury() + limbo.sweep().bury();
        reader.join().unwrap();
        assert_eq!(buried + limbo.sweep().bury(), 1);
    });
}

/// Nobody changes what an irrevocable transaction has read.
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
            let seen = tx.read(&cells[0])?;
            assert_eq!(tx.read(&cells[1])?, seen);
            tx.write(&cells[0], seen + 1)
        });
        assert_eq!(runs, 1);
        writer.join().unwrap();
        assert_eq!(atomically(|tx| Ok((tx.read(&cells[0])?, tx.read(&cells[1])?))), (2, 1));
    });
}

#[test]
fn loom_faults_are_noticed() {
    // An access that is `SeqCst` cannot be weaker in a model: see `clock::latest`.
    let faults = [
        ("loom_attempt_sees_all_of_a_commit_or_nothing", "acquire lock.rs"),
        ("loom_attempt_sees_all_of_a_commit_or_nothing", "release lock.rs"),
        ("loom_value_under_a_free_lock_is_committed", "acquire place.rs"),
        ("loom_value_under_a_free_lock_is_committed", "release place.rs"),
        ("loom_limbo_waits_for_turns", "light model.rs"),
        ("loom_limbo_waits_for_turns", "heavy limbo.rs"),
        ("loom_limbo_waits_for_turns", "acquire slot.rs"),
        ("loom_limbo_waits_for_turns", "release slot.rs"),
        ("loom_value_is_dropped_after_it_was_read", "light descriptor.rs"),
        ("loom_waiter_is_woken", "light waiter.rs"),
        ("loom_waiter_is_woken", "heavy waiter.rs"),
        ("loom_retry_is_woken", "heavy waiter.rs"),
    ];
    let missed: Vec<_> = faults.iter().filter(|(model, fault)| !fault::is_noticed(model, fault)).collect();
    assert!(missed.is_empty(), "planted, and not noticed: {missed:?}");
}
