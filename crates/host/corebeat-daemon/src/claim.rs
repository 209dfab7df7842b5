//! Claims of CPUs: their owners, the deadlines for shrinking, and the messages about changes.
//!
//! [`corebeat_policy::claims`] assigns the CPUs. This module has the identities of the clients and
//! the time.

use crate::limit::{CLAIMS_PER_USER_MAX, SHRINK_NS};
use corebeat_heartbeat::Peer;
use corebeat_machine::{CPU_MAX, CpuId, CpuSet, Topology};
use corebeat_policy::claims::{Ask, ClaimError, ClaimId, Claims, Numa, Outcome, Retreat};
use corebeat_wire::{Refusal, host};
use std::collections::BTreeMap;

/// All claims on this host.
#[derive(Debug)]
pub(crate) struct ClaimTable {
    claims: Claims,
    /// User of each process with claims.
    users: BTreeMap<u64, u32>,
    /// Deadlines of claims that must shrink.
    deadlines: BTreeMap<ClaimId, u64>,
    /// Messages that wait to be sent, by process.
    changes: Vec<(u32, host::ClaimChange)>,
}

impl ClaimTable {
    pub(crate) fn new(topology: Topology) -> ClaimTable {
        let mut claims = Claims::new(topology);
        // Other programs may use claimed CPUs, and so need none reserved.
        claims.unclaimed_min = 0;
        ClaimTable {
            claims,
            users: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    /// Number of claims.
    pub(crate) fn count(&self) -> usize {
        self.claims.owners().count()
    }

    /// Whether the claim exists.
    pub(crate) fn exists(&self, claim: u64) -> bool {
        self.claims.owner(ClaimId(claim)).is_some()
    }

    /// Processes with claims.
    pub(crate) fn owners(&self) -> impl Iterator<Item = i32> + '_ {
        self.claims.owners().filter_map(|(_, owner)| i32::try_from(owner).ok())
    }

    /// Requests CPUs.
    pub(crate) fn invade(
        &mut self,
        peer: Peer,
        asked: host::Invade,
        now_ns: u64,
    ) -> Result<host::Invaded, Refusal> {
        let owner = u64::from(peer.pid);
        if asked.claim.is_none() {
            let of_user =
                self.claims.owners().filter(|(_, o)| self.users.get(o) == Some(&peer.uid)).count();
            if of_user >= CLAIMS_PER_USER_MAX {
                let (what, limit) = ("claims of a user".into(), CLAIMS_PER_USER_MAX as u64);
                return Err(Refusal::TooMany { what, limit });
            }
        }
        let numa = asked.numa.map(|numa| match numa {
            host::Numa::Scatter => Numa::Scatter,
            host::Numa::Compact => Numa::Compact,
        });
        let within = asked.within.map(cpu_set).transpose()?;
        let prefer = asked.prefer.map(cpu_set).transpose()?.unwrap_or_default();
        let ask = Ask { numa, within, prefer, ..Ask::new(asked.min, asked.max) };
        let claim = asked.claim.map(ClaimId);
        let (id, outcome) = self.claims.invade(claim, owner, ask).map_err(refusal)?;
        self.users.insert(owner, peer.uid);
        self.apply(&outcome, Some(id), now_ns);
        Ok(host::Invaded { claim: id.0, cpus: numbers(&self.claims.cpus(id)) })
    }

    /// Returns CPUs.
    pub(crate) fn retreat(
        &mut self,
        peer: Peer,
        asked: host::Retreat,
        now_ns: u64,
    ) -> Result<host::Retreated, Refusal> {
        let (id, owner) = (ClaimId(asked.claim), u64::from(peer.pid));
        let outcome = match (asked.to, asked.cpus) {
            (Some(_), Some(_)) => {
                let why = "write either the number of CPUs to keep, or the CPUs to return".into();
                return Err(Refusal::BadRequest { why });
            }
            (None | Some(0), None) => self.claims.end(id, owner),
            (Some(to), None) => self.claims.retreat(id, owner, Retreat::To(to)),
            (None, Some(cpus)) => self.claims.retreat(id, owner, Retreat::Cpus(cpu_set(cpus)?)),
        };
        let outcome = outcome.map_err(refusal)?;
        self.apply(&outcome, Some(id), now_ns);
        Ok(host::Retreated { cpus: numbers(&self.claims.cpus(id)) })
    }

    /// Claims of a process, or of all processes.
    pub(crate) fn list(&self, of: Option<u32>) -> host::Claims {
        let is_theirs = |owner: u64| of.is_none_or(|pid| u64::from(pid) == owner);
        let claims = self.claims.list().filter(|(_, owner, _)| is_theirs(*owner)).map(
            |(id, owner, cpus)| {
                let (pid, keep) = (i32::try_from(owner).unwrap_or(0), self.claims.keep(id));
                host::Claim { claim: id.0, pid, cpus: numbers(&cpus), keep: keep.map(numbers) }
            },
        );
        host::Claims { claims: claims.collect() }
    }

    /// Ends the claims of a process that has ended or closed its last connection.
    pub(crate) fn forget(&mut self, pid: u32, now_ns: u64) {
        let owner = u64::from(pid);
        if self.users.remove(&owner).is_some() {
            let outcome = self.claims.dead(owner);
            self.apply(&outcome, None, now_ns);
        }
    }

    /// Takes CPUs from claims whose deadline has passed.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let is_over = |(id, at): (&ClaimId, &u64)| (*at <= now_ns).then_some(*id);
        let over: Vec<ClaimId> = self.deadlines.iter().filter_map(is_over).collect();
        for id in over {
            self.deadlines.remove(&id);
            let outcome = self.claims.deadline(id);
            self.apply(&outcome, None, now_ns);
        }
    }

    /// Earliest deadline.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.deadlines.values().min().copied()
    }

    /// Takes the waiting messages.
    pub(crate) fn take_changes(&mut self) -> Vec<(u32, host::ClaimChange)> {
        std::mem::take(&mut self.changes)
    }

    /// Records the changes of an event. `answered` is the claim whose holder receives the change as
    /// an answer.
    fn apply(&mut self, outcome: &Outcome, answered: Option<ClaimId>, now_ns: u64) {
        self.deadlines.retain(|id, _| self.claims.keep(*id).is_some());
        for (id, keep) in &outcome.asked {
            let Some(owner) = self.claims.owner(*id) else { continue };
            let is_withdrawn = *keep == self.claims.cpus(*id);
            let deadline_ms = (!is_withdrawn).then(|| {
                // A further request before the deadline does not extend it: otherwise a claim could
                // delay for ever.
                let at_ns = *self.deadlines.entry(*id).or_insert(now_ns + SHRINK_NS);
                at_ns.saturating_sub(now_ns) / 1_000_000
            });
            self.queue(owner, host::ClaimChange { claim: id.0, cpus: numbers(keep), deadline_ms });
        }
        let is_asked = |id: &ClaimId| outcome.asked.iter().any(|(asked, _)| asked == id);
        for (id, cpus) in
            outcome.changed.iter().filter(|(id, _)| Some(*id) != answered && !is_asked(id))
        {
            let Some(owner) = self.claims.owner(*id) else { continue };
            self.queue(
                owner,
                host::ClaimChange { claim: id.0, cpus: numbers(cpus), deadline_ms: None },
            );
        }
    }

    fn queue(&mut self, owner: u64, change: host::ClaimChange) {
        self.changes.extend(u32::try_from(owner).map(|pid| (pid, change)));
    }
}

fn cpu_set(cpus: Vec<u32>) -> Result<CpuSet, Refusal> {
    match cpus.iter().find(|cpu| **cpu >= CPU_MAX) {
        Some(cpu) => Err(Refusal::BadRequest {
            why: format!("there is no CPU {cpu}; CPU numbers are below {CPU_MAX}"),
        }),
        None => Ok(cpus.into_iter().map(CpuId).collect()),
    }
}

fn numbers(cpus: &CpuSet) -> Vec<u32> {
    cpus.iter().map(|cpu| cpu.0).collect()
}

fn refusal(error: ClaimError) -> Refusal {
    let why = error.to_string();
    match error {
        ClaimError::NoSuchClaim(_) => Refusal::NoSuchClaim { why },
        ClaimError::TooMany { what, limit } => {
            Refusal::TooMany { what: what.into(), limit: limit as u64 }
        }
        _ => Refusal::BadRequest { why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ask(arbiter: &mut ClaimTable, pid: u32, min: u32, now_ns: u64) -> host::Invaded {
        let asked =
            host::Invade { claim: None, min, max: 9, numa: None, within: None, prefer: None };
        arbiter.invade(Peer { uid: 1, pid }, asked, now_ns).unwrap()
    }

    #[test]
    fn further_request_does_not_extend_the_deadline() {
        let mut arbiter = ClaimTable::new(Topology::flat(9));
        ask(&mut arbiter, 1, 1, 0);
        ask(&mut arbiter, 2, 1, SECOND);
        let first = arbiter.due_ns();
        assert_eq!(first, Some(SECOND + SHRINK_NS));
        ask(&mut arbiter, 3, 1, SECOND + SHRINK_NS / 2);
        assert_eq!(arbiter.due_ns(), first);
        let left_ms = arbiter
            .take_changes()
            .into_iter()
            .filter_map(|(pid, c)| c.deadline_ms.filter(|_| pid == 1));
        assert_eq!(left_ms.collect::<Vec<_>>(), [500, 250]);
    }

    #[test]
    fn holder_that_returns_cpus_in_time_has_no_deadline() {
        let mut arbiter = ClaimTable::new(Topology::flat(9));
        let claim = ask(&mut arbiter, 1, 1, 0).claim;
        ask(&mut arbiter, 2, 1, SECOND);
        assert!(arbiter.due_ns().is_some());
        let back = host::Retreat { claim, to: Some(4), cpus: None };
        arbiter.retreat(Peer { uid: 1, pid: 1 }, back, SECOND).unwrap();
        assert_eq!(arbiter.due_ns(), None);
    }
}
