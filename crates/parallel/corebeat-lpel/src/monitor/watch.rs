//! Part of a worker that measures dispatches and collects the stream ends that a task uses.

use super::{Dispatch, End, EndUse, Level, Listener, Monitor, StreamUse, Wait};
use crate::current;
use crate::task::{Header, Status};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Monitoring state of one worker.
pub(crate) struct Watch {
    level: Level,
    listener: RefCell<Box<dyn Listener>>,
    clock: quanta::Clock,
    begin: u64,
    /// Time of the last reading of the clock.
    last_ns: Cell<u64>,
    /// The ends that tasks of this worker use. They live at least until the end of the dispatch.
    ends: RefCell<Vec<Arc<EndUse>>>,
    /// Length of `ends` at which those without a user are dropped.
    ends_max: Cell<usize>,
    /// The ends that the running task has used in this dispatch. All of them are in `ends`.
    listed: RefCell<Vec<*const EndUse>>,
    /// The records of these ends.
    streams: RefCell<Vec<StreamUse>>,
    waits: Cell<u64>,
    wait_ns: Cell<u64>,
}

impl Watch {
    pub(crate) fn new(
        monitor: &dyn Monitor,
        worker: usize,
        clock: quanta::Clock,
        begin: u64,
    ) -> Watch {
        Watch {
            level: monitor.level(),
            listener: RefCell::new(monitor.listener(worker)),
            clock,
            begin,
            last_ns: Cell::new(0),
            ends: RefCell::default(),
            ends_max: Cell::new(ENDS_MIN),
            listed: RefCell::default(),
            streams: RefCell::default(),
            waits: Cell::new(0),
            wait_ns: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.begin, self.clock.raw())
    }

    /// Starts the measurement of the next dispatch now. For workers that did other things since
    /// the last dispatch.
    pub(crate) fn restart(&self) {
        self.last_ns.set(self.now_ns());
    }

    /// Returns whether the stream use of a task is recorded.
    #[inline]
    pub(crate) fn watches_streams(&self, marked: bool) -> bool {
        self.level >= Level::All || self.level == Level::MarkedStreams && marked
    }

    /// Adds an end that a task of this worker begins to use.
    pub(crate) fn add(&self, end: Arc<EndUse>) {
        let mut ends = self.ends.borrow_mut();
        if ends.len() >= self.ends_max.get() {
            // An end in the list may have been dropped in this dispatch.
            ends.retain(|end| Arc::strong_count(end) > 1 || end.is_listed());
            self.ends_max.set(ENDS_MIN.max(2 * ends.len()));
        }
        ends.push(end);
    }

    /// Adds an end, which was added before, to the list of this dispatch.
    #[inline]
    pub(super) fn list(&self, end: &EndUse) {
        self.listed.borrow_mut().push(end);
    }

    /// Records the end of a dispatch. One reading of the clock is the end of this dispatch and the
    /// begin of the next one.
    #[inline]
    pub(crate) fn dispatched(&self, task: &Header, status: Status) {
        let end_ns = self.now_ns();
        let execution_ns = end_ns.saturating_sub(self.last_ns.replace(end_ns));
        if self.level < Level::All && !task.marked {
            return;
        }
        // Should the listener use a stream, this is no use by the task.
        current::with(|c| c.stamp.set(current::stamp(current::home_of(c.stamp.get()), 0)));
        let report = |streams: &[StreamUse]| {
            self.listener.borrow_mut().dispatched(&Dispatch {
                end_ns,
                execution_ns,
                task: task.id,
                name: task.name.as_deref(),
                number: task.dispatches.get(),
                status,
                created_ns: (status == Status::Zombie).then(|| task.created_ns.get()),
                streams,
            });
        };
        let (mut listed, mut streams) = (self.listed.borrow_mut(), self.streams.borrow_mut());
        streams.clear();
        // SAFETY: `ends` keeps listed ends.
        streams.extend(listed.iter().map(|&end| unsafe { &*end }.take()));
        listed.clear();
        drop(listed);
        report(&streams);
    }

    pub(crate) fn waited(&self, worker: usize, begin_ns: u64) {
        let end_ns = self.now_ns();
        let wait_ns = end_ns.saturating_sub(begin_ns);
        self.waits.set(self.waits.get() + 1);
        self.wait_ns.set(self.wait_ns.get() + wait_ns);
        if self.level >= Level::Workers {
            let wait = Wait { worker, end_ns, wait_ns, number: self.waits.get() };
            self.listener.borrow_mut().waited(&wait);
        }
    }

    pub(crate) fn ended(&self, worker: usize) {
        let end = End {
            worker,
            end_ns: self.now_ns(),
            waits: self.waits.get(),
            wait_ns: self.wait_ns.get(),
        };
        self.listener.borrow_mut().ended(&end);
    }
}

/// Number of ends up to which none is dropped.
const ENDS_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::tests::{of, records};
    use crate::{StreamSet, Task, spawn, stream};

    #[test]
    fn dispatch_reports_every_end_of_many() {
        const ENDS: usize = 3 * ENDS_MIN + 1;
        let records = records(Level::All, || {
            let mut set = StreamSet::new();
            let ends = (0..ENDS).map(|_| {
                let (to, from) = stream(1);
                set.add(from);
                to
            });
            let mut ends: Vec<_> = ends.collect();
            let writer = move || {
                for _ in 0..2 {
                    ends.iter_mut().for_each(|to| to.write(7).unwrap());
                }
            };
            Task::new().name("writer").spawn(writer).unwrap();
            spawn(move || while set.read().is_some() {});
        });
        let first = of(&records, "writer")[0];
        let moved = first.streams.iter().filter(|t| t.moved && t.items == 1).count();
        assert_eq!(moved, ENDS, "{first:#?}");
        assert!(first.streams.is_sorted_by_key(|t| t.stream));
        let closed = records.iter().flat_map(|r| &r.streams).filter(|t| t.closed);
        assert_eq!(closed.map(|t| t.items).sum::<u64>(), 2 * 2 * ENDS as u64);
    }
}
