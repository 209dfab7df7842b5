//! All threads that have events, and how far those reach.
//!
//! A look at all threads (`scan`) begins a new era. It is for values that nobody can find any more when it begins:
//!
//! | who sweeps | who is in an event |
//! | --- | --- |
//! | puts the value out of sight | `word` is IN, or `reach` is the newest era |
//! | `heavy` | `light` |
//! | looks at `word` and `reach` | looks for the value |
//!
//! One of the two fences is first: either the one sees the event and its reach, or the other does not find the value.

use crate::global::GLOBAL;
use crate::local::{IN, Public, REQUEST};
use corebeat_sync::asymmetric;
use corebeat_sync::atomic::Ordering;
use std::collections::BTreeSet;

/// Threads that are known, by number.
#[derive(Default)]
pub(crate) struct Registry {
    threads: Vec<Option<Thread>>,
    free: BTreeSet<usize>,
}

struct Thread {
    public: *const Public,
    /// Its event, if it has one under a request, began after the scan of this era.
    since: u64,
}

// SAFETY: it is looked at while it is on this list, which it leaves before its memory goes; and what is looked at is atomic.
unsafe impl Send for Thread {}

/// An event: values that were out of sight at the scan of `since`, or were made after `reach`, are not in use there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    pub(crate) since: u64,
    pub(crate) reach: u64,
}

impl Span {
    /// Whether a value from `birth` that was out of sight at the scan of `death` may be in use there.
    pub(crate) fn holds(self, birth: u64, death: u64) -> bool {
        death > self.since && birth <= self.reach
    }
}

impl Registry {
    pub(crate) const fn new() -> Registry {
        Registry { threads: Vec::new(), free: BTreeSet::new() }
    }

    /// Puts a thread on the list: its number, the lowest that is free. 0 is nobody's.
    pub(crate) fn enter(&mut self, public: *const Public) -> usize {
        if self.threads.is_empty() {
            self.threads.push(None);
        }
        let thread = Some(Thread { public, since: 0 });
        if let Some(number) = self.free.pop_first() {
            self.threads[number] = thread;
            return number;
        }
        self.threads.push(thread);
        self.threads.len() - 1
    }

    pub(crate) fn leave(&mut self, number: usize) {
        self.threads[number] = None;
        self.free.insert(number);
    }

    pub(crate) fn leave_by_address(&mut self, public: *const Public) {
        let is_it = |thread: &Option<Thread>| thread.as_ref().is_some_and(|t| t.public == public);
        let number = self.threads.iter().position(is_it).expect("it has entered");
        self.leave(number);
    }

    /// Begins an era, and looks at all events: the era, and which of them may use what is out of sight now.
    pub(crate) fn scan(&mut self) -> (u64, Vec<Span>) {
        // Release: pairs with the Acquire of who makes a value: what that is dated by is what was asked for in eras before.
        // (This is locked: nobody else adds.)
        let era = GLOBAL.era.fetch_add(1, Ordering::Release) + 1;
        asymmetric::heavy();
        let spans = self.threads.iter_mut().flatten().filter_map(|thread| thread.span(era));
        (era, spans.collect())
    }
}

impl Thread {
    fn span(&mut self, era: u64) -> Option<Span> {
        // SAFETY: it is on the list.
        let public = unsafe { &*self.public };
        // Acquire: pairs with the Release at the end of an event: memory is freed after it was used.
        if public.word.load(Ordering::Acquire) != IN {
            return None;
        }
        // Acquire: the same.
        if public.control.load(Ordering::Acquire) & REQUEST != 0 {
            // Acquire: pairs with nothing: the fences order it, and an old one would be as good.
            return Some(Span { since: self.since, reach: public.reach.load(Ordering::Acquire) });
        }
        // At the scan before, it was in no event, or it was asked and that event is over. From now on it tells its reach, and
        // is believed at the next scan.
        self.since = era - 1;
        public.reach.store(era, Ordering::Relaxed);
        // Release: pairs with the value that comes from a later era: who finds that finds this too.
        public.control.fetch_add(REQUEST, Ordering::Release);
        Some(Span { since: self.since, reach: u64::MAX })
    }
}
