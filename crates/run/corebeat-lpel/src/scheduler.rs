//! Which of a worker's ready tasks runs next: the thesis' PUT-READY and FETCH-READY as a trait.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.2.3 and 6.2.2.

use crate::task::{Header, Priority};
use crate::worker::Ruin;
use std::cell::{RefCell, UnsafeCell};
use std::collections::{BTreeMap, VecDeque};
use std::{fmt, ptr};

/// A ready task, in the hands of a scheduler.
pub struct Ready(pub(crate) *const Header);

// SAFETY: a ready task belongs to its scheduler's worker, and both move between threads only before the worker starts.
unsafe impl Send for Ready {}

impl Ready {
    fn header(&self) -> &Header {
        // SAFETY: a ready task lives until it is dispatched, and it is not before the scheduler hands it out.
        unsafe { &*self.0 }
    }

    /// The task's number.
    pub fn id(&self) -> u64 {
        self.header().id
    }

    /// The task's name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.header().name.as_deref()
    }

    /// How urgent it is.
    pub fn priority(&self) -> Priority {
        Priority(self.header().priority)
    }

    /// How often it was dispatched.
    pub fn dispatches(&self) -> u64 {
        self.header().dispatches.get()
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ready({})", self.id())
    }
}

/// A worker's ready set, touched by that worker alone.
///
/// It gives back what was put into it: tasks of one worker do not go to another. It must not spawn, wake, block, or ask for
/// a dump. If it panics, or hands out a task of another worker, the program ends.
pub trait Scheduler: Send {
    /// A task became ready.
    fn put(&mut self, task: Ready);
    /// The task that runs next; `None` only if there is none. What was put must be fetched some day.
    fn fetch(&mut self) -> Option<Ready>;
    /// How many tasks are in it.
    fn len(&self) -> usize;
    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A worker's ready set: the usual one without a detour, or another.
pub(crate) enum Order {
    Fifo(UnsafeCell<Fifo>),
    Other(RefCell<Box<dyn Scheduler>>),
}

impl Order {
    #[inline]
    pub(crate) fn put(&self, task: Ready) {
        match self {
            // SAFETY: only the worker's thread comes here, and `Fifo` calls nobody.
            Order::Fifo(fifo) => unsafe { (*fifo.get()).put(task) },
            Order::Other(other) => guarded(|| other.borrow_mut().put(task)),
        }
    }

    #[inline]
    pub(crate) fn fetch(&self) -> Option<Ready> {
        match self {
            // SAFETY: as in `put`.
            Order::Fifo(fifo) => unsafe { (*fifo.get()).fetch() },
            Order::Other(other) => guarded(|| other.borrow_mut().fetch()),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            // SAFETY: as in `put`.
            Order::Fifo(fifo) => unsafe { (*fifo.get()).is_empty() },
            Order::Other(other) => other.borrow().is_empty(),
        }
    }
}

/// Ends the program if a scheduler panics: the task in its hands would be lost, and nothing would say so.
fn guarded<R>(f: impl FnOnce() -> R) -> R {
    let ruin = Ruin;
    let result = f();
    std::mem::forget(ruin);
    result
}

/// First in, first out: what workers use if nothing is said.
#[derive(Debug, Default)]
pub struct Fifo(VecDeque<Ready>);

impl Scheduler for Fifo {
    #[inline]
    fn put(&mut self, task: Ready) {
        self.0.push_back(task);
    }

    #[inline]
    fn fetch(&mut self) -> Option<Ready> {
        let task = self.0.pop_front()?;
        if self.0.len() > FEW {
            prefetch(self.0[2].0.cast(), 2 * LINE);
            prefetch_task(self.0[0].header());
        }
        Some(task)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// So few tasks stay in the cache without help.
const FEW: usize = 16;
/// Bytes of a line of the cache.
const LINE: usize = 64;
/// What is fetched of a suspended task's stack: from where it stands, this many bytes up.
const FRAMES: usize = 512;
/// ... and of an async task's block, where its future is.
const BLOCK: usize = 384;

/// Asks for memory, so that it is in the cache when it is used: with thousands of tasks in turn, nothing of the next one
/// is. Not more than a hint.
#[inline(always)]
fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for offset in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: any address may be asked for.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (start, bytes, LINE);
}

/// What a task will touch when it runs, except its header, which is read here.
#[inline(always)]
fn prefetch_task(task: &Header) {
    let frame = task.frame.get();
    if frame.is_null() {
        prefetch(ptr::from_ref(task).cast(), BLOCK);
    } else {
        prefetch(frame.wrapping_sub(LINE), FRAMES);
        prefetch(task.carrier.get().cast(), LINE);
        prefetch(task.last_on.get().cast(), 2 * LINE);
    }
}

/// Last in, first out: what was touched last is still in the cache, but a task may wait for long.
#[derive(Debug, Default)]
pub struct Lifo(Vec<Ready>);

impl Scheduler for Lifo {
    fn put(&mut self, task: Ready) {
        self.0.push(task);
    }

    fn fetch(&mut self) -> Option<Ready> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// By [`Priority`], and first in, first out among equals. A stream of urgent tasks holds up all others.
#[derive(Debug, Default)]
pub struct Prioritised {
    levels: BTreeMap<Priority, VecDeque<Ready>>,
    len: usize,
}

impl Scheduler for Prioritised {
    fn put(&mut self, task: Ready) {
        self.len += 1;
        self.levels.entry(task.priority()).or_default().push_back(task);
    }

    fn fetch(&mut self) -> Option<Ready> {
        // Levels stay when they are empty: there are few, and they will be used again.
        let task = self.levels.values_mut().find_map(|level| level.pop_front())?;
        self.len -= 1;
        Some(task)
    }

    fn len(&self) -> usize {
        self.len
    }
}
