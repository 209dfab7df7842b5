//! Sites: the places in the source at which functions of this crate are called.
//!
//! A site is found by the address of its `Location`, which the compiler passes to functions with
//! `track_caller`. The table has a word for each site: the address of the location, and in its
//! lowest bit whether the site is switched off. So one load and one comparison show that a site is
//! switched off, if its word is in the first slot of its address. Other sites are found by a search
//! of up to [`PROBES_MAX`] slots, and sites for which these are full by their text.
//!
//! ```text
//!   &Location --(address / 8) mod SLOTS--> | word: address + 1 | --> plain call
//!                                          | word: address     | --> Site: masks, records, probe
//! ```

use crate::context::{self, Context};
use crate::control::{Control, Sample, Verdict, depth_bit};
use crate::pool;
use crate::retry;
use corebeat_probe::Probe;
use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Slots of the table. A power of two.
const SLOTS: usize = 2048;
/// Slots that a search visits. Sites beyond those are found by their text.
const PROBES_MAX: usize = 8;
/// Most sites; calls at further ones are plain.
const SITES_MAX: usize = SLOTS;
/// Bit of a word: the site is switched off.
const PLAIN: usize = 1;

const _: () = assert!(align_of::<Location<'static>>() > PLAIN);

struct Slot {
    word: AtomicUsize,
    site: AtomicPtr<Site>,
}

static TABLE: [Slot; SLOTS] =
    [const { Slot { word: AtomicUsize::new(0), site: AtomicPtr::new(ptr::null_mut()) } }; SLOTS];

/// All sites. They are never freed.
static REGISTRY: Mutex<Vec<&'static Site>> = Mutex::new(Vec::new());

/// Number of runs under a seed, during which no site is switched off.
static FORCED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Number of calls on this thread whose joins are too small, with those inside them.
    static SMALL: Cell<u32> = const { Cell::new(0) };
}

/// A place in the source.
pub(crate) struct Site {
    file: &'static str,
    line: u32,
    column: u32,
    /// The words of this site. A place may have several locations with equal text.
    words: Mutex<Vec<&'static AtomicUsize>>,
    /// Bit sets of depths: those at which the site was called, those that are plain, and those of
    /// the plain ones inside which all joins are plain.
    called: AtomicU32,
    plain: AtomicU32,
    small: AtomicU32,
    control: Mutex<Control>,
    probe: Option<&'static Probe>,
    parallel_calls: AtomicU64,
    taken: AtomicU64,
    is_off: AtomicU32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline(always)]
fn slot(key: usize, step: usize) -> &'static Slot {
    &TABLE[(key / align_of::<Location<'static>>() + step) % SLOTS]
}

/// Whether the call is a plain one: the site is switched off, or the caller is inside a call that
/// is too small.
#[inline(always)]
pub(crate) fn is_plain(place: &'static Location<'static>) -> bool {
    let key = ptr::from_ref(place).addr();
    // Relaxed: no other data depends on the word.
    slot(key, 0).word.load(Ordering::Relaxed) == key | PLAIN || SMALL.get() > 0
}

/// How a call is made.
pub(crate) enum Way {
    Plain(PlainCall),
    Parallel(Rc<Context>, &'static Site),
}

/// A plain call.
pub(crate) enum PlainCall {
    /// The site has no records here.
    Unknown,
    /// Joins inside the call are plain as well.
    Small,
    /// Joins inside the call have the records of the next depth, as inside a parallel call. With
    /// those of this depth, no call inside could be a small one.
    Large { context: Rc<Context>, depth: u32 },
}

impl PlainCall {
    fn small() -> PlainCall {
        SMALL.set(SMALL.get() + 1);
        PlainCall::Small
    }

    fn large(context: Rc<Context>) -> PlainCall {
        let depth = context.depth();
        context.set_depth(depth + 1);
        PlainCall::Large { context, depth }
    }
}

impl Drop for PlainCall {
    fn drop(&mut self) {
        match self {
            PlainCall::Unknown => {}
            // A task of LPEL does not change its thread, so this is the same counter. While the
            // call is suspended, the joins of other tasks of the worker are plain, too.
            PlainCall::Small => SMALL.set(SMALL.get() - 1),
            PlainCall::Large { context, depth } => context.set_depth(*depth),
        }
    }
}

/// Decides how a call is made whose site is not switched off.
pub(crate) fn way(place: &'static Location<'static>) -> Way {
    let Some(context) = context::current() else {
        if pool::is_single() {
            // Relaxed: a hint, so that later calls take no lock.
            let on = find(place).filter(|site| site.is_off.load(Ordering::Relaxed) == 0);
            on.map(Site::set_off);
        }
        return Way::Plain(PlainCall::Unknown);
    };
    let Some(site) = find(place) else { return Way::Plain(PlainCall::Unknown) };
    // For sites whose word is not in the first slot. Relaxed: a hint.
    if site.is_off.load(Ordering::Relaxed) > 0 {
        return Way::Plain(PlainCall::Unknown);
    }
    if context.baton().is_none() {
        let bit = depth_bit(context.depth());
        // Relaxed: hints, as all accesses to the sets.
        if site.called.load(Ordering::Relaxed) & bit == 0 {
            site.called.fetch_or(bit, Ordering::Relaxed);
        }
        if site.plain.load(Ordering::Relaxed) & bit != 0 {
            let is_small = site.small.load(Ordering::Relaxed) & bit != 0;
            let call = if is_small { PlainCall::small() } else { PlainCall::large(context) };
            return Way::Plain(call);
        }
    }
    Way::Parallel(context, site)
}

fn find(place: &'static Location<'static>) -> Option<&'static Site> {
    let key = ptr::from_ref(place).addr();
    for step in 0..PROBES_MAX {
        let slot = slot(key, step);
        // Acquire: pairs with the release in `register`, so that the pointer is set.
        match slot.word.load(Ordering::Acquire) & !PLAIN {
            0 => break,
            word if word == key => {
                // SAFETY: the pointer was set before the word, and sites are never freed.
                // Relaxed: ordered by the word.
                return unsafe { slot.site.load(Ordering::Relaxed).as_ref() };
            }
            _ => {}
        }
    }
    register(place, key)
}

#[cold]
fn register(place: &'static Location<'static>, key: usize) -> Option<&'static Site> {
    let mut registry = locked(&REGISTRY);
    let is_same = |site: &&&Site| {
        (site.file, site.line, site.column) == (place.file(), place.line(), place.column())
    };
    let site = match registry.iter().find(is_same) {
        Some(site) => *site,
        None if registry.len() >= SITES_MAX => return None,
        None => {
            let site: &'static Site = Box::leak(Box::new(Site::new(place)));
            registry.push(site);
            site
        }
    };
    // The lock excludes other writers of the table.
    let slots = || (0..PROBES_MAX).map(|step| slot(key, step));
    let word_of = |slot: &Slot| slot.word.load(Ordering::Relaxed) & !PLAIN;
    if !slots().any(|slot| word_of(slot) == key)
        && let Some(free) = slots().find(|slot| word_of(slot) == 0)
    {
        free.site.store(ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
        let mut words = locked(&site.words);
        words.push(&free.word);
        // Relaxed: under the lock of the words.
        let off = if site.is_off.load(Ordering::Relaxed) > 0 { PLAIN } else { 0 };
        // Release: publishes the pointer.
        free.word.store(key | off, Ordering::Release);
    }
    Some(site)
}

impl Site {
    fn new(place: &'static Location<'static>) -> Site {
        let name = format!("future {place}");
        Site {
            file: place.file(),
            line: place.line(),
            column: place.column(),
            words: Mutex::new(Vec::new()),
            called: AtomicU32::new(0),
            plain: AtomicU32::new(0),
            small: AtomicU32::new(0),
            control: Mutex::new(Control::default()),
            // A program with too many probes has none here.
            probe: Probe::add(&name, place.file(), place.line()).ok(),
            parallel_calls: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            is_off: AtomicU32::new(0),
        }
    }

    /// The probe for closures of this site.
    pub(crate) fn probe(&self) -> Option<&'static Probe> {
        self.probe
    }

    /// Adds the times of a join at `depth`, and switches the site off if it does not pay.
    pub(crate) fn record(&'static self, context: &Context, depth: u32, sample: Sample) {
        // Relaxed: counts.
        self.parallel_calls.fetch_add(1, Ordering::Relaxed);
        self.taken.fetch_add(u64::from(sample.idle_ns.is_some()), Ordering::Relaxed);
        if context.baton().is_some() {
            return;
        }
        let mut control = locked(&self.control);
        let bit = depth_bit(depth);
        // Relaxed: decisions change it under the lock. A join that was running at the decision is
        // no sample of the next trial.
        if self.plain.load(Ordering::Relaxed) & bit != 0 {
            return;
        }
        let verdict = control.record(depth as usize, sample);
        let Verdict::Plain { is_small, retry } = verdict else { return };
        // Relaxed: hints. A call that is late uses the old way once more.
        if is_small {
            self.small.fetch_or(bit, Ordering::Relaxed);
        }
        let plain = self.plain.fetch_or(bit, Ordering::Relaxed) | bit;
        let is_hopeless = control.is_hopeless(self.called.load(Ordering::Relaxed), plain);
        drop(control);
        if is_hopeless {
            self.switch_off();
        } else {
            retry::schedule(self, Some(depth), retry);
        }
    }

    /// Makes all calls plain. Returns whether that is a change.
    fn set_off(&self) -> bool {
        let words = locked(&self.words);
        // Relaxed: a run under a seed that begins now switches the site on again.
        let is_change =
            FORCED.load(Ordering::Relaxed) == 0 && self.is_off.swap(1, Ordering::Relaxed) == 0;
        if is_change {
            for word in &*words {
                word.fetch_or(PLAIN, Ordering::Relaxed);
            }
        }
        is_change
    }

    fn switch_off(&'static self) {
        if self.set_off() {
            let wait = locked(&self.control).fail();
            retry::schedule(self, None, wait);
        }
    }

    /// Lets one depth try again whether it pays, unless the whole site waits for that.
    pub(crate) fn switch_on_depth(&self, depth: u32) {
        // Relaxed: hints, as below.
        if self.is_off.load(Ordering::Relaxed) == 0 {
            self.small.fetch_and(!depth_bit(depth), Ordering::Relaxed);
            self.plain.fetch_and(!depth_bit(depth), Ordering::Relaxed);
        }
    }

    /// Lets the site try again whether it pays.
    pub(crate) fn switch_on(&self) {
        locked(&self.control).restart();
        let words = locked(&self.words);
        // Relaxed: hints.
        for set in [&self.called, &self.plain, &self.small, &self.is_off] {
            set.store(0, Ordering::Relaxed);
        }
        for word in &*words {
            word.fetch_and(!PLAIN, Ordering::Relaxed);
        }
    }
}

/// A span in which no site is switched off.
pub(crate) struct AllParallel {
    small: u32,
}

impl AllParallel {
    pub(crate) fn begin() -> AllParallel {
        FORCED.fetch_add(1, Ordering::SeqCst);
        locked(&REGISTRY).iter().for_each(|site| site.switch_on());
        AllParallel { small: SMALL.replace(0) }
    }
}

impl Drop for AllParallel {
    fn drop(&mut self) {
        SMALL.set(self.small);
        FORCED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// State of a site, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteReport {
    /// Path of the source file, as the compiler was given it.
    pub file: &'static str,
    /// Line in the file, from 1.
    pub line: u32,
    /// Column in the line, from 1.
    pub column: u32,
    /// Number of calls that could run in parallel. Plain calls are not counted.
    pub parallel_calls: u64,
    /// Number of those whose closure another thread ran. A loop counts as one call.
    pub taken: u64,
    /// Whether the site is switched off at present, because it costs more than it gains.
    pub is_off: bool,
}

impl fmt::Display for SiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SiteReport { file, line, column, parallel_calls, taken, is_off } = self;
        let state = if *is_off { ", switched off" } else { "" };
        write!(f, "{file}:{line}:{column}: {parallel_calls} parallel calls, {taken} taken{state}")
    }
}

/// Returns the sites that the program has called, in the order of their first calls. If the process
/// has one CPU, all of them are switched off.
///
/// ```
/// let (a, b) = corebeat_future::join(|| 6 * 7, || 6 + 7);
/// assert_eq!((a, b), (42, 13));
/// for site in corebeat_future::sites() {
///     println!("{site}"); // src/main.rs:1:14: 1 parallel calls, 0 taken
/// }
/// ```
pub fn sites() -> Vec<SiteReport> {
    let report = |site: &&'static Site| SiteReport {
        file: site.file,
        line: site.line,
        column: site.column,
        // Relaxed: counts.
        parallel_calls: site.parallel_calls.load(Ordering::Relaxed),
        taken: site.taken.load(Ordering::Relaxed),
        is_off: site.is_off.load(Ordering::Relaxed) > 0,
    };
    locked(&REGISTRY).iter().map(report).collect()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use std::sync::Arc;

    #[test]
    fn calls_inside_a_plain_call_are_deeper_or_small() {
        let pool = Arc::new(Pool::new(2, None));
        let context = context::helper(&pool, usize::MAX).unwrap();
        let place = Location::caller();
        let Way::Parallel(_, site) = way(place) else { panic!("nothing is known of the site") };
        site.plain.fetch_or(depth_bit(0) | depth_bit(1), Ordering::Relaxed);
        site.small.fetch_or(depth_bit(1), Ordering::Relaxed);
        let Way::Plain(outer) = way(place) else { panic!("depth 0 is plain") };
        assert_eq!((context.depth(), is_plain(place)), (1, false));
        let Way::Plain(inner) = way(place) else { panic!("depth 1 is plain") };
        assert!(is_plain(place), "depth 1 is small");
        drop(inner);
        assert!(!is_plain(place));
        drop(outer);
        assert_eq!(context.depth(), 0);
    }
}
