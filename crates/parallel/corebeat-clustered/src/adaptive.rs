//! Objects that swap their implementation while they are in use.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use crate::local::NOWHERE;
use crate::{BiasedLock, Counter, read_section};
use corebeat_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use corebeat_sync::fork::ForkMutex;
use std::fmt;

/// Number of changes of the calling thread after which a single form is spread.
const CHANGES_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 64 };
/// Number of calls of a place to a spread form between two checks for other callers.
const CHECK_EVERY: u64 = if cfg!(any(loom, miri)) { 4 } else { 1024 };
/// Number of consecutive checks without other callers after which a spread form is gathered.
const ALONE_MAX: u32 = 8;

/// An implementation for mostly one thread at a time, with a counterpart that has a part for each
/// place.
///
/// Both behave equally. Each one is converted into the other while no thread uses it.
pub trait Single: Send + Sync + Sized {
    /// The counterpart with parts.
    type Spread: Send + Sync;

    /// Converts this form into its counterpart.
    fn spread(self) -> Self::Spread;

    /// Converts the counterpart into this form.
    fn gather(spread: Self::Spread) -> Self;
}

/// An object that has its single form until several threads use it, and again when they stop.
///
/// [`call`](Adaptive::call) passes the current form to a closure; each call observes the effects of
/// all earlier calls. The object begins in its single form. After the calling thread has changed 64
/// times, the last caller spreads the object. A spread object is gathered when one thread has
/// called 8 times 1024 times without calls of others in between.
///
/// ```
/// use corebeat_clustered::{Adaptive, Form, Single, Set};
/// use std::{collections::BTreeSet, sync::Mutex};
///
/// struct Small(Mutex<BTreeSet<u32>>);
///
/// impl Single for Small {
///     type Spread = Set<u32>;
///     fn spread(self) -> Set<u32> {
///         self.0.into_inner().unwrap().into_iter().collect()
///     }
///     fn gather(set: Set<u32>) -> Small {
///         let keys = corebeat_clustered::read_section(|guard| set.iter(guard).copied().collect());
///         Small(Mutex::new(keys))
///     }
/// }
///
/// let set = Adaptive::new(Small(Mutex::default()));
/// let insert = |key| set.call(|form| match form {
///     Form::Single(small) => small.0.lock().unwrap().insert(key),
///     Form::Spread(set) => set.insert(key),
/// });
/// assert!(insert(5));
/// assert!(set.spread()); // manually, also during calls of other threads
/// assert!(!insert(5));
/// ```
///
/// Calls run concurrently. Calls that begin during a swap wait for its end. (As hot swapping in
/// K42: Appavoo, Hui, Soules and others, *Enabling autonomic behavior in systems software with hot
/// swapping*, 2003, with its phases: new calls wait, active calls end, the state is transferred.)
/// The wait takes as long as [`Single::spread`] or [`Single::gather`]. Callers that must not wait
/// replace a value behind a [`Link`](crate::Link) instead.
///
/// `spread` and `gather` must not use the object: they would deadlock. They run in a
/// [`read_section`], so that values that they retire are dropped when other threads may call again.
/// If one of them panics, the object is lost, and calls panic.
pub struct Adaptive<S: Single> {
    form: BiasedLock<Option<Kept<S>>>,
    /// Place of the last call to the single form.
    last: AtomicUsize,
    /// Number of changes of that place.
    changes: AtomicUsize,
    /// Calls of each place to a spread form.
    calls: Clustered<Calls>,
    watch: ForkMutex<Watch>,
}

enum Kept<S: Single> {
    Single(S),
    Spread(S::Spread),
}

/// The current form of an object.
pub enum Form<'a, S: Single> {
    /// The form for a single thread.
    Single(&'a S),
    /// The form with parts.
    Spread(&'a S::Spread),
}

struct Calls;

impl Root for Calls {
    type Rep = AtomicU64;

    fn miss(&self, miss: Miss<'_, AtomicU64>) -> Chosen<AtomicU64> {
        miss.one_per_place(AtomicU64::new(0))
    }
}

/// Result of the last check for callers of a spread form.
struct Watch {
    /// Number of calls at the last check.
    calls: u64,
    /// Place of the thread that checked.
    place: usize,
    /// Number of consecutive checks without other callers.
    alone: u32,
}

impl<S: Single> Adaptive<S> {
    /// Creates an object in its single form.
    pub fn new(single: S) -> Self {
        Adaptive {
            form: BiasedLock::new(Some(Kept::Single(single))),
            last: AtomicUsize::new(NOWHERE),
            changes: AtomicUsize::new(0),
            calls: Clustered::new(Calls),
            watch: ForkMutex::new(Watch { calls: 0, place: NOWHERE, alone: 0 }),
        }
    }

    /// Passes the current form to `f`.
    ///
    /// # Panics
    /// If `f` panics, or if an earlier conversion of the form panicked.
    #[inline]
    pub fn call<T>(&self, f: impl FnOnce(Form<'_, S>) -> T) -> T {
        let form = self.form.read();
        let (result, is_to_swap) = match form.as_ref().expect(LOST) {
            Kept::Single(single) => (f(Form::Single(single)), self.is_contended()),
            Kept::Spread(spread) => (f(Form::Spread(spread)), self.is_alone()),
        };
        let is_single = matches!(*form, Some(Kept::Single(_)));
        drop(form);
        if is_to_swap {
            self.swap(is_single);
        }
        result
    }

    /// Records a call to the single form. Returns whether the calling thread has changed often.
    #[inline]
    fn is_contended(&self) -> bool {
        // Relaxed: these are hints.
        let here = Thread::here();
        let last = self.last.load(Ordering::Relaxed);
        if last == here {
            return false;
        }
        self.last.store(here, Ordering::Relaxed);
        last != NOWHERE && self.changes.fetch_add(1, Ordering::Relaxed) + 1 >= CHANGES_MAX
    }

    /// Records a call to the spread form. Returns whether only one thread uses it.
    #[inline]
    fn is_alone(&self) -> bool {
        // Relaxed: these are numbers and hints.
        let (calls, is_alone) = self.calls.here_and_alone();
        let count = calls.load(Ordering::Relaxed) + 1;
        if is_alone {
            calls.store(count, Ordering::Relaxed);
        }
        is_alone && count % CHECK_EVERY == 0 && self.check_callers()
    }

    #[cold]
    fn check_callers(&self) -> bool {
        let all =
            self.calls.fold(0u64, |sum, calls| sum.wrapping_add(calls.load(Ordering::Relaxed)));
        let place = Thread::here();
        let mut watch = self.watch.lock();
        let is_alone = watch.place == place && all.wrapping_sub(watch.calls) == CHECK_EVERY;
        let alone = if is_alone { watch.alone + 1 } else { 0 };
        *watch = Watch { calls: all, place, alone };
        alone >= ALONE_MAX
    }

    /// Swaps to the spread form. Returns whether the object has that form; a call of this thread
    /// prevents the swap.
    pub fn spread(&self) -> bool {
        self.swap(true)
    }

    /// Swaps to the single form. Returns whether the object has that form; a call of this thread
    /// prevents the swap.
    pub fn gather(&self) -> bool {
        self.swap(false)
    }

    /// Swaps the form, and returns whether the object has it.
    #[cold]
    fn swap(&self, to_spread: bool) -> bool {
        if self.form.is_read_here() {
            return self.is_spread() == to_spread;
        }
        let form = self.form.write();
        // Destructors of values that are retired here may use this object: they wait for the end of
        // the section, when other threads may call again.
        read_section(move |_| {
            let mut form = form;
            *form = Some(match form.take().expect(LOST) {
                Kept::Single(single) if to_spread => Kept::Spread(single.spread()),
                Kept::Spread(spread) if !to_spread => Kept::Single(S::gather(spread)),
                same => same,
            });
            // The counts belong to the other form.
            self.last.store(NOWHERE, Ordering::Relaxed);
            self.changes.store(0, Ordering::Relaxed);
            *self.watch.lock() = Watch { calls: 0, place: NOWHERE, alone: 0 };
        });
        true
    }

    /// Returns whether the object has its spread form.
    ///
    /// # Panics
    /// As [`call`](Adaptive::call).
    pub fn is_spread(&self) -> bool {
        matches!(self.form.read().as_ref().expect(LOST), Kept::Spread(_))
    }
}

const LOST: &str = "the object is lost because `spread` or `gather` panicked";

impl<S: Single> fmt::Debug for Adaptive<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive").field("is_spread", &self.is_spread()).finish_non_exhaustive()
    }
}

/// A counter that is one atomic number until several threads use it, and a [`Counter`] from then
/// on.
///
/// ```
/// use corebeat_clustered::AdaptiveCounter;
///
/// let served = AdaptiveCounter::default();
/// served.add(2);
/// served.spread();
/// served.add(3);
/// assert_eq!(served.value(), 5);
/// ```
pub type AdaptiveCounter = Adaptive<AtomicU64>;

impl Single for AtomicU64 {
    type Spread = Counter;

    fn spread(self) -> Counter {
        let counter = Counter::new();
        counter.add(self.load(Ordering::Relaxed) as i64);
        counter
    }

    fn gather(counter: Counter) -> AtomicU64 {
        AtomicU64::new(counter.value() as u64)
    }
}

impl AdaptiveCounter {
    /// Adds `n`, which may be negative.
    #[inline]
    pub fn add(&self, n: i64) {
        self.call(|form| match form {
            // Relaxed: nothing depends on when other threads observe the number.
            Form::Single(number) => drop(number.fetch_add(n as u64, Ordering::Relaxed)),
            Form::Spread(counter) => counter.add(n),
        });
    }

    /// Returns the sum: all additions before this call, and some of the concurrent ones.
    pub fn value(&self) -> i64 {
        self.call(|form| match form {
            Form::Single(number) => number.load(Ordering::Relaxed) as i64,
            Form::Spread(counter) => counter.value(),
        })
    }
}

impl Default for AdaptiveCounter {
    fn default() -> Self {
        Adaptive::new(AtomicU64::new(0))
    }
}
