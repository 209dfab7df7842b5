//! Comparison of the ready objects with sequential models: random operations on random threads, one
//! at a time.
//!
//! proptest shrinks a failing case, and keeps its seed (`proptest-regressions`) for the next run.

use corebeat_clustered::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope};

/// Number of threads.
const THREADS: usize = 4;
/// Maximum number of operations.
const LENGTH: Range<usize> = 1..200;

type Job<'env> = Box<dyn FnOnce() + Send + 'env>;

/// Threads that run one job at a time.
struct Threads<'env> {
    threads: Vec<Sender<Job<'env>>>,
}

impl<'env> Threads<'env> {
    fn new<'scope>(scope: &'scope Scope<'scope, 'env>) -> Threads<'env>
    where
        'env: 'scope,
    {
        let thread = |_| {
            let (send, jobs) = channel::<Job<'env>>();
            scope.spawn(move || jobs.into_iter().for_each(|job| job()));
            send
        };
        Threads { threads: (0..THREADS).map(thread).collect() }
    }

    /// Runs a job on a thread, and waits for its end.
    fn on<T: Send + 'env>(&self, thread: usize, job: impl FnOnce() -> T + Send + 'env) -> T {
        let (send, done) = channel();
        let job: Job<'env> = Box::new(move || send.send(job()).expect("the caller waits"));
        self.threads[thread % THREADS].send(job).expect("the thread is running");
        done.recv().expect("the job did not panic")
    }
}

/// Runs each operation on its thread; `step` compares the result with the model.
fn replay<O: Sync, Op: fmt::Debug + Sync, M, A>(
    object: &O,
    ops: &[(usize, Op)],
    mut model: M,
    act: impl Fn(&O, &Op) -> A + Sync,
    mut step: impl FnMut(&mut M, &Op) -> A,
) -> M
where
    A: PartialEq + fmt::Debug + Send,
{
    let act = &act;
    thread::scope(|scope| {
        let threads = Threads::new(scope);
        for (thread, op) in ops {
            let done = threads.on(*thread, move || act(object, op));
            assert_eq!(done, step(&mut model, op), "{op:?} on thread {thread}");
        }
    });
    model
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 128, ..ProptestConfig::default() }
}

fn schedules<Op: fmt::Debug>(
    op: impl Strategy<Value = Op>,
) -> impl Strategy<Value = Vec<(usize, Op)>> {
    vec((0..THREADS, op), LENGTH)
}

#[derive(Debug, Clone)]
enum MapOp {
    Get(u8),
    Insert(u8, u32),
    GetOrInsert(u8, u32),
    Remove(u8),
    Len,
    Entries,
    Clear,
    Spread,
    Gather,
}

fn map_op() -> impl Strategy<Value = MapOp> {
    prop_oneof![
        4 => any::<u8>().prop_map(MapOp::Get),
        8 => any::<(u8, u32)>().prop_map(|(key, value)| MapOp::Insert(key, value)),
        2 => any::<(u8, u32)>().prop_map(|(key, value)| MapOp::GetOrInsert(key, value)),
        4 => any::<u8>().prop_map(MapOp::Remove),
        1 => Just(MapOp::Len),
        1 => Just(MapOp::Entries),
        1 => Just(MapOp::Spread),
        1 => Just(MapOp::Gather),
    ]
}

/// Result of an operation.
#[derive(Debug, PartialEq)]
enum Gave {
    Nothing,
    Value(Option<u32>),
    Yes(bool),
    Count(usize),
    Entries(BTreeMap<u8, u32>),
}

fn on_std(map: &mut HashMap<u8, u32>, op: &MapOp) -> Gave {
    match *op {
        MapOp::Get(key) => Gave::Value(map.get(&key).copied()),
        MapOp::Insert(key, value) => Gave::Yes(map.insert(key, value).is_none()),
        MapOp::GetOrInsert(key, value) => Gave::Value(Some(*map.entry(key).or_insert(value))),
        MapOp::Remove(key) => Gave::Yes(map.remove(&key).is_some()),
        MapOp::Len => Gave::Count(map.len()),
        MapOp::Entries => Gave::Entries(map.iter().map(|(key, value)| (*key, *value)).collect()),
        MapOp::Clear => {
            map.clear();
            Gave::Nothing
        }
        MapOp::Spread | MapOp::Gather => Gave::Nothing,
    }
}

fn entries(map: &Map<u8, u32>) -> BTreeMap<u8, u32> {
    read_section(|guard| {
        let entries: Vec<_> = map.iter(guard).map(|(key, value)| (*key, *value)).collect();
        let sorted: BTreeMap<_, _> = entries.iter().copied().collect();
        assert_eq!(sorted.len(), entries.len(), "each entry is returned once");
        sorted
    })
}

fn on_map(map: &Map<u8, u32>, op: &MapOp) -> Gave {
    match *op {
        MapOp::Get(key) => Gave::Value(read_section(|guard| map.get(guard, &key).copied())),
        MapOp::Insert(key, value) => Gave::Yes(map.insert(key, value)),
        MapOp::GetOrInsert(key, value) => {
            Gave::Value(read_section(|guard| Some(*map.get_or_insert_with(guard, key, || value))))
        }
        MapOp::Remove(key) => Gave::Yes(map.remove(&key)),
        MapOp::Len => Gave::Count(map.len()),
        MapOp::Entries => Gave::Entries(entries(map)),
        MapOp::Clear => {
            map.clear();
            Gave::Nothing
        }
        MapOp::Spread | MapOp::Gather => Gave::Nothing,
    }
}

#[derive(Debug, Clone)]
enum LockOp {
    Read,
    ReadTwice,
    Push(u8),
}

#[derive(Debug, Clone)]
enum PoolOp {
    Get,
    Put(usize),
}

#[derive(Debug, Clone)]
enum ShareOp {
    Share,
    Clone(usize),
    Drop(usize),
    DropOwner,
}

/// Runs a check for every domain.
macro_rules! in_every_domain {
    ($run:ident, $($argument:expr),*) => {
        $run::<Thread>($($argument),*);
        $run::<Cpu>($($argument),*);
        $run::<Node>($($argument),*);
    };
}

fn counts<D: Domain>(ops: &[(usize, i64)]) {
    let counter: Counter<D> = Counter::new();
    let act = |counter: &Counter<D>, n: &i64| {
        counter.add(*n);
        counter.value()
    };
    replay(&counter, ops, 0i64, act, |sum, n| {
        *sum = sum.wrapping_add(*n);
        *sum
    });
}

fn records<D: Domain>(ops: &[(usize, u64)]) {
    let histogram: Histogram<D> = Histogram::new();
    let act = |histogram: &Histogram<D>, value: &u64| histogram.record(*value);
    let mut values = replay(&histogram, ops, Vec::new(), act, |values, value| values.push(*value));
    values.sort();
    let seen = histogram.read();
    assert_eq!(seen.count(), values.len() as u64);
    for share in [0.0, 0.1, 0.5, 0.9, 0.99, 1.0] {
        let rank = ((share * values.len() as f64).ceil() as usize).max(1);
        let (exact, near) = (values[rank - 1], seen.quantile(share).unwrap());
        assert!(
            (exact..=exact.saturating_add(exact / 32)).contains(&near),
            "{share}: {exact}, not {near}"
        );
    }
}

fn logs<D: Domain>(ops: &[(usize, u8)]) {
    let log: Log<u8, D> = Log::new(1000);
    // Some steps read or drain the log.
    let act = |log: &Log<u8, D>, op: &u8| match op {
        0..8 => log.drain(),
        8..16 => log.read(),
        entry => {
            log.push(*entry);
            Vec::new()
        }
    };
    let rest = replay(&log, ops, Vec::new(), act, |entries, op| match op {
        0..8 => std::mem::take(entries),
        8..16 => entries.clone(),
        entry => {
            entries.push(*entry);
            Vec::new()
        }
    });
    assert_eq!((log.drain(), log.drain(), log.lost()), (rest, Vec::new(), 0));
}

fn ids<D: Domain>(ops: &[(usize, ())]) {
    let (ids, mut given, mut last) = (IdGenerator::<D>::new(), HashSet::new(), [None; THREADS]);
    let ids = &ids;
    thread::scope(|scope| {
        let threads = Threads::new(scope);
        for (thread, ()) in ops {
            let id = threads.on(*thread, || ids.id());
            assert!(given.insert(id), "{id} again");
            // A thread may migrate between CPUs, but keeps its own place.
            let before = last[*thread].replace(id);
            assert!(TypeId::of::<D>() != TypeId::of::<Thread>() || before < Some(id));
        }
    });
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn counter_has_what_was_added_on_whatever_thread(ops in schedules(any::<i64>())) {
        in_every_domain!(counts, &ops);
    }

    #[test]
    fn histogram_has_what_was_recorded_on_whatever_thread(
        ops in schedules((0..64u32, any::<u64>()).prop_map(|(shift, value)| value >> shift)),
    ) {
        in_every_domain!(records, &ops);
    }

    #[test]
    fn log_has_entries_in_their_order(ops in schedules(any::<u8>())) {
        in_every_domain!(logs, &ops);
    }

    #[test]
    fn ids_come_once_and_ascend_on_a_thread(ops in schedules(Just(()))) {
        in_every_domain!(ids, &ops);
    }

    #[test]
    fn map_does_as_the_standard_one(
        ops in schedules(prop_oneof![60 => map_op(), 1 => Just(MapOp::Clear)]),
    ) {
        let map = Map::new();
        let model = replay(&map, &ops, HashMap::new(), on_map, on_std);
        assert_eq!(entries(&map), model.into_iter().collect());
    }

    #[test]
    fn set_does_as_the_standard_one(ops in schedules(map_op())) {
        let set = Set::new();
        let act = |set: &Set<u8>, op: &MapOp| match op {
            MapOp::Get(key) => Gave::Yes(set.contains(key)),
            MapOp::Insert(key, _) | MapOp::GetOrInsert(key, _) => Gave::Yes(set.insert(*key)),
            MapOp::Remove(key) => Gave::Yes(set.remove(key)),
            _ => Gave::Count(set.len()),
        };
        let model = replay(&set, &ops, BTreeSet::new(), act, |set, op| match op {
            MapOp::Get(key) => Gave::Yes(set.contains(key)),
            MapOp::Insert(key, _) | MapOp::GetOrInsert(key, _) => Gave::Yes(set.insert(*key)),
            MapOp::Remove(key) => Gave::Yes(set.remove(key)),
            _ => Gave::Count(set.len()),
        });
        assert_eq!(read_section(|guard| set.iter(guard).copied().collect::<BTreeSet<_>>()), model);
    }

    #[test]
    fn adaptive_map_does_as_the_standard_one_in_either_form(ops in schedules(map_op())) {
        let map = AdaptiveMap::default();
        let act = |map: &AdaptiveMap<u8, u32>, op: &MapOp| match *op {
            MapOp::Get(key) => Gave::Value(map.get(&key)),
            MapOp::Insert(key, value) | MapOp::GetOrInsert(key, value) => {
                Gave::Yes(map.insert(key, value))
            }
            MapOp::Remove(key) => Gave::Yes(map.remove(&key)),
            MapOp::Spread => {
                assert!(map.spread() && map.is_spread());
                Gave::Nothing
            }
            MapOp::Gather => {
                assert!(map.gather() && !map.is_spread());
                Gave::Nothing
            }
            _ => Gave::Count(map.len()),
        };
        replay(&map, &ops, HashMap::new(), act, |map, op| match *op {
            MapOp::GetOrInsert(key, value) => on_std(map, &MapOp::Insert(key, value)),
            MapOp::Entries => Gave::Count(map.len()),
            _ => on_std(map, op),
        });
    }

    #[test]
    fn lock_has_what_was_written_before(
        ops in schedules(prop_oneof![
            Just(LockOp::Read),
            Just(LockOp::ReadTwice),
            any::<u8>().prop_map(LockOp::Push),
        ]),
    ) {
        let lock = BiasedLock::new(Vec::new());
        let act = |lock: &BiasedLock<Vec<u8>>, op: &LockOp| match op {
            LockOp::Read => lock.read().clone(),
            LockOp::ReadTwice => {
                let (outer, inner) = (lock.read(), lock.read());
                drop(outer);
                inner.clone()
            }
            LockOp::Push(byte) => {
                let mut written = lock.write();
                written.push(*byte);
                written.clone()
            }
        };
        let model = replay(&lock, &ops, Vec::new(), act, |bytes, op| {
            bytes.extend(if let LockOp::Push(byte) = op { Some(*byte) } else { None });
            bytes.clone()
        });
        assert_eq!(lock.into_inner(), model);
    }

    /// An object has one user, and no object is created while the thread has returned ones.
    #[test]
    fn pool_gives_each_object_to_one_at_a_time(
        ops in schedules(prop_oneof![Just(PoolOp::Get), any::<usize>().prop_map(PoolOp::Put)]),
    ) {
        let made = Arc::new(IdGenerator::<Thread>::new());
        let own = made.clone();
        let pool = Pool::new(move || own.id());
        let pool = &pool;
        let (mut out, mut free, mut all) = (Vec::new(), vec![Vec::new(); THREADS], HashSet::new());
        let mut is_small = true;
        thread::scope(|scope| {
            let threads = Threads::new(scope);
            for (thread, op) in &ops {
                match op {
                    PoolOp::Get => {
                        let object: Pooled<'_, u64> = threads.on(*thread, || pool.get());
                        let is_same = |other: &Pooled<'_, u64>| **other == *object;
                        assert!(!out.iter().any(is_same), "{object:?} twice");
                        // The thread gets up to 64 objects back, the last one first.
                        let expected = free[*thread].pop();
                        is_small &= free.iter().all(|free| free.len() < 64);
                        if is_small {
                            assert!(expected.is_none_or(|expected| expected == *object));
                            let is_found = expected.is_some() || all.insert(*object);
                            assert!(is_found, "{object:?} was elsewhere");
                        } else {
                            all.insert(*object);
                        }
                        out.push(object);
                    }
                    PoolOp::Put(which) if !out.is_empty() => {
                        let object = out.swap_remove(which % out.len());
                        free[*thread].push(*object);
                        threads.on(*thread, move || drop(object));
                    }
                    PoolOp::Put(_) => {}
                }
            }
        });
    }

    #[test]
    fn shared_value_lives_as_long_as_owner_or_reference(
        ops in schedules(prop_oneof![
            4 => Just(ShareOp::Share),
            4 => any::<usize>().prop_map(ShareOp::Clone),
            6 => any::<usize>().prop_map(ShareOp::Drop),
            1 => Just(ShareOp::DropOwner),
        ]),
    ) {
        let alive = Arc::new(());
        let mut owner = Some(Owner::new(alive.clone()));
        let mut shares: Vec<Shared<Arc<()>>> = Vec::new();
        thread::scope(|scope| {
            let threads = Threads::new(scope);
            for (thread, op) in &ops {
                match op {
                    ShareOp::Share => shares.extend(owner.as_ref().map(Owner::share)),
                    ShareOp::Clone(which) if !shares.is_empty() => {
                        let share = shares[which % shares.len()].clone();
                        let (share, other) = threads.on(*thread, move || (share.clone(), share));
                        shares.extend([share, other]);
                    }
                    ShareOp::Drop(which) if !shares.is_empty() => {
                        let share = shares.swap_remove(which % shares.len());
                        threads.on(*thread, move || drop(share));
                    }
                    ShareOp::DropOwner => {
                        let owner = owner.take();
                        threads.on(*thread, move || drop(owner));
                    }
                    _ => {}
                }
                assert!(shares.iter().all(|share| Arc::ptr_eq(share, &alive)));
                if let Some(owner) = &owner {
                    assert_eq!(owner.count(), shares.len());
                }
                if owner.is_some() || !shares.is_empty() {
                    assert_eq!(Arc::strong_count(&alive), 2);
                }
            }
        });
        drop((owner, shares));
        // Other tests of this process may be in sections.
        while Arc::strong_count(&alive) > 1 {
            reclaim();
            thread::yield_now();
        }
    }
}
