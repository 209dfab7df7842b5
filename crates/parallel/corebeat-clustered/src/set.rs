//! Sets.

use crate::{Guard, Map, read_section};
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;

/// A hash set with lock-free reads: a [`Map`] whose keys have no values, with the same guarantees.
///
/// ```
/// use corebeat_clustered::Set;
///
/// let visited = Set::new();
/// assert!(visited.insert(7) && !visited.insert(7));
/// assert!(visited.contains(&7) && visited.remove(&7) && visited.is_empty());
/// ```
pub struct Set<K: Send + Sync + 'static> {
    keys: Map<K, ()>,
}

impl<K: Hash + Eq + Send + Sync + 'static> Set<K> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Set { keys: Map::new() }
    }

    /// Returns whether the set contains a key.
    #[inline]
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        read_section(|guard| self.keys.get(guard, key).is_some())
    }

    /// Inserts a key. Returns whether the key is new.
    pub fn insert(&self, key: K) -> bool {
        self.keys.insert(key, ())
    }

    /// Removes a key. Returns whether the set contained the key.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.remove(key)
    }

    /// Removes all keys.
    pub fn clear(&self) {
        self.keys.clear();
    }

    /// Returns the number of keys, as [`Map::len`].
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether the set is empty, as [`Map::len`].
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Iterates over all keys, as [`Map::iter`].
    pub fn iter<'e>(&'e self, guard: &'e Guard<'_>) -> impl Iterator<Item = &'e K> {
        self.keys.iter(guard).map(|(key, ())| key)
    }
}

impl<K: Hash + Eq + Send + Sync + 'static> Default for Set<K> {
    fn default() -> Self {
        Set::new()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static> FromIterator<K> for Set<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        Set { keys: keys.into_iter().map(|key| (key, ())).collect() }
    }
}

impl<K: Hash + Eq + fmt::Debug + Send + Sync + 'static> fmt::Debug for Set<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        read_section(|guard| f.debug_set().entries(self.iter(guard)).finish())
    }
}
