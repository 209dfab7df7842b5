//! Values that are out of sight, and may still be used in events that began before.
//!
//! Each has the era it was made in and, once somebody has looked at all events, the era of that look. It is freed when no event is
//! left that began before and reaches so far (`registry`). So an event that lasts keeps what there was when it last
//! looked for something, and nothing that was made later: however long a thread stays there, what it holds up does not grow.
//! (Eras as in Ramalhete, Correia, *Brief announcement: Hazard eras*, 2017; with intervals, Wen, Izraelevitz, Cai, Beadle, Scott,
//! *Interval-based memory reclamation*, 2018. There each look for a value tells its era. Here it does so when it is asked.)

use crate::global::{GLOBAL, lock};
use crate::local::{self, with_limbo};
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
        // A destructor is not ours. If it panics, the hook has told so; and what it panics with has a destructor, too.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(bury)) {
            mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
        }
    }
}

/// What a thread is to free.
pub(crate) struct Limbo {
    dead: Vec<Dead>,
    /// Nobody uses these any more. They go one by one, as others come: an allocator has what one value leaves for the next one, and
    /// passes on what many leave at once. (Kim, Brown, Singh, *Are your epochs too epic? Batch free can be harmful*, 2024.)
    graves: Vec<Dead>,
    /// With so many it looks whether some can go.
    full: usize,
    /// So many were put here since it was last worked, when there was something to do: as many go then.
    due: usize,
    /// How many are burying here, more than one if destructors sweep or wait: what these put here waits, or a chain of values would be as
    /// many calls within calls.
    burying: usize,
}

impl Limbo {
    pub(crate) const fn new() -> Limbo {
        Limbo { dead: Vec::new(), graves: Vec::new(), full: BATCH, due: 0, burying: 0 }
    }

    /// Hands all to whoever sweeps next: the thread ends.
    pub(crate) fn abandon(&mut self) {
        self.dead.append(&mut self.graves);
        if !self.dead.is_empty() {
            lock(&GLOBAL.orphans).append(&mut self.dead);
        }
    }

    /// Finds what nobody uses, of this thread and of those that have ended.
    fn scan(&mut self) {
        self.dead.append(&mut lock(&GLOBAL.orphans));
        if self.dead.is_empty() {
            return;
        }
        let (era, spans) = lock(&GLOBAL.registry).scan();
        self.dead.iter_mut().for_each(|dead| dead.date(era));
        let is_free = |dead: &mut Dead| !spans.iter().any(|span| span.holds(dead.birth, dead.death));
        self.graves.extend(self.dead.extract_if(.., is_free));
        // Twice as many: the work for each value does not grow with what is held.
        self.full = BATCH.max(2 * self.dead.len());
    }
}

/// Puts a value there that nobody can find any more.
pub(crate) fn put(dead: Dead) {
    let mut dead = Some(dead);
    let is_work = with_limbo(|limbo| {
        limbo.dead.extend(dead.take());
        let is_work = limbo.dead.len() >= limbo.full || !limbo.graves.is_empty();
        limbo.due += usize::from(is_work);
        is_work
    });
    match is_work {
        None => lock(&GLOBAL.orphans).extend(dead),
        Some(false) => {}
        // Destructors are code of others, and run outside of events.
        Some(true) if local::with(|local| local.wait_for_end(local::WORK)) => {}
        Some(true) => work(),
    }
}

/// Looks whether some can go, if there are many, and frees as many as were put there meanwhile: in an event, those wait for its end.
pub(crate) fn work() {
    let take = |limbo: &mut Limbo| {
        if limbo.burying > 0 {
            return None;
        }
        if limbo.dead.len() >= limbo.full {
            limbo.scan();
        }
        limbo.burying += 1;
        Some(mem::take(&mut limbo.due) + limbo.graves.len() / BATCH)
    };
    let Some(count) = with_limbo(take).flatten() else { return };
    for _ in 0..count {
        let Some(dead) = with_limbo(|limbo| limbo.graves.pop()).flatten() else { break };
        // SAFETY: as in `sweep`.
        unsafe { dead.bury() };
    }
    with_limbo(|limbo| limbo.burying -= 1);
}

/// Frees what nobody uses, of this thread and of those that have ended: how many values.
pub(crate) fn sweep() -> usize {
    let scan = |limbo: &mut Limbo| {
        limbo.scan();
        (limbo.due, limbo.burying) = (0, limbo.burying + 1);
        mem::take(&mut limbo.graves)
    };
    let graves = with_limbo(scan).unwrap_or_else(|| {
        let mut limbo = Limbo::new();
        let graves = scan(&mut limbo);
        limbo.abandon();
        graves
    });
    let count = graves.len();
    // SAFETY: every event that could have found them is over, or does not reach so far (`scan`).
    graves.into_iter().for_each(|dead| unsafe { dead.bury() });
    with_limbo(|limbo| limbo.burying -= 1);
    count
}
