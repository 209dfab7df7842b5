//! Transactional sets.

use crate::{Abort, TMap, Tx};
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};

/// A hash set: a [`TMap`] whose keys have no values.
///
/// ```
/// use corebeat_stm::{TSet, atomically};
///
/// let visited = TSet::new();
/// assert!(atomically(|tx| visited.insert(tx, 7)));
/// assert!(!atomically(|tx| visited.insert(tx, 7)));
/// assert!(atomically(|tx| visited.contains(tx, &7)));
/// ```
pub struct TSet<K: Send + Sync + 'static, S = RandomState> {
    keys: TMap<K, (), S>,
}

impl<K: Hash + Eq + Send + Sync + 'static> TSet<K> {
    /// Creates an empty set.
    pub fn new() -> Self {
        TSet::default()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, S: BuildHasher> TSet<K, S> {
    /// Creates an empty set with this hash function, which must distribute keys well over all bits.
    pub fn with_hasher(hasher: S) -> Self {
        TSet { keys: TMap::with_hasher(hasher) }
    }

    /// Returns whether the set contains a key.
    ///
    /// # Errors
    ///
    /// The attempt cannot continue: return the error from the closure. This holds for all methods
    /// below.
    pub fn contains<'t, Q>(&'t self, tx: &mut Tx<'t, '_>, key: &Q) -> Result<bool, Abort>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.keys.contains_key(tx, key)
    }

    /// Inserts a key. Returns whether the key is new.
    pub fn insert<'t>(&'t self, tx: &mut Tx<'t, '_>, key: K) -> Result<bool, Abort> {
        Ok(self.keys.insert(tx, key, ())?.is_none())
    }

    /// Removes a key. Returns whether the set contained the key.
    pub fn remove<'t, Q>(&'t self, tx: &mut Tx<'t, '_>, key: &Q) -> Result<bool, Abort>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        Ok(self.keys.remove(tx, key)?.is_some())
    }

    /// Removes all keys, as [`TMap::clear`].
    pub fn clear<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<(), Abort> {
        self.keys.clear(tx)
    }

    /// Calls `f` with all keys, in no order, as [`TMap::for_each`].
    pub fn for_each<'t>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        mut f: impl FnMut(&'t K),
    ) -> Result<(), Abort> {
        self.keys.for_each(tx, |key, ()| f(key))
    }

    /// Returns the number of keys, as [`TMap::len`].
    pub fn len<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<usize, Abort> {
        self.keys.len(tx)
    }

    /// Returns whether the set is empty, as [`TMap::is_empty`].
    pub fn is_empty<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<bool, Abort> {
        self.keys.is_empty(tx)
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, S: BuildHasher + Default> Default for TSet<K, S> {
    fn default() -> Self {
        TSet::with_hasher(S::default())
    }
}

impl<K: Send + Sync + 'static, S> fmt::Debug for TSet<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only transactions may read the keys.
        f.debug_struct("TSet").finish_non_exhaustive()
    }
}
