//! Snapshot of what each task does or waits for.

use crate::monitor::Direction;
use crate::retired::Inspection;
use crate::runtime::Inner;
use crate::set::SetCore;
use crate::stream::Core;
use crate::task::{Header, Status};
use corebeat_sync::atomic::Ordering;
use corebeat_sync::lock;
use std::fmt;
use std::sync::Arc;

/// Snapshot of the tasks of a runtime, from [`Runtime::dump`](crate::Runtime::dump). The states of
/// different tasks may be from different moments during the dump.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dump {
    /// Tasks that have started and not ended, sorted by number.
    pub tasks: Vec<TaskDump>,
    /// Number of tasks that have not started.
    pub unstarted: u64,
}

/// Snapshot of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskDump {
    /// Number of the task.
    pub id: u64,
    /// Name of the task, if it has one.
    pub name: Option<Arc<str>>,
    /// Worker of the task; `None` for a blocking task.
    pub worker: Option<usize>,
    /// State of the task.
    pub status: Status,
    /// Object that the task waits for, if it is known.
    pub waits_for: Option<WaitsFor>,
}

/// Object that a task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsFor {
    /// An item, or room, on a stream.
    Stream(StreamDump),
    /// An item on any of these streams.
    Any(Vec<StreamDump>),
    /// The end of the task with this number.
    Task(u64),
}

/// Snapshot of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamDump {
    /// Number of the stream.
    pub id: u64,
    /// End that the waiting task uses.
    pub direction: Direction,
    /// Capacity in items.
    pub capacity: usize,
    /// Last user of the other end.
    pub other: OtherEnd,
    /// Event that the stream signals, from [`Reader::signals`](crate::Reader::signals).
    pub signals: Option<&'static str>,
}

/// Last user of the other end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherEnd {
    /// The end is unused.
    Unused,
    /// The task with this number.
    Task(u64),
    /// A thread that is no task.
    Outside,
}

impl StreamDump {
    pub(crate) fn of(core: &Core, direction: Direction) -> StreamDump {
        let other = match direction {
            Direction::Read => &core.writer,
            Direction::Write => &core.reader,
        };
        // Relaxed: the two values are independent.
        let other = match (other.task.load(Ordering::Relaxed), other.home()) {
            (0, 0) => OtherEnd::Unused,
            (0, _) => OtherEnd::Outside,
            (task, _) => OtherEnd::Task(task),
        };
        StreamDump {
            id: core.id,
            direction,
            capacity: core.capacity.load(Ordering::Relaxed),
            other,
            signals: core.signals.get(),
        }
    }
}

impl TaskDump {
    /// # Safety
    ///
    /// The caller found the task during its [`Inspection`].
    pub(crate) unsafe fn of(task: *const Header, worker: Option<usize>) -> TaskDump {
        // SAFETY: memory that is found during an inspection is not freed.
        let header = unsafe { &*task };
        let status = header.status();
        let object = header.on.load();
        // SAFETY: streams and sets that are found during an inspection are not freed either.
        let (on, set) = unsafe { (object.stream(), object.set()) };
        let read = |core: &Core| StreamDump::of(core, Direction::Read);
        let any = |set: &SetCore| {
            let members = lock(&set.members);
            WaitsFor::Any(members.iter().map(|(_, stream)| read(stream.core())).collect())
        };
        let waits_for = match status {
            Status::Reading => on.map(|core| WaitsFor::Stream(read(core))),
            Status::Writing => {
                on.map(|core| WaitsFor::Stream(StreamDump::of(core, Direction::Write)))
            }
            Status::Polling => set.map(any),
            Status::Joining => object.task().map(WaitsFor::Task),
            // If there are wakers beside the noted one, any of them may wake the task.
            Status::Awaiting if header.wakers() == 1 => match (on, set) {
                (Some(core), _) => Some(WaitsFor::Stream(read(core))),
                (_, Some(set)) => Some(any(set)),
                _ => object.task().map(WaitsFor::Task),
            },
            _ => None,
        };
        TaskDump { id: header.id, name: header.name.clone(), worker, status, waits_for }
    }
}

impl Dump {
    pub(crate) fn of(inner: &Inner) -> Dump {
        let _inspection = Inspection::new();
        let started =
            inner.workers.iter().flat_map(|w| w.table.tasks().map(|task| (task, Some(w.index))));
        // SAFETY: found during the inspection.
        let mut tasks: Vec<_> =
            started.map(|(task, worker)| unsafe { TaskDump::of(task, worker) }).collect();
        for task in lock(&inner.blocking.tasks).iter() {
            // SAFETY: the list owns a reference.
            tasks.push(unsafe { TaskDump::of(task.as_ptr(), None) });
        }
        tasks.sort_by_key(|t| t.id);
        let unstarted = inner.living().saturating_sub(tasks.len() as u64);
        Dump { tasks, unstarted }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks.len();
        let plural = if tasks == 1 { "" } else { "s" };
        writeln!(f, "{tasks} task{plural}, and {} not started", self.unstarted)?;
        for task in &self.tasks {
            writeln!(f, "  {task}")?;
        }
        Ok(())
    }
}

impl fmt::Display for TaskDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.id)?;
        if let Some(name) = &self.name {
            write!(f, " '{}'", name.escape_debug())?;
        }
        match self.worker {
            Some(worker) => write!(f, " on worker {worker} ")?,
            None => write!(f, " on a thread of its own ")?,
        }
        match self.status {
            Status::Created => write!(f, "has not started"),
            Status::Ready => write!(f, "is ready"),
            Status::Running => write!(f, "runs"),
            Status::Zombie => write!(f, "has ended"),
            Status::Sleeping => write!(f, "sleeps"),
            _ => match &self.waits_for {
                Some(waits_for) => write!(f, "{waits_for}"),
                None => write!(f, "waits for something outside"),
            },
        }
    }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A set may have very many streams.
        const SHOWN_MAX: usize = 8;
        match self {
            WaitsFor::Stream(stream) => write!(f, "{stream}"),
            WaitsFor::Task(id) => write!(f, "waits for the end of task {id}"),
            WaitsFor::Any(streams) => {
                write!(f, "waits for any of {} streams", streams.len())?;
                for (n, stream) in streams.iter().take(SHOWN_MAX).enumerate() {
                    write!(f, "{} {}", if n == 0 { ":" } else { "," }, stream.id)?;
                    if let OtherEnd::Task(other) = stream.other {
                        write!(f, " (task {other})")?;
                    }
                }
                if streams.len() > SHOWN_MAX { write!(f, ", ...") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for StreamDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(event), Direction::Read) = (self.signals, self.direction) {
            return write!(f, "waits for {event}");
        }
        let (what, does, done) = match self.direction {
            Direction::Read => ("an item on", "writes", "written to"),
            Direction::Write => ("room on", "reads", "read from"),
        };
        write!(f, "waits for {what} stream {} (capacity {}), ", self.id, self.capacity)?;
        match self.other {
            OtherEnd::Task(other) => write!(f, "which task {other} {does}"),
            OtherEnd::Outside => write!(f, "which a thread outside {does}"),
            OtherEnd::Unused => write!(f, "which no task has {done} yet"),
        }
    }
}
