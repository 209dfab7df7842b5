//! Spans of a thread in which a task must not wait, because other tasks of its worker would be in them.
//!
//! Who has such spans says once how they are known ([`forbid`]), and who switches tasks asks before each wait ([`check`]). The two need
//! not know each other.

use std::sync::OnceLock;

static CHECK: OnceLock<fn()> = OnceLock::new();

/// From now on, `check` is called in a task that is about to wait. It panics, with words that say what to do, where that must not
/// be. The first one that was given stays.
pub fn forbid(check: fn()) {
    CHECK.get_or_init(|| check);
}

/// A task is about to wait on this thread.
///
/// # Panics
/// It must not.
#[inline(always)]
pub fn check() {
    if let Some(check) = CHECK.get() {
        check();
    }
}
