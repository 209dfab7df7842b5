//! Values that were unlinked and that older sections may still use.
//!
//! Each value has the era in which it was made and, after the first scan of all threads, the era of
//! that scan. It is freed when no section remains that began before the scan and reaches the
//! value's birth (`registry`). So a long section keeps the values that existed when it last loaded
//! a link, and none that was made later: the number of values that it keeps does not grow.
//! (Sources: eras are from Ramalhete, Correia, *Brief announcement: Hazard eras*, 2017; intervals
//! are from Wen, Izraelevitz, Cai, Beadle, Scott, *Interval-based memory reclamation*, 2018. There,
//! each load of a link publishes its era; here, a section publishes its era on request.)

use crate::global::GLOBAL;
use crate::local::{self, with_retired};
use corebeat_reclaim::free_all;
use std::mem;

/// Minimum number of values for which a thread scans all others.
const BATCH: usize = if cfg!(any(loom, miri)) { 2 } else { 256 };

/// The eras of a retired value.
#[derive(Clone, Copy)]
pub(crate) struct Dates {
    /// Copied from the value at its first scan: reading it when another thread has just made the
    /// value would stall the thread that retires the value.
    birth: u64,
    /// The scan at which the value was unlinked; 0 before that scan.
    death: u64,
}

pub(crate) type Retired = corebeat_reclaim::Retired<Dates>;

/// Retires a value.
///
/// # Safety
///
/// As for [`corebeat_reclaim::Retired::new`]; the value begins with the era in which it was made.
pub(crate) unsafe fn retire(value: *mut u64, free: unsafe fn(*mut ())) {
    // SAFETY: the caller guarantees it.
    push(unsafe { Retired::new(value.cast(), free, Dates { birth: 0, death: 0 }) });
}

/// Records that the value was unlinked at the scan of this era, or before.
fn date(retired: &mut Retired, era: u64) {
    if retired.stamp.death == 0 {
        // SAFETY: the value begins with its birth, and exists until it is freed.
        let birth = unsafe { retired.value().cast::<u64>().read() };
        retired.stamp = Dates { birth, death: era };
    }
}

/// The retired values of a thread.
pub(crate) struct RetiredList {
    waiting: Vec<Retired>,
    /// Values whose grace periods are over. They are freed one by one, as others are retired: an
    /// allocator reuses the memory of one value for the next one, but passes on the memory of many
    /// values that are freed together. (Kim, Brown, Singh, *Are your epochs too epic? Batch free
    /// can be harmful*, 2024.)
    free: Vec<Retired>,
    /// Number of waiting values at which the thread scans all others.
    full: usize,
    /// Number of values that were retired since values were last freed. As many are freed next.
    due: usize,
    /// Number of nested calls that free values of this thread: more than one if destructors free or
    /// wait. Values that destructors retire wait, or a chain of values would be as many nested
    /// calls.
    freeing: usize,
}

impl RetiredList {
    pub(crate) const fn new() -> RetiredList {
        RetiredList { waiting: Vec::new(), free: Vec::new(), full: BATCH, due: 0, freeing: 0 }
    }

    /// Leaves all values to other threads: the thread ends.
    pub(crate) fn abandon(&mut self) {
        GLOBAL.orphans.abandon(&mut self.free);
        GLOBAL.orphans.abandon(&mut self.waiting);
    }

    /// Moves the values of this thread, and the orphans, to `free` if their grace periods are over.
    fn scan(&mut self) {
        GLOBAL.orphans.adopt(&mut self.waiting);
        if self.waiting.is_empty() {
            return;
        }
        let (era, spans) = GLOBAL.registry.lock().scan();
        self.waiting.iter_mut().for_each(|retired| date(retired, era));
        let is_free = |retired: &mut Retired| {
            let Dates { birth, death } = retired.stamp;
            !spans.iter().any(|span| span.holds(birth, death))
        };
        self.free.extend(self.waiting.extract_if(.., is_free));
        // Twice as many: the work per value does not grow with the number of waiting values.
        self.full = BATCH.max(2 * self.waiting.len());
    }
}

fn push(retired: Retired) {
    let mut retired = Some(retired);
    let has_work = with_retired(|list| {
        list.waiting.extend(retired.take());
        let has_work = list.waiting.len() >= list.full || !list.free.is_empty();
        list.due += usize::from(has_work);
        has_work
    });
    match has_work {
        None => GLOBAL.orphans.abandon(&mut retired.into_iter().collect()),
        Some(false) => {}
        // Destructors are user code, and run outside of sections.
        Some(true) if local::with(|local| local.defer(local::WORK)) => {}
        Some(true) => work(),
    }
}

/// Scans if the list is full, and frees as many values as were retired since the last call. Within
/// a section this is deferred to its end.
pub(crate) fn work() {
    /// Takes the next of `count` values; after the last one, the call of `work` is over.
    fn next(list: &mut RetiredList, count: &mut usize) -> Option<Retired> {
        let next = count.checked_sub(1).and_then(|left| {
            *count = left;
            list.free.pop()
        });
        list.freeing -= usize::from(next.is_none());
        next
    }
    let begin = |list: &mut RetiredList| {
        if list.freeing > 0 {
            return None;
        }
        if list.waiting.len() >= list.full {
            list.scan();
        }
        list.freeing += 1;
        let mut count = mem::take(&mut list.due) + list.free.len() / BATCH;
        Some((next(list, &mut count)?, count))
    };
    let Some((mut retired, mut count)) = with_retired(begin).flatten() else { return };
    loop {
        // SAFETY: as in `reclaim`.
        unsafe { retired.free() };
        match with_retired(|list| next(list, &mut count)).flatten() {
            Some(following) => retired = following,
            None => break,
        }
    }
}

/// Frees all values of this thread, and orphans, whose grace periods are over. Returns their
/// number.
pub(crate) fn reclaim() -> usize {
    let scan = |list: &mut RetiredList| {
        list.scan();
        (list.due, list.freeing) = (0, list.freeing + 1);
        mem::take(&mut list.free)
    };
    let free = with_retired(scan).unwrap_or_else(|| {
        let mut list = RetiredList::new();
        let free = scan(&mut list);
        list.abandon();
        free
    });
    // SAFETY: every section that could have found the values is over, or does not reach them
    // (`scan`).
    let count = unsafe { free_all(free) };
    with_retired(|list| list.freeing -= 1);
    count
}
