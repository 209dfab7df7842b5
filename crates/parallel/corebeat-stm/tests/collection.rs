//! Transactional collections: random transactions of one thread behave as on sequential models, and
//! transactions of many threads lose nothing.

use corebeat_stm::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::thread;

/// Number of rounds of a loop.
const ROUNDS: u64 = if cfg!(miri) { 8 } else { 4_000 };

/// Maximum number of transactions of a random case.
const TRANSACTIONS_MAX: usize = if cfg!(miri) { 3 } else { 12 };

/// Hashes numbers to themselves, without their lowest bits: adjacent keys have equal hashes, and
/// others share many levels of the tree.
#[derive(Default)]
struct Poor;

struct PoorHasher(u64);

impl Hasher for PoorHasher {
    fn finish(&self) -> u64 {
        let key = self.0 >> 1;
        key << 60 | key >> 2
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are of type u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl BuildHasher for Poor {
    type Hasher = PoorHasher;

    fn build_hasher(&self) -> PoorHasher {
        PoorHasher(0)
    }
}

#[derive(Debug, Clone)]
enum Op {
    Get(u64),
    Insert(u64, u64),
    Update(u64, u64),
    Remove(u64),
    Clear,
    Push(u64),
    Pop,
    Count(i64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..40u64;
    prop_oneof![
        4 => key.clone().prop_map(Op::Get),
        8 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Op::Insert(key, value)),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Op::Update(key, value)),
        4 => key.prop_map(Op::Remove),
        1 => Just(Op::Clear),
        4 => any::<u64>().prop_map(Op::Push),
        4 => Just(Op::Pop),
        2 => any::<i64>().prop_map(Op::Count),
    ]
}

/// The collections; values are words, and counted references.
#[derive(Default)]
struct Collections {
    words: TMap<u64, u64, Poor>,
    values: TMap<u64, Arc<u64>>,
    set: TSet<u64, Poor>,
    queue: TQueue<Arc<u64>>,
    count: TCounter,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Models {
    map: BTreeMap<u64, u64>,
    set: BTreeSet<u64>,
    queue: VecDeque<u64>,
    count: i64,
}

impl Collections {
    /// Applies an operation to the collections and to the models, and compares the results.
    fn apply<'t>(&'t self, tx: &mut Tx<'t, '_>, op: &Op, models: &mut Models) -> Result<(), Abort> {
        match *op {
            Op::Get(key) => {
                let expected = models.map.get(&key).copied();
                assert_eq!(self.words.get(tx, &key)?, expected);
                assert_eq!(self.values.get(tx, &key)?.copied(), expected);
                assert_eq!(self.words.contains_key(tx, &key)?, expected.is_some());
                assert_eq!(self.set.contains(tx, &key)?, models.set.contains(&key));
            }
            Op::Insert(key, value) => {
                let expected = models.map.insert(key, value);
                assert_eq!(self.words.insert(tx, key, value)?, expected);
                let old = self.values.insert(tx, key, Arc::new(value))?;
                assert_eq!(old.map(|old| *old), expected);
                assert_eq!(self.set.insert(tx, key)?, models.set.insert(key));
            }
            Op::Update(key, value) => {
                let found = models.map.get_mut(&key).map(|old| *old ^= value).is_some();
                assert_eq!(self.words.update(tx, &key, |old| old ^ value)?, found);
                assert_eq!(self.values.update(tx, &key, |old| Arc::new(*old ^ value))?, found);
            }
            Op::Remove(key) => {
                let expected = models.map.remove(&key);
                assert_eq!(self.words.remove(tx, &key)?, expected);
                assert_eq!(self.values.remove(tx, &key)?.map(|old| *old), expected);
                assert_eq!(self.set.remove(tx, &key)?, models.set.remove(&key));
            }
            Op::Clear => {
                models.map.clear();
                models.set.clear();
                self.words.clear(tx)?;
                self.values.clear(tx)?;
                self.set.clear(tx)?;
            }
            Op::Push(item) => {
                models.queue.push_back(item);
                self.queue.push(tx, Arc::new(item))?;
            }
            Op::Pop => {
                let popped = self.queue.try_pop(tx)?.map(|item| *item);
                assert_eq!(popped, models.queue.pop_front());
            }
            Op::Count(n) => {
                models.count = models.count.wrapping_add(n);
                self.count.add(tx, n)?;
            }
        }
        Ok(())
    }

    /// Returns the contents.
    fn read<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<Models, Abort> {
        let mut models = Models { count: self.count.value(tx)?, ..Models::default() };
        self.words.for_each(tx, |key, value| assert_eq!(models.map.insert(*key, value), None))?;
        self.set.for_each(tx, |key| assert!(models.set.insert(*key)))?;
        let mut values = BTreeMap::new();
        self.values.for_each(tx, |key, value| assert_eq!(values.insert(*key, *value), None))?;
        assert_eq!(values, models.map);
        assert_eq!(self.words.len(tx)?, models.map.len());
        assert_eq!(self.set.len(tx)?, models.set.len());
        assert_eq!(self.values.is_empty(tx)?, models.map.is_empty());
        assert_eq!(self.set.is_empty(tx)?, models.set.is_empty());
        // Undone by the caller.
        while let Some(item) = self.queue.try_pop(tx)? {
            models.queue.push_back(*item);
        }
        assert!(self.queue.is_empty(tx)?);
        Ok(models)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn collections_behave_as_sequential_models(
        transactions in prop::collection::vec(
            (prop::bool::weighted(0.7), prop::collection::vec(op(), 1..8)),
            1..TRANSACTIONS_MAX,
        )
    ) {
        let collections = Collections::default();
        let mut models = Models::default();
        for (is_kept, ops) in &transactions {
            let after = atomically(|tx| {
                let mut after = models.clone();
                // A part that is undone leaves nothing.
                tx.or_else(
                    |tx| {
                        ops.iter().try_for_each(|op| collections.apply(tx, op, &mut after))?;
                        if *is_kept { Ok(after) } else { tx.retry() }
                    },
                    |_| Ok(models.clone()),
                )
            });
            models = after;
            let read = Cell::new(None);
            atomically(|tx| {
                tx.or_else(
                    |tx| {
                        read.set(Some(collections.read(tx)?));
                        tx.retry()
                    },
                    |_| Ok(()),
                )
            });
            let read = read.take();
            prop_assert_eq!(read.as_ref(), Some(&models));
        }
    }
}

#[test]
fn items_move_between_collections_of_many_threads_and_none_is_lost() {
    const ITEMS: u64 = if cfg!(miri) { 6 } else { 100 };
    let (map, set, queue) = (TMap::<u64, Arc<u64>>::new(), TSet::<u64>::new(), TQueue::new());
    let moves = TCounter::new();
    for item in 0..ITEMS {
        atomically(|tx| queue.push(tx, Arc::new(item)));
    }
    thread::scope(|scope| {
        for number in 0..3 {
            let (map, set, queue, moves) = (&map, &set, &queue, &moves);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let key = (round * 7 + number) % ITEMS;
                    // An item is in the queue, or in the map and the set.
                    atomically(|tx| {
                        let item = match map.remove(tx, &key)? {
                            Some(item) => {
                                assert!(set.remove(tx, &key)?);
                                item
                            }
                            None => match queue.try_pop(tx)? {
                                Some(item) => item,
                                None => return Ok(()),
                            },
                        };
                        moves.add(tx, 1)?;
                        if round % 2 == 0 {
                            assert!(set.insert(tx, *item)?);
                            assert!(map.insert(tx, *item, item)?.is_none());
                            Ok(())
                        } else {
                            queue.push(tx, item)
                        }
                    });
                }
            });
        }
    });
    let mut items: HashMap<u64, u64> = HashMap::new();
    let moved = atomically(|tx| {
        items.clear();
        map.for_each(tx, |key, item| {
            assert_eq!(key, item);
            *items.entry(*item).or_default() += 1;
        })?;
        assert_eq!(set.len(tx)?, items.len());
        while let Some(item) = queue.try_pop(tx)? {
            *items.entry(*item).or_default() += 1;
        }
        moves.value(tx)
    });
    assert!(moved > 0);
    assert_eq!(items, (0..ITEMS).map(|item| (item, 1)).collect());
}

#[test]
fn pop_waits_for_an_item() {
    let (queue, sum) = (TQueue::new(), TCounter::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let item @ 1.. = atomically(|tx| queue.pop(tx)) {
                    atomically(|tx| sum.add(tx, item));
                }
            });
        }
        (1..=ROUNDS as i64).for_each(|item| atomically(|tx| queue.push(tx, item)));
        (0..2).for_each(|_| atomically(|tx| queue.push(tx, 0)));
    });
    let rounds = ROUNDS as i64;
    assert_eq!(atomically(|tx| sum.value(tx)), rounds * (rounds + 1) / 2);
}
