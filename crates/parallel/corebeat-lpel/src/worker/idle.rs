//! Idle workers: search for work, and sleep.

use super::Worker;
use corebeat_sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time without progress after which a worker checks for a deadlock. Models must not depend on the
/// clock.
const CHECK_AFTER: Duration = if cfg!(loom) { Duration::ZERO } else { Duration::from_millis(5) };
/// Time for which an idle worker leaves unstarted tasks to their worker, if it has its share.
const LEAVE_NS: u64 = 1_000_000;
/// Number of free carriers per stack size that a sleeping worker keeps. The memory of the others is
/// freed.
const SPARE_CARRIERS_MAX: usize = 1024;

impl Worker {
    /// Returns whether the worker has no task but the running one.
    fn is_idle(&self) -> bool {
        self.inbox.is_empty()
            && self.own.ready.is_empty()
            && self.own.unstarted_max.get() == 0
            && self.own.timers.is_empty()
    }

    /// Searches for work, and sleeps if there is none.
    pub(super) fn idle(&self) {
        self.idleness.begin(self.inner());
        self.search_and_sleep();
        self.idleness.end(self.inner());
    }

    /// Searches for work: first spinning, then asleep.
    fn search_and_sleep(&self) {
        let mut limit = SpinLimit::new(self);
        let inner = self.inner();
        inner.activity.searching.fetch_add(1, Ordering::Relaxed);
        self.sleep.poll();
        self.run_timers();
        let mut found = !self.own.ready.is_empty();
        while !found && limit.spin() {
            found = !self.waits_for_share() && self.steal();
        }
        inner.activity.searching.fetch_sub(1, Ordering::Relaxed);
        let found = found || !self.inbox.is_empty() || self.steal();
        self.own.has_left.set(false);
        if found {
            // There may be work for another worker as well.
            inner.wake_one_worker();
            self.restart_watch();
            return;
        }
        self.trim_carriers(SPARE_CARRIERS_MAX);
        let begin_ns = self.own.watch.as_ref().map(|w| w.now_ns());
        self.counts.waits.add(1);
        self.sleep();
        if let (Some(watch), Some(begin_ns)) = (&self.own.watch, begin_ns) {
            watch.waited(self.index, begin_ns);
            watch.restart();
        }
    }

    fn sleep(&self) {
        let inner = self.inner();
        // Relaxed: ordered by the fence in `begin`.
        inner.activity.sleepers.fetch_add(1, Ordering::Relaxed);
        self.sleep.begin();
        self.recheck_deferred(true);
        self.apply_cancellations();
        let spawners = || self.others().filter(|w| !w.stealer.is_empty());
        let has_work = !self.inbox.is_empty()
            || !self.own.ready.is_empty()
            || !inner.injector.is_empty()
            || spawners().any(|w| !self.leaves_to(w))
            || inner.cancellation.is_over();
        let left_until_ns = spawners().next().map(|_| inner.clock.now_ns() + LEAVE_NS);
        let due_ns = self.next_due_ns().into_iter().chain(left_until_ns).min();
        if has_work || due_ns.is_some() {
            if let Some(due_ns) = due_ns.filter(|_| !has_work) {
                self.sleep_until(due_ns);
                self.own.has_left.set(left_until_ns.is_some_and(|end| inner.clock.now_ns() >= end));
            }
            if self.sleep.end() {
                inner.activity.sleepers.fetch_sub(1, Ordering::Relaxed);
            } else {
                // The waker counted this worker as active, which it was all the time.
                inner.pause();
            }
            return;
        }
        let mut check_at = inner.pause().then(|| Instant::now() + CHECK_AFTER);
        while !self.sleep.is_over() {
            // The search for cycles, in `pause` or below, or the wait may have made a task ready.
            if !self.own.ready.is_empty() && self.sleep.rouse(|| inner.count_woken_worker()) {
                break;
            }
            match (inner.detector.search_period(), check_at) {
                (Some(period), _) => {
                    self.sleep.wait(Some(period));
                    inner.resolve_cycles();
                }
                (None, Some(at)) => {
                    // The search reads all tasks: a wait that ends early causes none.
                    match at.saturating_duration_since(Instant::now()) {
                        Duration::ZERO => {
                            check_at = None;
                            inner.check_late();
                        }
                        left => self.sleep.wait(Some(left)),
                    }
                }
                (None, None) => self.sleep.wait(None),
            }
        }
    }

    /// Sleeps until a timer is due, or another thread wakes the worker.
    fn sleep_until(&self, due_ns: u64) {
        let inner = self.inner();
        // The search for cycles or the wait may have made a task ready.
        while !self.sleep.is_over() && self.own.ready.is_empty() {
            let now_ns = inner.clock.now_ns();
            if now_ns >= due_ns {
                return;
            }
            let left = Duration::from_nanos(due_ns - now_ns);
            match inner.detector.search_period() {
                Some(period) => {
                    self.sleep.wait(Some(period.min(left)));
                    inner.resolve_cycles();
                }
                None => self.sleep.wait(Some(left)),
            }
        }
    }
}

/// Limit of the time for which an idle worker spins.
pub(crate) struct SpinLimit<'a> {
    worker: &'a Worker,
    /// Rounds until the next reading of the clock.
    rounds: u32,
    /// Time of the first reading.
    begin: Option<Instant>,
}

impl<'a> SpinLimit<'a> {
    /// A reading of the clock takes as long as a few rounds.
    const ROUNDS: u32 = 32;

    pub(crate) fn new(worker: &'a Worker) -> Self {
        SpinLimit { worker, rounds: Self::ROUNDS, begin: None }
    }

    /// Spins for a moment. Returns false if the worker has work, or the time is over.
    #[inline]
    pub(crate) fn spin(&mut self) -> bool {
        if self.worker.own.spin.is_zero()
            || !self.worker.is_idle()
            || self.rounds == 0 && self.is_over()
        {
            return false;
        }
        self.rounds -= 1;
        std::hint::spin_loop();
        true
    }

    #[cold]
    fn is_over(&mut self) -> bool {
        self.rounds = Self::ROUNDS;
        self.begin.get_or_insert_with(Instant::now).elapsed() >= self.worker.own.spin
    }
}
