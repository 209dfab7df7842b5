//! A map that swaps its implementation while it is in use.

use crate::adaptive::{Adaptive, Form, Single};
use crate::{Map, read_section};
use corebeat_sync::Mutex;
use corebeat_sync::lock;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::PoisonError;

/// A map that is a `HashMap` behind a lock until several threads use it, and a [`Map`] from then
/// on.
///
/// ```
/// use corebeat_clustered::AdaptiveMap;
///
/// let pages = AdaptiveMap::default();
/// pages.insert("/", 5);
/// pages.spread();
/// assert_eq!(pages.get("/"), Some(5));
/// assert!(pages.remove("/"));
/// ```
///
/// A swap clones keys and values, and `get` clones the value: put large ones into an `Arc`.
/// Destructors of values may use the map. Functions that hash, compare, clone or drop keys, or
/// clone values, must not use the map, because it is locked.
pub type AdaptiveMap<K, V> = Adaptive<Mutex<HashMap<K, V>>>;

impl<K, V> Single for Mutex<HashMap<K, V>>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    type Spread = Map<K, V>;

    fn spread(self) -> Map<K, V> {
        self.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
    }

    fn gather(map: Map<K, V>) -> Self {
        let entry = |(key, value): (&K, &V)| (key.clone(), value.clone());
        Mutex::new(read_section(|guard| map.iter(guard).map(entry).collect()))
    }
}

impl<K, V> AdaptiveMap<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Returns a clone of the value of a key.
    #[inline]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.call(|form| match form {
            Form::Single(map) => lock(map).get(key).cloned(),
            Form::Spread(map) => read_section(|guard| map.get(guard, key).cloned()),
        })
    }

    /// Sets the value of a key. Returns whether the key is new.
    pub fn insert(&self, key: K, value: V) -> bool {
        self.call(|form| match form {
            Form::Single(map) => {
                // The destructor of the value is user code: after the lock.
                let old = lock(map).insert(key, value);
                old.is_none()
            }
            Form::Spread(map) => map.insert(key, value),
        })
    }

    /// Removes a key. Returns whether the map contained the key.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.call(|form| match form {
            Form::Single(map) => {
                // As above.
                let old = lock(map).remove(key);
                old.is_some()
            }
            Form::Spread(map) => map.remove(key),
        })
    }

    /// Returns the number of keys: exact without concurrent changes, otherwise off by their number.
    pub fn len(&self) -> usize {
        self.call(|form| match form {
            Form::Single(map) => lock(map).len(),
            Form::Spread(map) => map.len(),
        })
    }

    /// Returns whether the map is empty, as [`len`](AdaptiveMap::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K, V> Default for AdaptiveMap<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn default() -> Self {
        Adaptive::new(Mutex::default())
    }
}
