//! Maps.

use crate::global::lock;
use crate::{Counter, Event, Link, event};
use corebeat_sync::{CachePadded, Mutex};
use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

/// Into so many parts a map is divided for those who write.
const SHARDS: usize = 64;
/// So many buckets a part has at first.
const BUCKETS_LEAST: usize = 4;

/// A hash map that is read without locks, and without a line that readers share with anybody.
///
/// ```
/// use corebeat_clustered::{Map, event};
///
/// let pages = Map::new();
/// pages.insert("/", 5);
/// event(|event| {
///     let page = pages.get(event, "/").unwrap();
///     pages.remove("/"); // from whatever thread
///     assert_eq!(*page, 5); // until the event is over
///     assert!(pages.get(event, "/").is_none());
/// });
/// ```
///
/// What is read is global, and stays where it is: a reader follows [`Link`]s in its [`event`](event()), and writes nothing but what its own
/// thread has for that. Who writes locks one of 64 parts, replaces a bucket (one or two entries, mostly), and has the old one
/// dropped when the events are over in which it may have been found. How many entries there are is counted where they are added and
/// removed ([`Counter`]).
///
/// Each operation on a key takes effect at one moment. What goes through all entries finds those that are there from its begin to its
/// end, each once, and some of the others. The map grows, and does not shrink. Keys are compared while a part is locked: an `Eq` that
/// writes the map may wait for itself. Destructors may.
///
/// ```text
///   part (by high bits of the hash)      bucket (by low bits)
///   [ lock of who writes ]
///   [ link ] ----> [ link | link | link | link ] ----> [ first entry | rest ] ----> key, value
/// ```
pub struct Map<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    shards: Box<[CachePadded<Shard<K, V>>]>,
    len: Counter,
    hasher: RandomState,
}

struct Shard<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    buckets: Link<Buckets<K, V>>,
    /// Whoever writes has it: how many entries there are.
    len: Mutex<usize>,
}

/// As many as a power of two.
type Buckets<K, V> = Box<[Link<Bucket<K, V>>]>;

/// Never changed: another one is put in its place.
struct Bucket<K, V> {
    first: Arc<Entry<K, V>>,
    rest: Box<[Arc<Entry<K, V>>]>,
}

struct Entry<K, V> {
    hash: u64,
    key: K,
    value: V,
}

impl<K, V> Bucket<K, V> {
    fn new(mut entries: Vec<Arc<Entry<K, V>>>) -> Option<Bucket<K, V>> {
        let first = entries.pop()?;
        Some(Bucket { first, rest: entries.into() })
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = &Arc<Entry<K, V>>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    #[inline]
    fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<&Arc<Entry<K, V>>>
    where
        K: Borrow<Q>,
    {
        self.iter().find(|entry| entry.hash == hash && entry.key.borrow() == key)
    }
}

/// Which part: by other bits than which bucket.
fn shard(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARDS.ilog2())) as usize
}

fn slot<T>(buckets: &[T], hash: u64) -> &T {
    &buckets[hash as usize & (buckets.len() - 1)]
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Shard<K, V> {
    /// Buckets with room for one more than so many entries. The part is locked.
    fn buckets<'e>(&self, event: &'e Event<'_>, len: usize) -> &'e Buckets<K, V> {
        let found = self.buckets.get(event);
        if let Some(buckets) = found.filter(|buckets| len < buckets.len()) {
            return buckets;
        }
        let entries = found.into_iter().flatten().filter_map(|link| link.get(event)).flat_map(Bucket::iter);
        let count = found.map_or(BUCKETS_LEAST, |buckets| 2 * buckets.len());
        let mut lists: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
        entries.for_each(|entry| lists[entry.hash as usize & (count - 1)].push(entry.clone()));
        let link = |list| Bucket::new(list).map_or_else(Link::empty, Link::new);
        self.buckets.replace(lists.into_iter().map(link).collect());
        self.buckets.get(event).expect("it was put there, and this part is locked")
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> Map<K, V> {
    /// Empty.
    pub fn new() -> Self {
        let shard = |_| CachePadded::new(Shard { buckets: Link::empty(), len: Mutex::new(0) });
        Map { shards: (0..SHARDS).map(shard).collect(), len: Counter::new(), hasher: RandomState::new() }
    }

    /// The value of a key, for as long as the event lasts.
    #[inline]
    pub fn get<'e, Q: Hash + Eq + ?Sized>(&self, event: &'e Event<'_>, key: &Q) -> Option<&'e V>
    where
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let buckets = self.shards[shard(hash)].buckets.get(event)?;
        Some(&slot(buckets, hash).get(event)?.find(hash, key)?.value)
    }

    /// Gives a key a value, in the place of the one that it has, if any. Whether it had none.
    pub fn insert(&self, key: K, value: V) -> bool {
        event(|event| self.put(event, key, value, true).1)
    }

    /// The value of a key, for as long as the event lasts; if it has none, it gets one. Where several find that it has
    /// none at the same time, each makes one, and all get the first.
    pub fn get_or_insert_with<'e>(&self, event: &'e Event<'_>, key: K, make: impl FnOnce() -> V) -> &'e V {
        match self.get(event, &key) {
            Some(value) => value,
            None => self.put(event, key, make(), false).0,
        }
    }

    /// The value that a key has then, and whether it had none before.
    fn put<'e>(&self, event: &'e Event<'_>, key: K, value: V, replaces: bool) -> (&'e V, bool) {
        let entry = Arc::new(Entry { hash: self.hasher.hash_one(&key), key, value });
        let shard = &self.shards[shard(entry.hash)];
        let mut len = lock(&shard.len);
        let link = slot(shard.buckets(event, *len), entry.hash);
        let bucket = link.get(event);
        let old = bucket.and_then(|bucket| bucket.find(entry.hash, &entry.key));
        if let Some(old) = old.filter(|_| !replaces) {
            return (&old.value, false);
        }
        let stays = |other: &&Arc<_>| old.is_none_or(|old| !Arc::ptr_eq(old, other));
        let mut entries: Vec<_> = bucket.into_iter().flat_map(Bucket::iter).filter(stays).cloned().collect();
        entries.push(entry);
        link.replace(Bucket::new(entries).expect("there is one"));
        if old.is_none() {
            *len += 1;
            self.len.add(1);
        }
        // The one that was pushed last is first, and this part is locked.
        (&link.get(event).expect("it was put there").first.value, old.is_none())
    }

    /// Takes out a key. Whether it was there. Its value is dropped when no event uses it any more.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let shard = &self.shards[shard(hash)];
        event(|event| {
            let mut len = lock(&shard.len);
            let Some(buckets) = shard.buckets.get(event) else { return false };
            let link = slot(buckets, hash);
            let found = link.get(event).and_then(|bucket| Some((bucket, bucket.find(hash, key)?)));
            let Some((bucket, old)) = found else { return false };
            let stays = bucket.iter().filter(|entry| !Arc::ptr_eq(entry, old)).cloned().collect();
            match Bucket::new(stays) {
                Some(bucket) => link.replace(bucket),
                None => drop(link.destroy()),
            }
            *len -= 1;
            self.len.add(-1);
            true
        })
    }

    /// Takes out all keys, part by part.
    pub fn clear(&self) {
        event(|event| {
            for shard in &self.shards {
                let mut len = lock(&shard.len);
                for link in shard.buckets.get(event).into_iter().flatten() {
                    link.destroy();
                }
                self.len.add(-(*len as i64));
                *len = 0;
            }
        });
    }

    /// How many keys there are: right as long as nobody adds or removes, otherwise off by those.
    pub fn len(&self) -> usize {
        usize::try_from(self.len.value()).unwrap_or(0)
    }

    /// Whether there are none: as [`len`](Map::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Goes through all entries, in no order: those that are there all the time, each once, and some of the others.
    pub fn iter<'e>(&'e self, event: &'e Event<'_>) -> impl Iterator<Item = (&'e K, &'e V)> {
        let buckets = self.shards.iter().filter_map(|shard| shard.buckets.get(event)).flatten();
        let entries = buckets.filter_map(|link| link.get(event)).flat_map(Bucket::iter);
        entries.map(|entry| (&entry.key, &entry.value))
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> Default for Map<K, V> {
    fn default() -> Self {
        Map::new()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let map = Map::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K, V> fmt::Debug for Map<K, V>
where
    K: Hash + Eq + fmt::Debug + Send + Sync + 'static,
    V: fmt::Debug + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        event(|event| f.debug_map().entries(self.iter(event)).finish())
    }
}
