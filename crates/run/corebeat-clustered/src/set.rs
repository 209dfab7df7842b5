//! Sets.

use crate::{Event, Map, event};
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;

/// A hash set that is read without locks: a [`Map`] whose keys have no values, with the same guarantees.
///
/// ```
/// use corebeat_clustered::Set;
///
/// let seen = Set::new();
/// assert!(seen.insert(7) && !seen.insert(7));
/// assert!(seen.contains(&7) && seen.remove(&7) && seen.is_empty());
/// ```
pub struct Set<K: Send + Sync + 'static> {
    keys: Map<K, ()>,
}

impl<K: Hash + Eq + Send + Sync + 'static> Set<K> {
    /// Empty.
    pub fn new() -> Self {
        Set { keys: Map::new() }
    }

    /// Whether a key is in it.
    #[inline]
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        event(|event| self.keys.get(event, key).is_some())
    }

    /// Puts a key in. Whether it was not there.
    pub fn insert(&self, key: K) -> bool {
        self.keys.insert(key, ())
    }

    /// Takes a key out. Whether it was there.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.remove(key)
    }

    /// Takes out all keys.
    pub fn clear(&self) {
        self.keys.clear();
    }

    /// How many keys there are: as [`Map::len`].
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none: as [`Map::len`].
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Goes through all keys: as [`Map::iter`].
    pub fn iter<'e>(&'e self, event: &'e Event<'_>) -> impl Iterator<Item = &'e K> {
        self.keys.iter(event).map(|(key, ())| key)
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
        event(|event| f.debug_set().entries(self.iter(event)).finish())
    }
}
