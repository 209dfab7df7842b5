//! Execution of a whole runtime on one thread, in an order drawn from a seed.

use crate::runtime::Inner;
use crate::scheduler::{Ready, Scheduler};
use crate::worker::{AbortOnPanic, Worker};
use corebeat_sync::{Mutex, lock};
use fastrand::Rng;
use std::time::Duration;

/// Period of checks for events, while all tasks wait for threads outside.
const OUTSIDE_PERIOD: Duration = Duration::from_micros(100);
/// Virtual duration of a step of a worker. Without it, a task that yields until a point in time
/// would stop the clock.
const STEP_NS: u64 = 100;

impl Inner {
    /// Executes steps of random workers until no task is left.
    pub(crate) fn run_steps(&self, random: &Mutex<Rng>) {
        let mut random = lock(random);
        let abort = AbortOnPanic;
        let workers = &self.workers;
        let step = |worker: &Worker, f: fn(&Worker) -> bool| {
            let _saved = worker.enter();
            f(worker)
        };
        let mut idle_steps = 0;
        loop {
            let worker = &workers[random.usize(..workers.len())];
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
            if let Some(due_ns) = workers.iter().filter_map(|w| w.next_due_ns()).min() {
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
        // The next call may be on another thread, and carriers belong to the thread that ran them.
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
