//! Values that are out of sight, and may still be used in events that began before.
//!
//! Each has the era it was made in and, once somebody has looked at all events, the era of that look. It is freed when no event is
//! left that began before and reaches so far (`registry`). So an event that lasts keeps what there was when it last
//! looked for something, and nothing that was made later: however long a thread stays there, what it holds up does not grow.
//! (Eras as in Ramalhete, Correia, *Brief announcement: Hazard eras*, 2017; with intervals, Wen, Izraelevitz, Cai, Beadle, Scott,
//! *Interval-based memory reclamation*, 2018. There each look for a value tells its era. Here it does so when it is asked.)

use crate::global::{GLOBAL, lock};
use crate::local::{self, Local, with_limbo};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A thread looks at all others for so many values at least.
const BATCH: usize = if cfg!(any(loom, miri)) { 2 } else { 256 };

/// A value that nobody can find any more, and what is to be done with it.
pub(crate) struct Dead {
    /// What is there begins with the era that it was made in.
    value: *mut u64,
    bury: unsafe fn(*mut u64),
    /// Copied from there when it was first looked at. Whoever retires a value that another thread has just made would wait for it.
    birth: u64,
    /// The scan at which it was out of sight; 0 before that.
    death: u64,
}

// SAFETY: values in links are `Send`, and so is what is done with them.
unsafe impl Send for Dead {}

impl Dead {
    /// What `bury` takes.
    ///
    /// # Safety
    ///
    /// It begins with the era that it was made in, nobody can find it any more, and `bury` may be called with it once, when nobody uses
    /// it.
    pub(crate) unsafe fn new(value: *mut u64, bury: unsafe fn(*mut u64)) -> Dead {
        Dead { value, bury, birth: 0, death: 0 }
    }

    /// It was out of sight at the scan of this era, perhaps before.
    fn date(&mut self, era: u64) {
        if self.death == 0 {
            // SAFETY: it begins with that, and is there until it is buried.
            self.birth = unsafe { self.value.read() };
            self.death = era;
        }
    }

    /// # Safety
    ///
    /// Nobody uses it.
    unsafe fn bury(self) {
        // SAFETY: the function is the one for this value, and the caller vouches for the rest.
        let bury = || unsafe { (self.bury)(self.value) };
        if cfg!(loom) {
            // What panics is the model.
            return bury();
        }
        // A destructor is not ours. If it panics, the hook has told so.
        let _ = catch_unwind(AssertUnwindSafe(bury));
    }
}

/// What a thread is to free.
pub(crate) struct Limbo {
    dead: Vec<Dead>,
    /// Empty but while it sweeps: room that is used again. (To allocate and free some at each sweep has the allocator tidy up each time,
    /// among the values that were freed before.)
    graves: Vec<Dead>,
    /// With so many it looks whether some can go.
    full: usize,
}

impl Limbo {
    pub(crate) const fn new() -> Limbo {
        Limbo { dead: Vec::new(), graves: Vec::new(), full: BATCH }
    }

    /// Hands all to whoever sweeps next: the thread ends.
    pub(crate) fn abandon(&mut self) {
        if !self.dead.is_empty() {
            lock(&GLOBAL.orphans).append(&mut self.dead);
        }
    }
}

/// Puts a value there that nobody can find any more.
pub(crate) fn put(dead: Dead) {
    let mut dead = Some(dead);
    let full = with_limbo(|limbo| {
        limbo.dead.extend(dead.take());
        limbo.dead.len() >= limbo.full
    });
    match full {
        None => lock(&GLOBAL.orphans).extend(dead),
        Some(false) => {}
        // Destructors are code of others, and run outside of events.
        Some(true) if local::with(Local::wait_for_end) => {}
        Some(true) => {
            sweep();
        }
    }
}

/// Frees what nobody uses, of this thread and of those that have ended: how many values.
pub(crate) fn sweep() -> usize {
    let (mut dead, mut graves) = with_limbo(|limbo| {
        // While this is under way, it is not full.
        limbo.full = usize::MAX;
        (mem::take(&mut limbo.dead), mem::take(&mut limbo.graves))
    })
    .unwrap_or_default();
    dead.append(&mut lock(&GLOBAL.orphans));
    if !dead.is_empty() {
        let (era, spans) = lock(&GLOBAL.registry).scan();
        dead.iter_mut().for_each(|dead| dead.date(era));
        let is_free = |dead: &mut Dead| !spans.iter().any(|span| span.holds(dead.birth, dead.death));
        graves.extend(dead.extract_if(.., is_free));
    }
    let count = graves.len();
    // SAFETY: every event that could have found them is over, or does not reach so far (`scan`).
    graves.drain(..).for_each(|dead| unsafe { dead.bury() });
    let mut kept = Some((dead, graves));
    with_limbo(|limbo| {
        let (mut dead, graves) = kept.take().expect("it is given once");
        // Destructors may have put some there.
        dead.append(&mut limbo.dead);
        // Twice as many: the work for each value does not grow with what is held.
        limbo.full = BATCH.max(2 * dead.len());
        (limbo.dead, limbo.graves) = (dead, graves);
    });
    lock(&GLOBAL.orphans).extend(kept.into_iter().flat_map(|(dead, _)| dead));
    count
}
