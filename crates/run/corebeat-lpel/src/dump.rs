//! What every task does or waits for, at a moment.

use crate::limbo::Look;
use crate::monitor::Direction;
use crate::runtime::{Inner, lock};
use crate::set::SetCore;
use crate::stream::Core;
use crate::task::{Header, Status};
use corebeat_sync::atomic::Ordering;
use std::fmt;
use std::sync::Arc;

/// The tasks of a runtime, as [`Runtime::dump`](crate::Runtime::dump) saw them: each at some moment during the look.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dump {
    /// Those that have started and not ended, by number.
    pub tasks: Vec<TaskDump>,
    /// How many have not started.
    pub unstarted: u64,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskDump {
    /// Its number.
    pub id: u64,
    /// Its name, if it was given one.
    pub name: Option<Arc<str>>,
    /// Its worker; `None` for a wrapper.
    pub worker: Option<usize>,
    /// What it does.
    pub status: Status,
    /// What it waits for, where that is known.
    pub waits_for: Option<WaitsFor>,
}

/// What a task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsFor {
    /// An item, or room, on a stream.
    Stream(StreamDump),
    /// Any of these.
    Any(Vec<StreamDump>),
    /// The end of the task with this number.
    Task(u64),
}

/// One stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamDump {
    /// Its number.
    pub id: u64,
    /// What the waiting task does there.
    pub direction: Direction,
    /// How many items it has room for.
    pub capacity: usize,
    /// Who last used the other end.
    pub other: OtherEnd,
}

/// Who last used the other end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherEnd {
    /// Nobody yet.
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
        // Relaxed: each is a fact of its own.
        let other = match (other.task.load(Ordering::Relaxed), other.home.load(Ordering::Relaxed)) {
            (0, 0) => OtherEnd::Unused,
            (0, _) => OtherEnd::Outside,
            (task, _) => OtherEnd::Task(task),
        };
        StreamDump { id: core.id, direction, capacity: core.capacity.load(Ordering::Relaxed), other }
    }
}

impl TaskDump {
    /// # Safety
    ///
    /// The caller looks (`Look`), and found the task after it began to.
    pub(crate) unsafe fn of(task: *const Header, worker: Option<usize>) -> TaskDump {
        // SAFETY: what is found while looking is not freed.
        let header = unsafe { &*task };
        let status = header.status();
        // Acquire: pairs with the release where it was set.
        let (on, set) = (header.on.load(Ordering::Acquire), header.on_set.load(Ordering::Acquire));
        // SAFETY: streams and sets that are found while looking are not freed either.
        let (on, set) = unsafe { (on.as_ref(), set.as_ref()) };
        let read = |core: &Core| StreamDump::of(core, Direction::Read);
        let any = |set: &SetCore| {
            let members = lock(&set.members);
            WaitsFor::Any(members.iter().map(|(_, stream)| read(stream.core())).collect())
        };
        let waits_for = match status {
            Status::Reading => on.map(|core| WaitsFor::Stream(read(core))),
            Status::Writing => on.map(|core| WaitsFor::Stream(StreamDump::of(core, Direction::Write))),
            Status::Polling => set.map(any),
            Status::Joining => Some(WaitsFor::Task(header.on_task.load(Ordering::Relaxed))),
            // Where there are other wakers than that of what it noted, any of them may wake it.
            Status::Awaiting if header.wakers() == 1 => {
                match (on, set, header.on_task.load(Ordering::Relaxed)) {
                    (Some(core), ..) => Some(WaitsFor::Stream(read(core))),
                    (_, Some(set), _) => Some(any(set)),
                    (_, _, 0) => None,
                    (_, _, task) => Some(WaitsFor::Task(task)),
                }
            }
            _ => None,
        };
        TaskDump { id: header.id, name: header.name.clone(), worker, status, waits_for }
    }
}

impl Dump {
    pub(crate) fn of(inner: &Inner) -> Dump {
        let _look = Look::new();
        let started = inner.workers.iter().flat_map(|w| w.table.tasks().map(|task| (task, Some(w.index))));
        // SAFETY: found while looking.
        let mut tasks: Vec<_> = started.map(|(task, worker)| unsafe { TaskDump::of(task, worker) }).collect();
        for wrapper in lock(&inner.wrappers).iter() {
            // SAFETY: the list has a reference.
            tasks.push(unsafe { TaskDump::of(wrapper.as_ptr(), None) });
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
        /// A set may have very many.
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
        let (what, does, done) = match self.direction {
            Direction::Read => ("an item on", "writes", "written to"),
            Direction::Write => ("room on", "reads", "read from"),
        };
        write!(f, "waits for {what} stream {} (capacity {}), ", self.id, self.capacity)?;
        match self.other {
            OtherEnd::Task(other) => write!(f, "which task {other} {does}"),
            OtherEnd::Outside => write!(f, "which a thread outside {does}"),
            OtherEnd::Unused => write!(f, "which nobody has {done} yet"),
        }
    }
}
