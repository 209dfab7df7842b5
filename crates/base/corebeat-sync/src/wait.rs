//! Waits of tasks, for crates that do not depend on a scheduler of tasks.
//!
//! There are spans of a thread in which a task must not wait, because other tasks of the same
//! worker would then run inside the span. A crate with such spans installs a check once
//! ([`forbid`]), and a scheduler of tasks calls all checks before each wait ([`check`]).
//!
//! A crate whose callers wait for events suspends the task of its caller ([`task`]), if the
//! scheduler has installed a function for that ([`suspend_tasks`]). Otherwise the wait would block
//! the worker, and with it the tasks that could cause the event.

use std::sync::OnceLock;
use std::task::Waker;
use std::time::Duration;

/// A kind of span in which tasks must not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// A read-side critical section.
    Section,
    /// A transaction.
    Transaction,
}

static CHECKS: [OnceLock<fn()>; 2] = [const { OnceLock::new() }; 2];

/// Installs `check`, which is called from now on in each task that is about to wait. `check` panics
/// inside a span of this kind. A second call for the same kind has no effect.
pub fn forbid(span: Span, check: fn()) {
    CHECKS[span as usize].get_or_init(|| check);
}

/// Calls the installed checks: a task is about to wait on this thread.
///
/// # Panics
///
/// If the task must not wait at this point.
#[inline(always)]
pub fn check() {
    for check in &CHECKS {
        if let Some(check) = check.get() {
            check();
        }
    }
}

/// A task that can be suspended, for one event.
pub trait Suspend {
    /// Returns a handle that wakes the task, from any thread.
    fn waker(&self) -> Waker;

    /// Suspends the task until its waker has been used, or at most for `time` by the clock of the
    /// scheduler, which may be virtual. Returns false if the time was over before the waker was
    /// used. Only the task itself calls this function.
    fn suspend(&mut self, time: Option<Duration>) -> bool;
}

/// Returns the calling task, if its thread must not block.
pub type CallingTask = fn() -> Option<Box<dyn Suspend>>;

static CALLING_TASK: OnceLock<CallingTask> = OnceLock::new();

/// Installs the function by which a scheduler suspends its tasks. A second call has no effect.
pub fn suspend_tasks(calling_task: CallingTask) {
    CALLING_TASK.get_or_init(|| calling_task);
}

/// Returns the calling task; `None` if the caller may block its thread.
pub fn task() -> Option<Box<dyn Suspend>> {
    CALLING_TASK.get().and_then(|calling_task| calling_task())
}
