//! The pool: the strands of the process, and the helpers that run jobs of other strands.
//!
//! A helper is a task of the backend that runs jobs until it finds none. At most `limit` strands
//! run at a time, of which the callers of joins are a part; a strand that blocks does not count.
//! Nothing depends on helpers: the owner of a job runs the job if no helper has claimed it.

#[cfg(feature = "rayon")]
#[path = "pool/rayon.rs"]
mod backend;
#[cfg(not(feature = "rayon"))]
#[path = "pool/lpel.rs"]
mod backend;

use crate::context;
use crate::job::{Job, nanos_since};
use crate::schedule::Baton;
use crate::strand::Strand;
use corebeat_sync::fork::Process;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// Variable that sets the number of threads.
const THREADS: &str = "COREBEAT_FUTURE_THREADS";
/// Most threads.
pub(crate) const THREADS_MAX: usize = 1024;
/// Time for which a helper searches for jobs before it ends: about the time that starting another
/// helper takes (measured with a sleeping thread: 6 µs for the wake-up, and the switch).
const LINGER_NS: u64 = 20_000;

/// A set of strands that run each other's jobs.
pub(crate) struct Pool {
    /// Number of strands that may run at a time.
    limit: usize,
    process: Process,
    /// Strands that run: callers inside a join, and helpers.
    running: AtomicUsize,
    /// Jobs in the queues.
    queued: AtomicUsize,
    strands: RwLock<Vec<Arc<Strand>>>,
    backend: OnceLock<Option<backend::Backend>>,
    /// The order of the threads, in a run under a seed.
    pub(crate) baton: Option<Baton>,
}

static POOL: OnceLock<Arc<Pool>> = OnceLock::new();

/// Whether the process has one thread for closures, so that no join pays.
pub(crate) fn is_single() -> bool {
    POOL.get().is_some_and(|pool| pool.limit < 2 && pool.process.is_current())
}

/// Returns the pool of the process, unless joins are plain calls: the process has one CPU, or is a
/// child of fork, which has no helpers.
pub(crate) fn global() -> Option<&'static Arc<Pool>> {
    let pool = POOL.get_or_init(|| Arc::new(Pool::new(threads(), None)));
    if pool.limit < 2 || !pool.process.is_current() {
        return None;
    }
    Some(pool)
}

/// Number of threads that the user or the system allows.
fn threads() -> usize {
    let text = std::env::var_os(THREADS);
    let wanted = text.as_ref().and_then(|text| text.to_str()?.parse().ok());
    if let (Some(text), None) = (&text, wanted) {
        eprintln!(
            "corebeat-future: {THREADS}={} is not a number and has no effect",
            text.display()
        );
    }
    wanted.unwrap_or_else(backend::threads).min(THREADS_MAX)
}

impl Pool {
    pub(crate) fn new(limit: usize, baton: Option<Baton>) -> Pool {
        Pool {
            limit,
            process: Process::current(),
            running: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            strands: RwLock::new(Vec::new()),
            backend: OnceLock::new(),
            baton,
        }
    }

    /// Number of strands that may run at a time.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Whether the pool belongs to this process: false in a child of fork, which must not use the
    /// locks.
    pub(crate) fn is_current(&self) -> bool {
        self.process.is_current()
    }

    // ---- strands

    pub(crate) fn enter(&self, strand: &Arc<Strand>) {
        self.strands.write().unwrap_or_else(PoisonError::into_inner).push(strand.clone());
    }

    pub(crate) fn leave(&self, strand: &Arc<Strand>) {
        let mut strands = self.strands.write().unwrap_or_else(PoisonError::into_inner);
        strands.retain(|other| !Arc::ptr_eq(other, strand));
    }

    /// Claims a job of any strand, for a thief whose queue is empty. `start` selects the strand at
    /// which the search begins.
    pub(crate) fn find(&self, thief: &Arc<Strand>, start: usize) -> Option<Arc<Job>> {
        if self.queued.load(SeqCst) == 0 {
            return None;
        }
        let strands = self.strands.read().unwrap_or_else(PoisonError::into_inner);
        let (before, after) = strands.split_at(start % strands.len().max(1));
        let job = after.iter().chain(before).find_map(|strand| strand.steal(thief, || true))?;
        self.queued.fetch_sub(1, SeqCst);
        Some(job)
    }

    // ---- counts

    /// A job was added to a queue.
    pub(crate) fn pushed(self: &Arc<Self>) {
        self.queued.fetch_add(1, SeqCst);
        match &self.baton {
            Some(baton) => baton.announce(),
            None => self.start_helper(self.limit),
        }
    }

    /// A job was claimed.
    pub(crate) fn claimed(&self) {
        self.queued.fetch_sub(1, SeqCst);
    }

    /// A strand begins to run.
    pub(crate) fn resume(&self) {
        self.running.fetch_add(1, SeqCst);
    }

    /// A strand does not run any more.
    pub(crate) fn pause(&self) {
        self.running.fetch_sub(1, SeqCst);
    }

    /// A strand is about to block, or leaves its last join. Another one may run instead.
    pub(crate) fn block(self: &Arc<Self>) {
        self.pause();
        if self.queued.load(SeqCst) > 0 {
            self.start_helper(self.limit);
        }
    }

    /// Starts a helper, if fewer than `limit` strands run. Does nothing if the system has no thread
    /// for the helper.
    pub(crate) fn start_helper(self: &Arc<Self>, limit: usize) {
        if self.baton.is_some() {
            return;
        }
        let add = |running| (running < limit).then_some(running + 1);
        if self.running.load(SeqCst) >= limit
            || self.running.fetch_update(SeqCst, SeqCst, add).is_err()
        {
            return;
        }
        let backend = self.backend.get_or_init(|| backend::Backend::new(self.limit));
        if !backend.as_ref().is_some_and(|backend| backend.start(self)) {
            self.pause();
        }
    }
}

/// Runs jobs until there is none. The caller has counted this helper as running.
fn help(pool: &Arc<Pool>, capacity: usize) {
    let Some(context) = context::helper(pool, capacity) else { return pool.pause() };
    let mut idle = Instant::now();
    let mut start = 0usize;
    loop {
        start = start.wrapping_add(1);
        if context.run_one(start) {
            idle = Instant::now();
        } else if nanos_since(idle) > LINGER_NS {
            break;
        } else {
            std::hint::spin_loop();
        }
    }
    drop(context);
    pool.pause();
}

/// Starts another helper after the end of one, if there are jobs: a job that was pushed while the
/// helper still counted as running, or still had its worker, has started no other one.
fn helped(pool: &Arc<Pool>) {
    if pool.queued.load(SeqCst) > 0 {
        pool.start_helper(pool.limit);
    }
}
