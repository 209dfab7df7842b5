//! Waits of idle workers, for crates that detect events while a worker is idle.

use std::time::Duration;

/// Replaces the wait of an idle worker ([`Builder::park`](crate::Builder::park)), so that the
/// worker itself detects events of another kind, such as readiness of sockets, and no thread has
/// to wake it.
///
/// The worker calls all functions but `unpark`, on its own thread and between two tasks. They may
/// wake tasks of any worker. They must not wait for tasks.
pub trait Park: Send + Sync + 'static {
    /// Begins: the thread of the worker runs from now on.
    fn enter(&self) {}

    /// Handles the events that have occurred, without waiting. A busy worker calls this function
    /// every 64 dispatches, and before each search for work.
    fn poll(&self);

    /// Waits for an event and handles it, at most for `time` if it is given. Returns at once if
    /// `unpark` was called since the last return of this function. May return early.
    fn park(&self, time: Option<Duration>);

    /// Makes the current or the next call of `park` return. Any thread calls this function, also
    /// after `leave`.
    fn unpark(&self);

    /// Ends: the worker runs no task any more.
    fn leave(&self) {}
}
