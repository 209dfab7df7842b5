//! The arbiter: the daemon, or this process if no daemon runs.

use crate::local::LocalClaim;
use crate::signal::Signal;
use crate::{Ask, Error, Numa, Retreat};
use corebeat_machine::{CpuId, CpuSet};
use corebeat_sync::quiet;
use corebeat_wire::{Connection, Deadline, Watch, host};
use rustix::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The connection of a claim to its arbiter.
#[derive(Debug)]
pub(crate) enum ArbiterConnection {
    Daemon(DaemonClaim),
    LocalClaim(LocalClaim),
}

/// A claim of the daemon.
#[derive(Debug)]
pub(crate) struct DaemonClaim {
    calls: Connection,
    changes: Box<Watch<host::ClaimChange>>,
    claim: u64,
    /// A call has timed out: the daemon may have executed it since, and the CPUs of the claim may
    /// be others than this process assumes.
    is_outdated: bool,
}

impl ArbiterConnection {
    /// Creates a claim, whose changes raise the signal if it is of this process.
    pub(crate) fn begin(
        ask: &Ask,
        signal: &Arc<Signal>,
        deadline: Deadline,
    ) -> Result<(ArbiterConnection, Vec<CpuId>), Error> {
        match ArbiterConnection::begin_at_daemon(ask, deadline) {
            Ok(Some(begun)) => return Ok(begun),
            // The daemon may end after it has accepted the connection.
            Err(why) if !why.is_end_of_daemon() => return Err(why),
            _ => {}
        }
        let (local, cpus) = LocalClaim::begin(ask, signal.clone())?;
        Ok((ArbiterConnection::LocalClaim(local), cpus))
    }

    /// Creates a claim at the daemon. `None` if no daemon runs.
    pub(crate) fn begin_at_daemon(
        ask: &Ask,
        deadline: Deadline,
    ) -> Result<Option<(ArbiterConnection, Vec<CpuId>)>, Error> {
        let Some(mut calls) = Connection::open_until(deadline)? else { return Ok(None) };
        // The watch starts before the claim exists, so that no report is missed. Its first answer
        // confirms it.
        let (_, changes) = calls.another()?.watch(host::WATCH_CLAIMS, &host::Nothing {})?;
        let (host::Invaded { claim, cpus }, _) =
            calls.call(host::INVADE, &to_wire(None, ask), &[])?;
        // A stopped daemon must not cost the process its claim, which would exist beside a new one.
        let (calls, changes) = (calls.lasting(), Box::new(changes));
        let claim = DaemonClaim { calls, changes, claim, is_outdated: false };
        Ok(Some((ArbiterConnection::Daemon(claim), list(cpus))))
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self, ArbiterConnection::LocalClaim(_))
    }

    /// The socket on which the daemon reports changes.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            ArbiterConnection::Daemon(own) => Some(own.changes.as_fd()),
            ArbiterConnection::LocalClaim(_) => None,
        }
    }

    /// Whether the daemon may have changed the claim by a call that has timed out.
    pub(crate) fn is_outdated(&self) -> bool {
        matches!(self, ArbiterConnection::Daemon(claim) if claim.is_outdated)
    }

    /// Sets the deadline of the next calls.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        if let ArbiterConnection::Daemon(claim) = self {
            claim.calls.set_deadline(deadline);
        }
    }

    pub(crate) fn invade(&mut self, ask: &Ask) -> Result<Vec<CpuId>, Error> {
        match self {
            ArbiterConnection::Daemon(own) => {
                let invaded = own.calls.call(host::INVADE, &to_wire(Some(own.claim), ask), &[]);
                let host::Invaded { cpus, .. } = own.checked(invaded)?;
                Ok(own.updated(cpus))
            }
            ArbiterConnection::LocalClaim(local) => local.invade(ask),
        }
    }

    pub(crate) fn retreat(&mut self, what: Retreat) -> Result<Vec<CpuId>, Error> {
        match self {
            ArbiterConnection::Daemon(own) => own.retreat(what),
            ArbiterConnection::LocalClaim(local) => local.retreat(what),
        }
    }

    /// Ends the claim. A drop in a child of fork must not.
    pub(crate) fn end(self) {
        match self {
            ArbiterConnection::Daemon(own) => own.end(),
            ArbiterConnection::LocalClaim(local) => local.end(),
        }
    }

    /// Applies pending reports. Returns the CPUs of the claim if there was a report.
    pub(crate) fn poll(&mut self) -> Result<Option<Vec<CpuId>>, Error> {
        match self {
            ArbiterConnection::Daemon(own) => own.poll(),
            ArbiterConnection::LocalClaim(local) => local.poll().map(Some),
        }
    }
}

impl DaemonClaim {
    /// Checks the answer to a call.
    fn checked<R>(
        &mut self,
        answer: Result<(R, Vec<OwnedFd>), corebeat_wire::Error>,
    ) -> Result<R, Error> {
        self.is_outdated |= matches!(answer, Err(corebeat_wire::Error::TimedOut));
        Ok(answer?.0)
    }

    /// The present CPUs, which the daemon has sent.
    fn updated(&mut self, cpus: Vec<u32>) -> Vec<CpuId> {
        self.is_outdated = false;
        list(cpus)
    }

    fn retreat(&mut self, what: Retreat) -> Result<Vec<CpuId>, Error> {
        // A claim that keeps no CPU would end.
        let (to, cpus) = match what {
            Retreat::To(count) => (Some(count.max(1)), None),
            Retreat::Cpus(cpus) => (None, Some(numbers(&cpus))),
        };
        let retreat = host::Retreat { claim: self.claim, to, cpus };
        let retreated = self.calls.call(host::RETREAT, &retreat, &[]);
        let host::Retreated { cpus } = self.checked(retreated)?;
        Ok(self.updated(cpus))
    }

    fn poll(&mut self) -> Result<Option<Vec<CpuId>>, Error> {
        let mut is_affected = false;
        while let Some(change) = self.changes.try_next()? {
            is_affected |= change.claim == self.claim;
        }
        is_affected = is_affected || (self.is_outdated && self.calls.is_settled()?);
        if !is_affected {
            return Ok(None);
        }
        // A report may be older than the last request, because the two connections are not ordered.
        let listed = self.calls.call(host::LIST_CLAIMS, &host::Nothing {}, &[]);
        let host::Claims { claims } = self.checked(listed)?;
        let Some(own) = claims.into_iter().find(|own| own.claim == self.claim) else {
            return Ok(Some(self.updated(vec![])));
        };
        let Some(keep) = own.keep else { return Ok(Some(self.updated(own.cpus))) };
        let back = own.cpus.into_iter().filter(|cpu| !keep.contains(cpu)).map(CpuId).collect();
        self.retreat(Retreat::Cpus(back)).map(Some)
    }

    fn end(self) {
        // A claim without CPUs has ended. If the daemon has ended, so has the claim.
        let nothing = host::Retreat { claim: self.claim, to: Some(0), cpus: None };
        let mut calls = self.calls;
        let mut is_late = move || {
            calls.set_deadline(Deadline::new());
            let ended = calls.call::<_, host::Retreated>(host::RETREAT, &nothing, &[]);
            matches!(ended, Err(corebeat_wire::Error::TimedOut))
        };
        // The daemon keeps the claim as long as the process has another connection, and ends the
        // claim when it continues if this connection still exists then.
        if is_late() {
            let _ = quiet::spawn("corebeat-claim", move || while is_late() {});
        }
    }
}

/// The representation of a request in the protocol.
fn to_wire(claim: Option<u64>, ask: &Ask) -> host::Invade {
    let numa = ask.numa.map(|numa| match numa {
        Numa::Scatter => host::Numa::Scatter,
        Numa::Compact => host::Numa::Compact,
    });
    let prefer = (!ask.prefer.is_empty()).then(|| numbers(&ask.prefer));
    host::Invade {
        claim,
        min: ask.min,
        max: ask.max,
        numa,
        within: ask.within.as_ref().map(numbers),
        prefer,
    }
}

fn numbers(cpus: &CpuSet) -> Vec<u32> {
    cpus.iter().map(|cpu| cpu.0).collect()
}

fn list(mut cpus: Vec<u32>) -> Vec<CpuId> {
    cpus.sort_unstable();
    cpus.into_iter().map(CpuId).collect()
}
