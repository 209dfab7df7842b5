//! An epoll set with a bell.

use super::{Event, Interest, Notify, RESERVED};
use corebeat_sync::descriptor::above_standard;
use corebeat_sync::fork::KeptOut;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// When a descriptor is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Each change of its state once (edge-triggered). No system call re-arms a descriptor that was
    /// used until it was not ready any more.
    Edge,
    /// While it is ready (level-triggered), but once: a reported descriptor is disabled until a
    /// system call re-arms it, so that one thread at a time handles the descriptor.
    OneShot,
}

/// An interest set of the kernel. A child of fork does not inherit it: changes that the child made
/// would affect its parent.
pub(crate) struct Epoll {
    trigger: Trigger,
    /// Dropped before the file is closed.
    _kept_out: KeptOut,
    epoll: File,
    bell: OwnedFd,
}

impl Epoll {
    pub(crate) fn new(trigger: Trigger) -> io::Result<Epoll> {
        let (kept_out, epoll) =
            KeptOut::file(|| Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?.into()))?;
        let bell = bell()?;
        // Edge-triggered: each ring is reported once, and the counter is never read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(RESERVED), flags)?;
        Ok(Epoll { trigger, _kept_out: kept_out, epoll, bell })
    }

    /// Flags of a descriptor with this interest.
    fn flags(&self, interest: Interest) -> epoll::EventFlags {
        match self.trigger {
            // Both directions, so that a change of the interest needs no system call.
            Trigger::Edge => flags(Interest::BOTH) | epoll::EventFlags::ET,
            Trigger::OneShot => flags(interest) | epoll::EventFlags::ONESHOT,
        }
    }
}

impl Notify for Epoll {
    fn add(&self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::add(&self.epoll, fd, data, self.flags(interest))?)
    }

    fn rearm(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        interest: Interest,
        is_drained: bool,
    ) -> io::Result<()> {
        if self.trigger == Trigger::Edge && is_drained {
            return Ok(());
        }
        // The kernel checks the state of a descriptor when its entry changes, and reports it.
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::modify(&self.epoll, fd, data, self.flags(interest))?)
    }

    fn remove(&self, fd: BorrowedFd<'_>, _: u64) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize, time: Option<Duration>) -> io::Result<()> {
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

    fn wake(&self) {
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
fn flags(interest: Interest) -> epoll::EventFlags {
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
    above_standard(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes a bell readable. It fails only if the bell has been rung 2^64 times.
pub(super) fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
