//! What a task is made of: one block of memory with its header, its body, and later its result.
//!
//! ```text
//!   Header      who it is, where it waits, its links      looked at by its worker, wakers, dumps
//!   result      nothing, or how it ended                  written by the task, read by who joins it
//!   body        a closure, or a future                    gone when it has ended
//! ```
//!
//! Life (Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.3.3):
//!
//! ```text
//!   created ---> ready <===> running ---> zombie ---> freed, when the last reference is dropped
//!                  ^            |
//!                  +- blocked <-+        or awaiting, for async tasks: the same without a stack
//! ```

use crate::block;
use crate::context::Carrier;
use crate::current::{self, Awaits};
use crate::error::{Failure, Panic};
use crate::inbox::Linked;
use crate::limbo;
use crate::local::Locals;
use crate::set::SetCore;
use crate::stream::Core;
use crate::table::Place;
use crate::waiter::{self, CLOSED, NOBODY, Word};
use crate::worker::Worker;
use corebeat_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::alloc::Layout;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// It has not run yet.
    Created,
    /// It could run.
    Ready,
    /// It runs.
    Running,
    /// It waits for an item on a stream.
    Reading,
    /// It waits for room on a stream.
    Writing,
    /// It waits for any stream of a set.
    Polling,
    /// It waits for the end of another task.
    Joining,
    /// It waits for a point in time.
    Sleeping,
    /// It waits for something that a future knows.
    Awaiting,
    /// It has ended.
    Zombie,
}

impl Status {
    pub(crate) fn from_u8(status: u8) -> Status {
        use Status::*;
        const ALL: [Status; 10] =
            [Created, Ready, Running, Reading, Writing, Polling, Joining, Sleeping, Awaiting, Zombie];
        ALL[usize::from(status)]
    }

    /// Whether it waits for something.
    pub fn is_blocked(self) -> bool {
        use Status::*;
        matches!(self, Reading | Writing | Polling | Joining | Sleeping | Awaiting)
    }
}

/// How a task came back to its worker (Prokesch 2011, table 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It waits, and keeps its stack.
    Blocked,
    /// It could go on.
    Yielded,
    /// It waits, and gave its stack back.
    Awaits,
    Ended,
}

/// Who a header stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stackful,
    Async,
    /// A thread that is no task, or a wrapper.
    Thread,
}

/// Why a task is to end early.
pub(crate) const CANCEL_NO: u8 = 0;
pub(crate) const CANCEL_ENDING: u8 = 1;
pub(crate) const CANCEL_DEADLOCK: u8 = 2;

/// States of an async task's `notified`.
const RUNS: u8 = 0;
const NOTIFIED: u8 = 1;
const AWAITS: u8 = 2;

/// The task control block (Prokesch 2011, 4.3.2).
#[repr(C)]
pub(crate) struct Header {
    // Read by wakers, and by its worker at every dispatch.
    link: AtomicPtr<Header>,
    /// The worker that it belongs to; null until it has started, and for threads.
    pub(crate) worker: AtomicPtr<Worker>,
    /// Its stack, while it has one. Touched by its worker alone, as all `Cell`s here.
    pub(crate) carrier: Cell<*mut Carrier>,
    /// What ends compare to know that they are used by the same task as before: its worker's home and its number.
    pub(crate) stamp: Cell<u64>,
    pub(crate) dispatches: Cell<u64>,
    pub(crate) status: AtomicU8,
    pub(crate) cancel: AtomicU8,
    notified: AtomicU8,
    pub(crate) kind: Kind,
    pub(crate) priority: u8,
    /// It stands in its worker's ready set.
    pub(crate) queued: Cell<bool>,
    /// Its token was taken, and this has arrived.
    pub(crate) delivered: Cell<bool>,
    /// It may be started by any worker.
    pub(crate) stealable: Cell<bool>,
    vtable: &'static Vtable,
    // Second line: less often.
    refs: AtomicUsize,
    /// Who waits for its end; `CLOSED` when that has come.
    pub(crate) join: Word,
    /// The stream that it waits on, for dumps.
    pub(crate) on: AtomicPtr<Core>,
    /// The task that it waits for, for dumps.
    pub(crate) on_task: AtomicU64,
    pub(crate) id: u64,
    pub(crate) stack_size: u32,
    /// Where its worker's table has it.
    pub(crate) place: Cell<*const Place>,
    pub(crate) created_ns: Cell<u64>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) locals: Locals,
    /// Where its stack stood when it was suspended, as a hint what it will touch first.
    pub(crate) frame: Cell<*const u8>,
    /// The stream that it last waited on, as another such hint.
    pub(crate) last_on: Cell<*const Core>,
    /// Told to grow the stream that it waits to write to; set by who holds its token.
    pub(crate) grow: Cell<bool>,
    /// Where the guard of its stack begins, while it has one.
    pub(crate) guard: Cell<usize>,
    /// What it does just now that may crash, while it does: see [`doing`](crate::doing).
    pub(crate) doing: Cell<*const &'static str>,
    /// For the monitor.
    pub(crate) marked: bool,
    /// There is a handle, which counts as one of the references.
    handled: AtomicBool,
    /// The set that it waits on, for dumps.
    pub(crate) on_set: AtomicPtr<SetCore>,
}

// SAFETY: `Cell`s are touched by the task's worker only (or by the one who starts it, before); all else is atomic or not changed.
unsafe impl Sync for Header {}
// SAFETY: see above; a started task stays on its worker.
unsafe impl Send for Header {}

// SAFETY: always the same link; a task is in one inbox at most, because it is sent when created or when its only token
// was taken.
unsafe impl Linked for Header {
    #[inline(always)]
    fn link(&self) -> &AtomicPtr<Header> {
        &self.link
    }
}

/// What depends on the types of body and result.
pub(crate) struct Vtable {
    /// Runs or polls it, inside a carrier.
    run: unsafe fn(*const Header) -> Outcome,
    /// Ends it without running.
    fail: unsafe fn(*const Header, Failure),
    free: unsafe fn(*mut Header),
}

/// For blocks that are no tasks.
pub(crate) const fn thread_vtable(free: unsafe fn(*mut Header)) -> Vtable {
    Vtable { run: |_| Outcome::Ended, fail: |_, _| (), free }
}

impl Header {
    #[inline(always)]
    pub(crate) fn new(id: u64, name: Option<Arc<str>>, kind: Kind, vtable: &'static Vtable) -> Header {
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
            refs: AtomicUsize::new(1),
            join: AtomicPtr::new(NOBODY),
            on: AtomicPtr::new(ptr::null_mut()),
            on_task: AtomicU64::new(0),
            id,
            stack_size: 0,
            place: Cell::new(ptr::null()),
            created_ns: Cell::new(0),
            name,
            locals: Locals::default(),
            frame: Cell::new(ptr::null()),
            last_on: Cell::new(ptr::null()),
            grow: Cell::new(false),
            guard: Cell::new(0),
            doing: Cell::new(ptr::null()),
            marked: false,
            handled: AtomicBool::new(false),
            on_set: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[inline(always)]
    pub(crate) fn set_status(&self, status: Status) {
        // Relaxed: for those who look from outside.
        self.status.store(status as u8, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> Status {
        Status::from_u8(self.status.load(Ordering::Relaxed))
    }

    /// Whether it is to end early.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        // Acquire: pairs with the release of who cancels, so the verdict is there.
        self.cancel.load(Ordering::Acquire) != CANCEL_NO
    }

    /// Async tasks: was it notified while it ran? If not, it awaits from now on.
    pub(crate) fn begin_await(&self) -> bool {
        // AcqRel: whoever notifies from now on sees what we did; if it did before, we see what it did.
        self.notified.compare_exchange(RUNS, AWAITS, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Async tasks: about to be polled.
    pub(crate) fn end_await(&self) {
        // AcqRel: what was done before a notification is visible to the poll.
        self.notified.swap(RUNS, Ordering::AcqRel);
    }

    /// How many could wake an async task that awaits: tokens that it has left, and wakers in the hands of others.
    pub(crate) fn wakers(&self) -> usize {
        // Acquire: the handle's mark, which is taken away before its reference, is read after.
        let references = self.refs.load(Ordering::Acquire);
        let others = 1 + usize::from(self.handled.load(Ordering::Relaxed));
        references.saturating_sub(others)
    }

    /// Async tasks: whom it could name as what it awaits may be gone from here on, for one of its tokens is.
    pub(crate) fn forget_await(&self) {
        // Release: before the memory is freed, which whoever took the token sees to later.
        self.on.store(ptr::null_mut(), Ordering::Release);
        self.on_set.store(ptr::null_mut(), Ordering::Release);
        self.on_task.store(0, Ordering::Relaxed);
    }

    /// Async tasks: something has happened that it may await. True if the caller must deliver it to its worker.
    pub(crate) fn take_await(&self) -> bool {
        // AcqRel: see above.
        self.notified.swap(NOTIFIED, Ordering::AcqRel) == AWAITS
    }
}

/// A counted reference to a task.
pub(crate) struct TaskRef(NonNull<Header>);

// SAFETY: the header is Sync, and body and result are Send.
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

impl TaskRef {
    pub(crate) fn into_raw(self) -> *const Header {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// # Safety
    ///
    /// `task` owns a reference, which the result takes over.
    pub(crate) unsafe fn from_raw(task: *const Header) -> TaskRef {
        // SAFETY: the caller has a reference, so it is not null.
        TaskRef(unsafe { NonNull::new_unchecked(task.cast_mut()) })
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: we own a reference.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn as_ptr(&self) -> *const Header {
        self.0.as_ptr()
    }

    /// The async task that a waker is of, if it is one of ours.
    pub(crate) fn of_waker(waker: &Waker) -> Option<TaskRef> {
        ptr::eq(waker.vtable(), &WAKER).then(|| {
            // SAFETY: such a waker's data is a task that is alive.
            let task = ManuallyDrop::new(unsafe { TaskRef::from_raw(waker.data().cast()) });
            TaskRef::clone(&task)
        })
    }

    /// For async tasks: have it polled again.
    pub(crate) fn notify(&self) {
        if self.header().take_await() {
            // SAFETY: it awaited, and whoever ends that delivers it.
            unsafe { current::deliver(self.as_ptr()) };
        }
    }
}

impl Clone for TaskRef {
    fn clone(&self) -> TaskRef {
        // Relaxed: made from a reference, so there is one.
        self.header().refs.fetch_add(1, Ordering::Relaxed);
        TaskRef(self.0)
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        // Release, and acquire below: all uses by others come before we free it.
        if self.header().refs.fetch_sub(1, Ordering::Release) == 1 {
            // No fence: ThreadSanitizer does not know them.
            self.header().refs.load(Ordering::Acquire);
            // SAFETY: it was taken out of its worker's table when it ended; parts of it are Send.
            unsafe { limbo::retire(Block(self.0)) };
        }
    }
}

/// A task's memory, at its end.
struct Block(NonNull<Header>);

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: nobody refers to it any more.
        unsafe { (self.0.as_ref().vtable.free)(self.0.as_ptr()) };
    }
}

/// The whole block. `JoinHandle` knows only the first two fields, so the order matters.
#[repr(C)]
struct Cells<B, T> {
    header: Header,
    result: UnsafeCell<Option<Result<T, Failure>>>,
    body: UnsafeCell<Option<B>>,
}

/// Something that runs to a result in pieces.
pub(crate) trait Body<T>: Send + 'static {
    const KIND: Kind;
    /// Runs it from where it stands. `None`: it awaits. The body is dropped before this returns a result.
    fn run(body: &mut Option<Self>, task: *const Header) -> Option<T>
    where
        Self: Sized;
}

/// A closure, with a stack from start to end.
pub(crate) struct Plain<F>(pub(crate) F);

impl<T, F: FnOnce() -> T + Send + 'static> Body<T> for Plain<F> {
    const KIND: Kind = Kind::Stackful;

    fn run(body: &mut Option<Self>, _: *const Header) -> Option<T> {
        body.take().map(|f| f.0())
    }
}

/// A future, with a stack from poll to await.
pub(crate) struct Awaited<F>(pub(crate) F);

impl<F: Future + Send + 'static> Body<F::Output> for Awaited<F> {
    const KIND: Kind = Kind::Async;

    fn run(body: &mut Option<Self>, task: *const Header) -> Option<F::Output> {
        let future = body.as_mut()?;
        // SAFETY: the body stays in the task's block until it is dropped there.
        let future = unsafe { Pin::new_unchecked(&mut future.0) };
        // SAFETY: the vtable keeps the contract; no reference is counted, and so the waker is not dropped.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(task.cast(), &WAKER)) });
        match future.poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready(result) => {
                *body = None;
                Some(result)
            }
        }
    }
}

/// A waker's data is a task with a reference of its own.
static WAKER: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: data is a task that the waker owns a reference to.
        let task = ManuallyDrop::new(unsafe { TaskRef::from_raw(data.cast()) });
        RawWaker::new(TaskRef::clone(&task).into_raw().cast(), &WAKER)
    },
    // SAFETY: as above; this one takes the reference over.
    |data| unsafe { TaskRef::from_raw(data.cast()) }.notify(),
    // SAFETY: as above; the reference stays the waker's.
    |data| ManuallyDrop::new(unsafe { TaskRef::from_raw(data.cast()) }).notify(),
    // SAFETY: as above; this one takes the reference over.
    |data| drop(unsafe { TaskRef::from_raw(data.cast()) }),
);

/// What unwinds a task's stack when it is to end and did not panic.
pub(crate) enum Unwind {
    Exit,
    Cancel,
}

/// Runs code of others, mostly destructors, of which nobody would hear that it panicked: it must end neither the task that
/// happens to run here nor, between tasks, the worker.
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(with) = catch_unwind(AssertUnwindSafe(f)) {
        // Its destructor may panic as well.
        std::mem::forget(with);
    }
}

fn failure(with: Box<dyn Any + Send>) -> Failure {
    match with.downcast::<Unwind>() {
        Ok(unwind) => match *unwind {
            Unwind::Exit => Failure::Exited,
            Unwind::Cancel => current::cancellation(),
        },
        Err(with) => Failure::Panicked(Panic::new(with)),
    }
}

struct Typed<B, T>(PhantomData<(B, T)>);

impl<T: Send + 'static, B: Body<T>> Typed<B, T> {
    const VTABLE: Vtable = Vtable { run: Self::run, fail: Self::fail, free: Self::free };

    unsafe fn run(task: *const Header) -> Outcome {
        // SAFETY: the vtable belongs to this type of block, and the caller is the one who runs the task.
        let cells = unsafe { &*task.cast::<Cells<B, T>>() };
        let cancelled = B::KIND == Kind::Async && cells.header.is_cancelled();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: only the running task touches its body.
            let body = unsafe { &mut *cells.body.get() };
            if cancelled {
                *body = None;
                std::panic::resume_unwind(Box::new(Unwind::Cancel));
            }
            B::run(body, task)
        }));
        let result = match ended {
            Ok(None) => return Outcome::Awaits,
            Ok(Some(result)) => Ok(result),
            Err(with) => {
                let why = failure(with);
                // A future that panicked is still there, and its destructor may panic as well.
                // SAFETY: as above.
                quietly(|| unsafe { *cells.body.get() = None });
                Err(why)
            }
        };
        cells.header.locals.clear();
        // SAFETY: read only after the end is published in `join`.
        unsafe { *cells.result.get() = Some(result) };
        Outcome::Ended
    }

    unsafe fn fail(task: *const Header, why: Failure) {
        // SAFETY: as in `run`; it does not run, and never will.
        let cells = unsafe { &*task.cast::<Cells<B, T>>() };
        // SAFETY: as in `run`.
        quietly(|| unsafe { *cells.body.get() = None });
        // SAFETY: as in `run`.
        unsafe { *cells.result.get() = Some(Err(why)) };
    }

    unsafe fn free(task: *mut Header) {
        let cells = task.cast::<Cells<B, T>>();
        // A result that nobody took may panic when dropped; there is nobody to tell.
        // SAFETY: made by `create` as a block of this type, and nobody refers to it any more.
        quietly(|| unsafe { ptr::drop_in_place(cells) });
        // SAFETY: allocated by `create` for this type.
        unsafe { block::release(NonNull::new_unchecked(cells.cast()), Layout::new::<Cells<B, T>>()) };
    }
}

/// What a task is created with.
pub(crate) struct Seed {
    pub(crate) id: u64,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) priority: Priority,
    pub(crate) stack_size: u32,
    pub(crate) stealable: bool,
    pub(crate) marked: bool,
    pub(crate) created_ns: u64,
}

/// Makes a task: a reference for the runtime, and one for who joins it. `None` if there is no memory.
pub(crate) fn create<T: Send + 'static, B: Body<T>>(seed: Seed, body: B) -> Option<(TaskRef, JoinHandle<T>)> {
    let block = block::allocate(Layout::new::<Cells<B, T>>())?.cast::<Cells<B, T>>().as_ptr();
    // SAFETY: just allocated for this type.
    unsafe {
        // In its place: copying a header takes as long as filling it.
        (&raw mut (*block).header).write(Header {
            priority: seed.priority.0,
            stack_size: seed.stack_size,
            stealable: Cell::new(seed.stealable),
            marked: seed.marked,
            created_ns: Cell::new(seed.created_ns),
            refs: AtomicUsize::new(2),
            handled: AtomicBool::new(true),
            ..Header::new(seed.id, seed.name, B::KIND, &Typed::<B, T>::VTABLE)
        });
        (&raw mut (*block).result).write(UnsafeCell::new(None));
        (&raw mut (*block).body).write(UnsafeCell::new(Some(body)));
    }
    // SAFETY: two references were counted.
    Some(unsafe {
        let task = block.cast::<Header>();
        (TaskRef::from_raw(task), JoinHandle { task: TaskRef::from_raw(task), result: PhantomData })
    })
}

/// Runs the task until it suspends for good: called inside a carrier.
///
/// # Safety
///
/// The caller's worker owns the task and has just dispatched it.
pub(crate) unsafe fn run(task: *const Header) -> Outcome {
    // SAFETY: the caller's word; the vtable belongs to the task.
    unsafe { ((*task).vtable.run)(task) }
}

/// Gives a task that has not started a result without running it.
///
/// # Safety
///
/// The caller owns it as one who would start it.
pub(crate) unsafe fn fail(task: *const Header, why: Failure) {
    // SAFETY: the caller's word.
    unsafe { ((*task).vtable.fail)(task, why) };
}

/// Ends a task that nobody else has yet.
pub(crate) fn end_unstarted(task: TaskRef) {
    // SAFETY: as said, so nobody starts it.
    unsafe { fail(task.as_ptr(), Failure::Cancelled) };
    publish_end(task.header());
}

/// Publishes the end of a task and wakes who waits for it.
pub(crate) fn publish_end(task: &Header) {
    task.set_status(Status::Zombie);
    // AcqRel: releases the result to who joins; acquires what the one who left a token did.
    let joiner = task.join.swap(CLOSED, Ordering::AcqRel);
    if waiter::is_token(joiner) {
        // SAFETY: taken out just now.
        unsafe { waiter::wake(joiner) };
    }
}

/// How urgent a task is: of two that are ready, [`Prioritised`](crate::scheduler::Prioritised) runs the one with the smaller number first.
///
/// The thesis has two levels, for tasks that do little but keep others waiting and for those that compute (Prokesch 2011,
/// 6.2.2). A task whose priority was set is not stolen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u8);

impl Priority {
    /// For tasks that do little and keep others waiting.
    pub const HIGH: Priority = Priority(64);
    /// What tasks have if nothing is said.
    pub const NORMAL: Priority = Priority(128);
    /// For tasks that compute for long.
    pub const LOW: Priority = Priority(192);
}

impl Default for Priority {
    fn default() -> Self {
        Priority::NORMAL
    }
}

/// The right to wait for a task's end and to have its result. Dropping it lets the task go on alone.
pub struct JoinHandle<T> {
    task: TaskRef,
    result: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> JoinHandle<T> {
    /// Waits for the end of the task: blocks the calling task, or the calling thread if it is none.
    ///
    /// # Errors
    ///
    /// Why there is no result: the task panicked, exited, was in a deadlock, or was cancelled; or the caller is unwinding,
    /// and the task has not ended.
    ///
    /// # Panics
    ///
    /// If the handle was awaited before, and has given the result there.
    pub fn join(self) -> Result<T, Failure> {
        let task = self.task.header();
        // Acquire: pairs with the release in `publish_end`, so the result is there.
        while task.join.load(Ordering::Acquire) != CLOSED {
            if !current::may_block() {
                return Err(Failure::Unwinding);
            }
            let token = waiter::blocking_token();
            // In the place of a waker's, if it was polled before.
            if waiter::leave(&task.join, token) {
                current::block_on_task(&task.join, token, task.id);
            }
        }
        self.take()
    }

    fn take(&self) -> Result<T, Failure> {
        let cells = self.task.as_ptr().cast::<Cells<(), T>>();
        // SAFETY: the first two fields do not depend on the body; the task has ended, and only its one handle reads the
        // result, once.
        let result = unsafe { &mut *(&raw const (*cells).result).cast::<UnsafeCell<Option<_>>>().cast_mut() };
        result.get_mut().take().expect("the handle has given the task's result already")
    }

    /// Whether the task has ended, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.task.header().join.load(Ordering::Acquire) == CLOSED
    }

    /// The task's number, unique in this process.
    pub fn id(&self) -> u64 {
        self.task.header().id
    }
}

impl<T: Send + 'static> Future for JoinHandle<T> {
    type Output = Result<T, Failure>;

    /// Waits without a stack, in an async task. Panics if it is polled again after it has given the result.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.task.header();
        if task.join.load(Ordering::Acquire) == CLOSED {
            return Poll::Ready(self.take());
        }
        // As in `ReadAnyAsync::poll`.
        let old = task.join.load(Ordering::Relaxed);
        if waiter::is_token(old) {
            waiter::withdraw(&task.join, old);
        }
        let token = waiter::awaiting_token(context.waker());
        current::note_await(token, Awaits::Task(task.id));
        if waiter::leave(&task.join, token) { Poll::Pending } else { Poll::Ready(self.take()) }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let task = self.task.header();
        let token = task.join.load(Ordering::Relaxed);
        if waiter::is_token(token) {
            waiter::withdraw(&task.join, token);
        }
        // Relaxed: ordered before the reference goes by the release there; see `wakers`.
        task.handled.store(false, Ordering::Relaxed);
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinHandle({})", self.task.header().id)
    }
}
