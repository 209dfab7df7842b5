//! Order in which a worker runs its ready tasks: PUT-READY and FETCH-READY of the thesis as a
//! trait.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, 4.2.3 and 6.2.2.

use crate::task::{Header, Priority};
use crate::worker::AbortOnPanic;
use std::cell::{RefCell, UnsafeCell};
use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::{fmt, ptr};

/// A ready task that a scheduler owns.
pub struct Ready(pub(crate) *const Header);

// SAFETY: a ready task belongs to the worker of its scheduler. Both move between threads only
// before the worker starts.
unsafe impl Send for Ready {}

impl Ready {
    fn header(&self) -> &Header {
        // SAFETY: a ready task lives until it is dispatched, which follows its return by the
        // scheduler.
        unsafe { &*self.0 }
    }

    /// Returns the number of the task.
    pub fn id(&self) -> u64 {
        self.header().id
    }

    /// Returns the name of the task, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.header().name.as_deref()
    }

    /// Returns the urgency of the task.
    pub fn priority(&self) -> Priority {
        Priority(self.header().priority)
    }

    /// Returns the number of dispatches of the task so far.
    pub fn dispatches(&self) -> u64 {
        self.header().dispatches.get()
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ready({})", self.id())
    }
}

/// Ready set of a worker, which only that worker uses.
///
/// A scheduler returns exactly the tasks that were put into it: tasks never move to the scheduler
/// of another worker. It must not spawn, wake, block, or request a dump. If it panics, or returns a
/// task of another worker, the program aborts.
pub trait Scheduler: Send {
    /// Adds a task that became ready.
    fn put(&mut self, task: Ready);
    /// Removes and returns the task that runs next; `None` only if there is none. Each task must be
    /// returned eventually.
    fn fetch(&mut self) -> Option<Ready>;
    /// Returns the number of tasks in the set.
    fn len(&self) -> usize;
    /// Returns whether the set is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Ready set of a worker: the default one without dynamic dispatch, or another.
pub(crate) enum ReadySet {
    Fifo(UnsafeCell<Fifo>),
    Other(RefCell<Box<dyn Scheduler>>),
}

impl ReadySet {
    #[inline]
    pub(crate) fn put(&self, task: Ready) {
        match self {
            // SAFETY: only the thread of the worker gets here, and `Fifo` calls no other code.
            ReadySet::Fifo(fifo) => unsafe { (*fifo.get()).put(task) },
            ReadySet::Other(other) => guarded(|| other.borrow_mut().put(task)),
        }
    }

    #[inline]
    pub(crate) fn fetch(&self) -> Option<Ready> {
        match self {
            // SAFETY: as in `put`.
            ReadySet::Fifo(fifo) => unsafe { (*fifo.get()).fetch() },
            ReadySet::Other(other) => guarded(|| other.borrow_mut().fetch()),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            // SAFETY: as in `put`.
            ReadySet::Fifo(fifo) => unsafe { (*fifo.get()).is_empty() },
            ReadySet::Other(other) => other.borrow().is_empty(),
        }
    }

    /// Returns whether the set contains a task that any worker could have started; with another
    /// scheduler than the default one, whether it contains a task.
    pub(crate) fn has_stealable(&self) -> bool {
        match self {
            // SAFETY: as in `put`.
            ReadySet::Fifo(fifo) => unsafe {
                (*fifo.get()).iter().any(|task| task.stealable.get())
            },
            ReadySet::Other(other) => !other.borrow().is_empty(),
        }
    }
}

/// Aborts the program if a scheduler panics: the task that it owns would be lost without a report.
fn guarded<R>(f: impl FnOnce() -> R) -> R {
    let abort = AbortOnPanic;
    let result = f();
    std::mem::forget(abort);
    result
}

/// First in, first out. This is the default.
#[derive(Default)]
pub struct Fifo {
    /// A ring. Its length is a power of two. Each dispatch adds and removes a task, and a
    /// `VecDeque` takes twice as many instructions for both.
    slots: Vec<MaybeUninit<*const Header>>,
    /// Numbers of tasks that were added and removed. They wrap around.
    added: usize,
    removed: usize,
}

// SAFETY: as for `Ready`.
unsafe impl Send for Fifo {}

impl Fifo {
    /// Returns the slot of the task with this number.
    #[inline(always)]
    fn slot(&self, number: usize) -> usize {
        number & self.slots.len().wrapping_sub(1)
    }

    /// Returns the task behind `ahead` others, of which there is one.
    #[inline(always)]
    fn peek(&self, ahead: usize) -> &Header {
        // SAFETY: this slot is in use, and a ready task is alive.
        unsafe { &*self.slots[self.slot(self.removed.wrapping_add(ahead))].assume_init() }
    }

    /// Returns the tasks, the next one first.
    fn iter(&self) -> impl Iterator<Item = &Header> {
        (0..self.len()).map(|ahead| self.peek(ahead))
    }

    /// Adds a task to a full ring. The tail call of this function keeps `put` small.
    #[cold]
    #[inline(never)]
    fn enlarge_and_put(&mut self, task: Ready) {
        let tasks = self.slots.len();
        if tasks > 0 {
            let next = self.slot(self.removed);
            self.slots.rotate_left(next);
        }
        (self.added, self.removed) = (tasks, 0);
        // Unused pages take no memory.
        let more = tasks.max(FEW);
        self.slots.reserve_exact(more);
        // SAFETY: the memory was reserved above, and needs no value.
        unsafe { self.slots.set_len(tasks + more) };
        self.put(task);
    }
}

impl fmt::Debug for Fifo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|task| task.id)).finish()
    }
}

impl Scheduler for Fifo {
    #[inline]
    fn put(&mut self, task: Ready) {
        if self.len() == self.slots.len() {
            return self.enlarge_and_put(task);
        }
        let slot = self.slot(self.added);
        self.slots[slot] = MaybeUninit::new(task.0);
        self.added = self.added.wrapping_add(1);
    }

    #[inline]
    fn fetch(&mut self) -> Option<Ready> {
        if self.len() == 0 {
            return None;
        }
        // SAFETY: this slot is in use.
        let task = unsafe { self.slots[self.slot(self.removed)].assume_init() };
        self.removed = self.removed.wrapping_add(1);
        if self.len() > FEW {
            prefetch(ptr::from_ref(self.peek(2)).cast(), 2 * LINE);
            prefetch_task(self.peek(0));
        }
        Some(Ready(task))
    }

    #[inline]
    fn len(&self) -> usize {
        self.added.wrapping_sub(self.removed)
    }
}

/// Number of tasks that stay in the cache without prefetching.
const FEW: usize = 16;
// The ring of `Fifo` begins with this length.
const _: () = assert!(FEW.is_power_of_two());
/// Size of a cache line, in bytes.
const LINE: usize = 64;
/// Number of bytes to prefetch of the stack of a suspended task, upwards from its stack pointer.
const FRAMES: usize = 512;
/// Number of bytes to prefetch of the block of an async task, which contains its future.
const BLOCK: usize = 384;

/// Prefetches memory. With thousands of tasks in turn, no data of the next task is in the cache.
#[inline(always)]
fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for offset in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: any address may be prefetched.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (start, bytes, LINE);
}

/// Prefetches the memory that a task uses when it runs, except its header, which is read here.
#[inline(always)]
fn prefetch_task(task: &Header) {
    let frame = task.frame.get();
    if frame.is_null() {
        prefetch(ptr::from_ref(task).cast(), BLOCK);
    } else {
        prefetch(frame.wrapping_sub(LINE), FRAMES);
        prefetch(task.carrier.get().cast(), LINE);
        prefetch(task.on.load().address(), 2 * LINE);
    }
}

/// Last in, first out. The most recent task is still in the cache, but other tasks may wait for
/// long.
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

/// Ordered by [`Priority`], and first in, first out among equals. A continuous supply of urgent
/// tasks starves all others.
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
        // Empty levels are kept: there are few, and they are reused.
        let task = self.levels.values_mut().find_map(|level| level.pop_front())?;
        self.len -= 1;
        Some(task)
    }

    fn len(&self) -> usize {
        self.len
    }
}
