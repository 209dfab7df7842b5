//! Waiting for the end of a task.

use super::body::{discard_panic, result};
use super::{Header, Object, TaskRef};
use crate::current::{self, TimeLimit};
use crate::error::{Failure, assert_not_forked};
use crate::runtime::Inner;
use crate::waiter::{self, CLOSED, DETACHED, EMPTY, Word};
use corebeat_sync::atomic::Ordering;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll};
use std::time::Duration;

/// Permission to wait for the end of a task and to take its result. A task whose handle is dropped
/// continues to run.
pub struct JoinHandle<T> {
    /// The reference that the handle has in common with the runtime. The end of the task leaves the
    /// reference to the handle, unless the handle was dropped before.
    task: ManuallyDrop<TaskRef>,
    result: PhantomData<fn() -> T>,
}

impl<T> JoinHandle<T> {
    /// `task` is a block with a result of type `T`, and this is its only handle.
    #[inline(always)]
    pub(super) fn new(task: TaskRef) -> JoinHandle<T> {
        JoinHandle { task: ManuallyDrop::new(task), result: PhantomData }
    }
}

impl<T> JoinHandle<T> {
    /// # Safety
    ///
    /// The task has ended.
    #[inline(always)]
    unsafe fn take_result(&self) -> Option<Result<T, Failure>> {
        // SAFETY: the task has ended, and only this handle takes the result.
        unsafe { (*result(self.task.as_ptr())).take() }
    }
}

impl<T: Send + 'static> JoinHandle<T> {
    /// Waits for the end of the task and returns its result. Blocks the calling task, or the
    /// calling thread if it is no task.
    ///
    /// # Errors
    ///
    /// The task panicked, exited, was in a deadlock, or was cancelled; or the caller is unwinding,
    /// and the task has not ended.
    ///
    /// # Panics
    ///
    /// Panics if the handle was awaited before and returned the result.
    #[inline]
    pub fn join(self) -> Result<T, Failure> {
        wait(self.task.header())?;
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the task has ended, and left its result and its reference to this handle, which
        // is not used again. Both branches have the same effect. The first one copies the value,
        // not the whole result.
        unsafe {
            if let Some(Ok(value)) = &*result::<T>(this.task.as_ptr()) {
                let value = ptr::read(value);
                ManuallyDrop::drop(&mut this.task);
                return Ok(value);
            }
            let result = this.take_result();
            ManuallyDrop::drop(&mut this.task);
            result.expect(TAKEN)
        }
    }

    /// Waits for the end of the task as [`JoinHandle::join`] does, at most for `time`. Returns
    /// `None` if the task has not ended.
    ///
    /// # Panics
    ///
    /// Panics if the handle has returned the result before.
    pub fn join_timeout(&mut self, time: Duration) -> Option<Result<T, Failure>> {
        let limit = TimeLimit::begin(time);
        let waited = wait(self.task.header());
        drop(limit);
        match waited {
            Ok(()) => Some(self.take()),
            Err(Failure::Unwinding) => None,
            Err(why) => Some(Err(why)),
        }
    }

    fn take(&self) -> Result<T, Failure> {
        // SAFETY: the task has ended.
        let result = unsafe { self.take_result() };
        result.expect(TAKEN)
    }

    /// Requests the early end of the task: it is unwound where it waits, or at its next wait, and
    /// fails with [`Failure::Aborted`]. Its streams close. A task that has not started never runs.
    /// Has no effect on a task that ends without a wait. Takes time for each task of the runtime.
    pub fn abort(&self) {
        let task = self.task.header();
        assert_not_forked(task.process);
        task.abort();
        if let Some(inner) = Inner::with_number(task.runtime) {
            inner.abort_tasks(|blocking| blocking.id == task.id);
        }
    }

    /// Returns whether the task has ended, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.task.header().has_ended()
    }

    /// Returns the number of the task, unique in this process.
    pub fn id(&self) -> u64 {
        self.task.header().id
    }
}

impl<T: Send + 'static> Future for JoinHandle<T> {
    type Output = Result<T, Failure>;

    /// Waits in an async task, which holds no stack meanwhile. Panics if it is polled again after
    /// it returned the result.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.task.header();
        if task.has_ended() {
            return Poll::Ready(self.take());
        }
        if !task.process.is_current() {
            return Poll::Ready(Err(Failure::Forked));
        }
        // As in `ReadAnyAsync::poll`.
        let old = task.join.load(Ordering::Relaxed);
        if waiter::is_token(old) {
            waiter::withdraw(&task.join, old);
        }
        let token = waiter::awaiting_token(context.waker());
        current::note_await(token, Object::of_task(task.id));
        if waiter::leave(&task.join, token) { Poll::Pending } else { Poll::Ready(self.take()) }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if !detach(&self.task.header().join) {
            // SAFETY: the task has ended.
            discard_panic(|| drop(unsafe { self.take_result() }));
            // SAFETY: the end has left the reference to this handle, which is not used again.
            unsafe { ManuallyDrop::drop(&mut self.task) };
        }
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinHandle({})", self.task.header().id)
    }
}

/// Message of a handle whose result is requested again.
const TAKEN: &str = "the handle has returned the result of the task before";

/// Waits for the end of a task. Fails with [`Failure::Unwinding`] if the caller must not wait.
#[inline]
fn wait(task: &Header) -> Result<(), Failure> {
    if task.has_ended() { Ok(()) } else { wait_for_end(task) }
}

#[inline(never)]
fn wait_for_end(task: &Header) -> Result<(), Failure> {
    while !task.has_ended() {
        let Some(token) = current::blocking_token() else { return Err(Failure::Unwinding) };
        if !task.process.is_current() {
            return Err(Failure::Forked);
        }
        // Replaces the token of a waker, if the handle was polled before.
        if waiter::leave(&task.join, token) {
            current::block_on_task(&task.join, token, task.id);
        }
    }
    Ok(())
}

/// Leaves the result and the reference of a handle that is being dropped to the end of the task.
/// Returns false if the task has ended.
///
/// Takes only the word: the end of the task may free the header before this function returns.
fn detach(join: &Word) -> bool {
    // Acquire: pairs with the release in `publish_end`, so the result is visible.
    let token = join.load(Ordering::Acquire);
    if token == CLOSED {
        return false;
    }
    if waiter::is_token(token) {
        waiter::withdraw(join, token);
    }
    // Release: pairs with the acquire in `publish_end`, which drops the result and the reference.
    // Acquire: as above.
    join.compare_exchange(EMPTY, DETACHED, Ordering::Release, Ordering::Acquire).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::task::{self, Params, Plain};
    use corebeat_sync::fork::Process;
    use std::sync::Arc;

    /// References of wakers may keep the task longer.
    #[test]
    fn result_does_not_outlive_the_handle_and_the_task() {
        for dropped_first in [true, false] {
            let result = Arc::new(());
            let copy = result.clone();
            let params = Params::new(1, Process::current());
            let (task, handle) = task::create(params, Plain(|| copy)).unwrap();
            let mut handle = Some(handle);
            if dropped_first {
                handle = None;
            }
            // SAFETY: only this thread runs the task, once.
            unsafe {
                task::run(task.as_ptr());
                task::publish_end(task);
            }
            drop(handle);
            assert_eq!(Arc::strong_count(&result), 1, "{dropped_first}");
        }
    }
}
