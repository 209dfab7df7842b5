//! A CPU, and the threads that wait for it, in order.

/// Where a thread stands in line: its class's rank, then its key (virtual time, or priority from the top), then who came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) rank: u8,
    pub(crate) key: i64,
    pub(crate) order: i64,
    pub(crate) thread: usize,
}

/// The threads that wait for a CPU. A sorted list: run queues are short, and looked at from their front.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    /// The next is last.
    entries: Vec<Entry>,
}

impl Queue {
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

    /// The waiting threads, the next first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.entries.iter().rev().map(|e| e.thread)
    }
}

/// A CPU.
#[derive(Debug, Clone)]
pub(crate) struct Cpu {
    pub(crate) node: usize,
    pub(crate) cache: usize,
    pub(crate) current: Option<usize>,
    pub(crate) queue: Queue,
    /// What its threads weigh together, the running one included.
    pub(crate) load: u64,
    /// Up to when the running thread's time is booked, and when it came.
    pub(crate) since: u64,
    pub(crate) came: u64,
    /// When what the running thread does is done, if it stays.
    pub(crate) finish: u64,
    /// How many times longer it takes than at full speed, and what share of its references miss the shared cache.
    pub(crate) stretch: f64,
    pub(crate) miss: f64,
    /// What the running thread wants of each node's controller, in millionths of a thread that only waits.
    pub(crate) demand: Vec<u64>,
    /// Only the stop event of this number counts.
    pub(crate) stop: u32,
    /// A stop event for this very moment is on its way.
    pub(crate) kicked: bool,
    /// A thread that should go first has come.
    pub(crate) preempt: bool,
    /// The thread that ran last.
    pub(crate) last: Option<usize>,
    /// It has nothing to do, and has looked everywhere.
    pub(crate) is_idle: bool,
    /// The last balancing that gave it a thread, or took one.
    pub(crate) evened: u64,
    /// The least virtual run time of its threads; never goes back.
    pub(crate) virtual_ns: i64,
    pub(crate) busy: u64,
    /// The set whose tasks alone run here, where there is a coscheduler; `None` for tasks in no set.
    pub(crate) serves: Option<usize>,
    /// All other CPUs, the nearest first, and how near: 0 shares its cache, 1 its node, 2 neither.
    pub(crate) others: Vec<(u8, usize)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_gives_the_least_first() {
        let mut queue = Queue::default();
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
