//! The table of a map: buckets of one cache line, each with seven links and their tags.
//!
//! ```text
//!   link: address of the header + number of bits by which a hash is shifted
//!       |
//!       v
//!   [ birth, buckets ] [ tags | 7 links ] [ tags | 7 links ] ...        each in one cache line
//!                        |         |
//!                        |         +---> [ birth, hash, key, value ]
//!                        +---> 7 bits of the hash of each link, and the number of entries
//!                              that did not fit here and are in a later bucket
//! ```
//!
//! The high bits of a hash select the bucket, and the highest of them the part, which has a lock
//! for writers. So each part is a range of buckets, to which only a thread with its lock writes. An
//! entry that does not fit into its bucket is in the next bucket of its part that has room.
//!
//! An entry keeps the hash that decided on its place: a `Hash` that returns another one later
//! affects which keys are found, but not how entries move and leave.
//!
//! A lookup loads the link, one bucket, and the entry: a tag excludes other entries with a
//! probability of 127/128. (As F14 of Bronson and Shi, *Open-sourcing F14 for faster, more
//! memory-efficient hash tables*, 2019, with links instead of entries: an entry that is replaced
//! must stay for its readers.)

use crate::global::era;
use crate::retired::retire;
use crate::{Guard, Link};
use corebeat_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::{ptr, slice};

/// Number of parts of a table; each part has one lock for writers.
pub(crate) const PARTS: usize = if cfg!(loom) { 2 } else { 64 };
/// Links of a bucket.
const LINKS: usize = if cfg!(loom) { 2 } else { 7 };
/// Size and alignment of a cache line. The low bits of the address of a table are free.
const LINE: usize = 64;
/// Tag of a link without an entry.
const FREE: u64 = 0;
/// Set in the tags of entries, next to 7 bits of the hash.
const TAKEN: u64 = 0x80;
/// The lowest bit of each byte.
const LOW: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte that is the tag of a link.
const HIGH: u64 = (LOW << 7) & ((1 << (8 * LINKS)) - 1);
/// Position of the number of entries that have passed over a bucket.
const PASSED: u32 = 56;
/// A number that has reached this value stays at it.
const PASSED_MAX: u64 = 0xff;

/// One cache line. Only a thread that has locked the part writes it.
#[repr(C, align(64))]
struct Bucket<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// Byte N is the tag of link N. The last byte is the number of entries that are in a later
    /// bucket because this one was full.
    ///
    /// All accesses are Relaxed: a thread to which an insertion is visible finds its tag, because
    /// each later number keeps the tag until the removal. Another thread may find the key or not.
    tags: AtomicU64,
    links: [Link<Entry<K, V>>; LINKS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket<u8, u8>>() == LINE);

pub(crate) struct Entry<K, V> {
    pub(crate) hash: u64,
    pub(crate) key: K,
    pub(crate) value: V,
}

/// Precedes the buckets of a table.
#[repr(C, align(64))]
struct Header<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// The era in which the table was made.
    birth: u64,
    buckets: usize,
    bucket: PhantomData<Bucket<K, V>>,
}

/// Returns the part of a hash.
#[inline(always)]
pub(crate) fn part(hash: u64) -> usize {
    (hash >> (u64::BITS - PARTS.ilog2())) as usize
}

/// Returns the tag of a hash. The bits differ from those that select the bucket.
#[inline(always)]
fn tag(hash: u64) -> u64 {
    hash & 0x7f | TAKEN
}

/// Returns the highest bits of the bytes that are equal to `tag`. The lowest one is exact; a higher
/// one may be wrong.
#[inline(always)]
fn equal(tags: u64, tag: u64) -> u64 {
    let difference = tags ^ (tag * LOW);
    difference.wrapping_sub(LOW) & !difference & HIGH
}

/// Returns the index of the lowest byte.
#[inline(always)]
fn lowest(bits: u64) -> usize {
    bits.trailing_zeros() as usize / 8
}

/// An entry, its bucket, and its number there.
pub(crate) struct Found<'e, K: Send + Sync + 'static, V: Send + Sync + 'static> {
    bucket: &'e Bucket<K, V>,
    at: usize,
    pub(crate) entry: &'e Entry<K, V>,
}

impl<'e, K: Send + Sync + 'static, V: Send + Sync + 'static> Found<'e, K, V> {
    pub(crate) fn link(&self) -> &'e Link<Entry<K, V>> {
        &self.bucket.links[self.at]
    }
}

/// A table that exists for `'e`. The number of buckets is a power of two, and at least one for each
/// part.
pub(crate) struct Table<'e, K: Send + Sync + 'static, V: Send + Sync + 'static> {
    buckets: &'e [Bucket<K, V>],
    /// Number of bits by which a hash is shifted.
    shift: usize,
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Clone for Table<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Copy for Table<'_, K, V> {}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> PartialEq for Table<'_, K, V> {
    fn eq(&self, other: &Self) -> bool {
        // Not the lengths: computing them takes time.
        ptr::eq(self.buckets.as_ptr(), other.buckets.as_ptr())
    }
}

impl<'e, K: Send + Sync + 'static, V: Send + Sync + 'static> Table<'e, K, V> {
    /// Number of buckets of a part, a power of two.
    fn part_len(self) -> usize {
        self.buckets.len() / PARTS
    }

    /// Returns whether the table is larger than the smallest one.
    pub(crate) fn is_enlarged(self) -> bool {
        self.part_len() > 1
    }

    /// Returns whether a part with this number of entries has room for another one. Small parts
    /// may become fuller than large ones, because their sizes vary more.
    pub(crate) fn has_room(self, entries: usize) -> bool {
        let links = self.part_len() * LINKS;
        entries < (links * 7 / 8).min(links * 3 / 4 + 2 * LINKS)
    }

    /// Returns the bucket of a hash, or the one behind `passed` others of its part.
    #[inline(always)]
    fn bucket(self, hash: u64, passed: usize) -> &'e Bucket<K, V> {
        let home = (hash >> self.shift) as usize;
        let within = self.part_len() - 1;
        let at = if passed == 0 { home } else { home & !within | (home + passed) & within };
        // SAFETY: the hash without the shifted bits is less than the number of buckets.
        unsafe { self.buckets.get_unchecked(at) }
    }

    pub(crate) fn find<Q: Eq + ?Sized>(
        self,
        guard: &'e Guard<'_>,
        hash: u64,
        key: &Q,
    ) -> Option<Found<'e, K, V>>
    where
        K: Borrow<Q>,
    {
        for passed in 0..self.part_len() {
            let bucket = self.bucket(hash, passed);
            let tags = bucket.tags.load(Ordering::Relaxed);
            let mut candidates = equal(tags, tag(hash));
            while candidates != 0 {
                let at = lowest(candidates);
                match bucket.links[at].get(guard) {
                    Some(entry) if entry.key.borrow() == key => {
                        return Some(Found { bucket, at, entry });
                    }
                    _ => candidates &= candidates - 1,
                }
            }
            if tags >> PASSED == 0 {
                break;
            }
        }
        None
    }

    /// Takes a free link for an entry with this hash. The part is locked, and has a free link.
    pub(crate) fn take(self, hash: u64) -> &'e Link<Entry<K, V>> {
        let mut passed = 0;
        loop {
            let bucket = self.bucket(hash, passed);
            let tags = bucket.tags.load(Ordering::Relaxed);
            let free = equal(tags, FREE);
            if free != 0 {
                let at = lowest(free);
                bucket.tags.store(tags | tag(hash) << (8 * at), Ordering::Relaxed);
                return &bucket.links[at];
            }
            if tags >> PASSED != PASSED_MAX {
                bucket.tags.store(tags + (1 << PASSED), Ordering::Relaxed);
            }
            passed += 1;
        }
    }

    /// Removes an entry. The part is locked.
    pub(crate) fn remove(self, found: &Found<'e, K, V>) {
        found.link().destroy();
        let tags = found.bucket.tags.load(Ordering::Relaxed);
        found.bucket.tags.store(tags & !(0xff << (8 * found.at)), Ordering::Relaxed);
        let path = (0..).map(|passed| self.bucket(found.entry.hash, passed));
        for bucket in path.take_while(|bucket| !ptr::eq(*bucket, found.bucket)) {
            let tags = bucket.tags.load(Ordering::Relaxed);
            if tags >> PASSED != PASSED_MAX {
                bucket.tags.store(tags - (1 << PASSED), Ordering::Relaxed);
            }
        }
    }

    fn part(self, part: usize) -> &'e [Bucket<K, V>] {
        &self.buckets[part * self.part_len()..][..self.part_len()]
    }

    /// Removes all entries of a part, which is locked.
    pub(crate) fn clear(self, part: usize) {
        for bucket in self.part(part) {
            if bucket.tags.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for link in &bucket.links {
                link.destroy();
            }
            bucket.tags.store(0, Ordering::Relaxed);
        }
    }

    /// Iterates over all entries of a part, and their links.
    pub(crate) fn entries(
        self,
        part: usize,
        guard: &'e Guard<'_>,
    ) -> impl Iterator<Item = (&'e Link<Entry<K, V>>, &'e Entry<K, V>)> {
        let links = self.part(part).iter().flat_map(|bucket| &bucket.links);
        links.filter_map(|link| Some((link, link.get(guard)?)))
    }
}

/// A link to a table. As with a [`Link`], a table that a section has found exists until its end.
/// Several links may refer to one table, so a link does not free its table.
pub(crate) struct TableLink<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// The address of the header plus the shift; null without a table.
    to: AtomicPtr<Header<K, V>>,
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> TableLink<K, V> {
    /// Creates a link without a table.
    pub(crate) fn empty() -> TableLink<K, V> {
        TableLink { to: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Creates a link to a new table of twice the size of another one, or of the smallest size.
    pub(crate) fn enlarged(old: Option<Table<'_, K, V>>) -> TableLink<K, V> {
        let buckets = old.map_or(PARTS, |old| 2 * old.buckets.len());
        let layout = layout::<K, V>(buckets);
        // SAFETY: the layout has a size, and the memory is of that layout: the header, then the
        // buckets.
        let header = unsafe {
            let header = alloc(layout).cast::<Header<K, V>>();
            if header.is_null() {
                handle_alloc_error(layout);
            }
            header.write(Header { birth: era(), buckets, bucket: PhantomData });
            let first = header.add(1).cast::<Bucket<K, V>>();
            for at in 0..buckets {
                let links = std::array::from_fn(|_| Link::empty());
                first.add(at).write(Bucket { tags: AtomicU64::new(0), links });
            }
            header
        };
        let shift = (u64::BITS - buckets.ilog2()) as usize;
        TableLink { to: AtomicPtr::new(header.map_addr(|address| address | shift)) }
    }

    /// Returns the table, valid until the end of the section.
    #[inline(always)]
    pub(crate) fn get<'g>(&self, guard: &'g Guard<'_>) -> Option<Table<'g, K, V>> {
        // Acquire: pairs with the Release of the thread that stored the table.
        let found = guard.protect(|| self.to.load(Ordering::Acquire));
        let (header, shift) = (header(found), found.addr() % LINE);
        if header.is_null() {
            return None;
        }
        let buckets = 1 << (u64::BITS as usize - shift);
        // SAFETY: a value that is found in a section is freed after the section (`retired`), and
        // `enlarged` has written the buckets after the header.
        let buckets = unsafe { slice::from_raw_parts(header.add(1).cast(), buckets) };
        Some(Table { buckets, shift })
    }

    /// Finds an entry if it is the first candidate in the first bucket on its path, as most entries
    /// are. Returns `None` if there is no candidate on its path, and the link of its part refers to
    /// this table too: the part has not moved, so no entry has. Otherwise calls `search`.
    #[inline(always)]
    pub(crate) fn find_first<'g, 't, Q: Eq + ?Sized>(
        &self,
        guard: &'g Guard<'_>,
        hash: u64,
        key: &Q,
        of_part: impl FnOnce() -> &'t TableLink<K, V>,
        search: impl FnOnce() -> Option<&'g Entry<K, V>>,
    ) -> Option<&'g Entry<K, V>>
    where
        K: Borrow<Q>,
    {
        let Some(table) = self.get(guard) else { return search() };
        let bucket = table.bucket(hash, 0);
        let tags = bucket.tags.load(Ordering::Relaxed);
        let candidates = equal(tags, tag(hash));
        if candidates == 0 {
            if tags >> PASSED == 0 && of_part().get(guard) == Some(table) {
                return None;
            }
        } else if let Some(entry) = bucket.links[lowest(candidates)].get(guard)
            && entry.key.borrow() == key
        {
            return Some(entry);
        }
        search()
    }

    /// Makes this link refer to the table of another one.
    pub(crate) fn set(&self, other: &TableLink<K, V>) {
        // Relaxed: this thread has made the table, or holds the lock under which it was stored.
        // Release: pairs with the Acquire in `get`.
        self.to.store(other.to.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Frees the table, if any, and retires its entries.
    ///
    /// # Safety
    ///
    /// No thread uses the table, and this link is not used any more.
    pub(crate) unsafe fn free(&mut self) {
        // Relaxed: by the contract of this function, the last change is visible.
        let header = header(self.to.load(Ordering::Relaxed));
        if !header.is_null() {
            // SAFETY: the caller guarantees it.
            unsafe { free::<K, V>(header.cast()) };
        }
    }

    /// Retires the table. Returns whether there was one.
    ///
    /// # Safety
    ///
    /// No other link refers to the table, and none will: new sections do not find it.
    pub(crate) unsafe fn retire(self) -> bool {
        // Relaxed: as in `set`.
        let header = header(self.to.load(Ordering::Relaxed));
        if !header.is_null() {
            // SAFETY: the caller guarantees it, and the table begins with its birth.
            unsafe { retire(header.cast(), free::<K, V>) };
        }
        !header.is_null()
    }
}

/// Returns the address of the header in a link.
#[inline(always)]
fn header<K: Send + Sync + 'static, V: Send + Sync + 'static>(
    to: *mut Header<K, V>,
) -> *mut Header<K, V> {
    to.map_addr(|address| address & !(LINE - 1))
}

fn layout<K: Send + Sync + 'static, V: Send + Sync + 'static>(buckets: usize) -> Layout {
    let all = Layout::array::<Bucket<K, V>>(buckets)
        .and_then(|array| Layout::new::<Header<K, V>>().extend(array));
    all.expect("memory is exhausted before").0
}

/// # Safety
///
/// The pointer is the header of a table that nothing uses.
unsafe fn free<K: Send + Sync + 'static, V: Send + Sync + 'static>(header: *mut ()) {
    let header = header.cast::<Header<K, V>>();
    // SAFETY: `enlarged` has allocated and written the table, and the caller guarantees the rest.
    unsafe {
        let buckets = (*header).buckets;
        let first = header.add(1).cast::<Bucket<K, V>>();
        ptr::drop_in_place(ptr::slice_from_raw_parts_mut(first, buckets));
        dealloc(header.cast(), layout::<K, V>(buckets));
    }
}
