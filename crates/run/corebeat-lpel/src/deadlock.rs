//! Tasks that wait for each other: artificial deadlocks are resolved, true ones are told.
//!
//! Bounded streams can stop a network that would run on with larger ones: then growing the smallest full stream that is
//! part of the circle lets it go on, and needs the least memory (Parks, Bounded scheduling of process networks, 1995;
//! Basten, Hoogerbrugge, Efficient execution of process networks, 2001). Nornir looks for circles whenever a task blocks,
//! in one graph behind one lock (Vrba and others, as told by Prokesch, A Light-Weight Parallel Execution Layer for
//! Shared-Memory Stream Processing, 2011, 3.1.1). Here nobody keeps a graph. It is read off the tasks themselves, when
//! nothing moves any more; or, while a task waits for room on a stream that may grow, by workers that are idle.
//!
//! A task is *stuck* if all that could wake it are stuck: the largest set for which this holds. It is found by taking
//! out who waits for somebody that is not stuck, and then whoever waits for those.

use crate::current;
use crate::dump::{OtherEnd, StreamDump, TaskDump, WaitsFor};
use crate::limbo::Look;
use crate::monitor::Direction;
use crate::runtime::{Inner, lock};
use crate::stream::Core;
use crate::task::{Header, Status};
use corebeat_sync::atomic::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Tasks that waited for each other, for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock(Arc<[TaskDump]>);

impl Deadlock {
    /// Who waited, and for what.
    pub fn tasks(&self) -> &[TaskDump] {
        &self.0
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A network may have very many.
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
        let unused = |task: &TaskDump| match &task.waits_for {
            Some(WaitsFor::Stream(stream)) => stream.other == OtherEnd::Unused,
            Some(WaitsFor::Any(streams)) => streams.iter().any(|s| s.other == OtherEnd::Unused),
            _ => false,
        };
        if self.0.iter().any(unused) {
            write!(f, "; if a thread holds an end not used yet, make it a Task::wrapper")?;
        }
        Ok(())
    }
}

/// Stuck tasks. What they point to stays while this lives.
pub(crate) struct Stuck {
    tasks: Vec<(*const Header, TaskDump)>,
    _look: Look,
}

/// Finds who is stuck, and whether these are all tasks that there are.
///
/// An end that no task has used is somewhere: in a task that will use it, or outside. In a `closed` world nobody outside
/// has ends that were never used, and so whoever waits for such a one is stuck if all tasks are; else nothing is said
/// about it.
pub(crate) fn search(inner: &Inner, closed: bool) -> (Stuck, bool) {
    let look = Look::new();
    let mut world = World { closed, living: HashSet::new(), homes: HashSet::new() };
    let mut tasks: Vec<(*const Header, TaskDump)> = Vec::new();
    let mut take = |task: *const Header, worker| {
        // SAFETY: found while looking; the list of wrappers has references.
        let dump = unsafe { TaskDump::of(task, worker) };
        world.living.insert(dump.id);
        if dump.waits_for.is_some() {
            tasks.push((task, dump));
        }
    };
    for worker in &inner.workers {
        worker.table.tasks().for_each(|task| take(task, Some(worker.index)));
    }
    let wrappers = lock(&inner.wrappers);
    wrappers.iter().for_each(|wrapper| take(wrapper.as_ptr(), None));
    world.homes.extend(inner.workers.iter().map(|w| w.home()));
    world.homes.extend(wrappers.iter().map(|w| current::home_of(w.header().stamp.get())));
    drop(wrappers);
    tasks.sort_by_key(|(_, dump)| dump.id);
    let mut stuck = world.stuck(&tasks);
    let all = stuck.iter().filter(|stuck| **stuck).count() as u64 == inner.living();
    if closed && !all {
        // Somebody is not stuck, and may have the ends that no task has used.
        world.closed = false;
        stuck = world.stuck(&tasks);
    }
    let mut stuck = stuck.into_iter();
    tasks.retain(|_| stuck.next() == Some(true));
    (Stuck { tasks, _look: look }, all)
}

/// What decides who may wake whom.
struct World {
    closed: bool,
    /// Tasks that have started and not ended.
    living: HashSet<u64>,
    /// Where they run.
    homes: HashSet<u64>,
}

impl World {
    /// For each task, whether it is stuck.
    fn stuck(&self, tasks: &[(*const Header, TaskDump)]) -> Vec<bool> {
        let place: HashMap<u64, usize> = tasks.iter().enumerate().map(|(n, (_, t))| (t.id, n)).collect();
        let mut waits_for_it: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
        let mut stuck = vec![true; tasks.len()];
        let mut free = Vec::new();
        for (n, (task, dump)) in tasks.iter().enumerate() {
            let waits = self.wakers(*task, dump).is_some_and(|wakers| {
                wakers.iter().all(|waker| match waker {
                    // Somebody who has the end and has not used it.
                    None => self.closed,
                    Some(id) => match place.get(id) {
                        Some(&waker) => {
                            waits_for_it[waker].push(n);
                            true
                        }
                        // It has ended, so somebody else has the end; or it lives and does not wait.
                        None => self.closed && !self.living.contains(id),
                    },
                })
            });
            if !waits {
                stuck[n] = false;
                free.push(n);
            }
        }
        while let Some(n) = free.pop() {
            for &waiting in &waits_for_it[n] {
                if std::mem::replace(&mut stuck[waiting], false) {
                    free.push(waiting);
                }
            }
        }
        stuck
    }

    /// Who can wake a task, one of these; `None` if that is somebody outside.
    fn wakers(&self, task: *const Header, dump: &TaskDump) -> Option<Vec<Option<u64>>> {
        let user = |stream: &StreamDump| match stream.other {
            OtherEnd::Task(id) => Some(id),
            OtherEnd::Unused | OtherEnd::Outside => None,
        };
        // SAFETY: found while looking.
        let header = unsafe { &*task };
        match dump.waits_for.as_ref()? {
            // Who has ended would have woken it.
            WaitsFor::Task(id) => self.living.contains(id).then(|| vec![Some(*id)]),
            WaitsFor::Stream(stream) => {
                // SAFETY: found while looking. If it is gone, the task goes on just now.
                let core = unsafe { header.on.load(Ordering::Acquire).as_ref() }?;
                self.is_inside(core, stream.direction).then(|| vec![user(stream)])
            }
            WaitsFor::Any(streams) => {
                // SAFETY: as above.
                let set = unsafe { header.on_set.load(Ordering::Acquire).as_ref() }?;
                let members = lock(&set.members);
                let inside = members.iter().all(|(_, s)| self.is_inside(s.core(), Direction::Read));
                inside.then(|| streams.iter().map(user).collect())
            }
        }
    }

    /// Whether the other end was not last used by a thread that is no task, or a task of another runtime.
    fn is_inside(&self, core: &Core, direction: Direction) -> bool {
        let other = match direction {
            Direction::Read => &core.writer,
            Direction::Write => &core.reader,
        };
        let home = other.home.load(Ordering::Relaxed);
        home == 0 || self.homes.contains(&home) && other.task.load(Ordering::Relaxed) != 0
    }
}

impl Stuck {
    /// Has the writer of the smallest full stream that may grow go on with more room. False if there is none.
    pub(crate) fn grow(&self) -> bool {
        let mut candidates: Vec<(usize, *const Header, &Core)> = Vec::new();
        for (task, dump) in &self.tasks {
            if dump.status != Status::Writing {
                continue;
            }
            // SAFETY: found while looking.
            if let Some(core) = unsafe { (**task).on.load(Ordering::Acquire).as_ref() }
                && core.growing
            {
                candidates.push((core.capacity.load(Ordering::Relaxed), *task, core));
            }
        }
        candidates.sort_by_key(|(capacity, ..)| *capacity);
        candidates.into_iter().any(|(_, task, core)| core.let_grow(task.cast_mut()))
    }

    /// Whether nobody is stuck.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether any of them was told to end.
    pub(crate) fn is_told(&self) -> bool {
        // SAFETY: found while looking.
        self.tasks.iter().any(|(task, _)| unsafe { (**task).is_cancelled() })
    }

    pub(crate) fn verdict(&self) -> Deadlock {
        Deadlock(self.tasks.iter().map(|(_, dump)| dump.clone()).collect())
    }

    /// Marks all to end early.
    pub(crate) fn cancel(&self, why: u8) {
        for (task, _) in &self.tasks {
            // SAFETY: found while looking. Release: the verdict comes before.
            unsafe { (**task).cancel.store(why, Ordering::Release) };
        }
    }
}
