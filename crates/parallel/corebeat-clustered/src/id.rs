//! Generators of unique numbers.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use corebeat_sync::CachePadded;
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::fmt;

/// Number of ids that a place takes from the global number at a time.
const BLOCK: u64 = if cfg!(any(loom, miri)) { 2 } else { 1024 };

/// Generates numbers, each one once.
///
/// ```
/// use corebeat_clustered::IdGenerator;
///
/// let requests: IdGenerator = IdGenerator::new();
/// let (one, two) = (requests.id(), requests.id());
/// assert!(one < two); // from one thread
/// ```
///
/// Each place has a block of 1024 numbers, and takes the next block from a global number when its
/// block is used up. The numbers of one place are ascending; between places there is no order, and
/// there are gaps. The numbers begin with 0.
pub struct IdGenerator<D: Domain = Thread> {
    next: Clustered<Blocks, D>,
}

/// Begin of the next block.
struct Blocks(CachePadded<AtomicU64>);

impl Root for Blocks {
    /// The next number of the place; at the begin of a block, the place has no number.
    type Rep = AtomicU64;

    fn miss(&self, miss: Miss<'_, AtomicU64>) -> Chosen<AtomicU64> {
        miss.one_per_place(AtomicU64::new(0))
    }
}

impl<D: Domain> IdGenerator<D> {
    /// Creates a generator that begins with 0.
    pub fn new() -> Self {
        IdGenerator { next: Clustered::new(Blocks(CachePadded::new(AtomicU64::new(0)))) }
    }

    /// Returns a number that was never returned before.
    #[inline]
    pub fn id(&self) -> u64 {
        let (next, is_alone) = self.next.here_and_alone();
        // Relaxed: atomicity alone makes the numbers unique.
        let mut observed = next.load(Ordering::Relaxed);
        loop {
            let id = if observed % BLOCK == 0 {
                self.next.root().0.fetch_add(BLOCK, Ordering::Relaxed)
            } else {
                observed
            };
            if is_alone {
                next.store(id + 1, Ordering::Relaxed);
                return id;
            }
            // Numbers do not recur, so an equal number means that no other thread was here. A block
            // that was taken in vain is a gap.
            match next.compare_exchange_weak(observed, id + 1, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return id,
                Err(now) => observed = now,
            }
        }
    }
}

impl<D: Domain> Default for IdGenerator<D> {
    fn default() -> Self {
        IdGenerator::new()
    }
}

impl<D: Domain> fmt::Debug for IdGenerator<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdGenerator").finish_non_exhaustive()
    }
}
