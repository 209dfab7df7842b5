//! Counters.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use crate::{local, part};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::any::TypeId;
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
/// Each place has its part. With places for threads, to add is a load and a store in a line that nobody else writes: the thread has
/// the parts of up to 512 counters side by side. With other domains, and for counters beyond, it has a representative for each place, which
/// where several threads may be in a place takes an atomic addition. It wraps around like `i64`.
pub struct Counter<D: Domain = Thread> {
    /// Where in the blocks of threads (`part`) its parts are.
    slot: usize,
    /// Its other parts.
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
        let slot = if Self::is_by_thread() { part::take() } else { part::NONE };
        Counter { slot, parts: Clustered::new(Parts) }
    }

    /// The compiler knows.
    #[inline(always)]
    fn is_by_thread() -> bool {
        TypeId::of::<D>() == TypeId::of::<Thread>()
    }

    /// Adds `n`, which may be negative.
    #[inline(always)]
    pub fn add(&self, n: i64) {
        if !Self::is_by_thread() {
            self.add_to_representative(n);
        } else if !local::with(|local| local.add(self.slot, n as u64)) {
            self.add_apart(n);
        }
    }

    /// As `add`, for a thread that is new or at its end, and for a counter without a slot.
    #[inline(never)]
    fn add_apart(&self, n: i64) {
        // This finds a place, if there is one for it.
        Thread::find();
        if !local::with(|local| local.add(self.slot, n as u64)) {
            self.add_to_representative(n);
        }
    }

    #[inline(always)]
    fn add_to_representative(&self, n: i64) {
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
        let rest = self.parts.fold(0u64, |sum, part| sum.wrapping_add(part.load(Ordering::Relaxed)));
        part::fold(self.slot, rest, u64::wrapping_add) as i64
    }
}

impl<D: Domain> Drop for Counter<D> {
    fn drop(&mut self) {
        part::give_back(self.slot);
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
