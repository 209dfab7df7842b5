//! Suspension of tasks for events of other crates ([`corebeat_sync::wait`]).
//!
//! The word of an event holds the token of the task that waits for the event, and is closed when
//! the event has happened. Both sides change the word by atomic exchanges, so that no fence is
//! needed: either the task finds the word closed, or the waker finds the token.

use crate::current::{self, TimeLimit};
use crate::task::{Object, Status};
use crate::waiter::{self, CLOSED, Word};
use corebeat_sync::atomic::Ordering;
use corebeat_sync::wait::Suspend;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// The calling task, and the event for which it may wait.
struct Suspension(Arc<Event>);

struct Event(Word);

impl Event {
    fn has_happened(&self) -> bool {
        // Acquire: pairs with the release in `wake`.
        self.0.load(Ordering::Acquire) == CLOSED
    }
}

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // AcqRel: the effects of the caller are visible to the task, and the effects of the task
        // that left the token to the caller.
        let token = self.0.swap(CLOSED, Ordering::AcqRel);
        if waiter::is_token(token) {
            // SAFETY: the exchange took the token.
            unsafe { waiter::wake(token) };
        }
    }
}

impl Suspend for Suspension {
    fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    fn suspend(&mut self, time: Option<Duration>) -> bool {
        let limit = time.map(TimeLimit::begin);
        let event = &*self.0;
        while !event.has_happened()
            && let Some(token) = current::blocking_token()
        {
            if waiter::leave(&event.0, token) {
                // A search for deadlocks finds no stream, so any thread may cause the event.
                current::block(&event.0, token, Status::Reading, Object::NONE);
                current::unblocked(token);
            }
        }
        drop(limit);
        event.has_happened()
    }
}

/// Returns the calling task, if it may wait.
pub(crate) fn calling_task() -> Option<Box<dyn Suspend>> {
    if std::thread::panicking() || !current::is_any_task() {
        return None;
    }
    Some(Box::new(Suspension(Arc::new(Event(Word::new(waiter::EMPTY))))))
}
