//! State of the calling thread: its worker and task, or only the thread.

mod block;
mod thread;

pub(crate) use block::{
    TimeLimit, begin_block, block, block_on_set, block_on_task, blocking_token, cancellation,
    end_block, end_block_if_woken, may_block, nanos, note_await, sleep_task, sleep_thread,
    suspend_blocked, unblocked, yield_task,
};
pub(crate) use thread::{become_blocking_task, wake_thread};

use crate::monitor::Watch;
use crate::runtime::Inner;
use crate::scope::ScopeCore;
use crate::stream::Side;
use crate::task::Header;
use crate::worker::Worker;
use corebeat_sync::atomic::Ordering;
use corebeat_sync::thread_local;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// Position of the home in a stamp.
const HOME_SHIFT: u32 = 40;

/// State of a thread. All fields are plain cells, so that one instruction reads a field.
pub(crate) struct Current {
    pub(crate) worker: Cell<*const Worker>,
    /// The running task; null between tasks, and on threads that are no workers.
    pub(crate) task: Cell<*const Header>,
    /// Changes whenever another task runs on the thread.
    pub(crate) stamp: Cell<u64>,
}

thread_local! {
    static CURRENT: Current = const {
        Current {
            worker: Cell::new(ptr::null()),
            task: Cell::new(ptr::null()),
            stamp: Cell::new(0),
        }
    };
}

/// Saved state of a thread that runs a worker. Dropping it restores the state.
pub(crate) struct Saved {
    worker: *const Worker,
    task: *const Header,
    stamp: u64,
}

impl Saved {
    pub(crate) fn of(current: &Current) -> Saved {
        Saved { worker: current.worker.get(), task: current.task.get(), stamp: current.stamp.get() }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        with(|c| {
            c.worker.set(self.worker);
            c.task.set(self.task);
            c.stamp.set(self.stamp);
        });
    }
}

#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&Current) -> R) -> R {
    CURRENT.with(f)
}

// ---- homes and stamps

/// Home of all threads that are neither workers nor blocking tasks. 0 is the home of no thread.
pub(crate) const OUTSIDE: u64 = 1;

/// Released homes.
static FREE_HOMES: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Returns an unused home. A home identifies a place of execution: a worker, or all blocking tasks
/// of a runtime. Tasks with equal homes of a worker never run at the same time.
pub(crate) fn new_home() -> u64 {
    static HOMES: AtomicU64 = AtomicU64::new(OUTSIDE + 1);
    if let Some(home) = FREE_HOMES.lock().unwrap_or_else(|e| e.into_inner()).pop() {
        return home;
    }
    // Relaxed: homes only have to be unique.
    let home = HOMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    assert!(home < 1 << (64 - HOME_SHIFT), "more than 16 million workers exist at a time");
    home
}

/// Releases a home for reuse. An end that was last used at this home stores its new home before it
/// is used elsewhere, as always.
pub(crate) fn release_home(home: u64) {
    FREE_HOMES.lock().unwrap_or_else(|e| e.into_inner()).push(home);
}

/// Returns a stamp for a thread that is neither a worker nor a blocking task.
fn new_stamp_outside() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    // Relaxed: stamps only have to be unique.
    stamp(OUTSIDE, NUMBERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// Returns the stamp of the task with this number at `home`. The first 2^40 tasks of a process, and
/// the first 2^40 threads outside, have different stamps: numbers are not reused, and `OUTSIDE` is
/// the home of no task.
pub(crate) fn stamp(home: u64, number: u64) -> u64 {
    home << HOME_SHIFT | number & ((1 << HOME_SHIFT) - 1)
}

/// Returns the home of a stamp.
pub(crate) fn home_of(stamp: u64) -> u64 {
    stamp >> HOME_SHIFT
}

/// Returns the stamp of the calling task or thread; 0 for a thread that has not used a stream.
#[inline(always)]
pub(crate) fn current_stamp() -> u64 {
    with(|c| c.stamp.get())
}

/// Returns the stamp of the calling task or thread. Creates the stamp of a thread at its first use
/// of a stream.
#[inline(always)]
pub(crate) fn make_stamp() -> u64 {
    with(|c| {
        if c.stamp.get() == 0 {
            c.stamp.set(new_stamp_outside());
        }
        c.stamp.get()
    })
}

// ---- the caller

/// Returns the worker of the calling thread, if there is one.
#[inline]
pub(crate) fn worker() -> Option<&'static Worker> {
    let worker = with(|c| c.worker.get());
    // SAFETY: the thread of the worker sets the pointer while it runs the worker. No code that runs
    // there keeps the reference for longer.
    unsafe { worker.as_ref() }
}

/// Returns the header that represents the caller when it waits: that of the running task, or of the
/// thread. Null for a thread whose thread-local data has been dropped.
#[inline]
pub(crate) fn waiter() -> *const Header {
    let task = with(|c| c.task.get());
    if task.is_null() { thread::this_thread() } else { task }
}

/// Returns the monitor of the caller's worker, if it records the stream use of the running task.
#[inline(always)]
pub(crate) fn watch_of_streams() -> Option<&'static Watch> {
    // SAFETY: the running task is alive.
    let task = unsafe { with(|c| c.task.get()).as_ref() }?;
    worker()?.stream_watch(task.marked)
}

/// Returns the number of the calling task; 0 for a thread that is no task.
#[inline(always)]
pub(crate) fn task_id() -> u64 {
    // SAFETY: the running task or thread is alive.
    unsafe { waiter().as_ref() }.map_or(0, |waiter| waiter.id)
}

/// Returns the runtime of the calling task.
pub(crate) fn runtime() -> Option<Arc<Inner>> {
    match worker() {
        Some(worker) => Some(worker.inner().to_arc()),
        None => thread::runtime_of_blocking_task(),
    }
}

/// Returns the scope of the calling task.
#[inline(always)]
pub(crate) fn scope() -> Option<&'static Arc<ScopeCore>> {
    // SAFETY: the running task or thread is alive, and in its scope. No code that runs there keeps
    // the reference for longer.
    unsafe { waiter().as_ref() }?.scope()
}

/// Calls [`Inner::count_growable`] of the caller's runtime, if there is one.
pub(crate) fn count_growable(begins: bool) {
    match worker() {
        Some(worker) => worker.inner().count_growable(begins),
        None => runtime().into_iter().for_each(|inner| inner.count_growable(begins)),
    }
}

/// Returns whether the caller is a task on a worker.
pub(crate) fn is_task() -> bool {
    with(|c| !c.task.get().is_null())
}

/// Returns whether the caller is a task, or a blocking task.
pub(crate) fn is_any_task() -> bool {
    is_task() || runtime().is_some()
}

/// Location of the last user of the other side of a stream, relative to the caller.
pub(crate) enum Peer {
    /// On the caller's worker, so the other side does not run at this moment.
    Same,
    /// On another worker or thread, or unused. The caller is on a worker.
    Other(&'static Worker),
    /// The caller is on no worker.
    Outside,
}

#[inline(always)]
pub(crate) fn peer(side: &Side) -> Peer {
    match worker() {
        Some(_) if side.home() == home_of(current_stamp()) => Peer::Same,
        Some(worker) => Peer::Other(worker),
        None => Peer::Outside,
    }
}

/// Returns the caller's worker and its home, if there is one.
#[inline(always)]
pub(crate) fn worker_and_home() -> Option<(&'static Worker, u64)> {
    worker().map(|worker| (worker, home_of(current_stamp())))
}

/// Makes a task or thread ready whose token was taken.
///
/// # Safety
///
/// The caller took the token, or ended the await of the task.
#[inline]
pub(crate) unsafe fn deliver(task: *const Header) {
    // SAFETY: the task is not woken yet, so it is alive. Relaxed: written before the task left its
    // first token.
    let worker = unsafe { &*task }.worker.load(Ordering::Relaxed).cast_const();
    match self::worker() {
        Some(current) if ptr::eq(current, worker) => current.wake_task(task),
        // SAFETY: by the contract of this function.
        _ => unsafe { deliver_elsewhere(task, worker) },
    }
}

/// # Safety
///
/// As for [`deliver`]. The task belongs to `worker`; null for a thread.
#[inline(never)]
unsafe fn deliver_elsewhere(task: *const Header, worker: *const Worker) {
    if worker.is_null() {
        // SAFETY: a header without a worker that waits represents a thread.
        unsafe { thread::deliver(task) };
    } else {
        // SAFETY: a worker lives as long as its tasks, and this task is not woken yet.
        unsafe { &*worker }.send(task);
    }
}
