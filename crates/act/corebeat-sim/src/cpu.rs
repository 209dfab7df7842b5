//! CPUs and their run queues.

use corebeat_machine::{NodeId, Topology};
use std::ops::{Index, IndexMut};

/// The position of a thread in a run queue: rank of its class, then key (virtual run time, or
/// distance from the highest priority), then order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) rank: u8,
    pub(crate) key: i64,
    pub(crate) order: i64,
    pub(crate) thread: usize,
}

/// A run queue. A sorted list suffices: run queues are short, and most accesses are to the front.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunQueue {
    /// In descending order: the next thread is last.
    entries: Vec<Entry>,
}

impl RunQueue {
    pub(crate) fn insert(&mut self, entry: Entry) {
        let place = self.entries.partition_point(|e| *e > entry);
        self.entries.insert(place, entry);
    }

    pub(crate) fn remove(&mut self, thread: usize) {
        if let Some(place) = self.entries.iter().position(|e| e.thread == thread) {
            self.entries.remove(place);
        }
    }

    pub(crate) fn first(&self) -> Option<&Entry> {
        self.entries.last()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The waiting threads, the next one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.entries.iter().rev().map(|e| e.thread)
    }
}

/// The speed of the running thread's activity.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// When the activity is done, if the thread keeps the CPU.
    pub(crate) finish: u64,
    /// Factor on the time that the activity takes at full speed.
    pub(crate) stretch: f64,
    /// Share of references that miss the shared cache.
    pub(crate) miss: f64,
}

/// A CPU.
#[derive(Debug, Clone)]
pub(crate) struct Cpu {
    pub(crate) node: usize,
    pub(crate) cache: usize,
    pub(crate) current: Option<usize>,
    pub(crate) queue: RunQueue,
    /// Sum of the weights of its threads, the running one included.
    pub(crate) load: u64,
    /// The time up to which the running thread is accounted for.
    pub(crate) since: u64,
    /// When the running thread was dispatched.
    pub(crate) dispatched: u64,
    pub(crate) pace: Pace,
    /// Demand of the running thread on each node's memory controller, in millionths of a thread
    /// that only waits for memory.
    pub(crate) demand: Vec<u64>,
    /// Number of the valid stop event.
    pub(crate) stop: u32,
    /// A stop event for the present moment is pending.
    pub(crate) kicked: bool,
    /// A thread that should run first has arrived.
    pub(crate) preempt: bool,
    /// The thread that ran last.
    pub(crate) last: Option<usize>,
    /// The CPU has no thread, and found none on other CPUs.
    pub(crate) is_idle: bool,
    /// The last balancing round that moved a thread to or from this CPU.
    pub(crate) balanced: u64,
    /// The least virtual run time of its threads; never decreases.
    pub(crate) virtual_ns: i64,
    pub(crate) busy: u64,
    /// The set whose tasks may run here, where there is a coscheduler; `None` for tasks in no set.
    pub(crate) set: Option<usize>,
    /// All other CPUs from the nearest to the farthest, with their level: 0 shares the cache, 1 the
    /// node, 2 neither.
    pub(crate) others: Vec<(u8, usize)>,
}

/// All CPUs.
#[derive(Debug)]
pub(crate) struct Cpus {
    all: Vec<Cpu>,
    idle: usize,
    /// Threads in all run queues, those of coscheduled sets included.
    pub(crate) queued: usize,
    /// Number of run-queue positions handed out, which orders arrivals.
    arrivals: i64,
}

impl Index<usize> for Cpus {
    type Output = Cpu;

    fn index(&self, c: usize) -> &Cpu {
        &self.all[c]
    }
}

impl IndexMut<usize> for Cpus {
    fn index_mut(&mut self, c: usize) -> &mut Cpu {
        &mut self.all[c]
    }
}

impl Cpus {
    /// The CPUs of a machine, all idle.
    pub(crate) fn new(topology: &Topology) -> Cpus {
        let all = topology.cpus();
        let nodes = topology.nodes();
        let position = |node: NodeId| nodes.iter().position(|n| n.id == node).unwrap_or(0);
        let cpu = |c: &corebeat_machine::Cpu| {
            let mut others: Vec<(u8, u32, usize)> = all
                .iter()
                .enumerate()
                .filter(|(_, o)| o.id != c.id)
                .map(|(i, o)| {
                    let level = if o.cache == c.cache { 0 } else { 1 + u8::from(o.node != c.node) };
                    (level, nodes[position(c.node)].distances[position(o.node)], i)
                })
                .collect();
            others.sort();
            Cpu {
                node: position(c.node),
                cache: c.cache as usize,
                current: None,
                queue: RunQueue::default(),
                load: 0,
                since: 0,
                dispatched: 0,
                pace: Pace { finish: u64::MAX, stretch: 1.0, miss: 0.0 },
                demand: vec![0; nodes.len()],
                stop: 0,
                kicked: false,
                preempt: false,
                last: None,
                is_idle: true,
                balanced: 0,
                virtual_ns: 0,
                busy: 0,
                set: None,
                others: others.into_iter().map(|(level, _, i)| (level, i)).collect(),
            }
        };
        let all: Vec<Cpu> = all.iter().map(cpu).collect();
        Cpus { idle: all.len(), all, queued: 0, arrivals: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cpu> {
        self.all.iter()
    }

    /// Marks a CPU as idle.
    pub(crate) fn set_idle(&mut self, c: usize) {
        self.all[c].is_idle = true;
        self.idle += 1;
    }

    /// Marks a CPU as no longer idle. Returns whether it was.
    pub(crate) fn clear_idle(&mut self, c: usize) -> bool {
        let was_idle = std::mem::take(&mut self.all[c].is_idle);
        self.idle -= usize::from(was_idle);
        was_idle
    }

    /// Number of idle CPUs.
    pub(crate) fn idle(&self) -> usize {
        self.idle
    }

    /// The next order of arrival: `before` all threads with an equal key, or behind them.
    pub(crate) fn next_order(&mut self, before: bool) -> i64 {
        self.arrivals += 1;
        if before { -self.arrivals } else { self.arrivals }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_queue_returns_the_least_entry_first() {
        let mut queue = RunQueue::default();
        let entry = |rank, key, order, thread| Entry { rank, key, order, thread };
        for e in [entry(1, 5, 1, 10), entry(2, 0, 2, 11), entry(1, 5, 0, 12), entry(1, -3, 9, 13)] {
            queue.insert(e);
        }
        assert_eq!(queue.iter().collect::<Vec<_>>(), [13, 12, 10, 11]);
        queue.remove(12);
        assert_eq!(queue.first().map(|e| e.thread), Some(13));
        assert_eq!(queue.len(), 3);
    }
}
