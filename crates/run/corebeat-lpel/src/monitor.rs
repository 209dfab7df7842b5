//! What tasks and workers did, as records for whoever listens.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.3.4, 4.4.4 and
//! 5.4.3. After each dispatch of a task the worker hands a [`Dispatch`] to its own [`Listener`], and a [`Wait`] when it has
//! slept. Nothing is shared between workers, and nothing is formatted here: [`TextLog`](crate::TextLog) does that.

use crate::stream::Core;
use crate::task::{Header, Status};
use std::cell::{Cell, RefCell};

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
    /// For the worker of this number. It is used, and dropped, by that worker's thread.
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
    /// Items that went through this end, ever.
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

/// A worker's part in monitoring.
pub(crate) struct Watch {
    pub(crate) level: Level,
    listener: RefCell<Box<dyn Listener>>,
    clock: quanta::Clock,
    begin: u64,
    /// When the worker last looked at the clock: a dispatch begins where the one before has ended.
    last_ns: Cell<u64>,
    touches: Touches,
    waits: Cell<u64>,
    wait_ns: Cell<u64>,
}

/// Ends used in this dispatch, at addresses that stay: the ends point to their entries and change them. Few tasks use more
/// ends at once than a row has entries.
struct Touches {
    used: Cell<usize>,
    first: Row,
    /// Rows are used again in later dispatches.
    more: RefCell<Vec<Row>>,
    /// For the listener: a copy, which no end points to.
    copy: Vec<Touched>,
}

const ROW: usize = 32;

type Row = Box<[Cell<Touched>; ROW]>;

fn row() -> Row {
    const UNUSED: Touched = Touched {
        stream: 0,
        direction: Direction::Read,
        opened: false,
        closed: false,
        blocked: false,
        woke: false,
        moved: false,
        items: 0,
    };
    Box::new([const { Cell::new(UNUSED) }; ROW])
}

impl Touches {
    #[inline]
    fn push(&self, touched: Touched) -> *mut Touched {
        let at = self.used.replace(self.used.get() + 1);
        match self.first.get(at) {
            Some(entry) => {
                entry.set(touched);
                entry.as_ptr()
            }
            None => self.push_further(at - ROW, touched),
        }
    }

    #[cold]
    fn push_further(&self, at: usize, touched: Touched) -> *mut Touched {
        let mut more = self.more.borrow_mut();
        if at / ROW == more.len() {
            more.push(row());
        }
        let entry = &more[at / ROW][at % ROW];
        entry.set(touched);
        entry.as_ptr()
    }
}

impl Watch {
    pub(crate) fn new(monitor: &dyn Monitor, worker: usize, clock: quanta::Clock, begin: u64) -> Watch {
        Watch {
            level: monitor.level(),
            listener: RefCell::new(monitor.listener(worker)),
            clock,
            begin,
            last_ns: Cell::new(0),
            touched: RefCell::default(),
            waits: Cell::new(0),
            wait_ns: Cell::new(0),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.begin, self.clock.raw())
    }

    /// A task is about to run, and the worker did something else in between.
    pub(crate) fn restart(&self) {
        self.last_ns.set(self.now_ns());
    }

    /// Whether streams of this task are recorded.
    pub(crate) fn watches_streams(&self, marked: bool) -> bool {
        self.level >= Level::All || self.level == Level::MarkedStreams && marked
    }

    fn watches(&self, marked: bool) -> bool {
        self.level >= Level::All || marked
    }

    pub(crate) fn touch(&self, core: &Core, direction: Direction, opened: bool, items: u64) -> *mut Touched {
        self.touched.borrow_mut().push(Touched {
            stream: core.id,
            direction,
            opened,
            closed: false,
            blocked: false,
            woke: false,
            moved: false,
            items,
        })
    }

    pub(crate) fn dispatched(&self, task: &crate::task::Header, status: Status) {
        let end_ns = self.now_ns();
        let execution_ns = end_ns - self.last_ns.replace(end_ns);
        let mut touched = self.touched.borrow_mut();
        if self.watches(task.marked) {
            self.listener.borrow_mut().dispatched(&Dispatch {
                end_ns,
                execution_ns,
                task: task.id,
                name: task.name.as_deref(),
                number: task.dispatches.get(),
                status,
                created_ns: (status == Status::Zombie).then(|| task.created_ns.get()),
                streams: touched.gather(),
            });
        }
        touched.used = 0;
    }

    pub(crate) fn waited(&self, worker: usize, begin_ns: u64) {
        let end_ns = self.now_ns();
        let wait_ns = end_ns - begin_ns;
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
