//! Lines of execution other than threads: what was handed over, asynchronous calls, tasks.

use crate::event::{HandOver, Resume, Suspend, Task};
use crate::probe::{Probe, begin, end};
use corebeat_trace::Event;
use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

thread_local! {
    /// Whether this thread has logged what no task has claimed.
    static IS_UNCLAIMED: Cell<bool> = const { Cell::new(false) };
}

/// Logs what is about calls, in the name of who runs on this thread.
#[inline(always)]
pub(crate) fn log<E: Event>(event: &E) {
    IS_UNCLAIMED.set(true);
    corebeat_trace::emit(event);
}

/// The next line's number.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A call, taken to a thread or a task that works for it: what is called there, it has called.
///
/// ```
/// use corebeat_probe::Handover;
///
/// let handover = Handover::here();
/// std::thread::spawn(move || {
///     let _handed = handover.take();
///     // what is called here has been called by who made the handover
/// });
/// ```
#[derive(Debug)]
#[must_use = "it is for another thread or task, which takes it"]
pub struct Handover {
    line: u64,
}

/// The time for which a [`Handover`] counts, to where this is dropped. It stays with its thread, or with its task.
#[derive(Debug)]
#[must_use = "it counts until this is dropped"]
pub struct Handed {
    stays: PhantomData<*const ()>,
}

impl Handover {
    /// Of the call that is open here. Where nothing is recorded, it hands over nothing.
    pub fn here() -> Handover {
        // Relaxed: each number is given once, and that is all.
        let line = NEXT.fetch_add(1, Ordering::Relaxed);
        log(&HandOver { line });
        Handover { line }
    }

    /// Works for that call from here on.
    pub fn take(self) -> Handed {
        log(&Resume { line: self.line });
        Handed { stays: PhantomData }
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        log(&Suspend);
    }
}

/// Tells that what this thread's probes saw since the last time, the task of this number did. For who runs tasks on threads: it is
/// called when a task comes back, before anything else is done. Where no probe saw anything, this is a load and a branch. LPEL does it
/// for its tasks.
#[inline]
pub fn task(task: u64) {
    if IS_UNCLAIMED.replace(false) {
        corebeat_trace::emit(&Task { task });
    }
}

impl Probe {
    /// Makes a future a call: from its first poll until it is ready, or dropped. It is a line of its own, which who polls it first has
    /// called.
    pub fn within<F: Future>(&'static self, future: F) -> impl Future<Output = F::Output> {
        Within { probe: self, is_polled: false, open: None, future }
    }
}

/// A future that is a call.
struct Within<F> {
    probe: &'static Probe,
    is_polled: bool,
    /// The call, between two polls.
    open: Option<Open>,
    future: F,
}

/// A call of a line of its own.
#[derive(Clone, Copy)]
struct Open {
    line: u64,
    /// As [`begin`] has it.
    call: u32,
}

/// Such a call while it is polled. It ends when this is dropped.
struct Polled(Option<Open>);

impl Open {
    fn new(probe: &'static Probe) -> Option<Open> {
        probe.is_on().then(|| {
            let handover = Handover::here();
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
        // SAFETY: the future is not moved out of here, neither is it when this is dropped.
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
        // SAFETY: it stays where it is for as long as this does, which is pinned.
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
