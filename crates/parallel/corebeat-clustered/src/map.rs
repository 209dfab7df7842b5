//! Maps.

use crate::{Counter, Guard, Link, read_section};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::lock;
use corebeat_sync::{CachePadded, Mutex};
use std::borrow::Borrow;
#[cfg(loom)]
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{BuildHasher, Hash};

/// Number of parts of a map; each part has one lock for writers.
const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };
/// Minimum number of slots of a part.
const SLOTS_LEAST: usize = if cfg!(loom) { 2 } else { 8 };
/// Set in the hash of every key, next to the bits that select the part: a hash of 0 marks slots
/// that were never taken.
const TAKEN: u64 = 1 << (u64::BITS - 1 - SHARDS.ilog2());

#[cfg(not(loom))]
type Hasher = std::collections::hash_map::RandomState;
/// Models need the same hashes in each run.
#[cfg(loom)]
type Hasher = std::hash::BuildHasherDefault<DefaultHasher>;

/// A hash map whose readers take no lock and share no written cache line.
///
/// ```
/// use corebeat_clustered::{Map, read_section};
///
/// let pages = Map::new();
/// pages.insert("/", 5);
/// read_section(|guard| {
///     let page = pages.get(guard, "/").unwrap();
///     pages.remove("/"); // from any thread
///     assert_eq!(*page, 5); // valid until the end of the section
///     assert!(pages.get(guard, "/").is_none());
/// });
/// ```
///
/// Entries are global and do not move: a reader follows [`Link`]s in its [`read_section`], and
/// writes only the thread's own state of the section. A writer locks one of 64 parts, replaces an
/// entry, and retires the old one, which is dropped when the sections that may have found it are
/// over. The number of entries is counted in the threads that add and remove them ([`Counter`]).
///
/// Each operation on a key is atomic. An iteration returns every entry that exists during the whole
/// iteration once, and some of the others; it locks one part after the other. Keys are compared
/// while a part is locked: an `Eq` that uses the map other than by `get` may deadlock. Destructors
/// may use the map.
///
/// ```text
///   part (by high bits of the hash)      slots, open addressing (by low bits)
///   [ lock of writers ]
///   [ link ] ------------------> [ hash, link | hash, link | 0 | ... ]
///                                         |
///                                         +----> [ key, value ]
/// ```
///
/// A slot keeps its hash as long as the table lives, so that a reader that has loaded the hash may
/// follow the link. When three quarters of the slots were taken, all entries move to another table
/// of twice the needed size. The writer first publishes the new table, then clears the links of the
/// old one, both under the lock: an entry that a reader found in either table was linked at that
/// moment, as sections require. A reader that finds no entry, and finds that the table has changed,
/// searches again.
pub struct Map<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// Adjacent in memory, because they are rarely written.
    tables: Box<[Link<Table<K, V>>]>,
    locks: Box<[CachePadded<Mutex<Room>>]>,
    len: Counter,
    hasher: Hasher,
}

/// State of a part's table, for writers.
#[derive(Default)]
struct Room {
    entries: usize,
    /// Slots that were ever taken: those of entries and of removed entries.
    taken: usize,
}

/// The number of slots is a power of two. At least one slot was never taken.
struct Table<K: Send + Sync + 'static, V: Send + Sync + 'static>(Box<[Slot<K, V>]>);

/// Two words in one cache line.
#[repr(align(16))]
struct Slot<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// Hash of all entries that this slot ever contains; 0 at first. Written once, under the lock.
    hash: AtomicU64,
    entry: Link<Entry<K, V>>,
}

struct Entry<K, V> {
    key: K,
    value: V,
}

/// An entry and its slot.
type Found<'e, K, V> = (&'e Slot<K, V>, &'e Entry<K, V>);

/// Returns the part of a hash. The bits differ from those that select the slot.
#[inline(always)]
fn shard(hash: u64) -> usize {
    (hash >> (u64::BITS - SHARDS.ilog2())) as usize
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Table<K, V> {
    fn new(slots: usize) -> Self {
        let slot = |_| Slot { hash: AtomicU64::new(0), entry: Link::empty() };
        Table((0..slots).map(slot).collect())
    }

    /// Calls `f` with each slot that may contain an entry with this hash, then with a slot that was
    /// never taken, until `f` returns a value.
    #[inline(always)]
    fn probe<'t, T>(
        &'t self,
        hash: u64,
        mut f: impl FnMut(&'t Slot<K, V>, bool) -> Option<T>,
    ) -> Option<T> {
        let mut at = hash as usize;
        loop {
            let slot = &self.0[at & (self.0.len() - 1)];
            // Relaxed: a hash that is not 0 does not change, and was stored before any entry that
            // this thread can find.
            match slot.hash.load(Ordering::Relaxed) {
                0 => return f(slot, false),
                found if found == hash => {
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
    fn find<'e, Q: Eq + ?Sized>(
        &'e self,
        guard: &'e Guard<'_>,
        hash: u64,
        key: &Q,
    ) -> Option<Found<'e, K, V>>
    where
        K: Borrow<Q>,
    {
        self.probe(hash, |slot, _| {
            let entry = slot.entry.get(guard)?;
            (entry.key.borrow() == key).then_some((slot, entry))
        })
    }

    /// Returns a free slot for this hash, and takes a new one if needed. The part is locked.
    fn free<'t>(&'t self, guard: &Guard<'_>, hash: u64, room: &mut Room) -> &'t Slot<K, V> {
        let is_free = |slot: &'t Slot<K, V>, was_taken| {
            slot.entry.get(guard).is_none().then_some((slot, was_taken))
        };
        let (slot, was_taken) =
            self.probe(hash, is_free).expect("a slot that was never taken is free");
        if !was_taken {
            // Relaxed: as in `probe`.
            slot.hash.store(hash, Ordering::Relaxed);
            room.taken += 1;
        }
        slot
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> Map<K, V> {
    /// Creates an empty map.
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

    /// Returns the value of a key, valid until the end of the section.
    #[inline]
    pub fn get<'e, Q: Hash + Eq + ?Sized>(&self, guard: &'e Guard<'_>, key: &Q) -> Option<&'e V>
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        let mut table = self.tables[shard(hash)].get(guard)?;
        loop {
            if let Some((_, entry)) = table.find(guard, hash, key) {
                return Some(&entry.value);
            }
            // The slot may have been cleared for another table. (Within the section, the address is
            // not reused.)
            let now = self.tables[shard(hash)].get(guard)?;
            if std::ptr::eq(table, now) {
                return None;
            }
            table = now;
        }
    }

    /// Sets the value of a key. Returns whether the key is new.
    pub fn insert(&self, key: K, value: V) -> bool {
        read_section(|guard| self.put(guard, key, value, true).1)
    }

    /// Returns the value of a key, valid until the end of the section; inserts a value if there is
    /// none. If several threads insert at the same time, each makes a value, and all get the first
    /// one.
    pub fn get_or_insert_with<'e>(
        &self,
        guard: &'e Guard<'_>,
        key: K,
        make: impl FnOnce() -> V,
    ) -> &'e V {
        match self.get(guard, &key) {
            Some(value) => value,
            None => self.put(guard, key, make(), false).0,
        }
    }

    /// Returns the value of the key afterwards, and whether the key is new. (Unused arguments are
    /// dropped after the lock was released.)
    fn put<'e>(&self, guard: &'e Guard<'_>, key: K, value: V, replaces: bool) -> (&'e V, bool) {
        let hash = self.hash(&key);
        let mut room = lock(&self.locks[shard(hash)]);
        let found =
            self.tables[shard(hash)].get(guard).and_then(|table| table.find(guard, hash, &key));
        let slot = match found {
            Some((_, old)) if !replaces => return (&old.value, false),
            Some((slot, _)) => slot,
            None => {
                room.entries += 1;
                self.len.add(1);
                self.free(guard, hash, &mut room)
            }
        };
        slot.entry.replace(Entry { key, value });
        let entry =
            slot.entry.get(guard).expect("the value was stored above, and this part is locked");
        (&entry.value, found.is_none())
    }

    /// Returns a slot for a new entry, and moves the part to another table if needed. The part is
    /// locked.
    fn free<'e>(&self, guard: &'e Guard<'_>, hash: u64, room: &mut Room) -> &'e Slot<K, V> {
        let link = &self.tables[shard(hash)];
        let table = match link.get(guard) {
            Some(table) if (room.taken + 1) * 4 <= table.0.len() * 3 => table,
            old => {
                let table = Table::new((2 * room.entries).next_power_of_two().max(SLOTS_LEAST));
                let slots = || old.into_iter().flat_map(|old| &old.0);
                room.taken = 0;
                for slot in slots().filter(|slot| slot.entry.get(guard).is_some()) {
                    // SAFETY: the old link is cleared below, without a panic in between, while this
                    // part is locked.
                    unsafe {
                        table
                            .free(guard, slot.hash.load(Ordering::Relaxed), room)
                            .entry
                            .alias(&slot.entry)
                    };
                }
                link.replace(table);
                // SAFETY: the new table refers to the entries.
                slots().for_each(|slot| unsafe { slot.entry.forget() });
                link.get(guard).expect("the value was stored above, and this part is locked")
            }
        };
        table.free(guard, hash, room)
    }

    /// Removes a key. Returns whether the map contained it. The value is dropped when no section
    /// uses it any more.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        read_section(|guard| {
            let mut room = lock(&self.locks[shard(hash)]);
            let found =
                self.tables[shard(hash)].get(guard).and_then(|table| table.find(guard, hash, key));
            let Some((slot, _)) = found else { return false };
            slot.entry.destroy();
            room.entries -= 1;
            self.len.add(-1);
            true
        })
    }

    /// Removes all keys, one part after the other.
    pub fn clear(&self) {
        read_section(|guard| {
            for (lock_of, table) in self.locks.iter().zip(&self.tables) {
                let mut room = lock(lock_of);
                for slot in table.get(guard).into_iter().flat_map(|table| &table.0) {
                    slot.entry.destroy();
                }
                self.len.add(-(room.entries as i64));
                room.entries = 0;
            }
        });
    }

    /// Returns the number of keys: exact without concurrent changes, otherwise off by their number.
    pub fn len(&self) -> usize {
        usize::try_from(self.len.value()).unwrap_or(0)
    }

    /// Returns whether the map is empty, as [`len`](Map::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all entries, in no order: every entry that exists during the whole iteration
    /// once, and some of the others.
    pub fn iter<'e>(&'e self, guard: &'e Guard<'_>) -> impl Iterator<Item = (&'e K, &'e V)> {
        let entries =
            |(lock_of, table): (&CachePadded<_>, &'e Link<Table<K, V>>)| -> Vec<&'e Entry<K, V>> {
                // The consumer may write: the lock is released before.
                let _room = lock(lock_of);
                let slots = table.get(guard).into_iter().flat_map(|table| &table.0);
                slots.filter_map(|slot| slot.entry.get(guard)).collect()
            };
        self.locks
            .iter()
            .zip(&self.tables)
            .flat_map(entries)
            .map(|entry| (&entry.key, &entry.value))
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> Default for Map<K, V> {
    fn default() -> Self {
        Map::new()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> FromIterator<(K, V)>
    for Map<K, V>
{
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
        read_section(|guard| f.debug_map().entries(self.iter(guard)).finish())
    }
}
