//! The arbiter: the daemon, or this process if no daemon runs.

use crate::local::LocalClaim;
use crate::signal::Signal;
use crate::{Ask, Error, Numa, Retreat};
use corebeat_machine::{CpuId, CpuSet};
use corebeat_wire::{Connection, Deadline, Watch, host};
use rustix::net::{Shutdown, shutdown};
use serde::Serialize;
use serde::de::DeserializeOwned;
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
    /// The connection, which carries the calls for the claim and the reports of its changes.
    connection: Box<Watch<host::ClaimChange>>,
    claim: u64,
    /// Raised by a report among the answers, which no longer makes the socket readable.
    signal: Arc<Signal>,
    /// A report has arrived that no poll has applied yet.
    is_affected: bool,
    /// A call has timed out: the daemon may have executed it since, and the CPUs of the claim may
    /// be others than this process assumes.
    is_outdated: bool,
}

impl ArbiterConnection {
    /// Creates a claim, whose changes raise the signal or make its socket readable.
    pub(crate) fn begin(
        ask: &Ask,
        signal: &Arc<Signal>,
        deadline: Deadline,
    ) -> Result<(ArbiterConnection, Vec<CpuId>), Error> {
        match ArbiterConnection::begin_at_daemon(ask, signal, deadline) {
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
        signal: &Arc<Signal>,
        deadline: Deadline,
    ) -> Result<Option<(ArbiterConnection, Vec<CpuId>)>, Error> {
        let Some(connection) = Connection::open_until(deadline)? else { return Ok(None) };
        // The watch starts before the claim exists, so that no report is missed. Its first answer
        // confirms it.
        let (_, mut connection) = connection.watch(host::WATCH_CLAIMS, &host::Nothing {})?;
        // Reports before the answer are about other claims of the process.
        let begun = connection.call(host::INVADE, &to_wire(None, ask), |_| ());
        let host::Invaded { claim, cpus } = begun?;
        let claim = DaemonClaim {
            // A stopped daemon must not cost the process its claim, which would exist beside a new
            // one.
            connection: Box::new(connection.lasting()),
            claim,
            signal: signal.clone(),
            is_affected: false,
            is_outdated: false,
        };
        Ok(Some((ArbiterConnection::Daemon(claim), list(cpus))))
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self, ArbiterConnection::LocalClaim(_))
    }

    /// The socket on which the daemon reports changes and its end.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            ArbiterConnection::Daemon(own) => Some(own.connection.as_fd()),
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
            claim.connection.set_deadline(deadline);
        }
    }

    pub(crate) fn invade(&mut self, ask: &Ask) -> Result<Vec<CpuId>, Error> {
        match self {
            ArbiterConnection::Daemon(own) => {
                let asked = to_wire(Some(own.claim), ask);
                let host::Invaded { cpus, .. } = own.call(host::INVADE, &asked)?;
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
    fn call<P: Serialize, R: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: &P,
    ) -> Result<R, Error> {
        let DaemonClaim { connection, claim, signal, is_affected, .. } = self;
        let report = |change: host::ClaimChange| {
            if change.claim == *claim {
                *is_affected = true;
                signal.raise();
            }
        };
        let answer = connection.call(method, parameters, report);
        self.is_outdated |= matches!(answer, Err(corebeat_wire::Error::TimedOut));
        Ok(answer?)
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
        let host::Retreated { cpus } = self.call(host::RETREAT, &retreat)?;
        Ok(self.updated(cpus))
    }

    fn poll(&mut self) -> Result<Option<Vec<CpuId>>, Error> {
        while let Some(change) = self.connection.try_next()? {
            self.is_affected |= change.claim == self.claim;
        }
        if !self.is_affected && (!self.is_outdated || self.connection.is_late()) {
            return Ok(None);
        }
        self.is_affected = false;
        self.apply().map(Some).inspect_err(|_| {
            // The next poll applies the changes.
            self.is_affected = true;
            self.signal.raise();
        })
    }

    /// Queries the present CPUs, and releases those that the daemon requests. The contents of a
    /// report do not suffice: it may be older than the last request.
    fn apply(&mut self) -> Result<Vec<CpuId>, Error> {
        let host::Claims { claims } = self.call(host::LIST_CLAIMS, &host::Nothing {})?;
        let Some(own) = claims.into_iter().find(|own| own.claim == self.claim) else {
            return Ok(self.updated(vec![]));
        };
        let Some(keep) = own.keep else { return Ok(self.updated(own.cpus)) };
        let back = own.cpus.into_iter().filter(|cpu| !keep.contains(cpu)).map(CpuId).collect();
        self.retreat(Retreat::Cpus(back))
    }

    fn end(mut self) {
        // A claim without CPUs has ended. If the daemon has ended, so has the claim.
        let nothing = host::Retreat { claim: self.claim, to: Some(0), cpus: None };
        self.connection.set_deadline(Deadline::new());
        let ended = self.connection.call::<_, host::Retreated>(host::RETREAT, &nothing, |_| ());
        if ended.is_err() {
            // The daemon is late, or refuses more calls. It ends the claim with the connection, of
            // which children of fork may have copies.
            let _ = shutdown(self.connection.as_fd(), Shutdown::Both);
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
