//! The ready objects under the load of many threads: small enough for Miri, which is a thousand
//! times slower.

use corebeat_clustered::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, LazyLock, Mutex};
use std::thread;

/// Number of rounds of a loop.
const ROUNDS: usize = if cfg!(miri) { 8 } else { 5_000 };
const THREADS: usize = 4;

/// Runs `f` on several threads, which begin at the same time, with their numbers.
fn together<T: Send>(f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (f, barrier) = (&f, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    f(number)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Its destructor invalidates the value.
struct Checked(u64, u64);

impl Checked {
    fn new(value: u64) -> Checked {
        Checked(value, !value)
    }

    fn value(&self) -> u64 {
        assert_eq!(self.0, !self.1, "the value was dropped");
        self.0
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.1 = self.0;
    }
}

#[test]
fn map_under_load_contains_the_last_writes() {
    let map = Map::new();
    together(|number| {
        for round in 0..ROUNDS {
            // Keys of this thread, and one shared key.
            let key = (number, round % 97);
            map.insert(key, Checked::new(round as u64));
            map.insert((THREADS, 0), Checked::new(number as u64));
            read_section(|guard| {
                assert_eq!(map.get(guard, &key).unwrap().value(), round as u64);
                assert!(map.get(guard, &(THREADS, 0)).unwrap().value() < THREADS as u64);
                let other = map.get(guard, &((number + 1) % THREADS, round % 97));
                assert!(other.is_none_or(|other| other.value() < ROUNDS as u64));
            });
            if round % 3 == 0 {
                assert!(map.remove(&key) && !map.remove(&key));
            }
        }
    });
    let left = |key: usize| {
        (0..ROUNDS).rev().find(|round| round % 97 == key).filter(|round| round % 3 != 0)
    };
    let each = (0..97).filter_map(left).count();
    assert_eq!(map.len(), THREADS * each + 1);
    read_section(|guard| {
        assert_eq!(map.iter(guard).count(), map.len());
        for (number, key) in (0..THREADS).flat_map(|number| (0..97).map(move |key| (number, key))) {
            let found = map.get(guard, &(number, key)).map(Checked::value);
            assert_eq!(found, left(key).map(|round| round as u64));
        }
    });
    map.clear();
    assert!(map.is_empty());
}

#[test]
fn present_keys_are_found_while_the_map_grows() {
    let map: Map<usize, usize> = (0..50).map(|key| (key, key)).collect();
    together(|number| {
        for round in 0..ROUNDS {
            if number == 0 {
                map.insert(100 + round, round);
            } else {
                let key = round % 50;
                assert_eq!(read_section(|guard| map.get(guard, &key).copied()), Some(key));
                if round % 1024 == 0 {
                    let there = |(key, _): &(&usize, &usize)| **key < 50;
                    assert_eq!(read_section(|guard| map.iter(guard).filter(there).count()), 50);
                }
            }
        }
    });
    assert_eq!(map.len(), 50 + ROUNDS);
}

#[test]
fn concurrent_get_or_insert_returns_one_value() {
    let map = Map::new();
    let got = together(|number| {
        let get = |key| read_section(|guard| *map.get_or_insert_with(guard, key, || number));
        (0..ROUNDS).map(get).collect::<Vec<_>>()
    });
    assert!(got.iter().all(|values| *values == got[0]));
    assert_eq!(map.len(), ROUNDS);
}

#[test]
fn one_thread_inserts_a_key_of_a_set() {
    let set = Set::new();
    let counts = together(|_| (0..ROUNDS).filter(|key| set.insert(*key)).count());
    assert_eq!((counts.iter().sum(), set.len()), (ROUNDS, ROUNDS));
    let counts = together(|_| (0..ROUNDS).filter(|key| set.remove(key)).count());
    assert_eq!((counts.iter().sum(), set.is_empty()), (ROUNDS, true));
}

#[test]
fn log_under_load_has_all_entries_once_in_thread_order() {
    let log: Log<(usize, usize)> = Log::new(THREADS * ROUNDS);
    let (read, running) = (Mutex::new(Vec::new()), AtomicUsize::new(THREADS - 1));
    together(|number| {
        if number > 0 {
            (0..ROUNDS).for_each(|round| log.push((number, round)));
            running.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        while running.load(Ordering::SeqCst) > 0 {
            read.lock().unwrap().append(&mut log.drain());
        }
    });
    let mut all = read.into_inner().unwrap();
    all.append(&mut log.drain());
    for number in 1..THREADS {
        let own = all.iter().filter(|entry| entry.0 == number).map(|entry| entry.1);
        assert!(own.eq(0..ROUNDS));
    }
    assert_eq!((all.len(), log.lost()), ((THREADS - 1) * ROUNDS, 0));
}

#[test]
fn full_log_drops_the_oldest_entries() {
    let log: Log<usize> = Log::new(3);
    (0..5).for_each(|n| log.push(n));
    assert_eq!((log.read(), log.lost()), (vec![2, 3, 4], 2));
    assert_eq!((log.drain(), log.drain(), log.lost()), (vec![2, 3, 4], vec![], 2));
    let none: Log<usize> = Log::new(0);
    none.push(1);
    assert_eq!((none.drain(), none.lost()), (vec![], 1));
}

fn number<D: Domain>() {
    let (ids, histogram) = (IdGenerator::<D>::new(), Histogram::<D>::new());
    let all = together(|number| {
        (0..ROUNDS)
            .map(|_| {
                histogram.record(number as u64);
                ids.id()
            })
            .collect::<Vec<_>>()
    });
    let different: HashSet<u64> = all.iter().flatten().copied().collect();
    assert_eq!(different.len(), THREADS * ROUNDS);
    let seen = histogram.read();
    assert_eq!(seen.count(), (THREADS * ROUNDS) as u64);
    assert_eq!([0.0, 0.5, 1.0].map(|share| seen.quantile(share)), [0, 1, 3].map(Some));
}

#[test]
fn ids_and_histogram_under_load_are_exact_in_any_domain() {
    number::<Thread>();
    number::<Cpu>();
    number::<Node>();
}

#[test]
fn empty_histogram_has_no_quantile() {
    assert_eq!(Histogram::<Thread>::new().read().quantile(0.5), None);
}

#[test]
fn pool_under_load_gives_each_object_to_one_user_and_drops_all() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Object(AtomicBool);
    impl Drop for Object {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let make = || {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Object(AtomicBool::new(false))
    };
    let pool = Pool::new(make);
    let (passed, most) = (Mutex::new(Vec::new()), if cfg!(miri) { 4 } else { 200 });
    together(|number| {
        for round in 0..ROUNDS / most + 2 {
            let objects: Vec<_> = (0..(round * 37 + number) % most).map(|_| pool.get()).collect();
            assert!(
                objects.iter().all(|object| !object.0.swap(true, Ordering::SeqCst)),
                "the object has two users"
            );
            // Some objects are returned by other threads.
            let mut passed = passed.lock().unwrap();
            let others = std::mem::replace(&mut *passed, objects);
            drop(passed);
            others.iter().for_each(|object| object.0.store(false, Ordering::SeqCst));
        }
    });
    drop(passed);
    drop(pool);
    assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
}

#[test]
fn lock_under_load_shows_consistent_values() {
    let lock = BiasedLock::new((0, 0));
    together(|number| {
        for round in 0..ROUNDS {
            if number == 0 && round % 8 == 0 {
                let mut pair = lock.write();
                pair.0 += 1;
                pair.1 += 1;
            } else {
                let pair = lock.read();
                assert_eq!(pair.0, lock.read().1, "nested reads return the same value");
            }
        }
    });
    assert_eq!(lock.into_inner().0, ROUNDS.div_ceil(8));
}

#[test]
fn lock_is_free_after_a_panic_and_rejects_a_second_guard_beside_a_write() {
    let lock = BiasedLock::new(1);
    let rejected = |locks: &(dyn Fn() + Sync), expected: &str| {
        let failed = thread::scope(|scope| scope.spawn(locks).join().unwrap_err());
        let why = failed.downcast_ref::<&str>().unwrap();
        assert!(why.contains(expected), "{why}");
    };
    let write_in_read = || {
        let _reading = lock.read();
        *lock.write() = 2;
    };
    let read_in_write = || {
        let _writing = lock.write();
        lock.read();
    };
    let write_in_write = || {
        let _writing = lock.write();
        *lock.write() = 2;
    };
    rejected(&write_in_read, "drop the ReadGuard first");
    rejected(&read_in_write, "drop the WriteGuard first");
    rejected(&write_in_write, "drop the WriteGuard first");
    *lock.write() += 4;
    assert_eq!(*lock.read(), 5);
}

/// An ending thread has no own place.
#[test]
fn ending_thread_can_read_a_lock() {
    struct AtEnd(Arc<BiasedLock<u32>>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            assert_eq!(*self.0.read(), 7);
            *self.0.write() = 7;
        }
    }
    thread_local! {
        static EARLY: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) };
    }
    let lock = Arc::new(BiasedLock::new(7));
    for _ in 0..4 {
        let own = AtEnd(lock.clone());
        thread::spawn(move || {
            EARLY.set(Some(own));
            EARLY.with_borrow(|at_end| assert_eq!(*at_end.as_ref().unwrap().0.read(), 7));
        })
        .join()
        .unwrap();
    }
    assert_eq!(*lock.read(), 7);
}

#[test]
fn shared_value_under_load_is_dropped_once_after_all_references() {
    for round in 0..ROUNDS / 50 + 2 {
        let alive = Arc::new(());
        let owner = Mutex::new(Some(Owner::new((alive.clone(), Checked::new(5)))));
        let shares: Vec<_> =
            (0..THREADS).map(|_| owner.lock().unwrap().as_ref().unwrap().share()).collect();
        let shares = Mutex::new(shares);
        together(|number| {
            let own = shares.lock().unwrap().pop().unwrap();
            for turn in 0..20 {
                let more = own.clone();
                if number == 0 && turn == round % 20 {
                    drop(owner.lock().unwrap().take());
                }
                assert_eq!((more.1.value(), own.1.value()), (5, 5));
            }
        });
        // Other tests of this process may be in sections.
        while Arc::strong_count(&alive) > 1 {
            reclaim();
            thread::yield_now();
        }
    }
}

#[test]
fn value_of_an_owner_dropped_in_a_section_is_dropped_after_it() {
    let alive = Arc::new(());
    let owner = Owner::new(alive.clone());
    read_section(|_| {
        drop(owner);
        assert_eq!(Arc::strong_count(&alive), 2);
    });
    while Arc::strong_count(&alive) > 1 {
        reclaim();
        thread::yield_now();
    }
}

#[test]
fn adaptive_map_swapped_under_load_loses_nothing() {
    let map = AdaptiveMap::default();
    together(|number| {
        for round in 0..ROUNDS {
            if number == 0 {
                match round % 200 {
                    0 => assert!(map.spread()),
                    100 => assert!(map.gather()),
                    _ => {}
                }
            } else {
                assert!(map.insert((number, round), round));
                assert_eq!(map.get(&(number, round)), Some(round));
                assert!(round % 2 == 0 || map.remove(&(number, round)));
            }
        }
    });
    assert_eq!(map.len(), (THREADS - 1) * ROUNDS.div_ceil(2));
    assert!((1..THREADS).all(|number| map.get(&(number, 0)) == Some(0)));
}

#[test]
fn destructors_of_values_may_use_an_adaptive_map() {
    #[derive(Clone)]
    struct Looks;

    static MAP: LazyLock<AdaptiveMap<usize, Looks>> = LazyLock::new(AdaptiveMap::default);

    impl Drop for Looks {
        fn drop(&mut self) {
            MAP.len();
        }
    }

    for _ in 0..8 {
        for to_spread in [true, false] {
            for key in 0..ROUNDS.min(200) {
                assert!(MAP.insert(key, Looks) && !MAP.insert(key, Looks));
            }
            assert!(if to_spread { MAP.spread() } else { MAP.gather() });
            assert!((0..ROUNDS.min(200)).all(|key| MAP.remove(&key)) && MAP.is_empty());
        }
    }
}

#[test]
fn adaptive_map_spreads_with_several_threads_and_gathers_with_one() {
    let map = AdaptiveMap::default();
    let mut key = 0;
    while !map.is_spread() {
        thread::scope(|scope| drop(scope.spawn(|| map.insert(key, key))));
        assert_eq!(map.get(&key), Some(key));
        key += 1;
    }
    assert_eq!(map.len(), key);
    while map.is_spread() {
        assert_eq!(map.get(&0), Some(0));
    }
    assert_eq!(map.len(), key);
}

#[test]
fn adaptive_object_is_not_swapped_in_its_own_call() {
    let counter = AdaptiveCounter::default();
    counter.call(|_| {
        assert!(!counter.spread() && counter.gather());
        counter.add(1);
    });
    assert!(counter.spread());
    counter.call(|form| assert!(matches!(form, Form::Spread(_)) && counter.value() == 1));
}

/// Threads that are interrupted and migrate between CPUs, with and without restartable sequences.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn counter_by_cpu_under_load_loses_no_addition() {
    const WITHOUT: &str = "glibc.pthread.rseq=0";
    let counter: Counter<Cpu> = Counter::new();
    let cpus = thread::available_parallelism().unwrap().get();
    thread::scope(|scope| {
        for number in 0..2 * cpus {
            let counter = &counter;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    if round % 1024 == 0 {
                        move_to((number + round / 1024) % cpus);
                    }
                    (0..64).for_each(|_| counter.add(3));
                }
            });
        }
    });
    assert_eq!(counter.value(), 3 * 64 * (2 * cpus * ROUNDS) as i64);
    if std::env::var("GLIBC_TUNABLES").as_deref() != Ok(WITHOUT) {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "counter_by_cpu_under_load_loses_no_addition"]);
        let ended = again.env("GLIBC_TUNABLES", WITHOUT).output().unwrap();
        assert!(ended.status.success(), "without restartable sequences: {ended:?}");
    }
}

/// Moves the thread to a CPU, if permitted.
#[cfg(all(target_os = "linux", not(miri)))]
fn move_to(cpu: usize) {
    // SAFETY: zero bytes are an empty set, and the call reads a set of this size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}
