//! Lines of execution other than threads: handovers, asynchronous calls, tasks.

use crate::event::{HandOver, Panic, Resume, Suspend, Task, TaskName};
use crate::probe::{Probe, begin, end};
use corebeat_trace::Event;
use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

thread_local! {
    /// Whether this thread has logged events that no task has claimed.
    static IS_UNCLAIMED: Cell<bool> = const { Cell::new(false) };
}

/// Logs an event about calls on the current thread.
#[inline(always)]
pub(crate) fn log<E: Event>(event: &E) {
    IS_UNCLAIMED.set(true);
    corebeat_trace::emit(event);
}

/// Number of the next line.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Transfers a call to the thread or task that works for it: calls made there are its callees.
///
/// ```
/// use corebeat_probe::Handover;
///
/// let handover = Handover::new();
/// std::thread::spawn(move || {
///     let _guard = handover.accept();
///     // calls made here are callees of the call that created the handover
/// });
/// ```
#[derive(Debug)]
#[must_use = "another thread or task must accept the handover"]
pub struct Handover {
    line: u64,
}

/// The time during which a [`Handover`] is in effect, until the guard is dropped. The guard cannot
/// leave its thread or its task.
#[derive(Debug)]
#[must_use = "the handover ends when the guard is dropped"]
pub struct HandoverGuard {
    stays: PhantomData<*const ()>,
}

impl Handover {
    /// A handover of the innermost open call. It has no effect if nothing is recorded.
    #[allow(clippy::new_without_default, reason = "each handover logs an event")]
    pub fn new() -> Handover {
        // Relaxed: only uniqueness is required.
        let line = NEXT.fetch_add(1, Ordering::Relaxed);
        log(&HandOver { line });
        Handover { line }
    }

    /// Makes calls on this thread or task callees of that call until the guard is dropped.
    pub fn accept(self) -> HandoverGuard {
        log(&Resume { line: self.line });
        HandoverGuard { stays: PhantomData }
    }
}

impl Drop for HandoverGuard {
    fn drop(&mut self) {
        log(&Suspend);
    }
}

/// Assigns all calls that this thread's probes recorded since the last call of `task` to the task
/// with this number. A runtime that runs tasks on threads calls this function as its first step
/// after a task has returned control. If no probe recorded a call, the cost is a load and a branch.
/// LPEL calls this function for its tasks.
#[inline]
pub fn task(task: u64) {
    if IS_UNCLAIMED.replace(false) {
        corebeat_trace::emit(&Task { task });
    }
}

/// Declares the name of a task; exports contain the name. A runtime calls this function once for
/// each task that has a name, such as at the start of the task. LPEL calls this function for its
/// tasks. If no trace is installed, the cost is a load and a branch.
#[inline]
pub fn name_task(task: u64, name: &str) {
    corebeat_trace::emit(&TaskName { task, name });
}

impl Probe {
    /// Enters a call on a line of its own, which can be suspended and continue on another thread.
    /// Its caller is the innermost open call. Nothing is recorded if the probe is off.
    pub fn begin(&'static self) -> RunningCall {
        let open = self.is_on().then(|| {
            let handover = Handover::new();
            log(&Resume { line: handover.line });
            Open { line: handover.line, call: begin(self.state()) }
        });
        RunningCall { open, stays: PhantomData }
    }

    /// Makes a future a call, which lasts from its first poll until it is ready or dropped. The
    /// future is a separate line, and its caller is the call that polls it first.
    pub fn within<F: Future>(&'static self, future: F) -> impl Future<Output = F::Output> {
        Within { state: State::New(self), future }
    }
}

/// An open call on its own line.
#[derive(Debug, Clone, Copy)]
struct Open {
    line: u64,
    /// The result of [`begin`].
    call: u32,
}

/// A call on its own line ([`Probe::begin`]) that runs on this thread. Dropping it ends the call.
#[derive(Debug)]
#[must_use = "the call ends when this is dropped"]
pub struct RunningCall {
    /// `None` if nothing is recorded.
    open: Option<Open>,
    stays: PhantomData<*const ()>,
}

/// A call on its own line that does not run at present. Dropping it ends the call.
#[derive(Debug)]
#[must_use = "the call ends when this is dropped"]
pub struct SuspendedCall {
    open: Option<Open>,
}

impl RunningCall {
    /// Interrupts the call, so that it can continue later, on any thread.
    pub fn suspend(mut self) -> SuspendedCall {
        let open = self.open.take();
        if open.is_some() {
            log(&Suspend);
        }
        SuspendedCall { open }
    }

    /// Ends the call as one that panicked. For languages whose exceptions are no panics.
    pub fn fail(mut self) {
        if self.open.take().is_some() {
            log(&Panic);
            log(&Suspend);
        }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        if let Some(open) = self.open {
            end(open.call);
            log(&Suspend);
        }
    }
}

impl SuspendedCall {
    /// Continues the call on this thread.
    pub fn resume(mut self) -> RunningCall {
        resumed(self.open.take())
    }
}

impl Drop for SuspendedCall {
    fn drop(&mut self) {
        drop(resumed(self.open.take()));
    }
}

fn resumed(open: Option<Open>) -> RunningCall {
    if let Some(open) = open {
        log(&Resume { line: open.line });
    }
    RunningCall { open, stays: PhantomData }
}

/// A future that is recorded as a call.
struct Within<F> {
    state: State,
    future: F,
}

/// The call of a future, between two polls.
enum State {
    New(&'static Probe),
    Open(SuspendedCall),
    Ended,
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is never moved out of `this`, not even when `this` is dropped.
        let this = unsafe { self.get_unchecked_mut() };
        let call = match std::mem::replace(&mut this.state, State::Ended) {
            State::New(probe) => Some(probe.begin()),
            State::Open(call) => Some(call.resume()),
            State::Ended => None,
        };
        // SAFETY: `this` is pinned, and the future is a part of it that is never moved.
        let done = unsafe { Pin::new_unchecked(&mut this.future) }.poll(context);
        if done.is_pending()
            && let Some(call) = call
        {
            this.state = State::Open(call.suspend());
        }
        done
    }
}
