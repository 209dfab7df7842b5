//! Transactional maps.

use crate::{Abort, TCell, Tx, Value};
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

/// Number of bits of the hash that one level of the tree uses.
const LEVEL_BITS: u32 = 4;
/// Number of slots of a branch.
const SLOTS: usize = 1 << LEVEL_BITS;

/// A hash map.
///
/// ```
/// use corebeat_stm::{TMap, atomically};
///
/// let stock = TMap::new();
/// atomically(|tx| stock.insert(tx, "apples", 5));
/// atomically(|tx| stock.update(tx, "apples", |count| count - 1));
/// assert_eq!(atomically(|tx| stock.get(tx, "apples")), Some(4));
/// assert_eq!(atomically(|tx| stock.remove(tx, "apples")), Some(4));
/// ```
///
/// Values are the values of cells: words, `Arc`s, or optional `Arc`s.
///
/// The map is a tree (Bagwell, *Ideal hash trees*, 2001). Each branch selects a slot by four bits
/// of the hash, and each slot is a cell, so transactions that use different keys seldom conflict.
/// The tree has no table that grows as a whole:
///
/// ```text
///   root      [ slot | slot | slot | ... ]       by bits 0 to 3 of the hash
///                |             |
///              leaf        [ slot | slot | ... ]        by bits 4 to 7
///                                    |
///                                  leaf -> leaf         with equal hashes
/// ```
///
/// A new key that reaches a leaf with another hash replaces the leaf by a branch. Branches stay
/// until [`clear`](TMap::clear), or until the map is dropped.
pub struct TMap<K: Send + Sync + 'static, V: Value, S = RandomState> {
    root: Branch<K, V>,
    hasher: S,
}

type Slot<K, V> = TCell<Option<Arc<Entry<K, V>>>>;
type Branch<K, V> = Box<[Slot<K, V>; SLOTS]>;

enum Entry<K: Send + Sync + 'static, V: Value> {
    Branch(Branch<K, V>),
    Leaf(Leaf<K, V>),
}

struct Leaf<K: Send + Sync + 'static, V: Value> {
    hash: u64,
    key: K,
    value: TCell<V>,
    /// Leaves with the same hash.
    next: Slot<K, V>,
}

/// The place of a key.
struct Place<'t, K: Send + Sync + 'static, V: Value> {
    slot: &'t Slot<K, V>,
    /// The leaf in the slot: that of the key, or one with another hash.
    leaf: Option<&'t Leaf<K, V>>,
    /// Level of the slot, from 0.
    level: u32,
}

fn index(hash: u64, level: u32) -> usize {
    (hash >> (level * LEVEL_BITS)) as usize % SLOTS
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Value> TMap<K, V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        TMap::default()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Value, S: BuildHasher> TMap<K, V, S> {
    /// Creates an empty map with this hash function, which must distribute keys well over all bits.
    pub fn with_hasher(hasher: S) -> Self {
        TMap { root: Box::default(), hasher }
    }

    /// Finds the place of a key: the slot of its leaf, or the slot for a new leaf.
    fn find<'t, Q>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        hash: u64,
        key: &Q,
    ) -> Result<Place<'t, K, V>, Abort>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut level = 0;
        let mut slot = &self.root[index(hash, level)];
        loop {
            match tx.read(slot)? {
                None => return Ok(Place { slot, leaf: None, level }),
                Some(Entry::Branch(slots)) => {
                    level += 1;
                    slot = &slots[index(hash, level)];
                }
                Some(Entry::Leaf(leaf)) if leaf.hash == hash && leaf.key.borrow() != key => {
                    slot = &leaf.next;
                }
                Some(Entry::Leaf(leaf)) => return Ok(Place { slot, leaf: Some(leaf), level }),
            }
        }
    }

    /// Finds the leaf of a key, and its slot.
    #[expect(clippy::type_complexity, reason = "a pair")]
    fn find_leaf<'t, Q>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        key: &Q,
    ) -> Result<Option<(&'t Slot<K, V>, &'t Leaf<K, V>)>, Abort>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let Place { slot, leaf, .. } = self.find(tx, hash, key)?;
        Ok(leaf.filter(|leaf| leaf.hash == hash).map(|leaf| (slot, leaf)))
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    ///
    /// The attempt cannot continue: return the error from the closure. This holds for all methods
    /// below.
    pub fn get<'t, Q>(&'t self, tx: &mut Tx<'t, '_>, key: &Q) -> Result<Option<V::Ref<'t>>, Abort>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find_leaf(tx, key)?.map(|(_, leaf)| tx.read(&leaf.value)).transpose()
    }

    /// Returns whether the map contains a key.
    pub fn contains_key<'t, Q>(&'t self, tx: &mut Tx<'t, '_>, key: &Q) -> Result<bool, Abort>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        Ok(self.find_leaf(tx, key)?.is_some())
    }

    /// Sets the value of a key. Returns the previous value.
    pub fn insert<'t>(&'t self, tx: &mut Tx<'t, '_>, key: K, value: V) -> Result<Option<V>, Abort> {
        let hash = self.hasher.hash_one(&key);
        loop {
            let Place { slot, leaf, level } = self.find(tx, hash, &key)?;
            match leaf {
                None => {
                    let (value, next) = (TCell::new(value), TCell::new(None));
                    let leaf = Entry::Leaf(Leaf { hash, key, value, next });
                    tx.write(slot, Some(Arc::new(leaf)))?;
                    return Ok(None);
                }
                Some(leaf) if leaf.hash == hash => {
                    let old = tx.share(&leaf.value)?;
                    tx.write(&leaf.value, value)?;
                    return Ok(Some(old));
                }
                Some(other) => {
                    // The hashes differ in a later level at the latest: then the slot is free.
                    let mut slots: Branch<K, V> = Box::default();
                    slots[index(other.hash, level + 1)] = TCell::new(tx.share(slot)?);
                    tx.write(slot, Some(Arc::new(Entry::Branch(slots))))?;
                }
            }
        }
    }

    /// Replaces the value of a key by the result of `change`. Returns whether the map contains the
    /// key.
    pub fn update<'t, Q>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        key: &Q,
        change: impl FnOnce(V::Ref<'t>) -> V,
    ) -> Result<bool, Abort>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some((_, leaf)) = self.find_leaf(tx, key)? else { return Ok(false) };
        tx.update(&leaf.value, change)?;
        Ok(true)
    }

    /// Removes a key. Returns its value.
    pub fn remove<'t, Q>(&'t self, tx: &mut Tx<'t, '_>, key: &Q) -> Result<Option<V>, Abort>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some((slot, leaf)) = self.find_leaf(tx, key)? else { return Ok(None) };
        let (value, next) = (tx.share(&leaf.value)?, tx.share(&leaf.next)?);
        tx.write(slot, next)?;
        Ok(Some(value))
    }

    /// Removes all keys.
    pub fn clear<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<(), Abort> {
        self.root.iter().try_for_each(|slot| tx.write(slot, None))
    }

    /// Calls `f` with each leaf until `f` breaks.
    fn walk<'t>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        mut f: impl FnMut(&mut Tx<'t, '_>, &'t Leaf<K, V>) -> Result<ControlFlow<()>, Abort>,
    ) -> Result<(), Abort> {
        let mut open: Vec<&'t Slot<K, V>> = self.root.iter().collect();
        while let Some(slot) = open.pop() {
            match tx.read(slot)? {
                None => {}
                Some(Entry::Branch(slots)) => open.extend(slots.iter()),
                Some(Entry::Leaf(leaf)) => {
                    if f(tx, leaf)?.is_break() {
                        return Ok(());
                    }
                    open.push(&leaf.next);
                }
            }
        }
        Ok(())
    }

    /// Calls `f` with all keys and values, in no order. The transaction then conflicts with every
    /// change of the map.
    pub fn for_each<'t>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        mut f: impl FnMut(&'t K, V::Ref<'t>),
    ) -> Result<(), Abort> {
        self.walk(tx, |tx, leaf| {
            f(&leaf.key, tx.read(&leaf.value)?);
            Ok(Continue(()))
        })
    }

    /// Returns the number of keys. Visits all keys: use a [`TCounter`](crate::TCounter) in the same
    /// transactions if the number is needed often.
    pub fn len<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<usize, Abort> {
        let mut len = 0;
        self.walk(tx, |_, _| {
            len += 1;
            Ok(Continue(()))
        })?;
        Ok(len)
    }

    /// Returns whether the map is empty. Visits branches up to the first key.
    pub fn is_empty<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<bool, Abort> {
        let mut is_empty = true;
        self.walk(tx, |_, _| {
            is_empty = false;
            Ok(Break(()))
        })?;
        Ok(is_empty)
    }
}

impl<K, V, S> Default for TMap<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Value,
    S: BuildHasher + Default,
{
    fn default() -> Self {
        TMap::with_hasher(S::default())
    }
}

impl<K: Send + Sync + 'static, V: Value, S> fmt::Debug for TMap<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only transactions may read the entries.
        f.debug_struct("TMap").finish_non_exhaustive()
    }
}
