//! Detection of deadlocks, and growth of streams that cause artificial ones. The search itself is
//! in [`deadlock`](crate::deadlock).

use crate::current;
use crate::deadlock::{self, Deadlock};
use crate::runtime::Inner;
use crate::scope::ScopeCore;
use crate::task::CANCEL_DEADLOCK;
use corebeat_sync::asymmetric::light_fence;
use corebeat_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use corebeat_sync::{Mutex, lock};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// Period of the search for cycles by an idle worker, while a task waits for room on a growing
/// stream.
const CYCLE_PERIOD: Duration = Duration::from_millis(5);
/// A busy worker spends at most this fraction of its time on the search for cycles.
const BUSY_FRACTION: u64 = 50;

/// State of the deadlock detection of a runtime.
pub(crate) struct Detector {
    /// Held during a check.
    checking: Mutex<()>,
    /// The deadlock found last.
    deadlock: Mutex<Option<Deadlock>>,
    /// First failure of a task that may have no joiner, until it is printed.
    unreported: Mutex<Option<String>>,
    /// Calls in progress of `Runtime::run`, and of `Scope::run` with their scopes.
    runs: Mutex<Vec<Option<Arc<ScopeCore>>>>,
    /// Whether a task of this runtime has spawned a task of another runtime, or was spawned by one.
    /// From then on, the other runtime may own unused stream ends.
    shares_ends: AtomicBool,
    growths: AtomicU64,
    /// Number of tasks that wait for room on a growing stream. Without such tasks, the search for
    /// cycles is useless.
    growable: AtomicUsize,
    /// Earliest time of the next search by a busy worker.
    next_search_ns: AtomicU64,
    /// Number of searches for a deadlock.
    #[cfg(test)]
    searches: AtomicU64,
}

impl Detector {
    pub(crate) fn new() -> Detector {
        Detector {
            checking: Mutex::new(()),
            deadlock: Mutex::new(None),
            unreported: Mutex::new(None),
            runs: Mutex::default(),
            shares_ends: AtomicBool::new(false),
            growths: AtomicU64::new(0),
            growable: AtomicUsize::new(0),
            next_search_ns: AtomicU64::new(0),
            #[cfg(test)]
            searches: AtomicU64::new(0),
        }
    }

    /// Notes a call of `run`, of a scope or of the runtime, until the result is dropped.
    pub(crate) fn begin_run(&self, scope: Option<Arc<ScopeCore>>) -> Run<'_> {
        lock(&self.runs).push(scope.clone());
        Run { detector: self, scope }
    }

    /// Returns whether a thread waits for tasks in `run`, so that it uses no stream. A thread whose
    /// scope has no task left is about to continue.
    fn has_run(&self) -> bool {
        lock(&self.runs).iter().any(|scope| scope.as_ref().is_none_or(|scope| scope.has_tasks()))
    }

    pub(crate) fn deadlock(&self) -> Option<Deadlock> {
        lock(&self.deadlock).clone()
    }

    pub(crate) fn growths(&self) -> u64 {
        self.growths.load(Ordering::Relaxed)
    }

    /// Notes that this runtime and another one exchange stream ends.
    pub(crate) fn note_shared_ends(&self) {
        self.shares_ends.store(true, Ordering::SeqCst);
    }

    /// Returns the interval at which a sleeping worker searches for cycles; `None` if there can be
    /// no cycle.
    pub(crate) fn search_period(&self) -> Option<Duration> {
        self.has_growable().then_some(CYCLE_PERIOD)
    }

    fn has_growable(&self) -> bool {
        self.growable.load(Ordering::Relaxed) > 0
    }

    /// Saves a failure of tasks that may have no joiner. Only the first one is kept.
    /// [`Detector::print_report`] prints it at the end of `run` or of the runtime. Printing here
    /// could block: the thread that waits for that end may hold the lock of the standard error.
    pub(crate) fn report_later(&self, failure: impl FnOnce() -> String) {
        lock(&self.unreported).get_or_insert_with(failure);
    }

    pub(crate) fn print_report(&self) {
        if let Some(failure) = lock(&self.unreported).take() {
            // A closed standard error is no failure of the runtime.
            let _ = writeln!(io::stderr(), "corebeat-lpel: {failure}");
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_report(&self) -> bool {
        lock(&self.unreported).is_some()
    }
}

/// A call of `run` in progress.
pub(crate) struct Run<'a> {
    detector: &'a Detector,
    scope: Option<Arc<ScopeCore>>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut runs = lock(&self.detector.runs);
        let own = self.scope.as_ref().map(Arc::as_ptr);
        if let Some(at) = runs.iter().position(|run| run.as_ref().map(Arc::as_ptr) == own) {
            runs.swap_remove(at);
        }
    }
}

impl Inner {
    /// Counts a task that begins, or ends, to wait for room on a growing stream.
    pub(crate) fn count_growable(&self, begins: bool) {
        let growable = &self.detector.growable;
        if !begins {
            growable.fetch_sub(1, Ordering::SeqCst);
        } else if growable.fetch_add(1, Ordering::SeqCst) == 0 {
            // Workers may sleep without a time limit. One of them has to search from now on.
            light_fence();
            let _ = self.workers.iter().any(|w| w.wake());
        }
    }

    /// Checks for a deadlock if the runtime is still quiescent after a delay.
    pub(crate) fn check_late(&self) {
        if self.activity.is_quiescent() && self.living() > 0 {
            self.check_for_deadlock();
        }
    }

    /// Checks for a deadlock at the moment at which the runtime became quiescent, if no worker will
    /// check later, or if growing a stream may help.
    pub(crate) fn check_at_quiescence(&self) {
        let is_urgent = current::worker().is_none() || self.detector.has_growable();
        if is_urgent && self.living() > 0 {
            self.check_for_deadlock();
        }
    }

    /// Resolves a state without progress: grows a stream, or cancels the tasks of a deadlock.
    /// Returns whether tasks can make progress now.
    pub(crate) fn check_for_deadlock(&self) -> bool {
        let detector = &self.detector;
        let checking = lock(&detector.checking);
        #[cfg(test)]
        detector.searches.fetch_add(1, Ordering::Relaxed);
        let is_closed = detector.has_run() && !detector.shares_ends.load(Ordering::SeqCst);
        let (stuck, is_everything) = deadlock::search(self, is_closed);
        // Tasks of an earlier deadlock make progress soon.
        let is_cancelled = stuck.is_cancelled();
        let grown = !is_cancelled && stuck.grow();
        // A task that is not stuck may own any end, including ends that other tasks used before.
        // A thread outside may also have caused progress during the search, or its `run` may have
        // ended. All of them exclude a deadlock for now.
        let is_active =
            self.deterministic.is_none() && !self.activity.is_quiescent() || !detector.has_run();
        // If the last task ended since the caller found quiescence, the set of stuck tasks is
        // empty.
        let is_deadlock = !grown
            && !is_cancelled
            && is_closed
            && is_everything
            && !stuck.is_empty()
            && !is_active;
        if is_deadlock {
            let deadlock = stuck.deadlock();
            detector.report_later(|| deadlock.to_string());
            *lock(&detector.deadlock) = Some(deadlock);
            stuck.cancel(CANCEL_DEADLOCK);
        }
        // The lock is released first: memory that was retired during the search has destructors.
        drop(checking);
        drop(stuck);
        if grown {
            detector.growths.fetch_add(1, Ordering::Relaxed);
        }
        if is_deadlock {
            self.request_cancellation();
        }
        grown || is_deadlock
    }

    /// Grows a stream that blocks a cycle of tasks, while other tasks make progress. Returns false
    /// if there is no such stream.
    pub(crate) fn resolve_cycles(&self) -> bool {
        let detector = &self.detector;
        if !detector.has_growable() {
            return false;
        }
        let Ok(_checking) = detector.checking.try_lock() else { return false };
        let grown = deadlock::search(self, false).0.grow();
        if grown {
            detector.growths.fetch_add(1, Ordering::Relaxed);
        }
        grown
    }

    /// Calls [`Inner::resolve_cycles`] on behalf of a busy worker, at a limited rate. Where all
    /// workers are busy, no idle worker searches.
    pub(crate) fn resolve_cycles_rarely(&self) {
        let detector = &self.detector;
        if !detector.has_growable() {
            return;
        }
        let begin_ns = self.clock.now_ns();
        // Relaxed: at worst, two workers search.
        if begin_ns < detector.next_search_ns.load(Ordering::Relaxed) {
            return;
        }
        self.resolve_cycles();
        let end_ns = self.clock.now_ns();
        let pause_ns = (BUSY_FRACTION * (end_ns - begin_ns)).max(CYCLE_PERIOD.as_nanos() as u64);
        detector.next_search_ns.store(end_ns + pause_ns, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Park, Runtime, sleep, spawn, spawn_async, stream};
    use corebeat_sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use corebeat_sync::{Mutex, lock, mpsc};
    use std::sync::Arc;
    use std::task::{Poll, Waker};
    use std::time::Duration;

    /// Waits of a worker, each of which detects an event for one task.
    #[derive(Clone, Default)]
    struct Events {
        waker: Arc<Mutex<Option<Waker>>>,
        is_unparked: Arc<AtomicBool>,
        unparks: Arc<AtomicU64>,
    }

    impl Park for Events {
        fn poll(&self) {}

        fn park(&self, _: Option<Duration>) {
            if !self.is_unparked.swap(false, Ordering::SeqCst) {
                lock(&self.waker).take().map_or_else(std::thread::yield_now, Waker::wake);
            }
        }

        fn unpark(&self) {
            self.unparks.fetch_add(1, Ordering::SeqCst);
            self.is_unparked.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn wait_that_an_event_ends_causes_no_search() {
        let events = Events::default();
        let (wakers, unparks) = (events.waker.clone(), events.unparks.clone());
        let make = move |_| Ok(Box::new(events.clone()) as Box<dyn Park>);
        let runtime = Runtime::builder().workers(1).park(make).build().unwrap();
        let mut left = 1000;
        let wait = std::future::poll_fn(move |context| {
            left -= 1;
            if left == 0 {
                return Poll::Ready(());
            }
            *lock(&wakers) = Some(context.waker().clone());
            Poll::Pending
        });
        runtime.run(|| spawn_async(wait).join().unwrap()).unwrap();
        // Other searches depend on the times at which the run begins and ends.
        let searches = runtime.inner().detector.searches.load(Ordering::Relaxed);
        assert!(searches < 100, "{searches} searches");
        // The worker does not end its own waits.
        let unparks = unparks.load(Ordering::SeqCst);
        assert!(unparks < 100, "{unparks} calls of unpark");
    }

    #[test]
    fn check_after_the_end_of_the_last_task_finds_no_deadlock() {
        let runtime = Runtime::builder().workers(1).deterministic(1).build().unwrap();
        let inner = runtime.inner();
        // As during a `run` that is about to return.
        let run = inner.detector.begin_run(None);
        assert!(!inner.check_for_deadlock());
        assert!(inner.detector.deadlock().is_none() && !inner.detector.has_report());
        drop(run);
        assert_eq!(runtime.run(|| 1).unwrap(), 1);
    }

    #[test]
    fn task_that_waits_for_a_thread_whose_scope_has_ended_is_no_deadlock() {
        let runtime = Runtime::builder().workers(1).deterministic(1).build().unwrap();
        let (mut go, mut may_go) = stream::<u8>(1);
        let other = runtime.spawn(move || may_go.read());
        let scope = runtime.scope();
        scope.run(|| sleep(Duration::from_secs(1))).unwrap();
        // As during `Scope::run` that is about to return.
        let inner = runtime.inner();
        let run = inner.detector.begin_run(Some(scope.core.clone()));
        assert!(!inner.check_for_deadlock());
        drop(run);
        go.write(1).unwrap();
        runtime.run(|| ()).unwrap();
        assert_eq!(other.join().unwrap(), Some(1));
    }

    #[test]
    fn unused_ends_of_a_task_of_another_runtime_are_no_deadlock() {
        let build = || Runtime::builder().workers(1).build().unwrap();
        let (one, two) = (build(), Arc::new(build()));
        let (release, released) = mpsc::channel::<()>();
        // Occupies the worker of the other runtime until the test releases it.
        let occupant = two.spawn(move || released.recv());
        let (resolved, result) = std::thread::scope(|s| {
            let run = s.spawn(|| {
                let two = two.clone();
                one.run(move || {
                    let (mut to, from_one) = stream(1);
                    let (mut back, mut from_two) = stream(1);
                    let remote = two.spawn(move || back.write(from_one.sum::<u32>()).is_ok());
                    let local = spawn(move || from_two.read());
                    let wrote = to.write(1).is_ok() && to.write(2).is_ok();
                    drop(to);
                    (wrote, local.join(), remote.join())
                })
            });
            let inner = one.inner();
            while !run.is_finished() && (inner.living() < 2 || !inner.activity.is_quiescent()) {
                std::thread::yield_now();
            }
            let resolved = inner.check_for_deadlock();
            release.send(()).unwrap();
            (resolved, run.join().unwrap())
        });
        assert!(occupant.join().unwrap().is_ok());
        let (wrote, local, remote) = result.unwrap();
        let results = (resolved, wrote, local.unwrap(), remote.unwrap());
        assert_eq!(results, (false, true, Some(3), true));
    }
}
