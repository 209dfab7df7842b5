//! Who decides: the daemon, or this process for itself.

use crate::alone::Alone;
use crate::{Ask, Error, Numa, Retreat};
use corebeat_machine::{CpuId, CpuSet};
use corebeat_wire::{Connection, Watch, host};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// A claim's side of its arbiter.
#[derive(Debug)]
pub(crate) enum Arbiter {
    Daemon { calls: Connection, changes: Box<Watch<host::ClaimChange>>, claim: u64 },
    Alone(Alone),
}

impl Arbiter {
    /// Makes a claim.
    pub(crate) fn begin(ask: &Ask) -> Result<(Arbiter, Vec<CpuId>), Error> {
        let Some(mut calls) = Connection::open()? else {
            let (alone, cpus) = Alone::begin(ask)?;
            return Ok((Arbiter::Alone(alone), cpus));
        };
        // It has begun before there is anything to tell, so that nothing is missed.
        let mut changes = calls.another()?.watch(host::WATCH_CLAIMS, &host::Nothing {})?;
        let _: host::ClaimChange = changes.next()?;
        let (host::Invaded { claim, cpus }, _) = calls.call(host::INVADE, &wish(None, ask), &[])?;
        Ok((Arbiter::Daemon { calls, changes: Box::new(changes), claim }, list(cpus)))
    }

    pub(crate) fn invade(&mut self, ask: &Ask) -> Result<Vec<CpuId>, Error> {
        match self {
            Arbiter::Daemon { calls, claim, .. } => {
                let (host::Invaded { cpus, .. }, _) =
                    calls.call(host::INVADE, &wish(Some(*claim), ask), &[])?;
                Ok(list(cpus))
            }
            Arbiter::Alone(alone) => alone.invade(ask),
        }
    }

    pub(crate) fn retreat(&mut self, what: Retreat) -> Result<Vec<CpuId>, Error> {
        match self {
            Arbiter::Daemon { calls, claim, .. } => {
                // Who keeps nothing would end the claim.
                let (to, cpus) = match what {
                    Retreat::To(count) => (Some(count.max(1)), None),
                    Retreat::Cpus(cpus) => (None, Some(numbers(&cpus))),
                };
                let retreat = host::Retreat { claim: *claim, to, cpus };
                let (host::Retreated { cpus }, _) = calls.call(host::RETREAT, &retreat, &[])?;
                Ok(list(cpus))
            }
            Arbiter::Alone(alone) => alone.retreat(what),
        }
    }

    /// Follows what has come. What the claim has now, if anything has come.
    pub(crate) fn heed(&mut self) -> Result<Option<Vec<CpuId>>, Error> {
        let (calls, changes, claim) = match self {
            Arbiter::Daemon { calls, changes, claim } => (calls, changes, *claim),
            Arbiter::Alone(alone) => return alone.heed().map(Some),
        };
        let mut is_told = false;
        while let Some(change) = changes.try_next()? {
            is_told |= change.claim == claim;
        }
        if !is_told {
            return Ok(None);
        }
        // What was told may be older than what we have asked for since: two connections have no order.
        let (host::Claims { claims }, _) = calls.call(host::LIST_CLAIMS, &host::Nothing {}, &[])?;
        let Some(own) = claims.into_iter().find(|own| own.claim == claim) else { return Ok(Some(vec![])) };
        let Some(keep) = own.keep else { return Ok(Some(list(own.cpus))) };
        let back = own.cpus.into_iter().filter(|cpu| !keep.contains(cpu)).map(CpuId).collect();
        self.retreat(Retreat::Cpus(back)).map(Some)
    }
}

impl Drop for Arbiter {
    fn drop(&mut self) {
        if let Arbiter::Daemon { calls, claim, .. } = self {
            // What keeps nothing has ended. Where the daemon has, so has the claim.
            let nothing = host::Retreat { claim: *claim, to: Some(0), cpus: None };
            let _ = calls.call::<_, host::Retreated>(host::RETREAT, &nothing, &[]);
        }
    }
}

impl AsFd for Arbiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Arbiter::Daemon { changes, .. } => changes.as_fd(),
            Arbiter::Alone(alone) => alone.as_fd(),
        }
    }
}

/// An ask in the daemon's words.
fn wish(claim: Option<u64>, ask: &Ask) -> host::Invade {
    let numa = ask.numa.map(|numa| match numa {
        Numa::Scatter => host::Numa::Scatter,
        Numa::Compact => host::Numa::Compact,
    });
    let prefer = (!ask.prefer.is_empty()).then(|| numbers(&ask.prefer));
    host::Invade { claim, min: ask.min, max: ask.max, numa, within: ask.within.as_ref().map(numbers), prefer }
}

fn numbers(cpus: &CpuSet) -> Vec<u32> {
    cpus.iter().map(|cpu| cpu.0).collect()
}

fn list(mut cpus: Vec<u32>) -> Vec<CpuId> {
    cpus.sort_unstable();
    cpus.into_iter().map(CpuId).collect()
}

/// Something to ring, and to wait for with `poll`.
pub(crate) fn event() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

pub(crate) fn ring(event: &OwnedFd) {
    // It fails only where it has been rung 2^64 times already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
