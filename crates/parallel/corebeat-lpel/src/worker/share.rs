//! Distribution of new tasks to idle workers.
//!
//! A started task never changes its worker. If a worker starts several tasks that soon wait for
//! items, it keeps all of them, although other workers are idle: a thief arrives too late, because
//! waking a thread takes longer than starting a task. Therefore a worker gives idle workers a share
//! of its unstarted tasks before it starts the rest. The shares consist of neighbours, because a
//! pipeline is usually spawned in order, and an item should rarely change its worker.
//!
//! If there are fewer than two tasks for each worker, they alternate: neighbours often are the
//! stages that compute most, and the spawner often reads what the last stage produces. Two tasks
//! for each worker often are pairs, such as a server and its client.
//!
//! For the same reason, an idle worker waits for its share before it steals: otherwise it would
//! take each task of a fan-out at the moment at which the task is spawned.
//!
//! A share only pays for tasks that wait for items. A task that runs to its end in its first
//! dispatch should be started at once, and not wait until another thread wakes up. The worker
//! predicts that new tasks will wait if the last task that it started has waited.
//!
//! For the same reason as well, a worker that has its share leaves the rest to their worker for a
//! while, even if it becomes idle because its own tasks wait.
//!
//! A worker whose own tasks sleep starts no new task while another worker is idle: a task that
//! starts a job, sleeps, and starts the next one would wait for the end of each job. Tasks that
//! probably will wait still are distributed equally.
//!
//! Pipelines that grow should stay together as well: each stage spawns the next one, perhaps with a
//! few tasks beside it. Therefore small shares go only to workers with less than half as many
//! tasks, so that the parts of a growing pipeline become longer and longer. A single task goes to
//! another worker only if its spawner is not a stage itself: a thread outside spawned it.

use super::Worker;
use crate::current;
use crate::runtime::Inner;
use crate::task::{Header, Outcome, Status, Unended};
use std::cell::Cell;
// Hints, which no protocol depends on, so the models do not include them.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of received tasks that no other worker may steal back: the worker starts them at once.
pub(super) const FIRM: usize = 1;

/// A burst of fewer tasks is small.
const SMALL: usize = 4;

/// The tasks of a burst are pairs if they are this number for each worker. Fewer ones alternate.
const PAIRS: usize = 2;

/// Timers that are due within this time matter for the place of a new task.
const SOON_NS: u64 = 100_000_000;

/// Whether a worker is idle: it searches for work, sleeps, or is being woken.
#[derive(Default)]
pub(crate) struct Idleness(AtomicBool);

/// Number of idle workers.
#[derive(Default)]
pub(crate) struct IdleCount(AtomicUsize);

impl Idleness {
    pub(crate) fn begin(&self, inner: &Inner) {
        // Relaxed: a hint.
        if !self.0.swap(true, Ordering::Relaxed) {
            inner.activity.idle.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the idleness: the worker works, or has received its share. Returns whether it was idle.
    pub(crate) fn end(&self, inner: &Inner) -> bool {
        // Relaxed: a hint.
        let was_idle = self.0.swap(false, Ordering::Relaxed);
        if was_idle {
            inner.activity.idle.0.fetch_sub(1, Ordering::Relaxed);
        }
        was_idle
    }

    fn is_idle(&self) -> bool {
        // Relaxed: a hint.
        self.0.load(Ordering::Relaxed)
    }
}

impl IdleCount {
    fn is_zero(&self) -> bool {
        // Relaxed: a hint.
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Tasks that entered the list of unstarted tasks of a worker since the list was empty.
#[derive(Default)]
pub(super) struct Burst {
    /// Number of these tasks.
    pub(super) tasks: Cell<usize>,
    /// Number of those that the worker itself started.
    pub(super) started: Cell<usize>,
    /// Whether the spawner of the last one has spawned other tasks before, or was itself spawned by
    /// a thread outside.
    pub(super) may_be_shared: Cell<bool>,
}

impl Burst {
    pub(super) fn restart(&self, tasks: usize) {
        self.tasks.set(tasks);
        self.started.set(0);
    }
}

impl Worker {
    /// Gives idle workers equal shares of the unstarted tasks, if these probably will wait.
    pub(super) fn share_unstarted(&self) {
        let inner = self.inner();
        let burst = &self.own.burst;
        if inner.activity.idle.is_zero()
            || !self.own.starts_block.get()
            || !burst.may_be_shared.get()
        {
            return;
        }
        let left = self.own.unstarted.len();
        let living = self.counts.living() + left as u64;
        let is_small = burst.tasks.get() < SMALL;
        let takes = |w: &&Worker| {
            w.idleness.is_idle()
                && (!is_small || 2 * w.counts.living() < living)
                && w.idleness.end(inner)
        };
        let idle: Vec<_> = self.others().filter(takes).take(left).collect();
        if idle.is_empty() {
            return;
        }
        let workers = idle.len() + 1;
        let tasks = burst.tasks.get();
        if left == tasks && tasks <= PAIRS * workers {
            let are_pairs = tasks == PAIRS * workers;
            for n in 0..left {
                // The last task is not kept, because the spawner may work on its items.
                let place = if are_pairs { n / PAIRS } else { (left - n) % workers };
                match place.checked_sub(1) {
                    Some(n) => self.give(1, idle[n]),
                    None => self.keep(),
                }
            }
            return;
        }
        // Stolen tasks count for the others.
        let kept = (tasks / workers).saturating_sub(burst.started.get());
        let shares = left.saturating_sub(kept);
        for (n, target) in idle.iter().enumerate() {
            self.give(shares * (n + 1) / idle.len() - shares * n / idle.len(), target);
        }
    }

    /// Returns an idle worker, if tasks of this worker have timers. If new tasks probably wait for
    /// items, the idle worker has fewer tasks. It counts as busy from now on: the caller sends it a
    /// task.
    pub(super) fn idle_beside_sleepers(&self) -> Option<&Worker> {
        let inner = self.inner();
        if inner.activity.idle.is_zero() {
            return None;
        }
        // A distant timer does not justify waking another thread.
        self.next_due_ns().filter(|due_ns| *due_ns <= inner.clock.now_ns() + SOON_NS)?;
        let waits = self.own.starts_block.get();
        let takes = |w: &&Worker| {
            w.idleness.is_idle()
                && (!waits || w.counts.living() < self.counts.living())
                && w.idleness.end(inner)
        };
        self.others().find(takes)
    }

    /// Counts a new task for any worker, which the running task spawns, or which was received.
    pub(super) fn count_in_burst(&self) {
        let Burst { tasks, may_be_shared, .. } = &self.own.burst;
        if self.own.unstarted.is_empty() {
            self.own.burst.restart(0);
        }
        tasks.set(tasks.get() + 1);
        let spawner = current::with(|c| c.task.get());
        // SAFETY: the running task is alive.
        may_be_shared.set(
            unsafe { spawner.as_ref() }.is_some_and(|spawner| {
                spawner.has_spawned.replace(true) || spawner.is_from_outside
            }),
        );
    }

    /// Predicts whether new tasks will wait for items, after the first dispatch of a task.
    #[inline]
    pub(super) fn predict(&self, outcome: Outcome, task: &Header) {
        use Status::{Polling, Reading, Writing};
        let waits = outcome == Outcome::Awaits
            || outcome == Outcome::Blocked && matches!(task.status(), Reading | Writing | Polling);
        // A task that spawns others and joins them predicts nothing.
        if waits || outcome == Outcome::Ended {
            self.own.starts_block.set(waits);
        }
    }

    /// Whether an idle worker waits for its share at first, and steals only before it sleeps.
    pub(super) fn waits_for_share(&self) -> bool {
        self.own.starts_block.get()
    }

    /// Whether an idle worker leaves the unstarted tasks of another worker to that worker: they
    /// probably will wait, and the idle worker has its share of such tasks.
    ///
    /// Otherwise a worker whose tasks all wait would take the rest as well while the other worker
    /// is still busy with their spawner, which often takes longer than starting them.
    pub(super) fn leaves_to(&self, other: &Worker) -> bool {
        // One of the living tasks of the other worker is the spawner.
        self.own.starts_block.get()
            && !self.own.has_left.get()
            && self.counts.living() + 2 > other.counts.living() + other.stealer.len() as u64
    }

    /// Whether a task of this worker should end, so that an idle worker runs its rest.
    pub(crate) fn should_move(&self, task: &Header) -> bool {
        task.stealable.get()
            && !self.inner().activity.idle.is_zero()
            && self.own.ready.has_stealable()
    }

    /// Moves the first unstarted task behind the others.
    fn keep(&self) {
        if let Some(task) = self.own.unstarted.pop() {
            self.own.unstarted.push(task);
        }
    }

    /// Sends unstarted tasks to another worker, as far as no thief takes them.
    fn give(&self, tasks: usize, target: &Worker) {
        for _ in 0..tasks {
            let Some(task) = self.own.unstarted.pop() else { return };
            self.own.unstarted_max.set(self.own.unstarted_max.get().saturating_sub(1));
            target.send(task.into_raw());
        }
    }
}

impl Inner {
    /// Returns a worker for a task that a thread outside spawns: the idle workers and those that
    /// soon will be idle, each one in turn.
    fn next_free_worker(&self) -> Option<&Worker> {
        // If no worker is idle, a search in all of them would cost more than it finds.
        let tried = if self.activity.idle.is_zero() { 1 } else { self.workers.len() };
        let mut workers = (0..tried).map(|_| &self.workers[self.next_worker()]);
        workers.find(|w| w.idleness.is_idle() || w.counts.living() == 0)
    }

    /// Passes a new task that any worker may run, from a thread that is no worker.
    pub(crate) fn inject(&self, task: Unended) {
        match self.next_free_worker() {
            Some(worker) => worker.send(task.into_raw()),
            None => {
                self.injector.push(task);
                corebeat_sync::asymmetric::light_fence();
                self.wake_one_worker();
            }
        }
    }
}
