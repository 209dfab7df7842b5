//! Search for tasks that wait for each other.
//!
//! Bounded streams can block a network that would continue with larger streams: an artificial
//! deadlock. LPEL then grows the smallest full stream of the cycle, because this needs the least
//! memory (Parks, Bounded scheduling of process networks, 1995; Basten, Hoogerbrugge, Efficient
//! execution of process networks, 2001). True deadlocks are reported. Nornir searches for cycles
//! whenever a task blocks, in one graph behind one lock (Vrba and others, cited by Prokesch, A
//! Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 3.1.1). LPEL
//! maintains no graph. The search reads the state of the tasks: when no task makes progress any
//! more, or, while a task waits for room on a growing stream, periodically on an idle worker.
//!
//! A task is *stuck* if all tasks that could wake it are stuck. The set of stuck tasks is the
//! largest set with this property. The search starts with all waiting tasks, and removes tasks that
//! wait for a task outside the set, until the set does not change any more.

use crate::current;
use crate::dump::{OtherEnd, StreamDump, TaskDump, WaitsFor};
use crate::monitor::Direction;
use crate::retired::Inspection;
use crate::runtime::Inner;
use crate::stream::Core;
use crate::task::{Header, Status};
use corebeat_sync::atomic::Ordering;
use corebeat_sync::lock;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Tasks that waited for each other for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock(Arc<[TaskDump]>);

impl Deadlock {
    /// Returns the tasks, and what each of them waited for.
    pub fn tasks(&self) -> &[TaskDump] {
        &self.0
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A network may have very many tasks.
        const SHOWN_MAX: usize = 16;
        match self.0.len() {
            1 => write!(f, "deadlock, 1 task waits for ever")?,
            tasks => write!(f, "deadlock, {tasks} tasks wait for each other")?,
        }
        for (n, task) in self.0.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{} {task}", if n == 0 { ":" } else { ";" })?;
        }
        if self.0.len() > SHOWN_MAX {
            write!(f, "; ...")?;
        }
        let is_unused = |s: &StreamDump| s.other == OtherEnd::Unused && s.signals.is_none();
        let has_unused = |task: &TaskDump| match &task.waits_for {
            Some(WaitsFor::Stream(stream)) => is_unused(stream),
            Some(WaitsFor::Any(streams)) => streams.iter().any(is_unused),
            _ => false,
        };
        if self.0.iter().any(has_unused) {
            write!(f, "; if a thread holds an unused end, declare that with `outside`")?;
        }
        Ok(())
    }
}

/// The set of stuck tasks. All memory that the tasks refer to is kept while the set lives.
pub(crate) struct Stuck {
    tasks: Vec<(*const Header, TaskDump)>,
    _inspection: Inspection,
}

/// Finds the stuck tasks. Returns also whether they are all living tasks.
///
/// The owner of an unused end is unknown: a task that will use the end, or a thread outside. If
/// `is_closed`, no thread outside owns unused ends. Then a task that waits for an unused end is
/// stuck if all tasks are. Otherwise, such a task is not considered stuck.
pub(crate) fn search(inner: &Inner, is_closed: bool) -> (Stuck, bool) {
    let inspection = Inspection::new();
    let mut world = World { is_closed, living: HashSet::new(), homes: HashSet::new() };
    let mut tasks: Vec<(*const Header, TaskDump)> = Vec::new();
    let mut take = |task: *const Header, worker| {
        // SAFETY: found during the inspection; the list of blocking tasks has references.
        let dump = unsafe { TaskDump::of(task, worker) };
        world.living.insert(dump.id);
        if dump.waits_for.is_some() {
            tasks.push((task, dump));
        }
    };
    for worker in &inner.workers {
        worker.table.tasks().for_each(|task| take(task, Some(worker.index)));
    }
    let blocking = lock(&inner.blocking.tasks);
    blocking.iter().for_each(|task| take(task.as_ptr(), None));
    world.homes.extend(inner.workers.iter().map(|w| w.home()));
    world.homes.extend(blocking.iter().map(|t| current::home_of(t.header().stamp.get())));
    drop(blocking);
    tasks.sort_by_key(|(_, dump)| dump.id);
    let mut stuck = world.stuck(&tasks);
    let is_everything = stuck.iter().filter(|stuck| **stuck).count() as u64 == inner.living();
    if is_closed && !is_everything {
        // A task that is not stuck may own the unused ends.
        world.is_closed = false;
        stuck = world.stuck(&tasks);
    }
    let mut stuck = stuck.into_iter();
    tasks.retain(|_| stuck.next() == Some(true));
    (Stuck { tasks, _inspection: inspection }, is_everything)
}

/// Facts that determine which tasks can wake others.
struct World {
    is_closed: bool,
    /// Tasks that have started and not ended.
    living: HashSet<u64>,
    /// Homes of these tasks.
    homes: HashSet<u64>,
}

impl World {
    /// Returns for each task whether it is stuck.
    fn stuck(&self, tasks: &[(*const Header, TaskDump)]) -> Vec<bool> {
        let index: HashMap<u64, usize> =
            tasks.iter().enumerate().map(|(n, (_, t))| (t.id, n)).collect();
        let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
        let mut stuck = vec![true; tasks.len()];
        let mut free = Vec::new();
        for (n, (task, dump)) in tasks.iter().enumerate() {
            let waits = self.wakers(*task, dump).is_some_and(|wakers| {
                wakers.iter().all(|waker| match waker {
                    // The owner of an unused end.
                    None => self.is_closed,
                    Some(id) => match index.get(id) {
                        Some(&waker) => {
                            waiters[waker].push(n);
                            true
                        }
                        // The last user has ended, so another task owns the end; or it does not
                        // wait.
                        None => self.is_closed && !self.living.contains(id),
                    },
                })
            });
            if !waits {
                stuck[n] = false;
                free.push(n);
            }
        }
        while let Some(n) = free.pop() {
            for &waiter in &waiters[n] {
                if std::mem::replace(&mut stuck[waiter], false) {
                    free.push(waiter);
                }
            }
        }
        stuck
    }

    /// Returns the tasks that can wake a task, of which one suffices; `None` if a thread outside
    /// or its time limit can wake it.
    fn wakers(&self, task: *const Header, dump: &TaskDump) -> Option<Vec<Option<u64>>> {
        let user = |stream: &StreamDump| match stream.other {
            OtherEnd::Task(id) => Some(id),
            OtherEnd::Unused | OtherEnd::Outside => None,
        };
        // SAFETY: found during the inspection.
        let header = unsafe { &*task };
        if header.timed.load(Ordering::Relaxed) {
            return None;
        }
        match dump.waits_for.as_ref()? {
            // A task that has ended would have woken this one.
            WaitsFor::Task(id) => self.living.contains(id).then(|| vec![Some(*id)]),
            WaitsFor::Stream(stream) => {
                // SAFETY: found during the inspection. Without a stream, the task continues at this
                // moment.
                let core = unsafe { header.on.load().stream() }?;
                let own = match stream.direction {
                    Direction::Read => &core.reader,
                    Direction::Write => &core.writer,
                };
                // A blocked task without its token has been woken. Its status changes only when it
                // continues.
                if dump.status != Status::Awaiting
                    && !std::ptr::eq(own.word.load(Ordering::Acquire), task)
                {
                    return None;
                }
                self.is_inside(core, stream.direction).then(|| vec![user(stream)])
            }
            WaitsFor::Any(streams) => {
                // SAFETY: as above.
                let set = unsafe { header.on.load().set() }?;
                let members = lock(&set.members);
                let inside = members.iter().all(|(_, s)| self.is_inside(s.core(), Direction::Read));
                inside.then(|| streams.iter().map(user).collect())
            }
        }
    }

    /// Returns whether the last user of the other end was a task of this runtime, or the end is
    /// unused.
    fn is_inside(&self, core: &Core, direction: Direction) -> bool {
        let other = match direction {
            Direction::Read => &core.writer,
            Direction::Write => &core.reader,
        };
        let home = other.home();
        home == 0 || self.homes.contains(&home) && other.task.load(Ordering::Relaxed) != 0
    }
}

impl Stuck {
    /// Wakes the writer of the smallest full growing stream to grow it. Returns false if there is
    /// no such stream.
    pub(crate) fn grow(&self) -> bool {
        let mut candidates: Vec<(usize, *const Header, &Core)> = Vec::new();
        for (task, dump) in &self.tasks {
            if dump.status != Status::Writing {
                continue;
            }
            // SAFETY: found during the inspection.
            if let Some(core) = unsafe { (**task).on.load().stream() }
                && core.growing
            {
                candidates.push((core.capacity.load(Ordering::Relaxed), *task, core));
            }
        }
        candidates.sort_by_key(|(capacity, ..)| *capacity);
        candidates.into_iter().any(|(_, task, core)| core.let_grow(task.cast_mut()))
    }

    /// Returns whether no task is stuck.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns whether any of the tasks is cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        // SAFETY: found during the inspection.
        self.tasks.iter().any(|(task, _)| unsafe { (**task).is_cancelled() })
    }

    pub(crate) fn deadlock(&self) -> Deadlock {
        Deadlock(self.tasks.iter().map(|(_, dump)| dump.clone()).collect())
    }

    /// Marks all tasks as cancelled.
    pub(crate) fn cancel(&self, reason: u8) {
        for (task, _) in &self.tasks {
            // SAFETY: found during the inspection. Release: after the deadlock was stored.
            unsafe { (**task).cancel.store(reason, Ordering::Release) };
        }
    }
}
