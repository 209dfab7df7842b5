//! Objects whose implementation is swapped while they are in use.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use crate::global::lock;
use crate::local::NOWHERE;
use crate::{BiasedLock, Counter, event};
use corebeat_sync::Mutex;
use corebeat_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::fmt;

/// A single form is spread when it was handed from one thread to another so often.
const HANDED_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 64 };
/// Each place looks whether it is alone after so many calls to a spread form.
const LOOK: u64 = if cfg!(any(loom, miri)) { 4 } else { 1024 };
/// A spread form is gathered when so many looks, one after the other, found that only who looks had called since the last.
const ALONE_MAX: u32 = 8;

/// What is made for one thread at a time (though it bears many), and has a counterpart with a part for each place.
///
/// Both do the same for who uses them. Each is made of the other while nobody uses it.
pub trait Single: Send + Sync + Sized {
    /// The counterpart.
    type Spread: Send + Sync;

    /// The counterpart, with all that this has.
    fn spread(self) -> Self::Spread;

    /// This, with all that the counterpart has.
    fn gather(spread: Self::Spread) -> Self;
}

/// An object that is in its single form until several threads use it, and again when they do not any more.
///
/// A form is used within [`call`](Adaptive::call); each call sees one of them, with all that calls before it did. While one thread at a time calls, it is
/// the single one. When it was handed around 64 times, who called last swaps it. A spread one is gathered when one thread has called 8
/// times 1024 times and no other had meanwhile.
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
///         Small(Mutex::new(corebeat_clustered::event(|event| set.iter(event).copied().collect())))
///     }
/// }
///
/// let set = Adaptive::new(Small(Mutex::default()));
/// let insert = |key| set.call(|form| match form {
///     Form::Single(small) => small.0.lock().unwrap().insert(key),
///     Form::Spread(set) => set.insert(key),
/// });
/// assert!(insert(5));
/// assert!(set.spread()); // by hand, also while others call
/// assert!(!insert(5));
/// ```
///
/// Calls go on while others do; those that come while a form is made of the other wait for that. (As hot swapping in K42: Appavoo,
/// Hui, Soules and others, *Enabling autonomic behavior in systems software with hot swapping*, 2003, with its phases: who comes later waits, who is in ends, the
/// state is carried over.) The wait is as long as [`Single::spread`] and [`Single::gather`] take. What must not wait puts another value behind a
/// [`Link`](crate::Link).
///
/// They must not use the object: they would wait for themselves. They run within an [`event`](event()), so that what they retire is
/// dropped when others may call again. If one of these panics, the object is gone: calls panic.
pub struct Adaptive<S: Single> {
    form: BiasedLock<Option<Kept<S>>>,
    /// Where it was last called in its single form.
    last: AtomicUsize,
    /// How often that was somewhere else than before.
    handed: AtomicUsize,
    /// Calls of each place to a spread form.
    calls: Clustered<Calls>,
    watch: Mutex<Watch>,
}

enum Kept<S: Single> {
    Single(S),
    Spread(S::Spread),
}

/// What is in use.
pub enum Form<'a, S: Single> {
    /// The one for a single thread.
    Single(&'a S),
    /// The one with parts.
    Spread(&'a S::Spread),
}

struct Calls;

impl Root for Calls {
    type Rep = AtomicU64;

    fn miss(&self, miss: Miss<'_, AtomicU64>) -> Chosen<AtomicU64> {
        miss.one_per_place(AtomicU64::new(0))
    }
}

/// Who has called a spread form.
struct Watch {
    /// Calls, when somebody last looked.
    seen: u64,
    /// Who that was.
    place: usize,
    /// So many looks found nobody else.
    alone: u32,
}

impl<S: Single> Adaptive<S> {
    /// In its single form.
    pub fn new(single: S) -> Self {
        Adaptive {
            form: BiasedLock::new(Some(Kept::Single(single))),
            last: AtomicUsize::new(NOWHERE),
            handed: AtomicUsize::new(0),
            calls: Clustered::new(Calls),
            watch: Mutex::new(Watch { seen: 0, place: NOWHERE, alone: 0 }),
        }
    }

    /// Uses the form that there is.
    ///
    /// # Panics
    /// `f` panics, or a form was lost because it could not be made.
    #[inline]
    pub fn call<T>(&self, f: impl FnOnce(Form<'_, S>) -> T) -> T {
        let form = self.form.read();
        let (result, is_to_swap) = match form.as_ref().expect(LOST) {
            Kept::Single(single) => (f(Form::Single(single)), self.is_handed()),
            Kept::Spread(spread) => (f(Form::Spread(spread)), self.is_alone()),
        };
        let is_single = matches!(*form, Some(Kept::Single(_)));
        drop(form);
        if is_to_swap {
            self.swap(is_single);
        }
        result
    }

    /// Whether several threads use the single form in turns.
    #[inline]
    fn is_handed(&self) -> bool {
        // Relaxed, all of it: hints.
        let here = Thread::here();
        let last = self.last.load(Ordering::Relaxed);
        if last == here {
            return false;
        }
        self.last.store(here, Ordering::Relaxed);
        last != NOWHERE && self.handed.fetch_add(1, Ordering::Relaxed) + 1 >= HANDED_MAX
    }

    /// Whether it is time to look, and one thread alone uses the spread form.
    #[inline]
    fn is_alone(&self) -> bool {
        // Relaxed: a number, and hints.
        let (calls, is_alone) = self.calls.here_and_alone();
        let count = calls.load(Ordering::Relaxed) + 1;
        if is_alone {
            calls.store(count, Ordering::Relaxed);
        }
        is_alone && count % LOOK == 0 && self.look()
    }

    #[cold]
    fn look(&self) -> bool {
        let all = self.calls.fold(0u64, |sum, calls| sum.wrapping_add(calls.load(Ordering::Relaxed)));
        let mut watch = lock(&self.watch);
        let place = Thread::here();
        let is_alone = watch.place == place && all.wrapping_sub(watch.seen) == LOOK;
        let alone = if is_alone { watch.alone + 1 } else { 0 };
        *watch = Watch { seen: all, place, alone };
        alone >= ALONE_MAX
    }

    /// Has it use its spread form, from now on. Whether it does: not from within a call of this thread.
    pub fn spread(&self) -> bool {
        self.swap(true)
    }

    /// Has it use its single form, from now on. Whether it does: not from within a call of this thread.
    pub fn gather(&self) -> bool {
        self.swap(false)
    }

    /// Whether it has the form that is wanted.
    #[cold]
    fn swap(&self, to_spread: bool) -> bool {
        if self.form.is_read_here() {
            return self.is_spread() == to_spread;
        }
        let form = self.form.write();
        // Destructors of what is retired here may use this object: they wait for the event's end, when others may call again.
        event(move |_| {
            let mut form = form;
            *form = Some(match form.take().expect(LOST) {
                Kept::Single(single) if to_spread => Kept::Spread(single.spread()),
                Kept::Spread(spread) if !to_spread => Kept::Single(S::gather(spread)),
                same => same,
            });
            // What was seen was another form.
            self.last.store(NOWHERE, Ordering::Relaxed);
            self.handed.store(0, Ordering::Relaxed);
            *lock(&self.watch) = Watch { seen: 0, place: NOWHERE, alone: 0 };
        });
        true
    }

    /// Whether it has its spread form.
    ///
    /// # Panics
    /// As [`call`](Adaptive::call).
    pub fn is_spread(&self) -> bool {
        matches!(self.form.read().as_ref().expect(LOST), Kept::Spread(_))
    }
}

const LOST: &str = "a form was lost: spread or gather has panicked";

impl<S: Single> fmt::Debug for Adaptive<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive").field("is_spread", &self.is_spread()).finish_non_exhaustive()
    }
}

/// A counter that is one number until several threads use it: an atomic, and a [`Counter`].
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
            // Relaxed: it is a number, and nothing hangs on when others see it.
            Form::Single(number) => drop(number.fetch_add(n as u64, Ordering::Relaxed)),
            Form::Spread(counter) => counter.add(n),
        });
    }

    /// What was added so far: all that was before this call, and some of what is added meanwhile.
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
