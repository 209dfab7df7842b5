//! Maps.

use crate::table::{Entry, PARTS, Table, TableLink, part};
use crate::{Counter, Guard, local, read_section};
use corebeat_sync::lock;
use corebeat_sync::{CachePadded, Mutex};
use std::array;
use std::borrow::Borrow;
#[cfg(loom)]
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{BuildHasher, Hash};

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
/// Entries are global and do not move: a reader follows [`Link`](crate::Link)s in its
/// [`read_section`], and writes only the thread's own state of the section. A writer locks one of
/// 64 parts, replaces an entry, and retires the old one, which is dropped when the sections that
/// may have found it are over. The number of entries is counted in the threads that add and remove
/// them ([`Counter`]).
///
/// Each operation on a key is atomic. An iteration returns every entry that exists during the whole
/// iteration once, and some of the others; it locks one part after the other. Keys are compared
/// while a part is locked: an `Eq` that uses the map other than by `get` may deadlock. Destructors
/// may use the map.
///
/// ```text
///   [ link ] ---> buckets of one cache line, by the high bits of the hash
///                 [ 7 tags, 7 links ] [ 7 tags, 7 links ] ... | [ 7 tags, 7 links ] ...
///   each part:              |                                 |
///   [ lock, entries ]       +----> [ hash, key, value ]       | the next part
///   [ link ]
/// ```
///
/// When about three quarters of the links of a part have entries, the map gets a table of twice the
/// size, to which the parts move one by one. For each, the writer first publishes the new table in
/// the link of the part, then clears the links to the entries in the old one, both under the lock:
/// an entry that a reader found in either table was linked at that moment, as sections require.
/// Readers use the link of the map, which refers to the old table until all parts have moved. A
/// reader that does not find its entry there follows the link of the part, and again if that has
/// changed meanwhile.
///
/// The table grows if any part is full, and only [`clear`](Map::clear) makes it small again. Keys
/// with few different hashes, of which many are in one part, enlarge the table for all parts.
pub struct Map<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    table: TableLink<K, V>,
    /// The tables of parts. Adjacent in memory, because they are rarely written.
    tables: Box<[TableLink<K, V>; PARTS]>,
    /// Each with the number of entries of the part.
    locks: Box<[CachePadded<Mutex<usize>>; PARTS]>,
    /// Locked, before a part is, by a thread that sets another table. While it is not locked, all
    /// links refer to the same table.
    growth: Mutex<()>,
    len: Counter,
    hasher: Hasher,
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Drop for Map<K, V> {
    fn drop(&mut self) {
        // SAFETY: no thread has a reference to the map, and only its functions use the table. All
        // links refer to this one, because a thread that sets another one does not panic.
        unsafe { self.table.free() };
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> Map<K, V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Map {
            table: TableLink::empty(),
            tables: Box::new(array::from_fn(|_| TableLink::empty())),
            locks: Box::new(array::from_fn(|_| CachePadded::default())),
            growth: Mutex::new(()),
            len: Counter::new(),
            hasher: Hasher::default(),
        }
    }

    #[inline(always)]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the value of a key, valid until the end of the section.
    #[inline]
    pub fn get<'e, Q: Hash + Eq + ?Sized>(&self, guard: &'e Guard<'_>, key: &Q) -> Option<&'e V>
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        let of_part = || &self.tables[part(hash)];
        let search = || self.search(guard, hash, key);
        self.table.find_first(guard, hash, key, of_part, search).map(|entry| &entry.value)
    }

    /// Returns the entry of a key that is not where most keys are, or `None` if there is none.
    #[cold]
    #[inline(never)]
    fn search<'e, Q: Eq + ?Sized>(
        &self,
        guard: &'e Guard<'_>,
        hash: u64,
        key: &Q,
    ) -> Option<&'e Entry<K, V>>
    where
        K: Borrow<Q>,
    {
        let link = &self.tables[part(hash)];
        let mut table = link.get(guard)?;
        loop {
            if let Some(found) = table.find(guard, hash, key) {
                return Some(found.entry);
            }
            // The link may have been cleared for another table. (Within the section, the address is
            // not reused.)
            let now = link.get(guard)?;
            if table == now {
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
        loop {
            let mut entries = lock(&self.locks[part(hash)]);
            let table = self.tables[part(hash)].get(guard);
            let found = table.and_then(|table| table.find(guard, hash, &key));
            let (link, hash) = match (&found, table) {
                (Some(found), _) if !replaces => return (&found.entry.value, false),
                // The hash decided on the place, and a wrong `Hash` may return another one now.
                (Some(found), _) => (found.link(), found.entry.hash),
                (None, Some(table)) if table.has_room(*entries) => {
                    *entries += 1;
                    self.len.add(1);
                    (table.take(hash), hash)
                }
                (None, table) => {
                    drop(entries);
                    self.grow(guard, hash, table);
                    continue;
                }
            };
            // SAFETY: this part is locked.
            unsafe { link.replace_alone(Entry { hash, key, value }) };
            let entry =
                link.get(guard).expect("the value was stored above, and this part is locked");
            return (&entry.value, found.is_none());
        }
    }

    /// Moves all parts to a larger table, unless the part of a hash has another one than `full`.
    #[cold]
    fn grow(&self, guard: &Guard<'_>, hash: u64, full: Option<Table<'_, K, V>>) {
        let _growth = lock(&self.growth);
        if self.tables[part(hash)].get(guard) != full {
            return;
        }
        let new = TableLink::enlarged(full);
        (0..PARTS).for_each(|number| self.move_part(guard, number, &new));
        self.finish(&new);
    }

    /// Moves a part to a new table.
    fn move_part(&self, guard: &Guard<'_>, number: usize, new: &TableLink<K, V>) {
        let _entries = lock(&self.locks[number]);
        let old = self.tables[number].get(guard);
        let entries = || old.into_iter().flat_map(|old| old.entries(number, guard));
        let table = new.get(guard).expect("the link has a table");
        for (link, entry) in entries() {
            // SAFETY: the old link is cleared below, while this part is locked.
            unsafe { table.take(entry.hash).alias(link) };
        }
        self.tables[number].set(new);
        // SAFETY: the new table refers to the entries.
        entries().for_each(|(link, _)| unsafe { link.forget() });
    }

    /// Sets the table of the map to a new one, to which all parts refer. Growth is locked.
    fn finish(&self, new: &TableLink<K, V>) {
        let old = TableLink::empty();
        old.set(&self.table);
        self.table.set(new);
        // SAFETY: the links of the map and of all parts refer to the new table.
        if unsafe { old.retire() } {
            // A table is large: it does not wait until the thread has retired many values.
            local::with(|local| local.defer(local::RECLAIM));
        }
    }

    /// Removes a key. Returns whether the map contained it. The value is dropped when no section
    /// uses it any more.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        read_section(|guard| {
            let mut entries = lock(&self.locks[part(hash)]);
            let Some(table) = self.tables[part(hash)].get(guard) else { return false };
            let Some(found) = table.find(guard, hash, key) else { return false };
            table.remove(&found);
            *entries -= 1;
            self.len.add(-1);
            true
        })
    }

    /// Removes all keys, one part after the other. The map then has a table of the smallest size.
    pub fn clear(&self) {
        read_section(|guard| {
            let _growth = lock(&self.growth);
            let Some(table) = self.table.get(guard) else { return };
            let new = table.is_enlarged().then(|| TableLink::enlarged(None));
            for (number, link) in self.tables.iter().enumerate() {
                let mut entries = lock(&self.locks[number]);
                table.clear(number);
                new.iter().for_each(|new| link.set(new));
                self.len.add(-(*entries as i64));
                *entries = 0;
            }
            new.iter().for_each(|new| self.finish(new));
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
        let entries = |(number, link): (usize, &'e TableLink<K, V>)| -> Vec<&'e Entry<K, V>> {
            // The consumer may write: the lock is released before.
            let _entries = lock(&self.locks[number]);
            let table = link.get(guard).into_iter();
            table.flat_map(|table| table.entries(number, guard)).map(|(_, entry)| entry).collect()
        };
        let parts = self.tables.iter().enumerate();
        parts.flat_map(entries).map(|entry| (&entry.key, &entry.value))
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
