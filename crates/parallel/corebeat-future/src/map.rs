//! Loops whose iterations are independent.

use crate::context::{self, Context};
use crate::control::{PAYS_NS, Sample};
use crate::job::{Payload, nanos_since};
use crate::join::probed;
use crate::site::{self, Site, Way};
use crate::split::{Parts, Split};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Shortest time of a part that another thread may take, in nanoseconds.
const PART_NS: u64 = 50_000;
/// Parts for each thread, so that all threads end at about the same time.
const PARTS_EACH: usize = 8;
/// Fewest steps in which a loop is measured, so that no step is a large part of the loop.
const STEPS_MIN: usize = 64;
/// Most parts of a loop in a run under a seed.
const SEEDED_PARTS_MAX: usize = 8;

/// Returns `f` of all items, in their order.
///
/// The calling thread begins with the first items. If these show that the loop is long enough, it
/// divides the remaining items, and other threads take parts of them.
///
/// ```
/// let lengths = corebeat_future::map(&["one", "three"], |word| word.len());
/// assert_eq!(lengths, [3, 5]);
/// let squares = corebeat_future::map(0..4, |n: u32| n * n);
/// assert_eq!(squares, [0, 1, 4, 9]);
/// ```
///
/// # Panics
///
/// If `f` panics, with the payload of the first item in order for which it does. `f` may have run
/// for later items; their results are dropped.
#[track_caller]
#[inline]
pub fn map<I: Split, R: Send>(items: I, f: impl Fn(I::Item) -> R + Sync) -> Vec<R> {
    let (place, items) = (Location::caller(), items.into_parts());
    if site::is_plain(place) {
        items.items().map(f).collect()
    } else {
        let length = items.length();
        let parts = divide(place, items, &|part: I::Parts| part.items().map(&f).collect());
        concatenated(parts, length)
    }
}

fn concatenated<R>(parts: Vec<Vec<R>>, length: usize) -> Vec<R> {
    if parts.len() == 1 {
        return parts.into_iter().next().expect("there is one part");
    }
    let mut all = Vec::with_capacity(length);
    parts.into_iter().for_each(|part| all.extend(part));
    all
}

/// Returns `f` of all items, in their order, or the first error in order. `f` may have run for
/// items after the first error.
///
/// ```
/// let numbers = |words: &[&str]| corebeat_future::try_map(words, |word| word.parse::<u8>());
/// assert_eq!(numbers(&["1", "2"]), Ok(vec![1, 2]));
/// assert_eq!(numbers(&["1", "x", ""]), "x".parse::<u8>().map(|_| vec![]));
/// ```
///
/// # Errors
///
/// The error of the first item in order for which `f` fails.
///
/// # Panics
///
/// If `f` panics for an item before the first error, as [`map`]. If `f` panics for an item after
/// the first error, which the sequential program does not reach, the error is returned.
#[track_caller]
#[inline]
pub fn try_map<I: Split, R: Send, E: Send>(
    items: I,
    f: impl Fn(I::Item) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let (place, items) = (Location::caller(), items.into_parts());
    if site::is_plain(place) {
        items.items().map(f).collect()
    } else {
        try_divided(place, items, &f)
    }
}

fn try_divided<P: Parts, R: Send, E: Send>(
    place: &'static Location<'static>,
    items: P,
    f: &(impl Fn(P::Item) -> Result<R, E> + Sync),
) -> Result<Vec<R>, E> {
    let length = items.length();
    // Position of the first part in order that has failed until now.
    let failed = AtomicUsize::new(usize::MAX);
    let run = |part: At<P>| {
        let At { parts, position } = part;
        // Relaxed: a hint. The results decide.
        if failed.load(Ordering::Relaxed) < position {
            return Ok(Vec::new());
        }
        let collect = || parts.items().map(f).collect::<Result<Vec<R>, E>>();
        // A panic after the first error is not reached by the sequential program.
        let results = match catch_unwind(AssertUnwindSafe(collect)) {
            Ok(results) => results.map_err(Stop::Error),
            Err(payload) => Err(Stop::Panic(payload)),
        };
        if results.is_err() {
            // Relaxed: as above.
            failed.fetch_min(position, Ordering::Relaxed);
        }
        results
    };
    let parts = divide(place, At { parts: items, position: 0 }, &run);
    match parts.into_iter().collect::<Result<Vec<Vec<R>>, Stop<E>>>() {
        Ok(parts) => Ok(concatenated(parts, length)),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Panic(payload)) => resume_unwind(payload),
    }
}

/// Why a part of `try_map` has no results.
enum Stop<E> {
    Error(E),
    Panic(Payload),
}

/// Parts with their position in the whole sequence.
pub(crate) struct At<P> {
    pub(crate) parts: P,
    pub(crate) position: usize,
}

impl<P: Parts> Parts for At<P> {
    type Item = P::Item;
    type Iter = P::Iter;

    fn length(&self) -> usize {
        self.parts.length()
    }

    fn divide(self, at: usize) -> (Self, Self) {
        let middle = self.position + at.min(self.parts.length());
        let (left, right) = self.parts.divide(at);
        (At { parts: left, position: self.position }, At { parts: right, position: middle })
    }

    fn items(self) -> P::Iter {
        self.parts.items()
    }
}

/// Calls `f` for all items. Different items may be processed at the same time.
///
/// ```
/// let mut numbers = vec![1, 2, 3];
/// corebeat_future::for_each(&mut numbers, |n| *n *= 10);
/// assert_eq!(numbers, [10, 20, 30]);
/// ```
///
/// # Panics
///
/// As [`map`].
#[track_caller]
#[inline]
pub fn for_each<I: Split>(items: I, f: impl Fn(I::Item) + Sync) {
    let (place, items) = (Location::caller(), items.into_parts());
    if site::is_plain(place) {
        items.items().for_each(f);
    } else {
        divide(place, items, &|part: I::Parts| part.items().for_each(&f));
    }
}

/// Runs `run` for parts of the items, and returns the results in order.
#[inline(never)]
pub(crate) fn divide<P: Parts, T: Send>(
    place: &'static Location<'static>,
    items: P,
    run: &(impl Fn(P) -> T + Sync),
) -> Vec<T> {
    match site::way(place) {
        Way::Plain(_call) => vec![run(items)],
        Way::Parallel(context, site) => match context.baton() {
            Some(baton) => {
                let parts = 1 + baton.draw() % SEEDED_PARTS_MAX;
                let grain = items.length().div_ceil(parts).max(1);
                Spread { site, grain, run, was_taken: AtomicBool::new(false) }.part(items)
            }
            None => measured(&context, site, items, run),
        },
    }
}

/// Runs the first items here to measure them. Divides the others if that pays.
fn measured<P: Parts, T: Send>(
    context: &Context,
    site: &'static Site,
    items: P,
    run: &(impl Fn(P) -> T + Sync),
) -> Vec<T> {
    let _open = context.open();
    let (length, depth) = (items.length(), context.depth());
    let step_max = (length / STEPS_MIN).max(1);
    let (mut rest, mut done, mut step) = (items, 0, 1);
    let (mut spent_ns, mut each_ns, mut left_ns) = (0, 0, 0);
    let mut results = Vec::new();
    let begin = Instant::now();
    // The first items may be shorter than the later ones, so each step updates the estimate.
    while done < length && (spent_ns < PAYS_NS || left_ns < 2 * PAYS_NS) {
        let (now, later) = rest.divide(step);
        results.push(run(now));
        done += step.min(length - done);
        step = (2 * step).min(step_max);
        rest = later;
        spent_ns = nanos_since(begin);
        each_ns = spent_ns / (done as u64).max(1);
        left_ns = each_ns.saturating_mul((length - done) as u64);
    }
    let left = length - done;
    let mut was_taken = false;
    if left > 0 {
        let limit = context.limit();
        let part_ns = PART_NS.max(left_ns / (PARTS_EACH * limit) as u64);
        let largest = (left / (PARTS_EACH / 2 * limit)).max(1);
        let grain = usize::try_from(part_ns / each_ns.max(1)).unwrap_or(usize::MAX);
        let grain = grain.clamp(1, largest);
        let spread = Spread { site, grain, run, was_taken: AtomicBool::new(false) };
        results.extend(spread.part(rest));
        was_taken = spread.was_taken.into_inner();
    }
    // A thread could at best have done half of the work.
    let half_ns = spent_ns.saturating_add(left_ns) / 2;
    let idle_ns = was_taken.then_some(0);
    site.record(context, depth, Sample { first_ns: half_ns, second_ns: half_ns, idle_ns });
    results
}

/// A loop that is being divided.
struct Spread<'a, F> {
    site: &'static Site,
    /// Items of a part that is not divided further, at most.
    grain: usize,
    run: &'a F,
    /// Whether another thread took a part.
    was_taken: AtomicBool,
}

impl<F> Spread<'_, F> {
    /// Runs the items of a part, and returns the results of its parts in order.
    fn part<P: Parts, T: Send>(&self, items: P) -> Vec<T>
    where
        F: Fn(P) -> T + Sync,
    {
        let length = items.length();
        let context = if length > self.grain { context::current() } else { None };
        let Some(context) = context else { return vec![(self.run)(items)] };
        let (left, right) = items.divide(length / 2);
        let right = probed(self.site, || self.part(right));
        let (mut left, right, times) = context.join(|| self.part(left), right);
        if times.idle_ns.is_some() {
            // Relaxed: read after all parts have ended.
            self.was_taken.store(true, Ordering::Relaxed);
        }
        left.extend(right);
        left
    }
}
