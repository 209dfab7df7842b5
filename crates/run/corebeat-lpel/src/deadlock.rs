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
//! out, again and again, who waits for somebody that is not in the set.

use crate::dump::{TaskDump, WaitsFor};
use crate::limbo::Look;
use crate::monitor::Direction;
use crate::runtime::{Inner, lock};
use crate::stream::Core;
use crate::task::{Header, Status};
use crate::waiter;
use corebeat_sync::atomic::Ordering;
use std::collections::HashMap;
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
        write!(f, "deadlock, {} tasks wait for each other", self.0.len())?;
        for (n, task) in self.0.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{} {task}", if n == 0 { ":" } else { ";" })?;
        }
        if self.0.len() > SHOWN_MAX { write!(f, "; ...") } else { Ok(()) }
    }
}

/// Stuck tasks. What they point to stays while this lives.
pub(crate) struct Stuck {
    tasks: Vec<(*const Header, TaskDump)>,
    _look: Look,
}

/// Who could wake a task.
enum Wakers {
    /// All of these are tasks; 0 for one that is not known.
    Tasks(Vec<u64>),
    /// Somebody outside.
    Outside,
}

/// Finds who is stuck.
///
/// An end that no task has used is somewhere: in a task that will use it, or outside. In a `closed` world nobody outside
/// has ends that were never used, and so whoever waits for such a one waits for a task that is not running; else nothing is
/// said about it.
pub(crate) fn search(inner: &Inner, closed: bool) -> Stuck {
    let look = Look::new();
    let mut tasks: Vec<(*const Header, TaskDump)> = Vec::new();
    let started = inner.workers.iter().flat_map(|w| w.table.tasks().map(|task| (task, Some(w.index))));
    // SAFETY: found while looking.
    tasks.extend(started.map(|(task, worker)| (task, unsafe { TaskDump::of(task, worker) })));
    for wrapper in lock(&inner.wrappers).iter() {
        // SAFETY: the list has a reference; it is only followed while the task is in a table, or for its cancel mark below.
        tasks.push((wrapper.as_ptr(), unsafe { TaskDump::of(wrapper.as_ptr(), None) }));
    }
    tasks.retain(|(task, dump)| {
        // SAFETY: found while looking.
        let opaque = unsafe { (**task).opaque.load(Ordering::Relaxed) };
        dump.status.is_blocked() && dump.status != Status::Sleeping && !opaque && dump.waits_for.is_some()
    });
    tasks.sort_by_key(|(_, dump)| dump.id);
    loop {
        let numbers: HashMap<u64, ()> = tasks.iter().map(|(_, dump)| (dump.id, ())).collect();
        let before = tasks.len();
        tasks.retain(|(task, dump)| match wakers(*task, dump) {
            Wakers::Outside => false,
            Wakers::Tasks(ids) => ids.iter().all(|id| match id {
                0 => closed,
                id => numbers.contains_key(id) || closed && !lives(inner, *id),
            }),
        });
        if tasks.len() == before {
            return Stuck { tasks, _look: look };
        }
    }
}

/// Whether a task has started and not ended. Its last end may be elsewhere when it has.
fn lives(inner: &Inner, id: u64) -> bool {
    // SAFETY: the caller looks.
    let in_tables = inner.workers.iter().any(|w| w.table.tasks().any(|task| unsafe { (*task).id } == id));
    in_tables || lock(&inner.wrappers).iter().any(|w| w.header().id == id)
}

fn wakers(task: *const Header, dump: &TaskDump) -> Wakers {
    // SAFETY: found while looking.
    let header = unsafe { &*task };
    match &dump.waits_for {
        None => Wakers::Outside,
        Some(WaitsFor::Task(id)) => Wakers::Tasks(vec![*id]),
        Some(WaitsFor::Stream(stream)) => {
            // SAFETY: found while looking.
            let core = unsafe { header.on.load(Ordering::Acquire).as_ref() };
            match core {
                Some(core) if used_outside(core, stream.direction) => Wakers::Outside,
                Some(_) => Wakers::Tasks(vec![stream.other.unwrap_or(0)]),
                // It goes on just now.
                None => Wakers::Outside,
            }
        }
        Some(WaitsFor::Any(streams)) => {
            // SAFETY: found while looking.
            let Some(set) = (unsafe { header.on_set.load(Ordering::Acquire).as_ref() }) else {
                return Wakers::Outside;
            };
            if lock(&set.members).iter().any(|(_, s)| used_outside(s.core(), Direction::Read)) {
                return Wakers::Outside;
            }
            Wakers::Tasks(streams.iter().map(|s| s.other.unwrap_or(0)).collect())
        }
    }
}

/// Whether the other end was last used by a thread that is no task.
fn used_outside(core: &Core, direction: Direction) -> bool {
    let other = match direction {
        Direction::Read => &core.writer,
        Direction::Write => &core.reader,
    };
    other.home.load(Ordering::Relaxed) != 0 && other.task.load(Ordering::Relaxed) == 0
}

impl Stuck {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Has the writer of the smallest full stream that may grow go on with more room. False if there is none.
    pub(crate) fn grow(&self) -> bool {
        let mut candidates: Vec<(usize, *const Header, &Core)> = Vec::new();
        for (task, dump) in &self.tasks {
            if dump.status != Status::Writing {
                continue;
            }
            // SAFETY: found while looking.
            if let Some(core) = unsafe { (**task).on.load(Ordering::Acquire).as_ref() } {
                if core.growing {
                    candidates.push((core.capacity.load(Ordering::Relaxed), *task, core));
                }
            }
        }
        candidates.sort_by_key(|(capacity, ..)| *capacity);
        candidates.into_iter().any(|(_, task, core)| {
            let token = task.cast_mut();
            let word = &core.writer.word;
            // AcqRel: see `waiter`.
            let taken = word.compare_exchange(token, waiter::NOBODY, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                // SAFETY: it was blocked there, and we have its token, so it lives and does not run.
                unsafe {
                    (*task).grow.set(true);
                    waiter::wake(token);
                }
            }
            taken.is_ok()
        })
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
