//! A descriptor that tasks wait for.

use crate::detector::{self, Registration};
use crate::notify::Event;
use crate::slot::Slot;
use corebeat_sync::fork::Process;
use corebeat_sync::{Mutex, lock};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

/// State of a descriptor. The locks are taken in the order registration, table of the detector,
/// slot.
pub(crate) struct Source {
    process: Process,
    registration: Mutex<Option<Registration>>,
    pub(crate) read: Slot,
    pub(crate) write: Slot,
}

impl Source {
    pub(crate) fn new() -> Arc<Source> {
        Arc::new(Source {
            process: Process::current(),
            registration: Mutex::new(None),
            read: Slot::new(),
            write: Slot::new(),
        })
    }

    /// Lets the detector of the caller report the descriptor. If a task waits for the other
    /// direction, and its detector still works, the descriptor stays there: otherwise two tasks on
    /// two workers would move it at every wait.
    pub(crate) fn register(self: &Arc<Self>, fd: BorrowedFd<'_>) -> io::Result<()> {
        if !self.process.is_current() {
            return Err(io::Error::other(
                "the socket was created before a fork, and nothing reports it in this child: \
                 create sockets in the child",
            ));
        }
        let mut registration = lock(&self.registration);
        let is_awaited = || self.read.is_awaited() || self.write.is_awaited();
        if let Some(old) = &*registration
            && (old.is_here() || is_awaited() && old.is_turned())
        {
            return Ok(());
        }
        let here = detector::here()?;
        if let Some(old) = registration.take() {
            old.remove(fd);
        }
        *registration = Some(here.add(self, fd)?);
        Ok(())
    }

    /// Ends the registration, before the descriptor is closed.
    pub(crate) fn deregister(&self, fd: BorrowedFd<'_>) {
        if !self.process.is_current() {
            // The detector belongs to the parent, whose threads may have held its locks.
            return;
        }
        let registration = lock(&self.registration).take();
        if let Some(registration) = registration {
            registration.remove(fd);
        }
    }

    /// Notes a report, and adds the wakers of waiting tasks to `wakers`.
    pub(crate) fn report(&self, event: &Event, wakers: &mut Vec<Waker>) {
        if event.readable {
            wakers.extend(self.read.report(event.is_final));
        }
        if event.writable {
            wakers.extend(self.write.report(event.is_final));
        }
    }

    /// Notes that both directions may be ready.
    pub(crate) fn report_everything(&self, wakers: &mut Vec<Waker>) {
        wakers.extend(self.read.report(false));
        wakers.extend(self.write.report(false));
    }
}
