//! Placement: assignment of new tasks to workers.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, 5.4.2 and 6.2.1.

use crate::task::Priority;
use std::collections::HashMap;

/// Properties of a task that is being spawned.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct TaskInfo<'a> {
    /// Number of the task.
    pub id: u64,
    /// Name of the task, if it has one. Tasks with equal names are of one kind.
    pub name: Option<&'a str>,
    /// Urgency of the task.
    pub priority: Priority,
    /// Worker of the spawning task; `None` if a thread outside spawns the task.
    pub spawner: Option<usize>,
}

/// Place of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The worker of the spawner, or any worker if there is none. An idle worker may receive or
    /// steal the task before it has started.
    Anywhere,
    /// This worker. The task is not stolen.
    Worker(usize),
}

/// Policy that assigns new tasks to workers. A started task never moves.
///
/// Calls are serialised by a lock, so `place` must neither spawn nor block.
pub trait Placement: Send {
    /// Returns the place of a task among `workers` (at least 1).
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place;
}

/// Leaves tasks on the worker of the spawner, which shares them with idle workers. This is the
/// default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nearby;

impl Placement for Nearby {
    fn place(&mut self, _: &TaskInfo<'_>, _: usize) -> Place {
        Place::Anywhere
    }
}

/// Assigns tasks to one worker after another (5.4.2).
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundRobin {
    next: usize,
}

impl Placement for RoundRobin {
    fn place(&mut self, _: &TaskInfo<'_>, workers: usize) -> Place {
        let worker = self.next % workers;
        self.next = worker + 1;
        Place::Worker(worker)
    }
}

/// Assigns equal numbers of tasks of each name to all workers (6.2.1). Tasks without a name are of
/// one kind.
#[derive(Debug, Clone, Default)]
pub struct Balanced {
    /// Worker of the next task of each name.
    next: HashMap<Box<str>, usize>,
    unnamed: Option<usize>,
}

impl Placement for Balanced {
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
        // Kinds begin at different workers, so that kinds with one task each are spread as well.
        let kinds = self.next.len() + usize::from(self.unnamed.is_some());
        let next = match task.name {
            None => self.unnamed.get_or_insert(kinds),
            // The lookup comes first, because `entry` requires a copy of the name.
            Some(name) if self.next.contains_key(name) => {
                self.next.get_mut(name).expect("the guard found the name")
            }
            Some(name) => self.next.entry(name.into()).or_insert(kinds),
        };
        let worker = *next % workers;
        *next = worker + 1;
        Place::Worker(worker)
    }
}

/// Assigns each task to the worker with the least total cost so far. The cost of a task is the mean
/// cost of its name in an earlier run.
#[derive(Debug, Clone)]
pub struct Measured {
    cost_ns: HashMap<String, u64>,
    /// Mean of all names, for unknown names.
    mean_ns: u64,
    load_ns: Vec<u64>,
}

impl Measured {
    /// Creates a placement. `cost_ns` is the mean total execution time of a task for each name, in
    /// nanoseconds. [`monitor::costs`](crate::monitor::costs) computes it from the log of an
    /// earlier run.
    pub fn new(cost_ns: HashMap<String, u64>) -> Self {
        let mean_ns = cost_ns.values().sum::<u64>().checked_div(cost_ns.len() as u64).unwrap_or(1);
        Measured { cost_ns, mean_ns, load_ns: Vec::new() }
    }
}

impl Placement for Measured {
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
        self.load_ns.resize(workers, 0);
        let known = task.name.and_then(|name| self.cost_ns.get(name));
        let (worker, load) = self
            .load_ns
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, load)| **load)
            .expect("a runtime has at least one worker");
        *load = load.saturating_add(known.copied().unwrap_or(self.mean_ns).max(1));
        Place::Worker(worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: Option<&str>) -> TaskInfo<'_> {
        TaskInfo { id: 0, name, priority: Priority::NORMAL, spawner: None }
    }

    /// Places tasks on two workers. An empty name is no name.
    fn places(placement: &mut dyn Placement, names: &[&str]) -> Vec<usize> {
        let place =
            |name: &&str| match placement.place(&info((!name.is_empty()).then_some(name)), 2) {
                Place::Worker(worker) => worker,
                Place::Anywhere => panic!("the placement selected no worker"),
            };
        names.iter().map(place).collect()
    }

    #[test]
    fn round_robin_alternates() {
        assert_eq!(places(&mut RoundRobin::default(), &["a", "b", "a", "b"]), [0, 1, 0, 1]);
    }

    #[test]
    fn balanced_splits_each_kind() {
        assert_eq!(
            places(&mut Balanced::default(), &["a", "b", "a", "b", "a", "b"]),
            [0, 1, 1, 0, 0, 1]
        );
        assert_eq!(places(&mut Balanced::default(), &["a", "", "a", "", "c"]), [0, 1, 1, 0, 0]);
    }

    #[test]
    fn measured_evens_out_costs() {
        let costs = HashMap::from([("long".to_owned(), 100), ("short".to_owned(), 10)]);
        let names = ["long", "short", "short", "long", "short", "unknown"];
        assert_eq!(places(&mut Measured::new(costs), &names), [0, 1, 1, 1, 0, 0]);
    }
}
