//! Bodies of tasks, their results, and the memory block of a task.

use super::{Header, JoinHandle, Kind, Outcome, Priority, TaskRef, Unended, Vtable};
use crate::block;
use crate::current;
use crate::error::{Failure, Panic};
use crate::scope::ScopeCore;
use corebeat_sync::fork::Process;
use std::alloc::Layout;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The memory block of a task, with its body. The result takes the place of the body, which is
/// dropped before.
#[repr(C)]
struct Block<B> {
    header: Header,
    body: UnsafeCell<Option<B>>,
}

/// The memory block of a task that has ended. The type does not depend on that of the body.
#[repr(C)]
struct EndedBlock<T> {
    _header: Header,
    result: UnsafeCell<Option<Result<T, Failure>>>,
}

/// Returns the place of the result of a task.
///
/// # Safety
///
/// The task is alive, and has a result of this type. Its body is gone, and no other code uses the
/// result while the returned pointer is used.
#[inline(always)]
pub(super) unsafe fn result<T>(task: *const Header) -> *mut Option<Result<T, Failure>> {
    // SAFETY: by the contract of this function. Without a reference to the whole block, which is
    // smaller if the body is.
    unsafe { UnsafeCell::raw_get(&raw const (*task.cast::<EndedBlock<T>>()).result) }
}

/// Code that runs to a result, in one or more parts.
pub(crate) trait Body<T>: Send + 'static {
    const KIND: Kind;
    /// Continues the body. Returns `None` if the body awaits. Drops the body before it returns a
    /// result.
    fn run(body: &mut Option<Self>, task: *const Header) -> Option<T>
    where
        Self: Sized;
}

/// A closure, which has a stack from start to end.
pub(crate) struct Plain<F>(pub(crate) F);

impl<T, F: FnOnce() -> T + Send + 'static> Body<T> for Plain<F> {
    const KIND: Kind = Kind::Stackful;

    fn run(body: &mut Option<Self>, _: *const Header) -> Option<T> {
        body.take().map(|f| f.0())
    }
}

/// A future, which has a stack during each poll.
pub(crate) struct Awaited<F>(pub(crate) F);

impl<F: Future + Send + 'static> Body<F::Output> for Awaited<F> {
    const KIND: Kind = Kind::Async;

    fn run(body: &mut Option<Self>, task: *const Header) -> Option<F::Output> {
        let future = body.as_mut()?;
        // SAFETY: the body stays in the block of the task until it is dropped there.
        let future = unsafe { Pin::new_unchecked(&mut future.0) };
        // SAFETY: the running task is alive.
        let waker = unsafe { TaskRef::borrowed_waker(task) };
        match future.poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready(result) => {
                *body = None;
                Some(result)
            }
        }
    }
}

/// Payload that unwinds the stack of a task that ends early without a panic.
pub(crate) enum Unwind {
    Exit,
    Cancel,
}

/// Calls `f`, and discards a panic in it. For code of users, mostly destructors, whose panic no
/// caller can receive: it must end neither the task that runs on this thread, nor the worker.
pub(crate) fn discard_panic(f: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        // The destructor of the payload may panic as well.
        std::mem::forget(payload);
    }
}

/// Ends a child that a task has forked, when the task ends or awaits. The worker must not continue:
/// its other tasks run in the parent.
#[cold]
fn end_child<T>(ended: &std::thread::Result<Option<T>>) -> ! {
    if let Ok(None) = ended {
        let text = format!("corebeat-lpel: {}\n", Failure::Forked);
        // Another thread of the parent may have held the lock of the standard error.
        // SAFETY: the pointer and the length are those of the text.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: `_exit` does not return. The handlers of `exit` belong to the parent.
    unsafe { libc::_exit(if let Ok(Some(_)) = ended { 0 } else { 101 }) }
}

fn failure(payload: Box<dyn Any + Send>) -> Failure {
    match payload.downcast::<Unwind>() {
        Ok(unwind) => match *unwind {
            Unwind::Exit => Failure::Exited,
            Unwind::Cancel => current::cancellation(),
        },
        Err(payload) => Failure::Panicked(Panic::new(payload)),
    }
}

/// # Safety
///
/// There are no references to the task.
#[cold]
#[inline(never)]
unsafe fn drop_name(task: *mut Header) {
    // SAFETY: by the contract of this function.
    drop(unsafe { (*task).name.take() });
}

struct Typed<B, T>(PhantomData<(B, T)>);

impl<T: Send + 'static, B: Body<T>> Typed<B, T> {
    const VTABLE: Vtable =
        Vtable { run: Self::run, fail: Self::fail, forget: Self::forget, free: Self::free };
    /// Layout of a block that has room for the body, or for the result.
    const LAYOUT: Layout = {
        let (body, result) = (Layout::new::<Block<B>>(), Layout::new::<EndedBlock<T>>());
        let size = if body.size() > result.size() { body.size() } else { result.size() };
        let align = if body.align() > result.align() { body.align() } else { result.align() };
        match Layout::from_size_align(size, align) {
            Ok(layout) => layout,
            Err(_) => panic!("a task is too large"),
        }
    };

    unsafe fn run(task: *const Header) -> Outcome {
        // SAFETY: the vtable belongs to this type of block, and the caller runs the task.
        let block = unsafe { &*task.cast::<Block<B>>() };
        let cancelled = B::KIND == Kind::Async && block.header.is_cancelled();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: only the running task uses its body.
            let body = unsafe { &mut *block.body.get() };
            if cancelled {
                *body = None;
                std::panic::resume_unwind(Box::new(Unwind::Cancel));
            }
            B::run(body, task)
        }));
        if !block.header.process.is_current() {
            end_child(&ended);
        }
        match ended {
            Ok(None) => return Outcome::Awaits,
            // SAFETY: the body was taken, or dropped before it returned.
            Ok(Some(result)) if !block.header.lost_its_scope() => unsafe {
                Self::end(task, Ok(result));
            },
            // SAFETY: the task has run, and has not ended yet.
            ended => unsafe { Self::end_early(task, ended) },
        }
        Outcome::Ended
    }

    /// Replaces the body of a task that has run by its result.
    ///
    /// # Safety
    ///
    /// The running task calls this function once, and its body is gone.
    #[inline(always)]
    unsafe fn end(task: *const Header, result: Result<T, Failure>) {
        // SAFETY: as in `run`.
        let block = unsafe { &*task.cast::<Block<B>>() };
        block.header.locals.clear();
        // SAFETY: the joiner reads the result after the end is published in `join`.
        unsafe {
            debug_assert!((*block.body.get()).is_none(), "the result replaces a living body");
            self::result(task).write(Some(result));
        }
    }

    /// As [`Typed::end`], for a task that panicked, exited or was cancelled, or whose result may be
    /// incomplete.
    ///
    /// # Safety
    ///
    /// The running task calls this function once.
    #[cold]
    #[inline(never)]
    unsafe fn end_early(task: *const Header, ended: std::thread::Result<Option<T>>) {
        let why = match ended {
            Ok(result) => {
                discard_panic(|| drop(result));
                Failure::Aborted
            }
            Err(payload) => {
                let why = failure(payload);
                // A future that panicked still exists, and its destructor may panic as well.
                // SAFETY: as in `run`.
                discard_panic(|| unsafe { *(*task.cast::<Block<B>>()).body.get() = None });
                why
            }
        };
        // SAFETY: by the contract of this function, and the body is gone.
        unsafe { Self::end(task, Err(why)) };
    }

    unsafe fn fail(task: *const Header, why: Failure) {
        // SAFETY: as in `run`; the task does not run and will not run.
        let block = unsafe { &*task.cast::<Block<B>>() };
        // SAFETY: as in `run`.
        discard_panic(|| unsafe { *block.body.get() = None });
        // SAFETY: as in `run`.
        unsafe { result::<T>(task).write(Some(Err(why))) };
    }

    unsafe fn forget(task: *const Header) {
        // SAFETY: the vtable belongs to this type of block, and no other code uses the result.
        discard_panic(|| unsafe { *result::<T>(task) = None });
    }

    unsafe fn free(task: *mut Header) {
        // The end of the task has dropped the body and the locals and left the scope, and the
        // handle or the end has dropped the result. Only the name is left.
        // SAFETY: `create` allocated and made a block of this type, and there are no references to
        // it.
        unsafe {
            if (*task).name.is_some() {
                drop_name(task);
            }
            block::release(NonNull::new_unchecked(task.cast()), Self::LAYOUT);
        }
    }
}

/// Parameters of a new task.
#[derive(Clone, Copy)]
pub(crate) struct Params<'a> {
    pub(crate) id: u64,
    pub(crate) name: Option<&'a Arc<str>>,
    pub(crate) priority: Priority,
    pub(crate) stack_size: u32,
    pub(crate) stealable: bool,
    pub(crate) marked: bool,
    pub(crate) is_from_outside: bool,
    pub(crate) created_ns: u64,
    pub(crate) runtime: u32,
    pub(crate) process: Process,
    pub(crate) scope: Option<&'a Arc<ScopeCore>>,
}

impl Params<'_> {
    #[inline(always)]
    pub(crate) fn new(id: u64, process: Process) -> Self {
        Params {
            id,
            name: None,
            priority: Priority::default(),
            stack_size: 0,
            stealable: false,
            marked: false,
            is_from_outside: false,
            created_ns: 0,
            runtime: 0,
            process,
            scope: None,
        }
    }
}

/// Creates a task, which its scope counts until `publish_end`. Returns the task for the runtime,
/// and the join handle; `None` if there is no memory.
#[inline(always)]
pub(crate) fn create<T: Send + 'static, B: Body<T>>(
    params: Params<'_>,
    body: B,
) -> Option<(Unended, JoinHandle<T>)> {
    let block = block::allocate(Typed::<B, T>::LAYOUT)?.cast::<Block<B>>().as_ptr();
    // SAFETY: the memory was allocated for this type above.
    unsafe {
        // The header is constructed in place, because copying it takes as long as filling it. That
        // requires that `Header::new` receives each value that has a destructor.
        (&raw mut (*block).header).write(Header {
            priority: params.priority.0,
            stack_size: params.stack_size,
            stealable: Cell::new(params.stealable),
            marked: params.marked,
            is_from_outside: params.is_from_outside,
            created_ns: Cell::new(params.created_ns),
            runtime: params.runtime,
            ..Header::new(
                params.id,
                params.name.cloned(),
                params.scope.cloned(),
                params.process,
                B::KIND,
                &Typed::<B, T>::VTABLE,
            )
        });
        (&raw mut (*block).body).write(UnsafeCell::new(Some(body)));
    }
    // SAFETY: `refs` counts the reference that both have in common.
    Some(unsafe {
        let task = block.cast::<Header>();
        if let Some(scope) = (*task).scope() {
            scope.begin_task();
        }
        (Unended::from_raw(task), JoinHandle::new(TaskRef::from_raw(task)))
    })
}
