//! Models of the ready objects with their own protocols.

use super::{check, spawn};
use crate::{AdaptiveCounter, BiasedLock, Map, Owner, Pool, read_section, retired};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fault::{self, Watched};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number that one thread may write while no other one reads it. loom checks that.
struct Number(UnsafeCell<u32>);

// SAFETY: the models check the accesses.
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

/// One thread reads, the other one writes and reads.
#[test]
fn loom_lock_separates_readers_and_writers() {
    check(3, || {
        let lock = Arc::new(BiasedLock::new(Number::new()));
        let own = lock.clone();
        let reader = spawn(move || own.read().read());
        lock.write().add();
        assert!(reader.join().unwrap() <= 1);
        assert_eq!(lock.read().read(), 1);
    });
}

/// Two threads write, and one of them has read before.
#[test]
fn loom_lock_separates_writers() {
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

/// One thread returns more objects than its place keeps; the other one gets one of these or a new
/// one.
#[test]
fn loom_object_of_a_pool_has_one_user_at_a_time() {
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

/// One thread clones and drops references while the other one drops the owner.
#[test]
fn loom_shared_value_exists_until_its_last_reference_is_dropped() {
    struct CountsDrops(Watched, Arc<AtomicUsize>);
    impl Drop for CountsDrops {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    check(2, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let owner = Owner::new(CountsDrops(Watched::new(), dropped.clone()));
        let share = owner.share();
        let other = spawn(move || {
            let more = share.clone();
            drop(share);
            more.0.check();
        });
        drop(owner);
        other.join().unwrap();
        retired::reclaim();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

/// One thread adds while the other one swaps the form and reads: no addition is lost or doubled.
#[test]
fn loom_counter_swapped_during_additions_has_each_addition_once() {
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

/// One thread looks up a key that is always present. The other one adds a key to the same part,
/// which moves all parts to another table, and replaces the value.
#[test]
fn loom_present_key_is_found_while_the_map_grows() {
    let hash = |key: u64| BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
    let other = (1..)
        .find(|key| hash(*key) >> 63 == hash(0) >> 63)
        .expect("half of the keys share the part");
    check(2, move || {
        let map = Arc::new(Map::new());
        map.insert(0, Watched::new());
        let own = map.clone();
        let reader = spawn(move || {
            read_section(|guard| own.get(guard, &0).expect("the key is present").check())
        });
        map.insert(other, Watched::new());
        map.insert(0, Watched::new());
        retired::reclaim();
        reader.join().unwrap();
    });
}

#[test]
fn loom_planted_faults_in_ready_objects_are_detected() {
    let lock = "ready::loom_lock_separates_readers_and_writers";
    let pool = "ready::loom_object_of_a_pool_has_one_user_at_a_time";
    let shared = "ready::loom_shared_value_exists_until_its_last_reference_is_dropped";
    let map = "ready::loom_present_key_is_found_while_the_map_grows";
    let release_of = |store| {
        let mut lines = include_str!("../link.rs").lines();
        let line = lines.position(|line| line.contains(store)).expect("the store is in link.rs");
        format!("release link.rs:{}", line + 1)
    };
    // A thread that finds a cleared slot of the old table must find the new table.
    let cleared = release_of("ptr::null_mut(), Ordering::Release");
    let replaced = release_of("Linked::new(value), Ordering::Release");
    fault::assert_noticed(&[
        (map, cleared.as_str()),
        (map, replaced.as_str()),
        (map, "release table.rs"),
        (map, "acquire table.rs"),
        (lock, "light lock.rs"),
        (lock, "heavy lock.rs"),
        (lock, "release lock.rs"),
        (lock, "acquire lock.rs"),
        (pool, "release pool.rs"),
        (pool, "acquire pool.rs"),
        (shared, "release shared.rs"),
        (shared, "acquire shared.rs"),
    ]);
}
