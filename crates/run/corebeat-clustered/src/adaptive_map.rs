//! A map whose implementation is swapped while it is in use.

use crate::adaptive::{Adaptive, Form, Single};
use crate::global::lock;
use crate::{Map, event};
use corebeat_sync::Mutex;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::PoisonError;

/// A map that is a `HashMap` behind a lock until several threads use it, and then a [`Map`].
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
/// Keys and values are cloned when its form is swapped, and values when they are got: put large ones into an `Arc`.
/// Destructors of values may use the map. What is to hash, compare, clone and drop keys, and to clone values, must not: the map is locked.
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
        Mutex::new(event(|event| map.iter(event).map(entry).collect()))
    }
}

impl<K, V> AdaptiveMap<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The value of a key.
    #[inline]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.call(|form| match form {
            Form::Single(map) => lock(map).get(key).cloned(),
            Form::Spread(map) => event(|event| map.get(event, key).cloned()),
        })
    }

    /// Gives a key a value, in the place of the one that it has, if any. Whether it had none.
    pub fn insert(&self, key: K, value: V) -> bool {
        self.call(|form| match form {
            Form::Single(map) => {
                // The value's destructor is not ours: after the lock.
                let old = lock(map).insert(key, value);
                old.is_none()
            }
            Form::Spread(map) => map.insert(key, value),
        })
    }

    /// Takes out a key. Whether it was there.
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

    /// How many keys there are: right as long as nobody adds or removes, otherwise off by those.
    pub fn len(&self) -> usize {
        self.call(|form| match form {
            Form::Single(map) => lock(map).len(),
            Form::Spread(map) => map.len(),
        })
    }

    /// Whether there are none: as [`len`](AdaptiveMap::len).
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
