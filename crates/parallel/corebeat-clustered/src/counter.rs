//! Counters.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Cpu, Domain, Thread};
use crate::{local, part, rseq};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::any::TypeId;
use std::fmt;

/// A number to which many threads add, and which is read rarely.
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
/// Each place has a part. With a place per thread, an addition is a load and a store in a cache
/// line that no other thread writes: a thread has the parts of up to 512 counters side by side.
/// Further counters have a representative for each place. With a place per CPU
/// ([`Cpu`](crate::Cpu)) an addition is an unlocked instruction in a restartable sequence, if the
/// system supports these. Otherwise, and with other domains, it is an atomic addition.
///
/// The value wraps around at the limits of `i64`, without a report: an addition reads only its own
/// part, which may exceed the limits while the sum of all parts does not.
pub struct Counter<D: Domain = Thread> {
    /// Slot of the parts in the blocks of threads (`part`).
    slot: usize,
    /// Parts outside of the blocks.
    parts: Clustered<Parts, D>,
}

/// A root without global state: the part of each place begins with 0.
struct Parts;

/// The part of a place: the sum of both numbers.
struct Part {
    place: usize,
    /// Written by one thread at a time: the only one in the place, or one in a restartable sequence
    /// on this CPU.
    own: AtomicU64,
    /// Atomic additions of all other threads.
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
    /// Creates a counter with the value 0.
    pub fn new() -> Self {
        let slot = if Self::is_by_thread() { part::acquire() } else { part::NONE };
        Counter { slot, parts: Clustered::new(Parts) }
    }

    /// Constant after inlining.
    #[inline(always)]
    fn is_by_thread() -> bool {
        TypeId::of::<D>() == TypeId::of::<Thread>()
    }

    /// Constant after inlining.
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
            self.add_slow(n);
        }
    }

    /// Adds for an unregistered or ending thread, or for a counter without a slot.
    #[inline(never)]
    fn add_slow(&self, n: i64) {
        // Registers the thread, unless it is ending.
        Thread::find();
        if !local::with(|local| local.add(self.slot, n as u64)) {
            self.add_to_representative(n);
        }
    }

    #[inline(always)]
    fn add_to_representative(&self, n: i64) {
        let (part, is_alone) = self.parts.here_and_alone();
        // Relaxed: nothing depends on when other threads observe the numbers.
        if is_alone {
            part.own
                .store(part.own.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
        } else if !(Self::is_by_cpu() && rseq::add(part.place, &part.own, n as u64)) {
            part.rest.fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    /// Returns the sum: all additions before this call, and some of the concurrent ones.
    pub fn value(&self) -> i64 {
        let rest = self.parts.fold(0u64, |sum, part| {
            sum.wrapping_add(part.own.load(Ordering::Relaxed))
                .wrapping_add(part.rest.load(Ordering::Relaxed))
        });
        part::fold(self.slot, rest, u64::wrapping_add) as i64
    }
}

impl Counter {
    /// Returns the part of this thread, for programs that add with their own load and store; no
    /// other thread writes the part. `None` for counters without a slot and for an ending thread:
    /// use [`add`](Counter::add) then.
    pub fn part(&self) -> Option<&AtomicU64> {
        Thread::find();
        local::with(|local| local.part(self.slot))
    }
}

impl<D: Domain> Drop for Counter<D> {
    fn drop(&mut self) {
        part::release(self.slot);
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
