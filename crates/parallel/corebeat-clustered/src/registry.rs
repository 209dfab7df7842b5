//! All threads with read-side critical sections, and how far the sections reach.
//!
//! A scan of all threads begins a new era. It serves values that were unlinked before the scan:
//!
//! | reclaiming thread | thread in a section |
//! | --- | --- |
//! | unlinks the value | `presence` is INSIDE, or `reach` is the newest era |
//! | `heavy` | `light` |
//! | loads `presence` and `reach` | loads the link |
//!
//! One of the two fences comes first: either the scan observes the section and its reach, or the
//! section does not find the value (the proof is on the front page of [`corebeat_reclaim`]).

use crate::global::GLOBAL;
use crate::local::{INSIDE, Public, REQUEST};
use corebeat_sync::asymmetric;
use corebeat_sync::atomic::Ordering;
use std::collections::BTreeSet;

/// Registered threads by number.
#[derive(Default)]
pub(crate) struct Registry {
    threads: Vec<Option<Thread>>,
    free: BTreeSet<usize>,
}

struct Thread {
    public: *const Public,
    /// The section of this thread that has a request, if any, began after the scan of this era.
    since: u64,
}

// SAFETY: the pointer is used while the thread is registered, which ends before its memory is
// freed (in children of fork by `forget_others`); and the fields behind it are atomic.
unsafe impl Send for Thread {}

/// A section: it uses no value that was unlinked at the scan of `since`, and none that was made
/// after `reach`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    pub(crate) since: u64,
    pub(crate) reach: u64,
}

impl Span {
    /// Returns whether the section may use a value that was made in era `birth` and was unlinked at
    /// the scan of `death`.
    pub(crate) fn holds(self, birth: u64, death: u64) -> bool {
        death > self.since && birth <= self.reach
    }
}

impl Registry {
    pub(crate) const fn new() -> Registry {
        Registry { threads: Vec::new(), free: BTreeSet::new() }
    }

    /// Registers a thread and returns its number: the lowest free one, from 1.
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

    /// Deregisters all threads but this one: the others do not exist in a child of fork, whose C
    /// library reuses or unmaps their memory. Their numbers stay in use, because the state of their
    /// places may be inconsistent.
    pub(crate) fn forget_others(&mut self, own: *const Public) {
        for thread in &mut self.threads {
            thread.take_if(|thread| thread.public != own);
        }
    }

    pub(crate) fn leave_by_address(&mut self, public: *const Public) {
        let is_it = |thread: &Option<Thread>| thread.as_ref().is_some_and(|t| t.public == public);
        let number = self.threads.iter().position(is_it).expect("the thread is registered");
        self.leave(number);
    }

    /// Begins an era and loads the state of all threads. Returns the era, and the sections that may
    /// use values that are unlinked now.
    pub(crate) fn scan(&mut self) -> (u64, Vec<Span>) {
        // Release: pairs with the Acquire of a thread that makes a value, so that requests of
        // earlier eras are visible to readers of the value. (The registry is locked: no other
        // thread modifies the era.)
        let era = GLOBAL.era.fetch_add(1, Ordering::Release) + 1;
        asymmetric::heavy_fence();
        let spans = self.threads.iter_mut().flatten().filter_map(|thread| thread.span(era));
        (era, spans.collect())
    }
}

impl Thread {
    fn span(&mut self, era: u64) -> Option<Span> {
        // SAFETY: the thread is registered.
        let public = unsafe { &*self.public };
        if public.presence.load() != INSIDE {
            return None;
        }
        // Acquire: pairs with the Release at the end of a section, as the load of the presence.
        if public.control.load(Ordering::Acquire) & REQUEST != 0 {
            // Acquire: pairs with no store. The fences order the load, and an old value is correct
            // as well.
            return Some(Span { since: self.since, reach: public.reach.load(Ordering::Acquire) });
        }
        // At the previous scan the thread was outside, or it had a request and that section is
        // over. From now on it publishes its reach, which the next scan uses.
        self.since = era - 1;
        public.reach.store(era, Ordering::Relaxed);
        // Release: pairs with the Acquire load of a value of a later era: a reader of such a value
        // observes the request.
        public.control.fetch_add(REQUEST, Ordering::Release);
        Some(Span { since: self.since, reach: u64::MAX })
    }
}
