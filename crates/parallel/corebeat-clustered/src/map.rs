//! Maps.

use crate::table::{Entry, PARTS, Table, TableLink, part};
use crate::{Counter, Guard, Link, read_section};
use corebeat_sync::lock;
use corebeat_sync::{CachePadded, Mutex};
use std::array;
use std::borrow::Borrow;
#[cfg(loom)]
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::PoisonError;

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
/// iteration once, and some of the others; it locks one part after the other. Keys are compared and
/// hashed while a part is locked: a `Hash` or `Eq` that uses the map other than by `get` may
/// deadlock. Destructors may use the map.
///
/// ```text
///   [ link ] ---> buckets of one cache line, by the high bits of the hash
///                 [ 7 tags, 7 links ] [ 7 tags, 7 links ] ... | [ 7 tags, 7 links ] ...
///   each part:              |                                 |
///   [ lock, entries ]       +----> [ key, value ]             | the next part
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
pub struct Map<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    table: TableLink<K, V>,
    /// The tables of parts. Adjacent in memory, because they are rarely written.
    tables: Box<[TableLink<K, V>; PARTS]>,
    /// Each with the number of entries of the part.
    locks: Box<[CachePadded<Mutex<usize>>; PARTS]>,
    /// The table to which parts are moving, or have moved before `Hash` panicked. Locked before a
    /// part is.
    growth: Mutex<Option<TableLink<K, V>>>,
    len: Counter,
    hasher: Hasher,
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Drop for Map<K, V> {
    fn drop(&mut self) {
        let growth = self.growth.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let table = std::mem::replace(&mut self.table, TableLink::empty());
        // SAFETY: no thread has a reference to the map, so no new section finds its tables.
        growth.into_iter().chain([table]).for_each(|table| unsafe { table.retire() });
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + Sync + 'static> Map<K, V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Map {
            table: TableLink::empty(),
            tables: Box::new(array::from_fn(|_| TableLink::empty())),
            locks: Box::new(array::from_fn(|_| CachePadded::default())),
            growth: Mutex::new(None),
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
        match self.table.find_first(guard, hash, key) {
            Some(entry) => Some(&entry.value),
            None => self.search(guard, hash, key),
        }
    }

    /// Returns the value of a key that is not where most keys are, or `None` if there is none.
    #[cold]
    #[inline(never)]
    fn search<'e, Q: Eq + ?Sized>(&self, guard: &'e Guard<'_>, hash: u64, key: &Q) -> Option<&'e V>
    where
        K: Borrow<Q>,
    {
        let link = &self.tables[part(hash)];
        let mut table = link.get(guard)?;
        loop {
            if let Some(found) = table.find(guard, hash, key) {
                return Some(&found.entry.value);
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
            let link = match (&found, table) {
                (Some(found), _) if !replaces => return (&found.entry.value, false),
                (Some(found), _) => found.link(),
                (None, Some(table)) if table.has_room(*entries) => {
                    *entries += 1;
                    self.len.add(1);
                    table.take(hash)
                }
                (None, table) => {
                    drop(entries);
                    self.grow(guard, hash, table);
                    continue;
                }
            };
            // SAFETY: this part is locked.
            unsafe { link.replace_alone(Entry { key, value }) };
            let entry =
                link.get(guard).expect("the value was stored above, and this part is locked");
            return (&entry.value, found.is_none());
        }
    }

    /// Moves all parts to a larger table, unless the part of a hash has another one than `full`.
    #[cold]
    fn grow(&self, guard: &Guard<'_>, hash: u64, full: Option<Table<'_, K, V>>) {
        let mut growth = lock(&self.growth);
        if self.tables[part(hash)].get(guard) != full {
            return;
        }
        let new = growth.get_or_insert_with(|| TableLink::enlarged(full));
        (0..PARTS).for_each(|number| self.move_part(guard, number, new));
        let old = TableLink::empty();
        old.set(&self.table);
        self.table.set(new);
        *growth = None;
        // SAFETY: the links of the map and of all parts refer to the new table.
        unsafe { old.retire() };
    }

    /// Moves a part to a new table.
    fn move_part(&self, guard: &Guard<'_>, number: usize, new: &TableLink<K, V>) {
        let _entries = lock(&self.locks[number]);
        let (old, table) = (self.tables[number].get(guard), new.get(guard));
        if old == table {
            return;
        }
        // `Hash` may panic: all keys are hashed before anything changes.
        let all: Vec<(&Link<Entry<K, V>>, u64)> = old
            .into_iter()
            .flat_map(|old| old.entries(number, guard))
            .map(|(link, entry)| (link, self.hash(&entry.key)))
            .collect();
        for (link, hash) in &all {
            let moved = table.expect("the link has a table").take(*hash);
            // SAFETY: the old link is cleared below, without a panic in between, while this part is
            // locked.
            unsafe { moved.alias(link) };
        }
        self.tables[number].set(new);
        // SAFETY: the new table refers to the entries.
        all.iter().for_each(|(link, _)| unsafe { link.forget() });
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
            table.remove(hash, &found);
            *entries -= 1;
            self.len.add(-1);
            true
        })
    }

    /// Removes all keys, one part after the other.
    pub fn clear(&self) {
        read_section(|guard| {
            for (number, link) in self.tables.iter().enumerate() {
                let mut entries = lock(&self.locks[number]);
                link.get(guard).into_iter().for_each(|table| table.clear(number));
                self.len.add(-(*entries as i64));
                *entries = 0;
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
