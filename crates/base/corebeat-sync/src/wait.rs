//! Spans of a thread in which a task must not wait, because other tasks of the same worker would
//! then run inside the span.
//!
//! A crate with such spans installs a check once ([`forbid`]), and a scheduler of tasks calls all
//! checks before each wait ([`check`]). The crates do not depend on each other.

use std::sync::OnceLock;

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
