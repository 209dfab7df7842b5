//! What tasks and workers did, as records for whoever listens.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.3.4, 4.4.4 and
//! 5.4.3. After each dispatch of a task the worker hands a [`Dispatch`] to its own [`Listener`], and a [`Wait`] when it has
//! slept. Nothing is shared between workers, and nothing is formatted here: [`TextLog`] does that.

pub use crate::text::{LogError, TextLog, WhenFull, Written, costs};

use crate::current;
use crate::stream::Core;
use crate::task::{Header, Status};
use std::cell::{Cell, RefCell, RefMut, UnsafeCell};
use std::{iter, slice};

/// How much is recorded: the thesis' levels (5.4.3, a to d), each with all of the ones before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Execution times of marked tasks ([`Task::mark`](crate::Task::mark)): boxes, in S-Net.
    Marked,
    /// ... and what they did on streams.
    MarkedStreams,
    /// The same of all tasks.
    All,
    /// ... and how long workers waited.
    Workers,
}

/// Makes a listener for each worker.
pub trait Monitor: Send + Sync {
    /// How much is to be recorded.
    fn level(&self) -> Level;
    /// For the worker of this number, whose thread alone uses it.
    fn listener(&self, worker: usize) -> Box<dyn Listener>;
}

/// Hears of what one worker does. It runs between two tasks: what takes long here delays them.
pub trait Listener: Send {
    /// A task came back.
    fn dispatched(&mut self, dispatch: &Dispatch<'_>);
    /// The worker has slept.
    fn waited(&mut self, wait: &Wait);
    /// The worker ends.
    fn ended(&mut self, end: &End);
}

/// One dispatch of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Dispatch<'a> {
    /// When the task came back, in nanoseconds of the monitor's clock, which counts from the start of the runtime.
    pub end_ns: u64,
    /// How long it ran, in nanoseconds.
    pub execution_ns: u64,
    /// Its number.
    pub task: u64,
    /// Its name, if it has one.
    pub name: Option<&'a str>,
    /// This was its so-and-so-many-th dispatch, from 1.
    pub number: u64,
    /// How it came back: ready, blocked in one way or another, or as a zombie.
    pub status: Status,
    /// When it was spawned; told when it ends.
    pub created_ns: Option<u64>,
    /// The ends of streams that it used.
    pub streams: &'a [Touched],
}

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The reader.
    Read,
    /// The writer.
    Write,
}

/// What a task did with one end of a stream in one dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Touched {
    /// The stream's number.
    pub stream: u64,
    /// The end.
    pub direction: Direction,
    /// It was used by this task for the first time.
    pub opened: bool,
    /// It was dropped.
    pub closed: bool,
    /// The task is blocked on it (`?`).
    pub blocked: bool,
    /// The task woke the one at the other end (`!`).
    pub woke: bool,
    /// Items went through (`*`).
    pub moved: bool,
    /// Items that went through this end so far, while tasks used it that are watched.
    pub items: u64,
}

/// A worker's sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The worker's number.
    pub worker: usize,
    /// When it was over, as in [`Dispatch`].
    pub end_ns: u64,
    /// How long it was.
    pub wait_ns: u64,
    /// It was the worker's so-and-so-many-th, from 1.
    pub number: u64,
}

/// The end of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct End {
    /// The worker's number.
    pub worker: usize,
    /// When, as in [`Dispatch`].
    pub end_ns: u64,
    /// How often it slept.
    pub waits: u64,
    /// How long in all.
    pub wait_ns: u64,
}

/// For listeners: leaves the time up to now out of the next task's. A dispatch begins where the one before has ended, so
/// what a listener does counts, a few nanoseconds as a rule, unless it waits for something and says so here.
pub fn leave_out() {
    if let Some(worker) = current::worker().filter(|_| !current::is_task()) {
        worker.restart_watch();
    }
}

/// The processor's cycle counter where it can be used, and the system's clock elsewhere. Miri knows neither counters nor
/// what processors can do: there it stands still.
pub(crate) fn clock() -> quanta::Clock {
    if cfg!(miri) { quanta::Clock::mock().0 } else { quanta::Clock::new() }
}

/// A worker's part in monitoring.
pub(crate) struct Watch {
    level: Level,
    listener: RefCell<Box<dyn Listener>>,
    clock: quanta::Clock,
    begin: u64,
    /// When the worker last looked at the clock.
    last_ns: Cell<u64>,
    touches: Touches,
    waits: Cell<u64>,
    wait_ns: Cell<u64>,
}

impl Watch {
    pub(crate) fn new(monitor: &dyn Monitor, worker: usize, clock: quanta::Clock, begin: u64) -> Watch {
        Watch {
            level: monitor.level(),
            listener: RefCell::new(monitor.listener(worker)),
            clock,
            begin,
            last_ns: Cell::new(0),
            touches: Touches::default(),
            waits: Cell::new(0),
            wait_ns: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.begin, self.clock.raw())
    }

    /// A task is about to run, and the worker did something else in between.
    pub(crate) fn restart(&self) {
        self.last_ns.set(self.now_ns());
    }

    /// Whether streams of this task are recorded.
    #[inline]
    pub(crate) fn watches_streams(&self, marked: bool) -> bool {
        self.level >= Level::All || self.level == Level::MarkedStreams && marked
    }

    /// The running task uses an end, for the first time in this dispatch. What it does there is to be kept in the entry
    /// returned, until the dispatch is over.
    #[inline]
    pub(crate) fn touch(&self, core: &Core, direction: Direction, opened: bool, items: u64) -> *mut Touched {
        self.touches.push(Touched { stream: core.id, items, direction, opened, ..UNTOUCHED })
    }

    /// The task came back. One look at the clock serves as its end and as the next one's begin.
    #[inline]
    pub(crate) fn dispatched(&self, task: &Header, status: Status) {
        let end_ns = self.now_ns();
        let execution_ns = end_ns.saturating_sub(self.last_ns.replace(end_ns));
        if self.level < Level::All && !task.marked {
            return;
        }
        // The dispatch is over for ends as well, should the listener use one.
        current::with(|c| c.stamp.set(current::stamp(current::home_of(c.stamp.get()), 0)));
        let tell = |streams: &[Touched]| {
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
        // SAFETY: ends change only entries of the dispatch whose stamp is the current one.
        unsafe { self.touches.take(tell) };
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
        let end = End { worker, end_ns: self.now_ns(), waits: self.waits.get(), wait_ns: self.wait_ns.get() };
        self.listener.borrow_mut().ended(&end);
    }
}

/// Entries for the ends that are used in a dispatch, at addresses that stay: ends point to their entries.
#[derive(Default)]
struct Touches {
    used: Cell<usize>,
    /// Few tasks use more ends at once than this has entries.
    first: Row,
    more: RefCell<Vec<Row>>,
    /// All of them side by side, where they are more than one row.
    gathered: RefCell<Vec<Touched>>,
}

const ROW: usize = 32;

struct Row(Box<[UnsafeCell<Touched>; ROW]>);

/// What an end was not used for yet.
pub(crate) const UNTOUCHED: Touched = Touched {
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
        Row(Box::new([const { UnsafeCell::new(UNTOUCHED) }; ROW]))
    }
}

impl Touches {
    #[inline(always)]
    fn push(&self, touched: Touched) -> *mut Touched {
        let at = self.used.replace(self.used.get() + 1);
        let entry = match self.first.0.get(at) {
            Some(entry) => entry.get(),
            None => self.further(at - ROW),
        };
        // SAFETY: whoever had this entry had it in an earlier dispatch.
        unsafe { entry.write(touched) };
        entry
    }

    #[cold]
    fn further(&self, at: usize) -> *mut Touched {
        let mut more = self.more.borrow_mut();
        if at / ROW == more.len() {
            more.push(Row::default());
        }
        more[at / ROW].0[at % ROW].get()
    }

    /// Hands all entries to `f`, and begins anew.
    ///
    /// # Safety
    ///
    /// No end changes its entry while `f` runs.
    #[inline(always)]
    unsafe fn take(&self, f: impl FnOnce(&[Touched])) {
        let used = self.used.replace(0);
        if used <= ROW {
            // SAFETY: `UnsafeCell` adds nothing to what it holds, `used` of them are there, and nobody writes to them.
            f(unsafe { slice::from_raw_parts(self.first.0.as_ptr().cast(), used) });
        } else {
            f(&self.gather(used));
        }
    }

    #[cold]
    fn gather(&self, used: usize) -> RefMut<'_, Vec<Touched>> {
        let mut gathered = self.gathered.borrow_mut();
        gathered.clear();
        let more = self.more.borrow();
        let entries = iter::once(&self.first).chain(more.iter()).flat_map(|row| row.0.iter());
        // SAFETY: nobody writes to them, as the caller of `take` says.
        gathered.extend(entries.take(used).map(|entry| unsafe { *entry.get() }));
        gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Runtime, StreamSet, Task, spawn, stream};
    use std::sync::{Arc, Mutex};

    /// A dispatch, kept.
    #[derive(Debug, Clone)]
    struct Kept {
        name: Option<String>,
        number: u64,
        status: Status,
        created: bool,
        streams: Vec<Touched>,
    }

    /// Keeps all dispatches.
    #[derive(Clone)]
    struct Keep(Level, Arc<Mutex<Vec<Kept>>>);

    impl Monitor for Keep {
        fn level(&self) -> Level {
            self.0
        }

        fn listener(&self, _: usize) -> Box<dyn Listener> {
            Box::new(self.clone())
        }
    }

    impl Listener for Keep {
        fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
            self.1.lock().unwrap().push(Kept {
                name: dispatch.name.map(str::to_owned),
                number: dispatch.number,
                status: dispatch.status,
                created: dispatch.created_ns.is_some(),
                streams: dispatch.streams.to_vec(),
            });
        }

        fn waited(&mut self, _: &Wait) {}

        fn ended(&mut self, _: &End) {}
    }

    fn kept(level: Level, f: impl FnOnce() + Send + 'static) -> Vec<Kept> {
        let keep = Keep(level, Arc::default());
        let runtime = Runtime::builder().workers(1).deterministic(1).monitor(keep.clone()).build().unwrap();
        runtime.run(f).unwrap();
        drop(runtime);
        let kept = keep.1.lock().unwrap();
        kept.clone()
    }

    fn of<'a>(kept: &'a [Kept], name: &str) -> Vec<&'a Kept> {
        kept.iter().filter(|k| k.name.as_deref() == Some(name)).collect()
    }

    /// A marked task and one that is not, with a stream between them that blocks both.
    fn pair() {
        let (mut to, mut from) = stream(1);
        Task::new().name("writer").mark().spawn(move || (0..3).for_each(|n| to.write(n).unwrap())).unwrap();
        let reader = async move { while from.read_async().await.is_some() {} };
        Task::new().name("reader").spawn_async(reader).unwrap();
    }

    #[test]
    fn entries_stay_while_others_are_added() {
        let touches = Touches::default();
        for used in [0, 1, ROW, ROW + 1, 3 * ROW, 2] {
            let push = |stream| touches.push(Touched { stream, ..UNTOUCHED });
            let entries: Vec<*mut Touched> = (0..used as u64).map(push).collect();
            for entry in entries {
                // SAFETY: an entry of this round.
                unsafe { (*entry).items = (*entry).stream + 1 };
            }
            let check = |taken: &[Touched]| {
                assert_eq!(taken.len(), used);
                assert!(taken.iter().zip(0..).all(|(t, n)| t.stream == n && t.items == n + 1 && !t.moved));
            };
            // SAFETY: nobody has the entries any more.
            unsafe { touches.take(check) };
        }
    }

    #[test]
    fn dispatch_tells_each_end_once() {
        let kept = kept(Level::All, pair);
        let (writer, reader) = (of(&kept, "writer"), of(&kept, "reader"));
        for side in [&writer, &reader] {
            assert!(side.iter().zip(1..).all(|(k, number)| k.number == number));
            assert!(side.iter().all(|k| k.streams.len() <= 1), "{side:#?}");
            let opened = side.iter().flat_map(|k| &k.streams).filter(|t| t.opened).count();
            assert_eq!(opened, 1);
            let last = side.last().unwrap();
            assert!(last.status == Status::Zombie && last.created);
            let [end] = last.streams[..] else { panic!("{last:?}") };
            assert!(end.closed && end.items == 3 && end.stream == writer[0].streams[0].stream);
        }
        for blocked in kept.iter().filter(|k| matches!(k.status, Status::Reading | Status::Writing)) {
            assert!(blocked.streams[0].blocked, "{blocked:?}");
        }
        assert!(reader.len() > 2 && reader[0].status == Status::Awaiting, "{reader:#?}");
        assert!(reader.iter().all(|k| k.streams[0].blocked == (k.status == Status::Awaiting)));
        assert!(writer.iter().all(|k| k.streams.iter().all(|t| t.direction == Direction::Write)));
    }

    #[test]
    fn level_decides_what_is_told() {
        let marked = kept(Level::Marked, pair);
        assert!(!marked.is_empty() && marked.iter().all(|k| k.name.as_deref() == Some("writer")));
        assert!(marked.iter().all(|k| k.streams.is_empty()));
        let with_streams = kept(Level::MarkedStreams, pair);
        assert!(with_streams.iter().all(|k| k.name.as_deref() == Some("writer") && k.streams.len() == 1));
        assert!(!of(&kept(Level::All, pair), "reader").is_empty());
    }

    #[test]
    fn many_ends_in_one_dispatch_are_all_told() {
        const ENDS: usize = 3 * ROW + 1;
        let kept = kept(Level::All, || {
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
        let first = of(&kept, "writer")[0];
        let moved = first.streams.iter().filter(|t| t.moved && t.items == 1).count();
        assert_eq!(moved, ENDS, "{first:#?}");
        assert!(first.streams.is_sorted_by_key(|t| t.stream));
        let items: u64 = kept.iter().flat_map(|k| &k.streams).filter(|t| t.closed).map(|t| t.items).sum();
        assert_eq!(items, 2 * 2 * ENDS as u64);
    }
}
