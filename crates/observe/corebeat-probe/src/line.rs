//! Lines of execution other than threads: handovers, asynchronous calls, tasks.

use crate::event::{HandOver, Resume, Suspend, Task, TaskName};
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
    /// Makes a future a call, which lasts from its first poll until it is ready or dropped. The
    /// future is a separate line, and its caller is the call that polls it first.
    pub fn within<F: Future>(&'static self, future: F) -> impl Future<Output = F::Output> {
        Within { probe: self, is_polled: false, open: None, future }
    }
}

/// A future that is recorded as a call.
struct Within<F> {
    probe: &'static Probe,
    is_polled: bool,
    /// The call, between two polls.
    open: Option<Open>,
    future: F,
}

/// An open call on its own line.
#[derive(Clone, Copy)]
struct Open {
    line: u64,
    /// The result of [`begin`].
    call: u32,
}

/// An open call during a poll. Dropping it ends the call.
struct Polled(Option<Open>);

impl Open {
    fn new(probe: &'static Probe) -> Option<Open> {
        probe.is_on().then(|| {
            let handover = Handover::new();
            log(&Resume { line: handover.line });
            Open { line: handover.line, call: begin(probe.state()) }
        })
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        if let Some(open) = self.0 {
            end(open.call);
            log(&Suspend);
        }
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is never moved out of `this`, not even when `this` is dropped.
        let this = unsafe { self.get_unchecked_mut() };
        let open = match this.open.take() {
            Some(open) => {
                log(&Resume { line: open.line });
                Some(open)
            }
            None if this.is_polled => None,
            None => Open::new(this.probe),
        };
        this.is_polled = true;
        let mut polled = Polled(open);
        // SAFETY: `this` is pinned, and the future is a part of it that is never moved.
        let done = unsafe { Pin::new_unchecked(&mut this.future) }.poll(context);
        if done.is_pending() && polled.0.is_some() {
            log(&Suspend);
            this.open = polled.0.take();
        }
        done
    }
}

impl<F> Drop for Within<F> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            log(&Resume { line: open.line });
            drop(Polled(Some(open)));
        }
    }
}
