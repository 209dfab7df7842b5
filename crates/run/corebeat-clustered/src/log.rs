//! Logs of events.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use crate::global::lock;
use corebeat_sync::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// What happened, in the order in which it did.
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
/// Each place has its own, behind a lock that nobody else wants but who reads. Who reads puts them together by the times that stand beside the
/// entries: what one thread did, and what it did after it heard of another's entry, is in order, as far as the system's clock tells moments
/// apart (nanoseconds on Linux). A read is a cut: with each entry there are all that were before it. A place that is full loses its
/// oldest entry.
pub struct Log<T: Send, D: Domain = Thread> {
    parts: Clustered<Parts<T>, D>,
}

struct Parts<T> {
    /// Times count from here.
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
    /// Empty; each place has room for so many entries.
    pub fn new(entries_max: usize) -> Self {
        let entries = std::marker::PhantomData;
        Log { parts: Clustered::new(Parts { begin: Instant::now(), entries_max, entries }) }
    }

    /// Adds an entry.
    pub fn push(&self, entry: T) {
        let root = self.parts.root();
        let mut part = lock(self.parts.here());
        let is_full = part.entries.len() >= root.entries_max;
        part.lost += u64::from(is_full);
        let oldest = if is_full { part.entries.pop_front() } else { None };
        if root.entries_max > 0 {
            // Under the lock: who reads now finds it, or its time is later than his.
            let now = root.begin.elapsed();
            part.entries.push_back((now, entry));
        }
        drop(part);
        // Its destructor is not ours.
        drop(oldest);
    }

    /// How many entries were lost because a place was full.
    pub fn lost(&self) -> u64 {
        self.parts.fold(0, |sum, part| sum + lock(part).lost)
    }

    /// Takes out all entries that were pushed before this call. What is pushed meanwhile stays for the next one, and is later.
    pub fn drain(&self) -> Vec<T> {
        self.gather(|entries, count| entries.drain(..count).collect::<Vec<_>>())
    }

    /// All entries that were pushed before this call, and stay. They are cloned while their place is locked: a `Clone` that uses this
    /// log would wait for itself. If it must, the log may be one of `Arc`s.
    pub fn read(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.gather(|entries, count| entries.range(..count).cloned().collect::<Vec<_>>())
    }

    /// Puts together what `take` has of the first so many entries of each place.
    fn gather(&self, take: impl Fn(&mut VecDeque<Entry<T>>, usize) -> Vec<Entry<T>>) -> Vec<T> {
        let now = self.parts.root().begin.elapsed();
        let mut all = self.parts.fold(Vec::new(), |mut all, part| {
            let entries = &mut lock(part).entries;
            let count = entries.partition_point(|(time, _)| *time <= now);
            all.append(&mut take(entries, count));
            all
        });
        // Those of a place are in order, and stay so.
        all.sort_by_key(|(time, _)| *time);
        all.into_iter().map(|(_, entry)| entry).collect()
    }
}

impl<T: Send, D: Domain> fmt::Debug for Log<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("lost", &self.lost()).finish_non_exhaustive()
    }
}
