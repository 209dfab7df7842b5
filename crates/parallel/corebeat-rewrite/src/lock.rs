//! Optimistic locks of nodes, as in Imre, Mezei, *Parallel Graph Transformations on Multicore
//! Systems*, 2012, section 2.1.
//!
//! A search takes no lock. When a match is complete, the thread locks all nodes of the match, or
//! none of them, and checks the match again. A lock protects the type, the attributes and the lists
//! of edges of its node; an edge is protected by the locks of its two ends. Each lock is one word:
//!
//! ```text
//!   63            32   31     30                0
//!  +----------------+--------+-------------------+
//!  | sequence       | writer | number of readers |
//!  +----------------+--------+-------------------+
//! ```
//!
//! A word with an older sequence number is free. In the paper's cycle, a phase of matching keeps
//! all of its locks, and the next sequence number frees them at once. In parallel modification, a
//! thread releases its locks after each rewrite.
//!
//! | write | ordering | pairs with | reason |
//! | --- | --- | --- | --- |
//! | lock taken | Acquire exchange | release of the lock | reads what the last writer wrote |
//! | write lock released | Release store | lock taken | publishes the rewrite |
//! | read lock released | Release subtraction | write lock taken | reads end before a write |
//!
//! Reads without a lock are relaxed: the check under the locks rejects what they mistook.
//!
//! No deadlock: a thread that cannot take a lock releases all of its locks. Progress: threads take
//! locks in ascending order, so the thread that holds the highest contested lock is not refused.

use crate::array::Array;
use corebeat_sync::atomic::{AtomicU64, Ordering};

const WRITER: u64 = 1 << 31;
const SEQUENCE_SHIFT: u32 = 32;

/// The locks of the nodes, with the sequence number of a phase.
#[derive(Clone, Copy)]
pub(crate) struct Locks<'a> {
    pub(crate) words: &'a Array<AtomicU64>,
    pub(crate) sequence: u32,
}

impl Locks<'_> {
    /// The word without an outdated state.
    fn current(&self, word: u64) -> u64 {
        let free = u64::from(self.sequence) << SEQUENCE_SHIFT;
        if word >> SEQUENCE_SHIFT == u64::from(self.sequence) { word } else { free }
    }

    /// Whether a lock could be taken at this time.
    #[inline]
    pub(crate) fn is_free(&self, node: u32, write: bool) -> bool {
        // Relaxed: a hint, which pairs with nothing.
        let word = self.words.get(node).map_or(0, |word| word.load(Ordering::Relaxed));
        let word = self.current(word) as u32;
        if write { word == 0 } else { u64::from(word) & WRITER == 0 }
    }

    pub(crate) fn try_lock(&self, node: u32, write: bool) -> bool {
        let word = self.words.make(node);
        // Relaxed: the exchange below validates the value.
        let mut found = word.load(Ordering::Relaxed);
        loop {
            let current = self.current(found);
            let is_free = if write { current as u32 == 0 } else { current & WRITER == 0 };
            if !is_free {
                return false;
            }
            let next = if write { current | WRITER } else { current + 1 };
            // Acquire: pairs with the releases below.
            let taken =
                word.compare_exchange_weak(found, next, Ordering::Acquire, Ordering::Relaxed);
            match taken {
                Ok(_) => return true,
                Err(other) => found = other,
            }
        }
    }

    pub(crate) fn unlock(&self, node: u32, write: bool) {
        let word = self.words.make(node);
        match write {
            // Release: pairs with the acquire in `try_lock`.
            true => word.store(u64::from(self.sequence) << SEQUENCE_SHIFT, Ordering::Release),
            // Release: pairs with the acquire of the next writer in `try_lock`.
            false => drop(word.fetch_sub(1, Ordering::Release)),
        }
    }
}

/// The nodes of a match that are locked together.
#[derive(Default)]
pub(crate) struct LockSet {
    nodes: Vec<(u32, bool)>,
}

impl LockSet {
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
    }

    pub(crate) fn add(&mut self, node: u32, write: bool) {
        self.nodes.push((node, write));
    }

    /// Takes all locks or none.
    pub(crate) fn try_lock(&mut self, locks: &Locks) -> bool {
        // The write lock of a node sorts after its read lock, and replaces it.
        self.nodes.sort_unstable();
        self.nodes.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            earlier.1 |= is_same && later.1;
            is_same
        });
        for (taken, (node, write)) in self.nodes.iter().enumerate() {
            if !locks.try_lock(*node, *write) {
                self.nodes[..taken].iter().for_each(|(node, write)| locks.unlock(*node, *write));
                return false;
            }
        }
        true
    }

    /// Whether the set has this lock.
    pub(crate) fn has(&self, node: u32, write: bool) -> bool {
        let found = self.nodes.binary_search_by_key(&node, |(node, _)| *node);
        found.is_ok_and(|index| self.nodes[index].1 || !write)
    }

    /// Adds a lock that is already taken.
    pub(crate) fn add_taken(&mut self, node: u32) {
        self.nodes.push((node, true));
    }

    pub(crate) fn unlock(&mut self, locks: &Locks) {
        self.nodes.drain(..).for_each(|(node, write)| locks.unlock(node, write));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_admits_readers_or_one_writer_until_the_next_sequence_number() {
        let words = Array::default();
        let locks = Locks { words: &words, sequence: 1 };
        assert!(locks.try_lock(5, false) && locks.try_lock(5, false));
        assert!(!locks.try_lock(5, true) && !locks.is_free(5, true) && locks.is_free(5, false));
        locks.unlock(5, false);
        locks.unlock(5, false);
        assert!(locks.try_lock(5, true) && !locks.try_lock(5, false) && !locks.is_free(5, false));
        let next = Locks { words: &words, sequence: 2 };
        assert!(next.is_free(5, true) && next.try_lock(5, false));
    }

    #[test]
    fn a_set_takes_all_locks_or_none() {
        let words = Array::default();
        let locks = Locks { words: &words, sequence: 1 };
        assert!(locks.try_lock(7, false));
        let mut set = LockSet::default();
        for (node, write) in [(9, false), (3, true), (7, true), (7, false)] {
            set.add(node, write);
        }
        assert!(!set.try_lock(&locks));
        assert!(locks.is_free(3, true) && locks.is_free(9, true));
        locks.unlock(7, false);
        assert!(set.try_lock(&locks) && set.has(7, true) && set.has(9, false) && !set.has(9, true));
        set.unlock(&locks);
        assert!([3, 7, 9].into_iter().all(|node| locks.is_free(node, true)));
    }
}
