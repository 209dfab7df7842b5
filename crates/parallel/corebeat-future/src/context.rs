//! The state of a stack: its pool, its strand, and the place of the running closure in the program.

use crate::job::{Job, Origin, Payload, Work, nanos_since};
use crate::pool::{self, Pool};
use crate::schedule::{self, Baton};
use crate::stack;
use crate::strand::{Strand, leapfrog};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Time for which a strand searches for jobs and polls before it blocks. Blocking, and waking a
/// blocked thread, takes about this time.
const SPIN_NS: u64 = 10_000;

/// State of a stack.
pub(crate) struct Context {
    pool: Arc<Pool>,
    strand: Arc<Strand>,
    /// Number of open joins around the running closure, in the order of the sequential program.
    depth: Cell<u32>,
    /// Stack of the thread that called the outermost join, in bytes.
    stack: Cell<usize>,
    /// Number of jobs that this stack has created.
    created: Cell<u64>,
    /// Joins and futures of this stack that are open. Helpers count as running all the time.
    open: Cell<u32>,
    is_helper: bool,
    /// Number of the thread in a run under a seed.
    pub(crate) number: usize,
}

/// The context of a stack, which a run under a seed replaces for a while.
#[derive(Default)]
struct Holder(RefCell<Option<Rc<Context>>>);

#[cfg(feature = "lpel")]
static HOLDER: corebeat_lpel::Local<Holder> =
    corebeat_lpel::Local::new(|| Holder(RefCell::new(None)));
#[cfg(not(feature = "lpel"))]
std::thread_local! {
    static HOLDER: Holder = const { Holder(RefCell::new(None)) };
}

/// Returns the context of the calling stack, or `None` if joins must be plain calls here.
pub(crate) fn current() -> Option<Rc<Context>> {
    let context = existing();
    if context.is_some() {
        return context;
    }
    // A thread has one context here. Its tasks would share it, and could run each other's closures.
    #[cfg(not(feature = "lpel"))]
    if corebeat_sync::wait::task().is_some() {
        return None;
    }
    let pool = match schedule::of_program() {
        Ok(pool) => pool?,
        Err(()) => pool::global()?,
    };
    let bytes = if pool.baton.is_some() { usize::MAX } else { stack::of_caller() };
    let context = Rc::new(Context::new(pool.clone(), bytes, bytes, false, 0));
    HOLDER.try_with(|holder| *holder.0.borrow_mut() = Some(context.clone())).ok_or_none()?;
    Some(context)
}

/// Returns the context of the calling stack, if it has one that this process may use.
pub(crate) fn existing() -> Option<Rc<Context>> {
    let context = HOLDER.try_with(|holder| holder.0.borrow().clone()).ok_or_none()??;
    context.pool.is_current().then_some(context)
}

/// The two kinds of locals differ in the type of their failures.
trait OkOrNone<T> {
    fn ok_or_none(self) -> Option<T>;
}

impl<T> OkOrNone<T> for Option<T> {
    fn ok_or_none(self) -> Option<T> {
        self
    }
}

impl<T> OkOrNone<T> for Result<T, std::thread::AccessError> {
    fn ok_or_none(self) -> Option<T> {
        self.ok()
    }
}

/// A context that is in effect until this is dropped.
pub(crate) struct Installed {
    context: Rc<Context>,
    previous: Option<Rc<Context>>,
}

impl std::ops::Deref for Installed {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let previous = self.previous.take();
        let own = HOLDER.try_with(|holder| holder.0.replace(previous));
        drop(own);
    }
}

fn install(context: Context) -> Option<Installed> {
    let context = Rc::new(context);
    let own = context.clone();
    let previous = HOLDER.try_with(|holder| holder.0.replace(Some(own))).ok_or_none()?;
    Some(Installed { context, previous })
}

/// Makes the calling stack a helper of the pool.
pub(crate) fn helper(pool: &Arc<Pool>, capacity: usize) -> Option<Installed> {
    install(Context::new(pool.clone(), capacity, 0, true, 0))
}

/// Makes the calling stack a strand of a run under a seed.
pub(crate) fn seeded(pool: &Arc<Pool>, number: usize) -> Option<Installed> {
    install(Context::new(pool.clone(), usize::MAX, 0, number > 0, number))
}

/// Run times of the two closures of a join.
pub(crate) struct Times {
    pub(crate) first_ns: u64,
    pub(crate) second_ns: u64,
    /// Time for which the owner had to wait for the second closure; `None` if the owner ran it.
    pub(crate) idle_ns: Option<u64>,
}

impl Context {
    fn new(
        pool: Arc<Pool>,
        capacity: usize,
        stack: usize,
        is_helper: bool,
        number: usize,
    ) -> Context {
        let strand = Arc::new(Strand::new(capacity));
        pool.enter(&strand);
        Context {
            pool,
            strand,
            depth: Cell::new(0),
            stack: Cell::new(stack),
            created: Cell::new(0),
            open: Cell::new(0),
            is_helper,
            number,
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.get()
    }

    pub(crate) fn limit(&self) -> usize {
        self.pool.limit()
    }

    /// Whether the threads of the pool exist in this process.
    pub(crate) fn is_current(&self) -> bool {
        self.pool.is_current()
    }

    pub(crate) fn baton(&self) -> Option<&Baton> {
        self.pool.baton.as_ref()
    }

    pub(crate) fn set_depth(&self, depth: u32) {
        self.depth.set(depth);
    }

    /// Begins a join or a future of this stack.
    pub(crate) fn open(&self) -> Open<'_> {
        if self.open.replace(self.open.get() + 1) == 0 && !self.is_helper {
            self.pool.resume();
        }
        Open(self)
    }

    /// The properties of a new job of the code that runs now. The job must be pushed before the
    /// next one is created.
    pub(crate) fn origin(&self) -> Origin {
        let number = self.created.get();
        self.created.set(number + 1);
        Origin { depth: self.depth() + 1, stack: self.stack.get(), number }
    }

    // ---- jobs

    pub(crate) fn push(&self, job: &Arc<Job>) {
        self.strand.push(job.clone());
        self.pool.pushed();
        self.switch();
    }

    /// Claims a job of this strand, if no other strand has claimed it.
    pub(crate) fn take(&self, job: &Arc<Job>) -> bool {
        if !self.is_current() {
            eprintln!(
                "corebeat-future: a child of fork waits for a closure of its parent, which runs in \
                 the parent only; end the child by exec or _exit inside the closure that forked"
            );
            std::process::abort();
        }
        self.switch();
        let is_own = self.strand.take(job);
        if is_own {
            self.pool.claimed();
        }
        is_own
    }

    /// Runs a job of any strand, if there is one. For helpers between two jobs.
    pub(crate) fn run_one(&self, start: usize) -> bool {
        let own = self.strand.take_oldest().inspect(|_| self.pool.claimed());
        match own.or_else(|| self.pool.find(&self.strand, start)) {
            Some(job) => {
                self.run(&job);
                true
            }
            None => false,
        }
    }

    /// Runs a job that this strand has claimed.
    pub(crate) fn run(&self, job: &Arc<Job>) {
        let _depth = Deeper::begin(self, job.depth);
        let stack = self.stack.replace(job.stack);
        // SAFETY: this strand has claimed the job.
        unsafe { job.execute() };
        self.stack.set(stack);
        if let Some(baton) = self.baton() {
            baton.announce();
        }
        self.switch();
    }

    /// Lets another thread run, in a run under a seed.
    fn switch(&self) {
        if let Some(baton) = self.baton() {
            baton.switch(self.number);
        }
    }

    // ---- waits

    /// Waits for the end of a job that another strand has claimed, and runs jobs that descend from
    /// it meanwhile. Returns the time without work, and what the task must be unwound with
    /// afterwards if it was cancelled.
    pub(crate) fn wait(&self, job: &Arc<Job>) -> (u64, Option<Payload>) {
        // Closures of futures that the same scope created later. Afterwards the queue is empty, as
        // required of a strand that claims jobs of others (`strand`), or the wait is over.
        while !job.end.is_over()
            && let Some(own) = self.strand.take_oldest()
        {
            self.pool.claimed();
            self.run(&own);
        }
        let mut idle_ns = 0;
        loop {
            self.strand.set_waits_for(Some(job.clone()));
            let begin = Instant::now();
            let (found, interruption) = self.wait_or_find(job);
            idle_ns += nanos_since(begin);
            // Other strands must not follow this wait while the strand runs another job.
            self.strand.set_waits_for(None);
            match found {
                Some(found) => self.run(&found),
                None => return (idle_ns, interruption),
            }
        }
    }

    /// Waits until the job has ended, or returns a claimed job that descends from it.
    fn wait_or_find(&self, job: &Arc<Job>) -> (Option<Arc<Job>>, Option<Payload>) {
        let begin = Instant::now();
        loop {
            if job.end.is_over() {
                return (None, None);
            }
            if let Some(found) = leapfrog(job, &self.strand) {
                self.pool.claimed();
                return (Some(found), None);
            }
            match self.baton() {
                Some(baton) => baton.wait(self.number, || job.end.is_over()),
                None if cfg!(loom) || nanos_since(begin) > SPIN_NS => break,
                None => std::hint::spin_loop(),
            }
        }
        self.pool.block();
        let interruption = job.end.wait();
        self.pool.resume();
        (None, interruption)
    }

    // ---- joins

    /// Runs two closures, the second one on another strand if that claims it before the first one
    /// has ended.
    pub(crate) fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB, Times)
    where
        A: FnOnce() -> RA,
        B: FnOnce() -> RB + Send,
        RB: Send,
    {
        let _open = self.open();
        let work = Work::new(b);
        let origin = self.origin();
        // SAFETY: the work stays in this frame, which is not left before the job is claimed here or
        // has ended: `a` is caught, and nothing else below can unwind before. `B` and `RB` are
        // `Send`.
        let job = Arc::new(unsafe { Job::new(&raw const work, origin) });
        let stay = Stay;
        self.push(&job);
        let begin = Instant::now();
        let depth = self.depth.replace(job.depth);
        let first = catch_unwind(AssertUnwindSafe(a));
        self.depth.set(depth);
        let first_ns = nanos_since(begin);
        if self.take(&job) {
            // SAFETY: the job was claimed here.
            let b = unsafe { work.closure() }.expect("a job is claimed once");
            std::mem::forget(stay);
            // The sequential program does not reach `b` if `a` panics.
            let first = first.unwrap_or_else(|payload| resume_unwind(payload));
            let begin = Instant::now();
            let _depth = Deeper::begin(self, job.depth);
            let second = b();
            let second_ns = nanos_since(begin);
            return (first, second, Times { first_ns, second_ns, idle_ns: None });
        }
        if let Some(baton) = self.baton() {
            baton.announce();
        }
        let (idle_ns, interruption) = self.wait(&job);
        std::mem::forget(stay);
        // SAFETY: the job has ended.
        let second = unsafe { work.slot().take() }.expect("a job that has ended has a result");
        let first = first.unwrap_or_else(|payload| resume_unwind(payload));
        if let Some(interruption) = interruption {
            resume_unwind(interruption);
        }
        let second = second.unwrap_or_else(|payload| resume_unwind(payload));
        (first, second, Times { first_ns, second_ns: job.time_ns(), idle_ns: Some(idle_ns) })
    }
}

/// A span in which this thread must not leave the frame, because another one may use the frame.
/// Nothing in the span is expected to unwind.
pub(crate) struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        eprintln!("corebeat-future: a join was unwound before its closures had ended");
        std::process::abort();
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // In a child of fork, a thread that does not exist may hold the lock.
        if self.pool.is_current() {
            self.pool.leave(&self.strand);
        }
    }
}

/// An open join or future.
pub(crate) struct Open<'a>(&'a Context);

impl<'a> Open<'a> {
    /// Keeps it open until `resume`.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }

    pub(crate) fn resume(context: &'a Context) -> Self {
        Open(context)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Open(context) = self;
        context.open.set(context.open.get() - 1);
        if context.open.get() == 0 && !context.is_helper {
            context.pool.block();
        }
    }
}

/// The time during which a closure runs in place.
pub(crate) struct Deeper<'a> {
    context: &'a Context,
    depth: u32,
}

impl<'a> Deeper<'a> {
    pub(crate) fn begin(context: &'a Context, depth: u32) -> Self {
        Deeper { context, depth: context.depth.replace(depth) }
    }
}

impl Drop for Deeper<'_> {
    fn drop(&mut self) {
        self.context.depth.set(self.depth);
    }
}
