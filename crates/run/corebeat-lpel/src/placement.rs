//! Which worker a new task goes to.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 5.4.2 and 6.2.1.

use crate::task::Priority;
use std::collections::HashMap;

/// What is known of a task when it is spawned.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct TaskInfo<'a> {
    /// The task's number.
    pub id: u64,
    /// Its name, if it was given one. Tasks of one name are of one kind.
    pub name: Option<&'a str>,
    /// How urgent it is.
    pub priority: Priority,
    /// The worker whose task spawns it; `None` if that is done from outside.
    pub spawner: Option<usize>,
}

/// Where a task goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// To the spawner's worker, or to any if there is none. An idle worker may take it before it has started.
    Anywhere,
    /// To this worker, to stay.
    Worker(usize),
}

/// Decides where tasks go. A started task never moves.
///
/// It is asked by one thread at a time, while others wait for their turn: it must not spawn or block.
pub trait Placement: Send {
    /// Where this one goes, of `workers` (at least 1).
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place;
}

/// Where they are spawned, unless an idle worker takes them: what runtimes use if nothing is said.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nearby;

impl Placement for Nearby {
    fn place(&mut self, _: &TaskInfo<'_>, _: usize) -> Place {
        Place::Anywhere
    }
}

/// One worker after another (5.4.2).
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

/// Tasks of one name in equal numbers to all workers, each name on its own count (6.2.1). Those without a name are of
/// one kind.
#[derive(Debug, Clone, Default)]
pub struct Balanced {
    /// Where the next task of each name goes.
    next: HashMap<Box<str>, usize>,
    unnamed: Option<usize>,
}

impl Placement for Balanced {
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
        // A new kind begins where the last one did not, so that single tasks of many kinds spread as well.
        let kinds = self.next.len() + usize::from(self.unnamed.is_some());
        let next = match task.name {
            None => self.unnamed.get_or_insert(kinds),
            // Asked first, because `entry` would want a copy of the name for each task.
            Some(name) if self.next.contains_key(name) => self.next.get_mut(name).expect("it is there"),
            Some(name) => self.next.entry(name.into()).or_insert(kinds),
        };
        let worker = *next % workers;
        *next = worker + 1;
        Place::Worker(worker)
    }
}

/// By what tasks of that name cost in an earlier run: each goes to the worker with the least so far.
#[derive(Debug, Clone)]
pub struct Measured {
    cost_ns: HashMap<String, u64>,
    /// For names that were not seen: the mean of those that were.
    mean_ns: u64,
    load_ns: Vec<u64>,
}

impl Measured {
    /// `cost_ns`: for each name, how long a task of that name ran in all, on average. A monitor's log of an earlier run
    /// has this: see [`monitor::costs`](crate::monitor::costs).
    pub fn new(cost_ns: HashMap<String, u64>) -> Self {
        let mean_ns = cost_ns.values().sum::<u64>().checked_div(cost_ns.len() as u64).unwrap_or(1);
        Measured { cost_ns, mean_ns, load_ns: Vec::new() }
    }
}

impl Placement for Measured {
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
        self.load_ns.resize(workers, 0);
        let known = task.name.and_then(|name| self.cost_ns.get(name));
        let (worker, load) =
            self.load_ns.iter_mut().enumerate().min_by_key(|(_, load)| **load).expect("there is a worker");
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

    /// Of two workers; an empty name is none.
    fn places(placement: &mut dyn Placement, names: &[&str]) -> Vec<usize> {
        let place = |name: &&str| match placement.place(&info((!name.is_empty()).then_some(name)), 2) {
            Place::Worker(worker) => worker,
            Place::Anywhere => panic!("placed anywhere"),
        };
        names.iter().map(place).collect()
    }

    #[test]
    fn round_robin_alternates() {
        assert_eq!(places(&mut RoundRobin::default(), &["a", "b", "a", "b"]), [0, 1, 0, 1]);
    }

    #[test]
    fn balanced_splits_each_kind() {
        assert_eq!(places(&mut Balanced::default(), &["a", "b", "a", "b", "a", "b"]), [0, 1, 1, 0, 0, 1]);
        assert_eq!(places(&mut Balanced::default(), &["a", "", "a", "", "c"]), [0, 1, 1, 0, 0]);
    }

    #[test]
    fn measured_evens_out_costs() {
        let costs = HashMap::from([("long".to_owned(), 100), ("short".to_owned(), 10)]);
        let names = ["long", "short", "short", "long", "short", "unknown"];
        assert_eq!(places(&mut Measured::new(costs), &names), [0, 1, 1, 1, 0, 0]);
    }
}
