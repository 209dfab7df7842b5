//! Numbers that are given once.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use corebeat_sync::CachePadded;
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::fmt;

/// A place takes so many at a time from what is global.
const BLOCK: u64 = if cfg!(any(loom, miri)) { 2 } else { 1024 };

/// Gives numbers, each once.
///
/// ```
/// use corebeat_clustered::IdGenerator;
///
/// let requests: IdGenerator = IdGenerator::new();
/// let (one, two) = (requests.id(), requests.id());
/// assert!(one < two); // from one thread
/// ```
///
/// Each place has a block of 1024, and takes the next block from one number for all when that is used up. From one place they come
/// in ascending order; between places there is no order, and there are gaps. They begin with 0.
pub struct IdGenerator<D: Domain = Thread> {
    next: Clustered<Blocks, D>,
}

/// Where the next block begins.
struct Blocks(CachePadded<AtomicU64>);

impl Root for Blocks {
    /// The next number; where a block would begin, there is none.
    type Rep = AtomicU64;

    fn miss(&self, miss: Miss<'_, AtomicU64>) -> Chosen<AtomicU64> {
        miss.one_per_place(AtomicU64::new(0))
    }
}

impl<D: Domain> IdGenerator<D> {
    /// From 0.
    pub fn new() -> Self {
        IdGenerator { next: Clustered::new(Blocks(CachePadded::new(AtomicU64::new(0)))) }
    }

    /// A number that was never given before.
    #[inline]
    pub fn id(&self) -> u64 {
        let (next, is_alone) = self.next.here_and_alone();
        // Relaxed, all of it: numbers differ because additions do; nothing hangs on when others see them.
        let mut seen = next.load(Ordering::Relaxed);
        loop {
            let id =
                if seen % BLOCK == 0 { self.next.root().0.fetch_add(BLOCK, Ordering::Relaxed) } else { seen };
            if is_alone {
                next.store(id + 1, Ordering::Relaxed);
                return id;
            }
            // No number comes back, so nobody else was here if it is the same. A block that was taken in vain is a gap.
            match next.compare_exchange_weak(seen, id + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return id,
                Err(now) => seen = now,
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
