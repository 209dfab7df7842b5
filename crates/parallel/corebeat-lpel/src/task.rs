//! Tasks: one block of memory with the header, the body, and later the result.
//!
//! ```text
//!   Header      identity, state, links              read by the worker, by wakers, and by dumps
//!   result      empty, or the result                written by the task, read by the joiner
//!   body        a closure or a future               dropped at the end of the task
//! ```
//!
//! Life of a task (Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream
//! Processing, 2011, 4.3.3):
//!
//! ```text
//!   created ---> ready <===> running ---> zombie ---> freed, when the last reference is dropped
//!                  ^            |
//!                  +- blocked <-+        or awaiting, for async tasks: blocked without a stack
//! ```

mod body;
mod join;
mod object;
mod reference;

pub(crate) use body::{Awaited, Body, Params, Plain, Unwind, create, discard_panic};
pub use join::JoinHandle;
pub(crate) use object::Object;
pub(crate) use reference::{References, TaskRef, Unended};

use crate::context::Carrier;
use crate::error::Failure;
use crate::inbox::Linked;
use crate::local::Locals;
use crate::scope::ScopeCore;
use crate::table::Place;
use crate::waiter::{self, CLOSED, DETACHED, EMPTY, Word};
use crate::worker::Worker;
use corebeat_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use corebeat_sync::fork::Process;
use object::ObjectWord;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// The task has not run yet.
    Created,
    /// The task can run.
    Ready,
    /// The task runs.
    Running,
    /// The task waits for an item on a stream.
    Reading,
    /// The task waits for room on a stream.
    Writing,
    /// The task waits for any stream of a set.
    Polling,
    /// The task waits for the end of another task.
    Joining,
    /// The task waits for a point in time.
    Sleeping,
    /// The task awaits a future.
    Awaiting,
    /// The task has ended.
    Zombie,
}

impl Status {
    pub(crate) fn from_u8(status: u8) -> Option<Status> {
        use Status::*;
        const ALL: [Status; 10] = [
            Created, Ready, Running, Reading, Writing, Polling, Joining, Sleeping, Awaiting, Zombie,
        ];
        ALL.get(usize::from(status)).copied()
    }

    /// Returns whether the task waits.
    pub fn is_blocked(self) -> bool {
        use Status::*;
        matches!(self, Reading | Writing | Polling | Joining | Sleeping | Awaiting)
    }
}

/// Reason why a task returned to its worker (Prokesch 2011, table 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The task waits, and keeps its stack.
    Blocked,
    /// The task can continue.
    Yielded,
    /// The task waits, and has released its stack.
    Awaits,
    Ended,
}

/// Entity that a header represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stackful,
    Async,
    /// A blocking task, or a thread that is no task.
    Thread,
}

/// Values of `Header::cancel`: not cancelled, and the reasons for a cancellation.
pub(crate) const CANCEL_NO: u8 = 0;
pub(crate) const CANCEL_ENDING: u8 = 1;
pub(crate) const CANCEL_DEADLOCK: u8 = 2;
pub(crate) const CANCEL_ABORTED: u8 = 3;
/// Value of `Header::cancel`: the time is over for which the task waits. The task continues.
const EXPIRED: u8 = 4;

/// States of `notified` of an async task.
const RUNS: u8 = 0;
const NOTIFIED: u8 = 1;
const AWAITS: u8 = 2;

/// The task control block (Prokesch 2011, 4.3.2).
#[repr(C)]
pub(crate) struct Header {
    // First cache line: read by wakers, and by the worker in every dispatch.
    link: AtomicPtr<Header>,
    /// The worker of the task; null before the start, and for threads.
    pub(crate) worker: AtomicPtr<Worker>,
    /// The stack of the task, while it has one. Only the worker uses this field and all other
    /// `Cell`s.
    pub(crate) carrier: Cell<*mut Carrier>,
    /// Stamp by which stream ends recognise the task: home of its worker, and number of the task.
    pub(crate) stamp: Cell<u64>,
    pub(crate) dispatches: Cell<u64>,
    pub(crate) status: AtomicU8,
    pub(crate) cancel: AtomicU8,
    notified: AtomicU8,
    pub(crate) kind: Kind,
    pub(crate) priority: u8,
    /// Whether the task is in the ready set of its worker.
    pub(crate) queued: Cell<bool>,
    /// Whether a wake-up has arrived: the token was taken.
    pub(crate) delivered: Cell<bool>,
    /// Whether any worker may start the task.
    pub(crate) stealable: Cell<bool>,
    vtable: &'static Vtable,
    /// Number of references: one that the runtime and the handle have in common, and one for each
    /// token and waker of an async task.
    refs: References,
    // Second cache line: used less often.
    /// Token of the joiner; `DETACHED` if the handle was dropped before the end of the task;
    /// `CLOSED` after the end.
    pub(crate) join: Word,
    /// The object that the task waits for, for dumps and prefetching.
    pub(crate) on: ObjectWord,
    pub(crate) id: u64,
    pub(crate) created_ns: Cell<u64>,
    pub(crate) stack_size: u32,
    /// Number of the runtime, which finds it if it still exists.
    pub(crate) runtime: u32,
    /// The process that runs the task.
    pub(crate) process: Process,
    /// Whether the monitor records the task at all levels.
    pub(crate) marked: bool,
    /// Whether a thread that is no worker of the runtime spawned the task.
    pub(crate) is_from_outside: bool,
    /// Request to grow the stream that the task waits to write to. Set by the owner of its token.
    pub(crate) grow: Cell<bool>,
    /// Whether the task waits with a time limit, for the search for deadlocks.
    pub(crate) timed: AtomicBool,
    /// Stack pointer at the last suspension: a hint for prefetching.
    pub(crate) frame: Cell<*const u8>,
    /// Entry of the task in the table of its worker.
    pub(crate) place: Cell<*const Place>,
    /// The scope that the task belongs to, until its end.
    scope: Cell<Option<Arc<ScopeCore>>>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) locals: Locals,
    /// Description of the current code that may crash, see [`doing`](crate::doing).
    pub(crate) doing: Cell<*const &'static str>,
    /// Whether the task has spawned another one for any worker.
    pub(crate) has_spawned: Cell<bool>,
    /// Whether the task has cancelled its own scope: its result is complete nevertheless.
    pub(crate) has_cancelled: Cell<bool>,
}

// Programs have hundreds of thousands of tasks.
#[cfg(all(not(loom), target_pointer_width = "64"))]
const _: () = assert!(size_of::<Header>() <= 176);

// SAFETY: only the worker of the task uses its `Cell`s, or its creator before the start. The other
// fields are atomic or constant.
unsafe impl Sync for Header {}
// SAFETY: as above; a started task stays on its worker.
unsafe impl Send for Header {}

// SAFETY: `link` always returns the same link. A task is in at most one inbox, because it is sent
// when it is created, or when its only token was taken.
unsafe impl Linked for Header {
    #[inline(always)]
    fn link(&self) -> &AtomicPtr<Header> {
        &self.link
    }
}

/// Functions that depend on the types of body and result.
pub(crate) struct Vtable {
    /// Runs or polls the task, inside a carrier.
    run: unsafe fn(*const Header) -> Outcome,
    /// Ends the task without running it.
    fail: unsafe fn(*const Header, Failure),
    /// Drops the result of the task.
    forget: unsafe fn(*const Header),
    free: unsafe fn(*mut Header),
}

/// Returns the functions for a header that represents a thread.
pub(crate) const fn thread_vtable(free: unsafe fn(*mut Header)) -> Vtable {
    Vtable { run: |_| Outcome::Ended, fail: |_, _| (), forget: |_| (), free }
}

impl Header {
    #[inline(always)]
    pub(crate) fn new(
        id: u64,
        name: Option<Arc<str>>,
        scope: Option<Arc<ScopeCore>>,
        process: Process,
        kind: Kind,
        vtable: &'static Vtable,
    ) -> Header {
        Header {
            link: AtomicPtr::new(ptr::null_mut()),
            worker: AtomicPtr::new(ptr::null_mut()),
            carrier: Cell::new(ptr::null_mut()),
            stamp: Cell::new(0),
            dispatches: Cell::new(0),
            status: AtomicU8::new(Status::Created as u8),
            cancel: AtomicU8::new(CANCEL_NO),
            notified: AtomicU8::new(RUNS),
            kind,
            priority: Priority::default().0,
            queued: Cell::new(false),
            delivered: Cell::new(false),
            stealable: Cell::new(false),
            vtable,
            refs: References::one(),
            join: AtomicPtr::new(EMPTY),
            on: ObjectWord::new(),
            id,
            created_ns: Cell::new(0),
            stack_size: 0,
            runtime: 0,
            process,
            marked: false,
            is_from_outside: false,
            grow: Cell::new(false),
            timed: AtomicBool::new(false),
            frame: Cell::new(ptr::null()),
            place: Cell::new(ptr::null()),
            scope: Cell::new(scope),
            name,
            locals: Locals::default(),
            doing: Cell::new(ptr::null()),
            has_spawned: Cell::new(false),
            has_cancelled: Cell::new(false),
        }
    }

    /// Returns the scope of a task that has not ended.
    #[inline(always)]
    pub(crate) fn scope(&self) -> Option<&Arc<ScopeCore>> {
        // SAFETY: only the end of the task changes the scope.
        unsafe { &*self.scope.as_ptr() }.as_ref()
    }

    #[inline(always)]
    pub(crate) fn set_status(&self, status: Status) {
        // Relaxed: only dumps and monitors read the status from other threads.
        self.status.store(status as u8, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> Status {
        let status = Status::from_u8(self.status.load(Ordering::Relaxed));
        status.expect("only `set_status` writes the status")
    }

    /// Returns whether the task must end early.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        // Acquire: pairs with the release of the cancellation, so a deadlock is visible.
        !matches!(self.cancel.load(Ordering::Acquire), CANCEL_NO | EXPIRED)
    }

    /// Returns whether the task must not wait: it must end early, or its time is over.
    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        // Acquire: as above.
        self.cancel.load(Ordering::Acquire) != CANCEL_NO
    }

    /// Returns whether the result of the task may be incomplete, because streams of its scope ended
    /// early. Only for the task itself.
    #[inline(always)]
    pub(crate) fn lost_its_scope(&self) -> bool {
        let is_cancelled = self.scope().is_some_and(|scope| scope.is_cancelled());
        is_cancelled && !self.has_cancelled.get()
    }

    /// Returns whether the end of the task, or of its scope, was requested.
    pub(crate) fn must_abort(&self) -> bool {
        self.is_cancelled() || self.scope().is_some_and(|scope| scope.is_cancelled())
    }

    /// Requests the end of the task. Its worker does the rest, see `cancel`.
    pub(crate) fn abort(&self) {
        let mut reason = self.cancel.load(Ordering::Relaxed);
        while matches!(reason, CANCEL_NO | EXPIRED) {
            // AcqRel: as other reasons.
            match self.cancel.compare_exchange(
                reason,
                CANCEL_ABORTED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(newer) => reason = newer,
            }
        }
    }

    /// Interrupts a task whose time is over. A cancellation has priority.
    pub(crate) fn expire(&self) {
        // Relaxed: only the thread of the task uses this value.
        let _ =
            self.cancel.compare_exchange(CANCEL_NO, EXPIRED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends the interruption of [`Header::expire`].
    pub(crate) fn end_expiry(&self) {
        // Relaxed: as above.
        let _ =
            self.cancel.compare_exchange(EXPIRED, CANCEL_NO, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns whether the task has ended, so that its result can be read.
    #[inline]
    fn has_ended(&self) -> bool {
        // Acquire: pairs with the release in `publish_end`, so the result is visible.
        self.join.load(Ordering::Acquire) == CLOSED
    }

    /// Begins an await of an async task. Returns false if the task was notified while it ran.
    pub(crate) fn begin_await(&self) -> bool {
        // AcqRel: later notifiers observe the effects of the poll; if a notifier was earlier, the
        // next poll observes its effects.
        self.notified.compare_exchange(RUNS, AWAITS, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends an await of an async task, which is about to be polled.
    pub(crate) fn end_await(&self) {
        // AcqRel: effects before a notification are visible to the poll.
        self.notified.swap(RUNS, Ordering::AcqRel);
    }

    /// Returns the number of references that can wake an async task: tokens that the task has left,
    /// and wakers.
    pub(crate) fn wakers(&self) -> usize {
        // The task has not ended, so one reference is that of the runtime and the handle.
        self.refs.count().saturating_sub(1)
    }

    /// Clears what an async task awaits. One of its tokens was taken, so the awaited object may be
    /// freed from now on.
    pub(crate) fn forget_await(&self) {
        self.on.store(Object::NONE);
    }

    /// Notifies an async task of an event that it may await. Returns true if the caller must
    /// deliver the task to its worker.
    pub(crate) fn take_await(&self) -> bool {
        // AcqRel: see `begin_await` and `end_await`.
        self.notified.swap(NOTIFIED, Ordering::AcqRel) == AWAITS
    }
}

/// Runs the task until it ends or awaits. Only carriers call this function.
///
/// # Safety
///
/// The worker of the caller owns the task and has just dispatched it.
pub(crate) unsafe fn run(task: *const Header) -> Outcome {
    // SAFETY: by the contract of this function; the vtable belongs to the task.
    unsafe { ((*task).vtable.run)(task) }
}

/// Sets the result of a task that does not run.
///
/// # Safety
///
/// The caller owns the task, which does not run and will not run.
pub(crate) unsafe fn fail(task: *const Header, why: Failure) {
    // SAFETY: by the contract of this function.
    unsafe { ((*task).vtable.fail)(task, why) };
}

/// Ends a new task that no worker owns yet.
pub(crate) fn end_unstarted(task: Unended) {
    // SAFETY: no worker owns the task, so no worker starts it.
    unsafe { fail(task.as_ptr(), Failure::Cancelled) };
    // SAFETY: the task has failed.
    unsafe { publish_end(task) };
}

/// Publishes the end of a task, and wakes its joiner. If there is no handle, drops the result and
/// the reference that the handle has left; otherwise the handle drops both. So the result does not
/// outlive the scope, although wakers may keep the memory of the task.
///
/// # Safety
///
/// `run` has returned `Outcome::Ended`, or `fail` was called: the result has the place of the body.
#[inline(always)]
pub(crate) unsafe fn publish_end(task: Unended) {
    let header = task.header();
    header.set_status(Status::Zombie);
    let scope = header.scope.take();
    // From here on, the handle may free the task. AcqRel: releases the result to the joiner;
    // acquires what the owner of the token did before.
    let joiner = header.join.swap(CLOSED, Ordering::AcqRel);
    if joiner == DETACHED {
        // SAFETY: the vtable belongs to the task, which has ended. There is no handle, so the
        // reference is not in use.
        unsafe {
            (header.vtable.forget)(task.as_ptr());
            drop(TaskRef::from_raw(task.into_raw()));
        }
    } else if waiter::is_token(joiner) {
        // SAFETY: the swap took the token.
        unsafe { waiter::wake(joiner) };
    }
    if let Some(scope) = scope {
        scope.end_task();
    }
}

/// Urgency of a task. [`Prioritised`](crate::scheduler::Prioritised) runs the ready task with the
/// smallest number first.
///
/// The thesis has two levels: for tasks that compute little and keep others waiting, and for tasks
/// that compute for long (Prokesch 2011, 6.2.2). A task whose priority is set is not stolen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u8);

impl Priority {
    /// Priority of tasks that compute little and keep others waiting.
    pub const HIGH: Priority = Priority(64);
    /// Default priority.
    pub const NORMAL: Priority = Priority(128);
    /// Priority of tasks that compute for long.
    pub const LOW: Priority = Priority(192);
}

impl Default for Priority {
    fn default() -> Self {
        Priority::NORMAL
    }
}
