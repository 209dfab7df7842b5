//! Part of a worker that measures dispatches and collects the stream ends that a task uses.

use super::{Direction, Dispatch, End, Level, Listener, Monitor, StreamUse, Wait};
use crate::current;
use crate::stream::Core;
use crate::task::{Header, Status};
use std::cell::{Cell, RefCell, RefMut, UnsafeCell};
use std::{iter, slice};

/// Monitoring state of one worker.
pub(crate) struct Watch {
    level: Level,
    listener: RefCell<Box<dyn Listener>>,
    clock: quanta::Clock,
    begin: u64,
    /// Time of the last reading of the clock.
    last_ns: Cell<u64>,
    uses: UseTable,
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
            uses: UseTable::default(),
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

    /// Adds an entry for a stream end that the running task uses for the first time in this
    /// dispatch. The end updates the entry until the dispatch is over.
    #[inline]
    pub(crate) fn add_use(
        &self,
        core: &Core,
        direction: Direction,
        opened: bool,
        items: u64,
    ) -> *mut StreamUse {
        self.uses.push(StreamUse { stream: core.id, items, direction, opened, ..UNUSED })
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
        // Ends must not update entries of this dispatch any more, should the listener use a stream.
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
        // SAFETY: ends write only to entries of the dispatch whose stamp is the current one.
        unsafe { self.uses.take(report) };
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

/// Entries for the stream ends of one dispatch. Addresses of entries are stable, because ends keep
/// pointers to their entries.
#[derive(Default)]
struct UseTable {
    used: Cell<usize>,
    /// Few tasks use more ends in one dispatch than this row has entries.
    first: Row,
    more: RefCell<Vec<Row>>,
    /// All entries in one slice, where they fill more than one row.
    gathered: RefCell<Vec<StreamUse>>,
}

const ROW: usize = 32;

struct Row(Box<[UnsafeCell<StreamUse>; ROW]>);

/// Entry of an end that was not used.
pub(crate) const UNUSED: StreamUse = StreamUse {
    stream: 0,
    items: 0,
    direction: Direction::Read,
    opened: false,
    closed: false,
    blocked: false,
    woke: false,
    moved: false,
};

impl Default for Row {
    fn default() -> Row {
        Row(Box::new([const { UnsafeCell::new(UNUSED) }; ROW]))
    }
}

impl UseTable {
    #[inline(always)]
    fn push(&self, stream_use: StreamUse) -> *mut StreamUse {
        let at = self.used.replace(self.used.get() + 1);
        let entry = match self.first.0.get(at) {
            Some(entry) => entry.get(),
            None => self.entry_beyond_first_row(at - ROW),
        };
        // SAFETY: earlier pointers to this entry belong to earlier dispatches and are not used.
        unsafe { entry.write(stream_use) };
        entry
    }

    #[cold]
    fn entry_beyond_first_row(&self, at: usize) -> *mut StreamUse {
        let mut more = self.more.borrow_mut();
        if at / ROW == more.len() {
            more.push(Row::default());
        }
        more[at / ROW].0[at % ROW].get()
    }

    /// Passes all entries to `f` and clears the table.
    ///
    /// # Safety
    ///
    /// No end writes to its entry while `f` runs.
    #[inline(always)]
    unsafe fn take(&self, f: impl FnOnce(&[StreamUse])) {
        let used = self.used.replace(0);
        if used <= ROW {
            // SAFETY: `UnsafeCell` has the layout of its content, `used` entries are initialised,
            // and the caller excludes writes.
            f(unsafe { slice::from_raw_parts(self.first.0.as_ptr().cast(), used) });
        } else {
            f(&self.gather(used));
        }
    }

    #[cold]
    fn gather(&self, used: usize) -> RefMut<'_, Vec<StreamUse>> {
        let mut gathered = self.gathered.borrow_mut();
        gathered.clear();
        let more = self.more.borrow();
        let entries = iter::once(&self.first).chain(more.iter()).flat_map(|row| row.0.iter());
        // SAFETY: the caller of `take` excludes writes.
        gathered.extend(entries.take(used).map(|entry| unsafe { *entry.get() }));
        gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::tests::{of, records};
    use crate::{StreamSet, Task, spawn, stream};

    #[test]
    fn entries_keep_their_addresses_while_others_are_added() {
        let uses = UseTable::default();
        for used in [0, 1, ROW, ROW + 1, 3 * ROW, 2] {
            let push = |stream| uses.push(StreamUse { stream, ..UNUSED });
            let entries: Vec<*mut StreamUse> = (0..used as u64).map(push).collect();
            for entry in entries {
                // SAFETY: an entry of this round.
                unsafe { (*entry).items = (*entry).stream + 1 };
            }
            let check = |taken: &[StreamUse]| {
                assert_eq!(taken.len(), used);
                let is_right =
                    |(t, n): (&StreamUse, u64)| t.stream == n && t.items == n + 1 && !t.moved;
                assert!(taken.iter().zip(0..).all(is_right));
            };
            // SAFETY: the pointers to the entries are gone.
            unsafe { uses.take(check) };
        }
    }

    #[test]
    fn dispatch_reports_every_end_of_many() {
        const ENDS: usize = 3 * ROW + 1;
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
