//! Maps.

use crate::global::lock;
use crate::{Counter, Event, Link, event};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::{CachePadded, Mutex};
use std::borrow::Borrow;
#[cfg(loom)]
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{BuildHasher, Hash};

/// Into so many parts a map is divided for those who write.
const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };
/// So many slots a part has at least.
const SLOTS_LEAST: usize = if cfg!(loom) { 2 } else { 8 };
/// In the hash of every key, beside the bits that say which part: 0 is for slots that were never taken.
const TAKEN: u64 = 1 << (u64::BITS - 1 - SHARDS.ilog2());

#[cfg(not(loom))]
type Hasher = std::collections::hash_map::RandomState;
/// Hashes that differ from run to run are not for models.
#[cfg(loom)]
type Hasher = std::hash::BuildHasherDefault<DefaultHasher>;

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
/// thread has for that. Who writes locks one of 64 parts, puts an entry in the place of another, and has that
/// dropped when the events are over in which it may have been found. How many entries there are is counted where they are added and
/// removed ([`Counter`]).
///
/// Each operation on a key takes effect at one moment. What goes through all entries finds those that are there from its begin to its
/// end, each once, and some of the others; it locks one part after the other. Keys are compared while a part is locked: an `Eq` that
/// uses the map otherwise than to get may wait for itself. Destructors may.
///
/// ```text
///   part (by high bits of the hash)      slots, open addressing (by low bits)
///   [ lock of who writes ]
///   [ link ] ------------------> [ hash, link | hash, link | 0 | ... ]
///                                         |
///                                         +----> [ key, value ]
/// ```
///
/// A slot keeps its hash for as long as the table lasts, so that who has seen the hash may follow the link. When three quarters of
/// the slots were taken, all entries move to another table, twice as large as they need. The new table is put in place first, and the links
/// of the old one are cleared then, all under the lock: an entry that was found in either was not out of sight at that moment, which is what
/// a look in an event needs. Who finds nothing, and another table than the one he looked through, looks again.
pub struct Map<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// Side by side: they are seldom written.
    tables: Box<[Link<Table<K, V>>]>,
    locks: Box<[CachePadded<Mutex<Room>>]>,
    len: Counter,
    hasher: Hasher,
}

/// What whoever writes a part knows of its table.
#[derive(Default)]
struct Room {
    entries: usize,
    /// Slots that were taken once: those of entries, and of entries that are gone.
    taken: usize,
}

/// As many slots as a power of two; one at least was never taken.
struct Table<K: Send + Sync + 'static, V: Send + Sync + 'static>(Box<[Slot<K, V>]>);

/// Two words, in one line.
#[repr(align(16))]
struct Slot<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// Of all entries that ever are here; 0 at first. Written once, under the lock.
    hash: AtomicU64,
    entry: Link<Entry<K, V>>,
}

struct Entry<K, V> {
    key: K,
    value: V,
}

/// An entry, and where it is.
type Found<'e, K, V> = (&'e Slot<K, V>, &'e Entry<K, V>);

/// Which part: by other bits than which slot.
#[inline(always)]
fn shard(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARDS.ilog2())) as usize
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Table<K, V> {
    fn new(slots: usize) -> Self {
        let slot = |_| Slot { hash: AtomicU64::new(0), entry: Link::empty() };
        Table((0..slots).map(slot).collect())
    }

    /// Goes to the slots where an entry with this hash may be, and then to one that was never taken, until `f` has something.
    #[inline(always)]
    fn probe<'t, T>(&'t self, hash: u64, mut f: impl FnMut(&'t Slot<K, V>, bool) -> Option<T>) -> Option<T> {
        let mut at = hash as usize;
        loop {
            let slot = &self.0[at & (self.0.len() - 1)];
            // Relaxed: it does not change any more once it is there; and who put an entry there that this thread knows of did so after
            // it was.
            match slot.hash.load(Ordering::Relaxed) {
                0 => return f(slot, false),
                there if there == hash => {
                    if let Some(found) = f(slot, true) {
                        return Some(found);
                    }
                }
                _ => {}
            }
            at = at.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn find<'e, Q: Eq + ?Sized>(&'e self, event: &'e Event<'_>, hash: u64, key: &Q) -> Option<Found<'e, K, V>>
    where
        K: Borrow<Q>,
    {
        self.probe(hash, |slot, _| {
            let entry = slot.entry.get(event)?;
            (entry.key.borrow() == key).then_some((slot, entry))
        })
    }

    /// A slot where such an entry was, or one that was never taken and is now. The part is locked.
    fn free<'t>(&'t self, event: &Event<'_>, hash: u64, room: &mut Room) -> &'t Slot<K, V> {
        let is_free =
            |slot: &'t Slot<K, V>, was_taken| slot.entry.get(event).is_none().then_some((slot, was_taken));
        let (slot, was_taken) = self.probe(hash, is_free).expect("a slot that was never taken is free");
        if !was_taken {
            // Relaxed: as in `probe`.
            slot.hash.store(hash, Ordering::Relaxed);
            room.taken += 1;
        }
        slot
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> Map<K, V> {
    /// Empty.
    pub fn new() -> Self {
        Map {
            tables: (0..SHARDS).map(|_| Link::empty()).collect(),
            locks: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            len: Counter::new(),
            hasher: Hasher::default(),
        }
    }

    #[inline(always)]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key) | TAKEN
    }

    /// The value of a key, for as long as the event lasts.
    #[inline]
    pub fn get<'e, Q: Hash + Eq + ?Sized>(&self, event: &'e Event<'_>, key: &Q) -> Option<&'e V>
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        let mut table = self.tables[shard(hash)].get(event)?;
        loop {
            if let Some((_, entry)) = table.find(event, hash, key) {
                return Some(&entry.value);
            }
            // It may have been cleared for another one. (The address is not used again within the event.)
            let now = self.tables[shard(hash)].get(event)?;
            if std::ptr::eq(table, now) {
                return None;
            }
            table = now;
        }
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

    /// The value that a key has then, and whether it had none before. (What is not used is dropped after the lock is free, as
    /// arguments are.)
    fn put<'e>(&self, event: &'e Event<'_>, key: K, value: V, replaces: bool) -> (&'e V, bool) {
        let hash = self.hash(&key);
        let mut room = lock(&self.locks[shard(hash)]);
        let found = self.tables[shard(hash)].get(event).and_then(|table| table.find(event, hash, &key));
        let slot = match found {
            Some((_, old)) if !replaces => return (&old.value, false),
            Some((slot, _)) => slot,
            None => {
                room.entries += 1;
                self.len.add(1);
                self.free(event, hash, &mut room)
            }
        };
        slot.entry.replace(Entry { key, value });
        let entry = slot.entry.get(event).expect("it was put there, and this part is locked");
        (&entry.value, found.is_none())
    }

    /// A slot for one of the entries, which is not there yet. The part is locked.
    fn free<'e>(&self, event: &'e Event<'_>, hash: u64, room: &mut Room) -> &'e Slot<K, V> {
        let link = &self.tables[shard(hash)];
        let table = match link.get(event) {
            Some(table) if (room.taken + 1) * 4 <= table.0.len() * 3 => table,
            old => {
                let table = Table::new((2 * room.entries).next_power_of_two().max(SLOTS_LEAST));
                let slots = || old.into_iter().flat_map(|old| &old.0);
                room.taken = 0;
                for slot in slots().filter(|slot| slot.entry.get(event).is_some()) {
                    // SAFETY: the old one is cleared below, and nothing panics before that; meanwhile this part is locked.
                    unsafe {
                        table.free(event, slot.hash.load(Ordering::Relaxed), room).entry.alias(&slot.entry)
                    };
                }
                link.replace(table);
                // SAFETY: the other one is in use.
                slots().for_each(|slot| unsafe { slot.entry.forget() });
                link.get(event).expect("it was put there, and this part is locked")
            }
        };
        table.free(event, hash, room)
    }

    /// Takes out a key. Whether it was there. Its value is dropped when no event uses it any more.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        event(|event| {
            let mut room = lock(&self.locks[shard(hash)]);
            let found = self.tables[shard(hash)].get(event).and_then(|table| table.find(event, hash, key));
            let Some((slot, _)) = found else { return false };
            slot.entry.destroy();
            room.entries -= 1;
            self.len.add(-1);
            true
        })
    }

    /// Takes out all keys, part by part.
    pub fn clear(&self) {
        event(|event| {
            for (lock_of, table) in self.locks.iter().zip(&self.tables) {
                let mut room = lock(lock_of);
                for slot in table.get(event).into_iter().flat_map(|table| &table.0) {
                    slot.entry.destroy();
                }
                self.len.add(-(room.entries as i64));
                room.entries = 0;
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
        let entries = |(lock_of, table): (&CachePadded<_>, &'e Link<Table<K, V>>)| -> Vec<&'e Entry<K, V>> {
            // Whoever gets them may write: the lock is free again by then.
            let _room = lock(lock_of);
            let slots = table.get(event).into_iter().flat_map(|table| &table.0);
            slots.filter_map(|slot| slot.entry.get(event)).collect()
        };
        self.locks.iter().zip(&self.tables).flat_map(entries).map(|entry| (&entry.key, &entry.value))
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
