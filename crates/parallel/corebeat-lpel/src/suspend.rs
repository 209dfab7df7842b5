//! Suspension of tasks for events of other crates ([`corebeat_sync::wait`]).

use crate::current;
use crate::error::TryReadError;
use crate::stream::{Reader, Writer, stream};
use corebeat_sync::wait::Suspend;
use corebeat_sync::{Mutex, lock};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// A task that waits for the end of a stream.
struct Suspension {
    event: Arc<Event>,
    end: Reader<()>,
}

/// The writer of the stream, until the event.
struct Event(Mutex<Option<Writer<()>>>);

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        // Dropped after the lock, because the drop wakes the task.
        let writer = lock(&self.0).take();
        drop(writer);
    }
}

impl Suspend for Suspension {
    fn waker(&self) -> Waker {
        self.event.clone().into()
    }

    fn suspend(&mut self, time: Option<Duration>) -> bool {
        match time {
            Some(time) => self.end.read_timeout(time) == Err(TryReadError::Closed),
            None => self.end.read().is_none(),
        }
    }
}

/// Returns the calling task, if it may wait.
pub(crate) fn calling_task() -> Option<Box<dyn Suspend>> {
    if std::thread::panicking() || !current::is_any_task() {
        return None;
    }
    let (writer, end) = stream(1);
    // Any thread may cause the event.
    let event = Arc::new(Event(Mutex::new(Some(writer.outside()))));
    Some(Box::new(Suspension { event, end }))
}
