//! Counters.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Cpu, Domain, Thread};
use crate::{local, part, rseq};
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
/// the parts of up to 512 counters side by side. For counters beyond, it has a representative for each place. With places for CPUs
/// ([`Cpu`](crate::Cpu)) it is an addition that is not locked, in a restartable sequence, where the system has these; where not, and with other domains,
/// an atomic addition. It wraps around like `i64`.
pub struct Counter<D: Domain = Thread> {
    /// Where in the blocks of threads (`part`) its parts are.
    slot: usize,
    /// Its other parts.
    parts: Clustered<Parts, D>,
}

/// Nothing is global: each place begins with nothing.
struct Parts;

/// What was added in a place is both together.
struct Part {
    place: usize,
    /// Written by one at a time: who is alone in the place, or in a restartable sequence on this CPU.
    own: AtomicU64,
    /// Added to atomically, by all others.
    rest: AtomicU64,
}

impl Root for Parts {
    type Rep = Part;

    fn miss(&self, miss: Miss<'_, Part>) -> Chosen<Part> {
        let place = miss.place();
        miss.one_per_place(Part { place, own: AtomicU64::new(0), rest: AtomicU64::new(0) })
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

    /// The compiler knows.
    #[inline(always)]
    fn is_by_cpu() -> bool {
        TypeId::of::<D>() == TypeId::of::<Cpu>()
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
        // Relaxed: they are numbers, and nothing hangs on when others see them.
        if is_alone {
            part.own.store(part.own.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
        } else if !(Self::is_by_cpu() && rseq::add(part.place, &part.own, n as u64)) {
            part.rest.fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    /// What was added so far: all that was before this call, and some of what is added meanwhile.
    pub fn value(&self) -> i64 {
        let rest = self.parts.fold(0u64, |sum, part| {
            sum.wrapping_add(part.own.load(Ordering::Relaxed)).wrapping_add(part.rest.load(Ordering::Relaxed))
        });
        part::fold(self.slot, rest, u64::wrapping_add) as i64
    }
}

impl Counter {
    /// What this thread adds to, for programs that do so by themselves: a load and a store, and no other thread's. `None` for counters
    /// beyond the first 512, and for a thread at its very end: there is [`add`](Counter::add).
    pub fn part(&self) -> Option<&AtomicU64> {
        Thread::find();
        local::with(|local| local.part(self.slot))
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
