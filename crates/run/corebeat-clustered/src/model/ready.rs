//! Models of the ready objects that have a protocol of their own.

use super::{Watched, check, spawn};
use crate::{AdaptiveCounter, BiasedLock, Map, Owner, Pool, event, limbo};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fault;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number that only one may write at a time, while nobody reads: loom sees to that.
struct Number(UnsafeCell<u32>);

// SAFETY: whether it is used as it must be is what the models are about.
unsafe impl Sync for Number {}

impl Number {
    fn new() -> Number {
        Number(UnsafeCell::new(0))
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|number| unsafe { *number })
    }

    fn add(&self) {
        // SAFETY: as above.
        self.0.with_mut(|number| unsafe { *number += 1 });
    }
}

/// One reads, the other writes and reads.
#[test]
fn loom_lock_keeps_readers_and_writers_apart() {
    check(3, || {
        let lock = Arc::new(BiasedLock::new(Number::new()));
        let own = lock.clone();
        let reader = spawn(move || own.read().read());
        lock.write().add();
        assert!(reader.join().unwrap() <= 1);
        assert_eq!(lock.read().read(), 1);
    });
}

/// Two write, and one of them has read before.
#[test]
fn loom_lock_keeps_writers_apart() {
    check(2, || {
        let lock = Arc::new(BiasedLock::new(Number::new()));
        let own = lock.clone();
        let other = spawn(move || {
            own.read().read();
            own.write().add();
        });
        lock.write().add();
        other.join().unwrap();
        assert_eq!(lock.read().read(), 2);
    });
}

/// One gives more back than it keeps, the other gets one of these or a new one.
#[test]
fn loom_object_of_a_pool_is_with_one_at_a_time() {
    check(3, || {
        let pool = Arc::new(Pool::new(|| Box::new(Number::new())));
        let own = pool.clone();
        let other = spawn(move || own.get().add());
        let three = [pool.get(), pool.get(), pool.get()];
        three.iter().for_each(|object| object.add());
        drop(three);
        other.join().unwrap();
        pool.get().add();
    });
}

/// One clones and drops references while the other drops the owner.
#[test]
fn loom_shared_value_is_there_until_its_last_reference_goes() {
    struct Told(Watched, Arc<AtomicUsize>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    check(2, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let owner = Owner::new(Told(Watched::new(), dropped.clone()));
        let share = owner.share();
        let other = spawn(move || {
            let more = share.clone();
            drop(share);
            more.0.look();
        });
        drop(owner);
        other.join().unwrap();
        limbo::sweep();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

/// One adds while the other swaps, and looks: nothing is lost, nothing is there twice.
#[test]
fn loom_counter_swapped_while_added_to_has_all_of_it_once() {
    check(2, || {
        let counter = Arc::new(AdaptiveCounter::default());
        let own = counter.clone();
        let other = spawn(move || {
            own.add(1);
            own.add(1);
        });
        assert!(counter.spread());
        assert!((0..=2).contains(&counter.value()));
        other.join().unwrap();
        assert_eq!(counter.value(), 2);
        assert!(counter.gather() && !counter.is_spread());
        assert_eq!(counter.value(), 2);
    });
}

/// One looks for a key that is there all the time. The other adds one to the same part, which moves to another table, and replaces the value.
#[test]
fn loom_key_that_stays_is_found_while_its_map_grows() {
    let hash = |key: u64| BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
    let other = (1..).find(|key| hash(*key) >> 63 == hash(0) >> 63).expect("half of them are");
    check(2, move || {
        let map = Arc::new(Map::new());
        map.insert(0, Watched::new());
        let own = map.clone();
        let reader = spawn(move || event(|event| own.get(event, &0).expect("it stays").look()));
        map.insert(other, Watched::new());
        map.insert(0, Watched::new());
        limbo::sweep();
        reader.join().unwrap();
    });
}

#[test]
fn loom_planted_faults_in_ready_objects_are_noticed() {
    let lock = "ready::loom_lock_keeps_readers_and_writers_apart";
    let pool = "ready::loom_object_of_a_pool_is_with_one_at_a_time";
    let shared = "ready::loom_shared_value_is_there_until_its_last_reference_goes";
    let map = "ready::loom_key_that_stays_is_found_while_its_map_grows";
    // Who finds a slot of the old table cleared is to find the new one: this store alone.
    let store = "ptr::null_mut(), Ordering::Release";
    let line =
        include_str!("../link.rs").lines().position(|line| line.contains(store)).expect("it is there") + 1;
    let cleared = format!("release link.rs:{line}");
    for (model, fault) in [
        (map, cleared.as_str()),
        (lock, "light lock.rs"),
        (lock, "heavy lock.rs"),
        (lock, "release lock.rs"),
        (lock, "acquire lock.rs"),
        (pool, "release pool.rs"),
        (pool, "acquire pool.rs"),
        (shared, "release shared.rs"),
        (shared, "acquire shared.rs"),
    ] {
        assert!(fault::is_noticed(model, fault), "{model} with {fault}");
    }
}
