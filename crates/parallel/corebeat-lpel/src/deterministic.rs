//! Execution of a whole runtime on one thread, in an order drawn from a seed.

use crate::current;
use crate::runtime::Inner;
use crate::scheduler::{Ready, Scheduler};
use crate::worker::{AbortOnPanic, Worker};
use corebeat_sync::{Mutex, lock};
use fastrand::Rng;
use std::thread::ThreadId;
use std::time::Duration;

/// Period of checks for events, while all tasks wait for threads outside.
const OUTSIDE_PERIOD: Duration = Duration::from_micros(100);
/// Virtual duration of a step of a worker. Without it, a task that yields until a point in time
/// would stop the clock.
const STEP_NS: u64 = 100;

/// State of the execution. The thread that executes the runtime locks it.
pub(crate) struct Driver {
    random: Rng,
    /// The thread that has started tasks which have not ended. A started task never changes its
    /// thread.
    thread: Option<ThreadId>,
}

impl Driver {
    pub(crate) fn new(random: Rng) -> Self {
        Driver { random, thread: None }
    }

    /// Returns whether the calling thread may execute the tasks.
    pub(crate) fn is_own(&self) -> bool {
        self.thread.is_none_or(|thread| thread == std::thread::current().id())
    }
}

impl Inner {
    /// Executes steps of random workers until no task is left, `is_over` returns true, or `time` is
    /// over.
    ///
    /// # Panics
    ///
    /// If another thread has started tasks that have not ended.
    pub(crate) fn run_steps(
        &self,
        driver: &Mutex<Driver>,
        time: Option<Duration>,
        // Not generic: with a second instance of this loop, the compiler does not inline
        // `Worker::step` into the loop of the workers, which costs 15 ns for each block.
        is_over: &dyn Fn() -> bool,
    ) {
        let mut driver = lock(driver);
        assert!(
            driver.is_own(),
            "tasks of this deterministic runtime have started on another thread and have not \
             ended: execute the runtime on that thread only"
        );
        let end_ns = time.map(|time| self.clock.now_ns().saturating_add(current::nanos(time)));
        let abort = AbortOnPanic;
        let workers = &self.workers;
        let step = |worker: &Worker, f: fn(&Worker) -> bool| {
            let _saved = worker.enter();
            f(worker)
        };
        let mut idle_steps = 0;
        while !is_over() && end_ns.is_none_or(|end_ns| self.clock.now_ns() < end_ns) {
            let worker = &workers[driver.random.usize(..workers.len())];
            self.clock.advance(STEP_NS);
            if step(worker, Worker::step) {
                worker.idleness.end(self);
                idle_steps = 0;
            } else {
                worker.idleness.begin(self);
                idle_steps += 1;
            }
            if idle_steps < 2 * workers.len() {
                continue;
            }
            idle_steps = 0;
            if workers.iter().any(|w| step(w, Worker::search_everywhere)) {
                continue;
            }
            workers.iter().for_each(|w| w.idleness.begin(self));
            let due_ns = workers.iter().filter_map(|w| w.next_due_ns()).chain(end_ns).min();
            if let Some(due_ns) = due_ns {
                if !self.resolve_cycles() {
                    self.clock.advance_to(due_ns);
                }
                continue;
            }
            if self.living() == 0 {
                break;
            }
            if !self.check_for_deadlock() {
                std::thread::sleep(OUTSIDE_PERIOD);
            }
        }
        driver.thread = (self.living() > 0).then(|| std::thread::current().id());
        // The next call may be on another thread, and unused carriers belong to the thread that
        // ran them.
        for worker in workers {
            let _saved = worker.enter();
            worker.trim_carriers(0);
        }
        std::mem::forget(abort);
    }
}

/// Ready set that returns a random task.
pub(crate) struct RandomOrder {
    tasks: Vec<Ready>,
    random: Rng,
}

impl RandomOrder {
    pub(crate) fn new(random: Rng) -> Self {
        RandomOrder { tasks: Vec::new(), random }
    }
}

impl Scheduler for RandomOrder {
    fn put(&mut self, task: Ready) {
        self.tasks.push(task);
    }

    fn fetch(&mut self) -> Option<Ready> {
        if self.tasks.is_empty() {
            return None;
        }
        let at = self.random.usize(..self.tasks.len());
        Some(self.tasks.swap_remove(at))
    }

    fn len(&self) -> usize {
        self.tasks.len()
    }
}
