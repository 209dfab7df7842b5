//! Timers of one worker: for its sleeping tasks, for tasks that wait with a time limit, and for
//! futures.

use crate::task::Header;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::task::Waker;

/// Identity of a timer: when it is due, in nanoseconds of the runtime's clock, and a number that
/// orders timers with equal times.
pub(crate) type Key = (u64, u64);

/// Object that a timer wakes.
pub(crate) enum Target {
    /// A task of the worker. Its timer is removed before the task ends.
    Task(*const Header),
    Future(Waker),
}

#[derive(Default)]
pub(super) struct Timers(RefCell<BTreeMap<Key, Target>>);

impl Timers {
    pub(super) fn set(&self, key: Key, target: Target) {
        self.0.borrow_mut().insert(key, target);
    }

    /// Removes a timer, if it has not run.
    pub(super) fn remove(&self, key: Key) {
        let removed = self.0.borrow_mut().remove(&key);
        drop(removed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.0.borrow().first_key_value().map(|(key, _)| key.0)
    }

    /// Removes the timers that are due, and passes their targets to `wake`.
    pub(super) fn run(&self, now_ns: impl Fn() -> u64, wake: impl Fn(Target)) {
        if self.is_empty() {
            return;
        }
        let now_ns = now_ns();
        while self.next_due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            let first = self.0.borrow_mut().pop_first();
            first.into_iter().for_each(|(_, target)| wake(target));
        }
    }

    /// Removes the timers of tasks, except those that `keep` selects.
    pub(super) fn retain_tasks(&self, keep: impl Fn(*const Header) -> bool) {
        self.0.borrow_mut().retain(|_, target| match target {
            Target::Task(task) => keep(*task),
            Target::Future(_) => true,
        });
    }
}
