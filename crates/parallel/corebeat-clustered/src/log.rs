//! Logs with a buffer for each place.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use corebeat_sync::Mutex;
use corebeat_sync::lock;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// A log of entries in the order of their times.
///
/// ```
/// use corebeat_clustered::Log;
///
/// let log: Log<&str> = Log::new(1000);
/// log.push("begun");
/// std::thread::scope(|scope| drop(scope.spawn(|| log.push("elsewhere"))));
/// log.push("done");
/// assert_eq!(log.drain(), ["begun", "elsewhere", "done"]);
/// ```
///
/// Each place has its own buffer, behind a lock that only its threads and readers take. A read
/// merges the buffers by the times of the entries. Entries of one thread, and entries that are
/// causally ordered between threads, are in order, within the resolution of the system's clock
/// (nanoseconds on Linux). A read is a consistent cut: it contains every entry that precedes one of
/// its entries. A full buffer drops its oldest entry.
pub struct Log<T: Send, D: Domain = Thread> {
    parts: Clustered<Parts<T>, D>,
}

struct Parts<T> {
    /// Begin of the time scale.
    begin: Instant,
    entries_max: usize,
    entries: std::marker::PhantomData<fn() -> T>,
}

type Entry<T> = (Duration, T);

struct Part<T> {
    entries: VecDeque<Entry<T>>,
    lost: u64,
}

impl<T: Send> Root for Parts<T> {
    type Rep = Mutex<Part<T>>;

    fn miss(&self, miss: Miss<'_, Self::Rep>) -> Chosen<Self::Rep> {
        miss.one_per_place(Mutex::new(Part { entries: VecDeque::new(), lost: 0 }))
    }
}

impl<T: Send, D: Domain> Log<T, D> {
    /// Creates an empty log with capacity for `entries_max` entries in each place.
    pub fn new(entries_max: usize) -> Self {
        let entries = std::marker::PhantomData;
        Log { parts: Clustered::new(Parts { begin: Instant::now(), entries_max, entries }) }
    }

    /// Appends an entry.
    pub fn push(&self, entry: T) {
        let root = self.parts.root();
        let mut part = lock(self.parts.here());
        let is_full = part.entries.len() >= root.entries_max;
        part.lost += u64::from(is_full);
        let oldest = if is_full { part.entries.pop_front() } else { None };
        if root.entries_max > 0 {
            // Under the lock: a concurrent read finds the entry, or its time is later than the
            // read.
            let now = root.begin.elapsed();
            part.entries.push_back((now, entry));
        }
        drop(part);
        // The destructor is user code: after the lock.
        drop(oldest);
    }

    /// Returns the number of entries that were dropped because a buffer was full.
    pub fn lost(&self) -> u64 {
        self.parts.fold(0, |sum, part| sum + lock(part).lost)
    }

    /// Removes and returns all entries that were pushed before this call. Concurrent entries stay
    /// for the next call, and have later times.
    pub fn drain(&self) -> Vec<T> {
        self.gather(|entries, count| entries.drain(..count).collect::<Vec<_>>())
    }

    /// Returns clones of all entries that were pushed before this call. The buffer is locked during
    /// the cloning: a `Clone` that uses this log deadlocks. Use a log of `Arc`s in that case.
    pub fn read(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.gather(|entries, count| entries.range(..count).cloned().collect::<Vec<_>>())
    }

    /// Merges the results of `take` for the first entries of each place.
    fn gather(&self, take: impl Fn(&mut VecDeque<Entry<T>>, usize) -> Vec<Entry<T>>) -> Vec<T> {
        let now = self.parts.root().begin.elapsed();
        let mut all = self.parts.fold(Vec::new(), |mut all, part| {
            let entries = &mut lock(part).entries;
            let count = entries.partition_point(|(time, _)| *time <= now);
            all.append(&mut take(entries, count));
            all
        });
        // The sort is stable: entries of one place keep their order.
        all.sort_by_key(|(time, _)| *time);
        all.into_iter().map(|(_, entry)| entry).collect()
    }
}

impl<T: Send, D: Domain> fmt::Debug for Log<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("lost", &self.lost()).finish_non_exhaustive()
    }
}
