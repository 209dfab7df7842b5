//! Blocking of the calling task or thread, and its cancellation.

use super::{is_task, runtime, thread, waiter, with, worker};
use crate::context;
use crate::error::{Failure, assert_not_forked};
use crate::set::SetCore;
use crate::task::{self, Header, Kind, Object, Outcome, Status, Unwind};
use crate::waiter::{self, Token, Word};
use crate::worker::{Target, TimerKey};
use corebeat_sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns the token of the caller, which is about to block; `None` if it must not wait now.
/// Unwinds if the caller is cancelled.
///
/// The caller must not wait if it is unwinding, because its worker would run other tasks in the
/// middle of a panic; and if it is the loop of a worker.
///
/// # Panics
///
/// Panics in code that must not wait, see [`corebeat_sync::wait`]; and in a child that the task
/// forked, whose worker has lost the other workers.
#[inline(always)]
pub(crate) fn blocking_token() -> Option<Token> {
    if std::thread::panicking() {
        return None;
    }
    let task = with(|c| c.task.get());
    // SAFETY: the running task is alive.
    match unsafe { task.as_ref() } {
        Some(header) if header.is_interrupted() => handle_interrupt(header),
        Some(header) => {
            corebeat_sync::wait::check();
            assert_not_forked(header.process);
            Some(task.cast_mut())
        }
        None => blocking_token_of_thread(),
    }
}

/// Returns whether the caller may wait now, as [`blocking_token`] does.
pub(crate) fn may_block() -> bool {
    blocking_token().is_some()
}

/// Unwinds a caller that was blocked, if it is cancelled. It does so even if an event for the
/// caller has occurred: tasks that were unwound before it have closed their streams.
#[inline(always)]
pub(crate) fn unblocked(token: Token) {
    // SAFETY: the running task or thread is alive.
    let me = unsafe { &*waiter::blocked(token) };
    if me.is_interrupted() {
        handle_interrupt(me);
    }
}

#[cold]
fn blocking_token_of_thread() -> Option<Token> {
    // Between two tasks, a worker runs code such as destructors. It must not wait for its own
    // tasks.
    if worker().is_some() {
        return None;
    }
    let thread = waiter();
    // SAFETY: the header of the calling thread.
    match unsafe { thread.as_ref() }? {
        header if header.is_interrupted() => handle_interrupt(header),
        // A blocking task that has ended runs destructors of its thread-local data, and does not
        // count as active. A blocking task that is about to wait may check for deadlocks, and then
        // run destructors of retired memory.
        header => (header.status() == Status::Running).then_some(thread.cast_mut()),
    }
}

/// Unwinds a cancelled caller. Returns no token if the time of the caller is over.
#[cold]
fn handle_interrupt(caller: &Header) -> Option<Token> {
    if caller.is_cancelled() {
        std::panic::resume_unwind(Box::new(Unwind::Cancel));
    }
    None
}

/// Limit of the time for which the caller waits, from `begin` to the drop. When the time is over, a
/// blocked caller continues, and has no token to block again.
pub(crate) struct TimeLimit {
    /// Timer of a task. A thread has a deadline of its own.
    timer: Option<TimerKey>,
}

impl TimeLimit {
    pub(crate) fn begin(time: Duration) -> TimeLimit {
        let me = waiter();
        // SAFETY: the running task or thread is alive.
        let Some(header) = (unsafe { me.as_ref() }) else { return TimeLimit { timer: None } };
        // Relaxed: a search for deadlocks that reads an older value finds a task that runs.
        header.timed.store(true, Ordering::Relaxed);
        let timer =
            worker().filter(|_| is_task()).map(|w| w.set_timer(nanos(time), Target::Task(me)));
        if timer.is_none() {
            thread::set_deadline(Instant::now().checked_add(time));
        }
        TimeLimit { timer }
    }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        match (self.timer.take(), worker()) {
            (Some(key), Some(worker)) => worker.remove_timer(key),
            _ => thread::set_deadline(None),
        }
        // SAFETY: the running task or thread is alive.
        if let Some(header) = unsafe { waiter().as_ref() } {
            header.timed.store(false, Ordering::Relaxed);
            header.end_expiry();
        }
    }
}

/// Returns a duration in nanoseconds, or the largest one.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Suspends the caller, whose token is in `word`, until the token is taken, or until the caller is
/// interrupted. Afterwards, the token is not in the word.
#[inline]
pub(crate) fn block(word: &Word, token: Token, status: Status, on: Object) {
    if begin_block(word, token, status, on) {
        suspend_blocked(token);
        end_block(word, token, status);
    }
}

/// First part of [`block`]. Returns false if the caller is a thread, which was blocked here;
/// otherwise the other parts must follow.
#[inline]
pub(crate) fn begin_block(word: &Word, token: Token, status: Status, on: Object) -> bool {
    // SAFETY: the running task or thread is alive.
    let me = unsafe { &*waiter::blocked(token) };
    if me.kind == Kind::Thread {
        thread::block(word, token, status, on);
        return false;
    }
    me.on.store(on);
    prepare(me, status);
    true
}

/// Second part of [`block`]: returns to the worker until the task is dispatched again.
///
/// The processor predicts the target of a return by the last call that has not returned. A function
/// that is called before the switch and returns after it makes two predictions fail, that of the
/// switch and its own: 12 ns. Therefore the ends of streams inline this part into the code of the
/// task. This part has no loop: values that the compiler keeps in registers over a loop would be
/// spilled at each switch.
#[inline(always)]
pub(crate) fn suspend_blocked(token: Token) {
    // SAFETY: the running task is alive.
    context::suspend(unsafe { &*waiter::blocked(token) }, Outcome::Blocked);
}

/// Last part of [`block`], in the most frequent case: the token was taken, and the task is not
/// cancelled. Otherwise returns false, and [`end_block`] and [`unblocked`] must follow.
#[inline(always)]
pub(crate) fn end_block_if_woken(token: Token) -> bool {
    // SAFETY: the running task is alive.
    let me = unsafe { &*waiter::blocked(token) };
    let is_woken = me.delivered.get() && !me.is_interrupted();
    if is_woken {
        me.delivered.set(false);
        me.on.store(Object::NONE);
    }
    is_woken
}

/// Last part of [`block`].
pub(crate) fn end_block(word: &Word, token: Token, status: Status) {
    // SAFETY: the running task is alive.
    let me = unsafe { &*waiter::blocked(token) };
    while !me.delivered.replace(false) && !waiter::withdraw(word, token) {
        // The task is interrupted, but another thread has taken the token: its delivery must arrive
        // first.
        suspend(me, status);
    }
    me.on.store(Object::NONE);
}

/// Blocks until another task ends, as [`block`] does.
pub(crate) fn block_on_task(word: &Word, token: Token, task: u64) {
    block(word, token, Status::Joining, Object::of_task(task));
    unblocked(token);
}

/// Blocks the owner of a set, as [`block`] does.
pub(crate) fn block_on_set(set: &Arc<SetCore>, token: Token) {
    block(&set.word, token, Status::Polling, Object::of_set(Arc::as_ptr(set)));
    unblocked(token);
}

/// Notes what the running async task awaits, before the task leaves its token there. Dumps and the
/// search for deadlocks use the note if the token is the only one of the task. The thread that
/// takes the token deletes the note (`forget_await`).
pub(crate) fn note_await(token: Token, object: Object) {
    let task = with(|c| c.task.get());
    if !waiter::is_awaiting(token, task) {
        // Another executor polls the future, with wakers of its own.
        return;
    }
    // SAFETY: the running task is alive.
    unsafe { &*task }.on.store(object);
}

/// Lets other tasks of the worker run.
pub(crate) fn yield_task() {
    // SAFETY: the running task is alive.
    suspend(unsafe { &*waiter() }, Status::Ready);
}

/// Suspends the running task for a duration.
pub(crate) fn sleep_task(time_ns: u64) {
    let me = waiter();
    let worker = worker().expect("a task runs on a worker");
    worker.set_timer(time_ns, Target::Task(me));
    // SAFETY: the running task is alive.
    let me = unsafe { &*me };
    while !me.delivered.replace(false) {
        suspend(me, Status::Sleeping);
    }
}

/// Suspends the calling thread for a duration, or until it is cancelled.
pub(crate) fn sleep_thread(time: Duration) {
    let begin = Instant::now();
    // SAFETY: the header of the calling thread, which exists because the caller may block.
    while !unsafe { (*waiter()).is_cancelled() }
        && let Some(left) = time.checked_sub(begin.elapsed())
        && !left.is_zero()
    {
        corebeat_sync::thread::park_timeout(left);
    }
}

/// Stores where the stack of the running task ends, and why the task will be suspended.
#[inline(always)]
fn prepare(me: &Header, status: Status) {
    let frame = 0u8;
    me.frame.set(&raw const frame);
    me.set_status(status);
}

/// Returns to the worker until the task is dispatched again.
#[inline(always)]
fn suspend(me: &Header, status: Status) {
    prepare(me, status);
    context::suspend(me, if status == Status::Ready { Outcome::Yielded } else { Outcome::Blocked });
}

/// Returns the reason why the calling task, which was cancelled, has no result.
pub(crate) fn cancellation() -> Failure {
    // SAFETY: the running task or thread is alive.
    let why = unsafe { &(*waiter()).cancel }.load(Ordering::Acquire);
    match (why, runtime().and_then(|inner| inner.detector.deadlock())) {
        (task::CANCEL_DEADLOCK, Some(deadlock)) => Failure::Deadlock(deadlock),
        (task::CANCEL_ABORTED, _) => Failure::Aborted,
        _ => Failure::Cancelled,
    }
}
