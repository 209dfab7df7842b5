//! Futures: closures that may run at the same time as the code that follows them.

use crate::context::{self, Context, Deeper, Open, Stay};
use crate::control::Sample;
use crate::job::{Job, Payload, Slot, Work, nanos_since};
use crate::join::probed;
use crate::site::{self, Site, Way};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// A future that may run on another thread.
pub(crate) struct Entry {
    job: Arc<Job>,
    /// The work in its box, and the function that frees it.
    work: *mut (),
    free: unsafe fn(*mut ()),
    context: Rc<Context>,
    site: &'static Site,
    /// Depth at which the future was created.
    depth: u32,
    /// Position in the list of the scope; 0 without a scope.
    position: usize,
    created: Instant,
    /// Time until the result was needed.
    needed_ns: Cell<Option<u64>>,
    idle_ns: Cell<Option<u64>>,
    /// Whether the job has ended, or its closure must not run.
    is_settled: Cell<bool>,
    /// Whether the site has the times of this future.
    is_recorded: Cell<bool>,
    /// Whether the caller counts as running until the entry is settled. A future without a scope
    /// may be forgotten.
    is_scoped: bool,
    /// Takes what the closure panicked with.
    take_payload: unsafe fn(*mut ()) -> Option<Payload>,
}

impl Entry {
    /// Creates the job of a closure and offers it to other threads.
    ///
    /// # Safety
    ///
    /// The caller settles the entry before a borrow of the closure or its result ends.
    pub(crate) unsafe fn start<F, T>(
        context: &Rc<Context>,
        site: &'static Site,
        position: Option<usize>,
        closure: F,
    ) -> Entry
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let work = Box::into_raw(Box::new(Work::new(closure)));
        let depth = context.depth();
        if position.is_some() {
            Open::keep(context.open());
        }
        // SAFETY: the work stays in its box, which is freed after the entry is settled. `F` and `T`
        // are `Send`.
        let job = Arc::new(unsafe { Job::new(work, context.origin()) });
        context.push(&job);
        Entry {
            job,
            work: work.cast(),
            free: free::<F, T>,
            context: context.clone(),
            site,
            depth,
            position: position.unwrap_or(0),
            created: Instant::now(),
            needed_ns: Cell::new(None),
            idle_ns: Cell::new(None),
            is_settled: Cell::new(false),
            is_recorded: Cell::new(false),
            is_scoped: position.is_some(),
            take_payload: take_payload::<T>,
        }
    }

    /// Notes that the result is needed now.
    fn need(&self) {
        if self.needed_ns.get().is_none() {
            self.needed_ns.set(Some(nanos_since(self.created)));
        }
    }

    /// Runs the closure here if no other thread has started it; `may_run` is false if the
    /// sequential program would not have reached the future.
    pub(crate) fn run_unstarted(&self, may_run: bool) {
        if !self.is_settled.get() && self.context.take(&self.job) {
            if may_run {
                self.context.run(&self.job);
            }
            self.set_settled();
        }
    }

    /// Waits until no other thread runs the closure. Returns what a cancelled task must be unwound
    /// with.
    pub(crate) fn settle(&self) -> Option<Payload> {
        if self.is_settled.get() {
            return None;
        }
        let _open = self.context.open();
        let (idle_ns, interruption) = self.context.wait(&self.job);
        self.idle_ns.set(Some(idle_ns));
        self.set_settled();
        interruption
    }

    fn set_settled(&self) {
        self.is_settled.set(true);
        if self.is_scoped {
            drop(Open::resume(&self.context));
        }
    }

    /// Whether the closure has ended with a panic.
    fn has_failed(&self) -> bool {
        self.job.end.is_over() && self.job.end.has_failed()
    }

    /// Takes the payload of the closure's panic, unless it was taken.
    fn payload(&self) -> Option<Payload> {
        assert!(self.is_settled.get(), "the result of a running closure is not used");
        // SAFETY: the entry is settled, so no other thread uses the work.
        if self.has_failed() { unsafe { (self.take_payload)(self.work) } } else { None }
    }

    /// Returns the result, after the end of the closure, which runs here if no other thread has
    /// started it. Panics with the payload of the closure, or if the task was cancelled.
    ///
    /// # Safety
    ///
    /// The results of this entry have the type `T`.
    pub(crate) unsafe fn finish<T>(&self) -> T {
        self.need();
        self.run_unstarted(true);
        if !self.is_settled.get() && self.job.end.is_over() {
            // A wait would run later closures first.
            self.idle_ns.set(Some(0));
            self.set_settled();
        }
        if let Some(interruption) = self.settle() {
            resume_unwind(interruption);
        }
        self.record();
        // SAFETY: the entry is settled, and by the contract.
        let result = unsafe { (*self.work.cast::<Slot<T>>()).take() };
        // A closure that did not run, or whose panic was surfaced, comes after another panic.
        let result =
            result.unwrap_or_else(|| panic!("an earlier future of the scope has panicked"));
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }

    /// Adds the times of the future to its site, once.
    fn record(&self) {
        if let Some(needed_ns) = self.needed_ns.get()
            && self.job.end.is_over()
            && !self.is_recorded.replace(true)
        {
            let sample = Sample::of_future(needed_ns, self.job.time_ns(), self.idle_ns.get());
            self.site.record(&self.context, self.depth, sample);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        assert!(self.is_settled.get(), "a running closure is not freed");
        // SAFETY: the entry is settled, so no other thread uses the work, and it is freed once.
        unsafe { (self.free)(self.work) };
    }
}

/// # Safety
///
/// `work` is the box of a `Work<F, T>`, which no one uses any more.
unsafe fn free<F, T>(work: *mut ()) {
    // SAFETY: by the contract.
    drop(unsafe { Box::from_raw(work.cast::<Work<F, T>>()) });
}

/// # Safety
///
/// `work` is a work with results of type `T`, which no other thread uses.
unsafe fn take_payload<T>(work: *mut ()) -> Option<Payload> {
    // SAFETY: by the contract. A pointer to a work is a pointer to its slot.
    unsafe { (*work.cast::<Slot<T>>()).take() }.and_then(Result::err)
}

/// A group of futures, all of which have ended when [`scope`] returns.
pub struct Scope<'scope, 'env: 'scope> {
    list: List,
    /// Depth of the code before the scope.
    depth: u32,
    /// The context whose depth the first future has changed.
    deeper: RefCell<Option<Rc<Context>>>,
    // As for the scopes of the standard library: both lifetimes are invariant.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The futures of a scope, in the order of the sequential program.
#[derive(Default)]
struct List {
    entries: RefCell<Vec<Rc<Entry>>>,
    /// The number of first entries whose closures have begun.
    begun: Cell<usize>,
    /// Positions of those that other threads run, and of those that have failed, in order.
    open: RefCell<Vec<usize>>,
}

impl List {
    fn entry(&self, position: usize) -> Rc<Entry> {
        self.entries.borrow()[position].clone()
    }

    /// Runs the futures up to this one that have not started. Returns the first panic among them.
    fn run_up_to(&self, last: usize) -> Option<Payload> {
        self.open.borrow_mut().retain(|position| {
            let entry = self.entry(*position);
            !entry.job.end.is_over() || entry.has_failed()
        });
        let has_failed = |position: &usize| *position <= last && self.entry(*position).has_failed();
        let failed = self.open.borrow().iter().copied().find(has_failed);
        let entry = self.entry(failed.or_else(|| self.begin_up_to(last))?);
        let interruption = entry.settle();
        entry.payload().or(interruption)
    }

    /// Runs the futures up to this one that have not started. Returns the position of the first one
    /// that has failed.
    fn begin_up_to(&self, last: usize) -> Option<usize> {
        while self.begun.get() <= last {
            let position = self.begun.replace(self.begun.get() + 1);
            let entry = self.entry(position);
            entry.run_unstarted(true);
            if !entry.is_settled.get() || entry.has_failed() {
                self.open.borrow_mut().push(position);
            }
            if entry.has_failed() {
                return Some(position);
            }
        }
        None
    }
}

/// A result that another thread may still compute.
///
/// Dropping a future of a [`scope`] has no effect: the scope waits for its closure. Dropping a
/// future of the function [`future`] waits for its closure, and panics if the closure has panicked
/// (unless the thread is already panicking). A future stays on its thread.
#[must_use = "the result is computed for `join`"]
pub struct Future<'scope, T> {
    state: State<T>,
    /// The futures of the scope; none for a future without a scope.
    list: Option<&'scope List>,
}

enum State<T> {
    /// The closure ran at once.
    Ready(T),
    Pending(Rc<Entry>, PhantomData<T>),
    Taken,
}

/// Runs `body`, which may create futures that borrow variables outside of it
/// ([`Scope::future`]). All futures have ended when this function returns, so futures that are
/// forgotten or dropped do no harm.
///
/// ```
/// use corebeat_future::scope;
///
/// let (a, mut b) = (vec![1, 2, 3], vec![4]);
/// let total = scope(|s| {
///     let x = s.future(|| a.iter().sum::<i32>()); // may run on another thread
///     b.push(5); // at the same time
///     x.join() + b[1]
/// });
/// assert_eq!(total, 11);
/// ```
///
/// A future cannot borrow variables of the body, which end before it:
///
/// ```compile_fail,E0597
/// corebeat_future::scope(|s| {
///     let local = vec![1];
///     s.future(|| local.len())
/// });
/// ```
///
/// The body cannot use what a future changes, until the end of the scope:
///
/// ```compile_fail,E0502
/// let mut list = vec![1];
/// corebeat_future::scope(|s| {
///     let pushed = s.future(|| list.push(2));
///     println!("{list:?}");
///     pushed.join();
/// });
/// ```
///
/// # Panics
///
/// With the payload that is first in the order of the sequential program: a future comes before the
/// code that follows it. If the body panics, futures still run to their ends, and their panic comes
/// first. Futures after one that panicked do not run if they have not started.
pub fn scope<'env, R>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
    let scope = Scope {
        list: List::default(),
        // A stack without a context has no open join.
        depth: context::existing().map_or(0, |context| context.depth()),
        deeper: RefCell::new(None),
        scope: PhantomData,
        env: PhantomData,
    };
    // The frames of the borrowed variables must stay until all closures have ended.
    let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    match scope.end() {
        Some(payload) => resume_unwind(payload),
        None => result.unwrap_or_else(|payload| resume_unwind(payload)),
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts `f`, which comes before the code that follows. `f` runs on another thread, or in
    /// [`Future::join`], or at the end of the scope; or at once, if that is cheaper.
    ///
    /// # Panics
    ///
    /// If `f` runs at once and panics, with its payload.
    #[track_caller]
    #[inline]
    pub fn future<F, T>(&'scope self, f: F) -> Future<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let place = Location::caller();
        if site::is_plain(place) {
            Future { state: State::Ready(f()), list: None }
        } else {
            self.future_at(place, f)
        }
    }

    #[inline(never)]
    fn future_at<F, T>(&'scope self, place: &'static Location<'static>, f: F) -> Future<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        // The futures of a scope are siblings, also if inner scopes or joins create them.
        let context = context::existing();
        let code_depth = context.as_ref().map_or(0, |context| context.depth());
        let depth = context.as_ref().map(|context| Deeper::begin(context, self.depth));
        match site::way(place) {
            Way::Plain(_call) => Future { state: State::Ready(f()), list: None },
            Way::Parallel(context, site) => {
                let position = Some(self.list.entries.borrow().len());
                let closure = probed(site, f);
                // SAFETY: the scope settles its entries before `'scope` ends, also when it unwinds.
                let entry = unsafe { Entry::start(&context, site, position, closure) };
                let entry = Rc::new(entry);
                self.list.entries.borrow_mut().push(entry.clone());
                drop(depth);
                // The code that follows is a sibling of the futures.
                context.set_depth(code_depth.max(self.depth + 1));
                self.deeper.borrow_mut().get_or_insert(context);
                Future { state: State::Pending(entry, PhantomData), list: Some(&self.list) }
            }
        }
    }

    /// Waits for all futures. Returns the payload of the first panic that no join has surfaced.
    fn end(&self) -> Option<Payload> {
        let stay = Stay;
        let entries = self.list.entries.take();
        let mut failed: Option<Failed> = None;
        let mut interrupted = None;
        for entry in &entries {
            entry.need();
            entry.run_unstarted(failed.is_none());
            interrupted = interrupted.or(entry.settle());
            if failed.is_none() && entry.has_failed() {
                failed = Some(Failed(entry.payload()));
            }
        }
        std::mem::forget(stay);
        if let Some(context) = self.deeper.take() {
            context.set_depth(self.depth);
        }
        entries.iter().for_each(|entry| entry.record());
        match failed {
            Some(Failed(payload)) => payload,
            None => interrupted,
        }
    }
}

/// The first failure in a scope. Its payload is missing if a join has surfaced it.
struct Failed(Option<Payload>);

/// Starts `f`, as [`Scope::future`], without borrows. The future waits for `f` when it is joined or
/// dropped.
///
/// ```
/// let numbers = vec![1, 2, 3];
/// let sum = corebeat_future::future(move || numbers.iter().sum::<i32>());
/// assert_eq!(sum.join(), 6);
/// ```
///
/// # Panics
///
/// If `f` runs at once and panics, with its payload.
#[track_caller]
#[inline]
pub fn future<F, T>(f: F) -> Future<'static, T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let place = Location::caller();
    if site::is_plain(place) {
        Future { state: State::Ready(f()), list: None }
    } else {
        future_at(place, f)
    }
}

#[inline(never)]
fn future_at<F, T>(place: &'static Location<'static>, f: F) -> Future<'static, T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let state = match site::way(place) {
        Way::Plain(_call) => State::Ready(f()),
        Way::Parallel(context, site) => {
            // SAFETY: the closure and its result borrow nothing.
            let entry = unsafe { Entry::start(&context, site, None, probed(site, f)) };
            State::Pending(Rc::new(entry), PhantomData)
        }
    };
    Future { state, list: None }
}

impl<T> Future<'_, T> {
    /// Returns the result. If no thread has started the closure, it runs here, after the earlier
    /// futures of its scope that have not started. Otherwise waits for its end.
    ///
    /// # Panics
    ///
    /// If this closure, or one of an earlier future of the scope, has panicked, with the payload of
    /// the first one.
    pub fn join(mut self) -> T {
        let entry = match std::mem::replace(&mut self.state, State::Taken) {
            State::Ready(value) => return value,
            State::Pending(entry, _) => entry,
            State::Taken => unreachable!("join consumes the future"),
        };
        entry.need();
        if let Some(payload) = self.list.and_then(|list| list.run_up_to(entry.position)) {
            resume_unwind(payload);
        }
        // SAFETY: the entry was created with results of type `T`.
        unsafe { entry.finish() }
    }
}

impl<T> Drop for Future<'_, T> {
    fn drop(&mut self) {
        if let (State::Pending(entry, _), None) = (&self.state, self.list) {
            if !entry.context.is_current() {
                // In a child of fork, no thread may use the work: it stays allocated.
                std::mem::forget(entry.clone());
                return;
            }
            entry.need();
            entry.run_unstarted(true);
            let interruption = entry.settle();
            entry.record();
            let payload = entry.payload().or(interruption);
            if let Some(payload) = payload.filter(|_| !std::thread::panicking()) {
                resume_unwind(payload);
            }
        }
    }
}

impl<T> std::fmt::Debug for Future<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.state {
            State::Ready(_) => "ready",
            State::Pending(..) => "pending",
            State::Taken => "taken",
        };
        write!(f, "Future({state})")
    }
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scope({} futures)", self.list.entries.borrow().len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use crate::{join, schedule};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The depth of the calling code after `program`.
    fn depth_after(program: impl FnOnce()) -> Option<u32> {
        schedule(1, || {
            drop(catch_unwind(AssertUnwindSafe(program)));
            context::existing().map(|context| context.depth())
        })
    }

    #[test]
    fn scopes_restore_the_depth() {
        let in_inner_scope = || {
            scope(|s| {
                scope(|t| {
                    let _x = t.future(|| panic!("a panic of the test"));
                    let _y = s.future(|| ());
                });
            });
        };
        assert_eq!(depth_after(in_inner_scope), Some(0));
        let in_join = || {
            scope(|s| {
                join(|| s.future(|| ()).join(), || ());
            });
        };
        assert_eq!(depth_after(in_join), Some(0));
        let in_turns = || {
            scope(|s| {
                scope(|t| (t.future(|| ()).join(), s.future(|| ()).join()));
                s.future(|| ()).join();
            });
        };
        assert_eq!(depth_after(in_turns), Some(0));
    }

    #[test]
    fn a_wait_that_is_over_runs_no_other_closure() {
        // Without helpers, which could run the second closure.
        let pool = Arc::new(Pool::new(0, None));
        let _context = context::helper(&pool, usize::MAX).unwrap();
        let way = site::way(Location::caller());
        let Way::Parallel(context, site) = way else { panic!("nothing is known of the site") };
        let has_run = AtomicBool::new(false);
        // SAFETY: both entries are settled below.
        let (first, second) = unsafe {
            let first = Entry::start(&context, site, None, || ());
            (first, Entry::start(&context, site, None, || has_run.store(true, Ordering::Relaxed)))
        };
        assert!(context.run_one(0), "the oldest one");
        assert!(first.settle().is_none());
        second.run_unstarted(false);
        assert!(!has_run.load(Ordering::Relaxed));
    }
}
