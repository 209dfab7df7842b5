//! A counter whose implementation is swapped while it is in use.

use crate::domain::{Domain, Thread};
use crate::global::lock;
use crate::local::NOWHERE;
use crate::{Counter, Event, Link, event, limbo};
use corebeat_sync::Mutex;
use corebeat_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::fmt;
use std::sync::Arc;

/// A single number is spread when it was handed from one thread to another so often.
const HANDED_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 64 };
/// A spread one is gathered when it was looked at so often and at most one thread had added between two looks.
const ALONE_MAX: u32 = 8;

/// A [`Counter`] that is a single number until several threads use it, and again when they do not any more.
///
/// While one thread at a time uses it, it takes no more than one number; when it sees that it is handed around, it puts a counter with
/// a part for each thread in its place, while calls go on. Whether it is used by one alone again is seen when somebody looks at its value.
///
/// ```
/// use corebeat_clustered::AdaptiveCounter;
///
/// let served = AdaptiveCounter::new();
/// served.add(2);
/// assert!(!served.is_spread());
/// served.spread(); // by hand, also while others add
/// served.add(3);
/// assert!(served.is_spread());
/// assert_eq!(served.value(), 5);
/// ```
///
/// What an event is still adding to the old form when that is replaced is not lost: the old form counts until that event is over, and
/// what it has come to then is kept.
pub struct AdaptiveCounter {
    form: Link<Arc<Form>>,
    ledger: Arc<Mutex<Ledger>>,
}

enum Form {
    Single(Single),
    Spread(Counter),
}

#[derive(Debug)]
struct Single {
    value: AtomicU64,
    /// Where it was last added to.
    last: AtomicUsize,
    /// How often that was somewhere else than before.
    handed: AtomicUsize,
}

/// All that was ever added.
struct Ledger {
    /// In forms that are over.
    settled: u64,
    /// Forms that may still be added to: the one in use, and one before it.
    open: Vec<Arc<Form>>,
    /// The parts of a spread one, when they were last looked at.
    seen: Vec<u64>,
    /// So many looks found at most one part changed.
    alone: u32,
}

impl Form {
    fn single() -> Form {
        let [last, handed] = [NOWHERE, 0].map(AtomicUsize::new);
        Form::Single(Single { value: AtomicU64::new(0), last, handed })
    }

    fn value(&self) -> u64 {
        match self {
            Form::Single(single) => single.value.load(Ordering::Relaxed),
            Form::Spread(counter) => counter.value() as u64,
        }
    }
}

impl Single {
    /// Whether it is handed around.
    #[inline]
    fn add(&self, n: i64) -> bool {
        // Relaxed, all of it: a number, and hints.
        self.value.fetch_add(n as u64, Ordering::Relaxed);
        let here = Thread::here();
        let last = self.last.load(Ordering::Relaxed);
        if last == here {
            return false;
        }
        self.last.store(here, Ordering::Relaxed);
        last != NOWHERE && self.handed.fetch_add(1, Ordering::Relaxed) + 1 >= HANDED_MAX
    }
}

impl AdaptiveCounter {
    /// 0, as a single number.
    pub fn new() -> AdaptiveCounter {
        let form = Arc::new(Form::single());
        let ledger = Ledger { settled: 0, open: vec![form.clone()], seen: Vec::new(), alone: 0 };
        AdaptiveCounter { form: Link::new(form), ledger: Arc::new(Mutex::new(ledger)) }
    }

    /// Adds `n`, which may be negative.
    #[inline]
    pub fn add(&self, n: i64) {
        let is_handed = event(|event| match &**self.form(event) {
            Form::Single(single) => single.add(n),
            Form::Spread(counter) => {
                counter.add(n);
                false
            }
        });
        if is_handed {
            self.spread();
        }
    }

    fn form<'e>(&self, event: &'e Event<'_>) -> &'e Arc<Form> {
        self.form.get(event).expect("it has a form as long as it lives")
    }

    /// Has it use a part for each thread, from now on. Whether it does: not while the form before the last swap is still in use.
    pub fn spread(&self) -> bool {
        self.swap(|form| matches!(form, Form::Spread(_)), || Form::Spread(Counter::new()))
    }

    /// Has it use a single number, from now on. Whether it does: not while the form before the last swap is still in use.
    pub fn gather(&self) -> bool {
        self.swap(|form| matches!(form, Form::Single(_)), Form::single)
    }

    /// Puts a new form in the place of the one in use, if that is another one.
    fn swap(&self, is_it: fn(&Form) -> bool, make: fn() -> Form) -> bool {
        if lock(&self.ledger).open.len() > 1 {
            // Perhaps the one before is only waiting for somebody to look.
            limbo::sweep();
        }
        let mut ledger = lock(&self.ledger);
        if is_it(ledger.last()) || ledger.open.len() > 1 {
            return is_it(ledger.last());
        }
        let form = Arc::new(make());
        ledger.open.push(form.clone());
        (ledger.seen, ledger.alone) = (Vec::new(), 0);
        // Nobody else swaps before this one is settled; and who is to settle it takes the lock.
        drop(ledger);
        let books = self.ledger.clone();
        self.form.replace_then(form, move |old| lock(&books).settle(&old));
        true
    }

    /// Whether it has a part for each thread.
    pub fn is_spread(&self) -> bool {
        event(|event| matches!(**self.form(event), Form::Spread(_)))
    }

    /// What was added so far: all that was before this call, and some of what is added meanwhile.
    pub fn value(&self) -> i64 {
        let mut ledger = lock(&self.ledger);
        let value = ledger.open.iter().fold(ledger.settled, |sum, form| sum.wrapping_add(form.value()));
        let is_alone = ledger.look();
        drop(ledger);
        if is_alone {
            self.gather();
        }
        value as i64
    }
}

impl Ledger {
    fn last(&self) -> &Arc<Form> {
        self.open.last().expect("there is one in use")
    }

    /// Nobody adds to this form any more.
    fn settle(&mut self, form: &Arc<Form>) {
        self.settled = self.settled.wrapping_add(form.value());
        self.open.retain(|open| !Arc::ptr_eq(open, form));
    }

    /// Looks who has added to a spread one since the last look. Whether it should be gathered.
    fn look(&mut self) -> bool {
        let Form::Spread(counter) = &**self.last() else { return false };
        let parts = counter.parts();
        let changed =
            parts.iter().enumerate().filter(|&(i, part)| self.seen.get(i).unwrap_or(&0) != part).count();
        self.alone = if changed > 1 { 0 } else { self.alone + 1 };
        self.seen = parts;
        self.alone >= ALONE_MAX
    }
}

impl Default for AdaptiveCounter {
    fn default() -> Self {
        AdaptiveCounter::new()
    }
}

impl fmt::Debug for AdaptiveCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AdaptiveCounter").field(&self.value()).finish()
    }
}
