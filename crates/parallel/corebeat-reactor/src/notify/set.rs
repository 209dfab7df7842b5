//! An epoll set with a bell: the common part of both epoll mechanisms.

use super::{Event, Interest, RESERVED};
use corebeat_sync::fork::KeptOut;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// An interest set of the kernel. A child of fork does not inherit it: changes that the child made
/// would affect its parent.
pub(super) struct Set {
    /// Dropped before the file is closed.
    _kept_out: KeptOut,
    epoll: File,
    bell: OwnedFd,
}

impl Set {
    pub(super) fn new() -> io::Result<Set> {
        let (kept_out, epoll) =
            KeptOut::file(|| Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?.into()))?;
        let bell = bell()?;
        // Edge-triggered: each ring is reported once, and the counter is never read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(RESERVED), flags)?;
        Ok(Set { _kept_out: kept_out, epoll, bell })
    }

    pub(super) fn add(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), flags)?)
    }

    pub(super) fn modify(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(key), flags)?)
    }

    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    pub(super) fn wait(
        &self,
        events: &mut Vec<Event>,
        max: usize,
        time: Option<Duration>,
    ) -> io::Result<()> {
        /// Number of reports of one system call.
        const BATCH: usize = 256;
        let mut reports = [const { MaybeUninit::uninit() }; BATCH];
        let reports = &mut reports[..max.min(BATCH)];
        events.clear();
        match epoll::wait(&self.epoll, reports, timespec(time).as_ref()) {
            Ok((reports, _)) => {
                events.extend(reports.iter().map(event).filter(|e| e.key != RESERVED));
            }
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
        Ok(())
    }

    pub(super) fn wake(&self) {
        ring(&self.bell);
    }
}

fn event(report: &epoll::Event) -> Event {
    use epoll::EventFlags as F;
    let flags = report.flags;
    let broken = F::HUP | F::ERR;
    Event {
        key: report.data.u64(),
        readable: flags.intersects(F::IN | F::PRI | F::RDHUP | broken),
        writable: flags.intersects(F::OUT | broken),
        is_final: flags.intersects(F::RDHUP | F::PRI | broken),
    }
}

/// Returns the flags of an interest.
pub(super) fn flags(interest: Interest) -> epoll::EventFlags {
    use epoll::EventFlags as F;
    let mut flags = F::empty();
    flags.set(F::IN | F::PRI | F::RDHUP, interest.read);
    flags.set(F::OUT, interest.write);
    flags
}

/// Returns the time limit of a system call. A limit that the type cannot represent is none.
pub(super) fn timespec(time: Option<Duration>) -> Option<Timespec> {
    time.and_then(|time| Timespec::try_from(time).ok())
}

/// Returns a descriptor that becomes readable when it is rung.
pub(super) fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes a bell readable. It fails only if the bell has been rung 2^64 times.
pub(super) fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
