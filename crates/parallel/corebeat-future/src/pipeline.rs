//! Loops whose first part is independent, and whose rest keeps its order and its thread.

use crate::context::{self, Context, Deeper, Stay};
use crate::job::Payload;
use crate::join::probed;
use crate::scope::Entry;
use crate::site::{self, Site, Way};
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;

/// Most results for each thread that are ahead of the loop: the loop may take longer for some items
/// than for others.
const AHEAD_EACH: usize = 4;
/// Most results ahead of the loop in a run under a seed.
const SEEDED_AHEAD_MAX: usize = 8;
/// Items of a loop that is switched off until it tests that again: the test would take as long as
/// some iterations.
const PLAIN_ITEMS: u32 = 256;

/// Runs `body`, which receives an iterator over `compute` of all items, in their order. While the
/// body uses a result, other threads may compute those of later items.
///
/// The calling thread takes the items, and runs the body. At most four results for each thread are
/// ahead of the body. If the body leaves its loop early, computations of later items that have
/// started still run to their end, and their results are dropped.
///
/// ```
/// let mut report = String::new();
/// corebeat_future::pipeline(
///     ["3", "x", "5"],
///     |word| word.parse::<u32>(), // perhaps on other threads
///     |results| {
///         for number in results {
///             let Ok(number) = number else { continue };
///             report += &format!("{number} "); // in order, on this thread
///         }
///     },
/// );
/// assert_eq!(report, "3 5 ");
/// ```
///
/// # Panics
///
/// With the payload that is first in the order of the sequential loop, in which each iteration
/// takes an item, computes its result and uses it: a panic of `compute`, or of the iterator of the
/// items, surfaces from the call of `next` that would return the result. A panic of a destructor
/// of a result that the body has not received surfaces if the body has not panicked.
#[track_caller]
pub fn pipeline<I, T, R, F, B>(items: I, compute: F, body: B) -> R
where
    I: IntoIterator,
    I::Item: Send,
    T: Send,
    F: Fn(I::Item) -> T + Sync,
    B: FnOnce(Results<'_, I::IntoIter, F, T>) -> R,
{
    let context = context::existing();
    let mut line = Line {
        items: Some(items.into_iter()),
        failure: None,
        entries: VecDeque::new(),
        place: Location::caller(),
        depth: context.as_ref().map_or(0, |context| context.depth()),
        result: PhantomData,
    };
    // The body is a sibling of the computations.
    let depth = context.as_ref().map(|context| Deeper::begin(context, line.depth + 1));
    let results = Results { line: &mut line, compute: &compute, items: None, plain: 0 };
    // The frame, which the computations borrow, must stay until they have ended.
    let result = catch_unwind(AssertUnwindSafe(|| body(results)));
    drop(depth);
    let interruption = line.stop();
    match (result, interruption) {
        (Err(payload), _) | (Ok(_), Some(payload)) => resume_unwind(payload),
        (Ok(result), None) => result,
    }
}

/// The items of a loop, and the computations that are ahead of it.
struct Line<I, T> {
    /// None after the end, and while [`Results`] has them.
    items: Option<I>,
    /// The panic of the iterator of the items, whose turn comes after the entries.
    failure: Option<Payload>,
    /// In the order of the items.
    entries: VecDeque<Entry>,
    place: &'static Location<'static>,
    /// Depth of the code around the loop.
    depth: u32,
    result: PhantomData<T>,
}

impl<I, T> Line<I, T> {
    /// Waits for computations that other threads run, and drops all results. Returns what a
    /// cancelled task must be unwound with, or the first panic of a destructor.
    fn stop(&mut self) -> Option<Payload> {
        let stay = Stay;
        // All of them before the first wait, which would run those that have not started.
        self.entries.iter().for_each(|entry| entry.run_unstarted(false));
        let mut payload = self.entries.iter().filter_map(Entry::settle).reduce(|first, _| first);
        std::mem::forget(stay);
        // One by one: a second panic while the first one unwinds would end the process.
        while let Some(entry) = self.entries.pop_front() {
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(entry)));
            payload = payload.or(dropped.err());
        }
        payload
    }
}

/// The results of a [`pipeline`], in the order of its items.
#[must_use = "the results are computed for the body"]
pub struct Results<'a, I, F, T> {
    line: &'a mut Line<I, T>,
    compute: &'a F,
    /// The items while the loop is switched off. No reference to them leaves the loop then, so the
    /// compiler can keep them in registers.
    items: Option<I>,
    /// Number of the next ones to compute before another test.
    plain: u32,
}

/// The way on.
enum Step<I, T> {
    Next(Option<T>),
    /// The next items are computed in place.
    Plain(I),
}

impl<I, T, F> Iterator for Results<'_, I, F, T>
where
    I: Iterator<Item: Send>,
    T: Send,
    F: Fn(I::Item) -> T + Sync,
{
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        loop {
            match &mut self.items {
                Some(items) if self.plain > 0 => {
                    self.plain -= 1;
                    let result = items.next().map(self.compute);
                    if result.is_none() {
                        // A loop does not use its iterator after the end.
                        self.items = None;
                    }
                    return result;
                }
                _ => {}
            }
            if let Some(items) = self.items.take() {
                self.line.items = Some(items);
            }
            match self.line.step(self.compute) {
                Step::Next(result) => return result,
                Step::Plain(items) => {
                    self.items = Some(items);
                    self.plain = PLAIN_ITEMS;
                }
            }
        }
    }
}

impl<I: Iterator<Item: Send>, T: Send> Line<I, T> {
    /// Starts computations, and returns the next result.
    #[inline(never)]
    fn step(&mut self, compute: &(impl Fn(I::Item) -> T + Sync)) -> Step<I, T> {
        let is_ahead = !self.entries.is_empty() || self.failure.is_some();
        if !is_ahead
            && site::is_plain(self.place)
            && let Some(items) = self.items.take()
        {
            return Step::Plain(items);
        }
        let context = context::existing();
        let _depth = context.as_ref().map(|context| Deeper::begin(context, self.depth));
        while let Some(items) = &mut self.items {
            match site::way(self.place) {
                Way::Plain(_call) if self.entries.is_empty() => {
                    let item = items.next();
                    if item.is_none() {
                        self.items = None;
                    }
                    return Step::Next(item.map(compute));
                }
                Way::Plain(_) => break,
                Way::Parallel(context, site) => {
                    let most = match context.baton() {
                        Some(baton) => 1 + baton.draw() % SEEDED_AHEAD_MAX,
                        None => AHEAD_EACH * context.limit(),
                    };
                    if self.entries.len() >= most {
                        break;
                    }
                    self.start(&context, site, compute);
                }
            }
        }
        match (self.entries.pop_front(), self.failure.take()) {
            (Some(entry), failure) => {
                self.failure = failure;
                // SAFETY: `start` creates the entries, with results of this type.
                Step::Next(Some(unsafe { entry.finish() }))
            }
            (None, Some(payload)) => resume_unwind(payload),
            (None, None) => Step::Next(None),
        }
    }

    /// Starts the computation of the next item. A panic of the iterator is kept for its turn.
    fn start(
        &mut self,
        context: &Rc<Context>,
        site: &'static Site,
        compute: &(impl Fn(I::Item) -> T + Sync),
    ) {
        let Some(items) = &mut self.items else { return };
        match catch_unwind(AssertUnwindSafe(|| items.next())) {
            Ok(Some(item)) => {
                let closure = probed(site, move || compute(item));
                // SAFETY: `stop` settles all entries before `compute`, or what items and results
                // borrow, ends: `pipeline` owns the line, and leaves its frame after `stop` only.
                let entry = unsafe { Entry::start(context, site, Some(0), closure) };
                self.entries.push_back(entry);
            }
            Ok(None) => self.items = None,
            Err(payload) => {
                self.failure = Some(payload);
                self.items = None;
            }
        }
    }
}

impl<I, F, T> fmt::Debug for Results<'_, I, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Results({} ahead)", self.line.entries.len())
    }
}
