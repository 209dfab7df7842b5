//! Counters.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::fmt;

/// A number that many add to, and few look at.
///
/// ```
/// use corebeat_clustered::Counter;
///
/// let served: Counter = Counter::new();
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| (0..1000).for_each(|_| served.add(1)));
///     }
/// });
/// assert_eq!(served.value(), 4000);
/// ```
///
/// Each place has its part. With places for threads, to add is a load and a store in a line that nobody else writes; with others,
/// an atomic addition there. It wraps around like `i64`.
pub struct Counter<D: Domain = Thread> {
    parts: Clustered<Parts, D>,
}

/// Nothing is global: each place begins with nothing.
struct Parts;

impl Root for Parts {
    type Rep = AtomicU64;

    fn miss(&self, miss: Miss<'_, AtomicU64>) -> Chosen<AtomicU64> {
        miss.one_per_place(AtomicU64::new(0))
    }
}

impl<D: Domain> Counter<D> {
    /// 0.
    pub fn new() -> Self {
        Counter { parts: Clustered::new(Parts) }
    }

    /// Adds `n`, which may be negative.
    #[inline(always)]
    pub fn add(&self, n: i64) {
        let (part, is_alone) = self.parts.here_and_alone();
        // Relaxed: it is a number, and nothing hangs on when others see it.
        if is_alone {
            part.store(part.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
        } else {
            part.fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    /// What was added so far: all that was before this call, and some of what is added meanwhile.
    pub fn value(&self) -> i64 {
        self.parts.fold(0u64, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed))) as i64
    }
}

impl<D: Domain> Default for Counter<D> {
    fn default() -> Self {
        Counter::new()
    }
}

impl<D: Domain> fmt::Debug for Counter<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counter").field(&self.value()).finish()
    }
}
