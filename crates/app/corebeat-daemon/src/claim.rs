//! Claims of CPUs: whose they are, until when somebody has to shrink, and what is to be told.
//!
//! Who gets what is decided by [`corebeat_policy::claims`]; here is who asks, and what time it is.

use crate::limit::{CLAIMS_PER_PROCESS_MAX, CLAIMS_PER_USER_MAX, SHRINK_NS};
use corebeat_heartbeat::Peer;
use corebeat_machine::{CPU_MAX, CpuId, CpuSet, Topology};
use corebeat_policy::claims::{Ask, CLAIMS_MAX, ClaimError, ClaimId, Claims, Numa, Outcome, Retreat};
use corebeat_wire::{Refusal, host};
use std::collections::BTreeMap;

/// All claims on this host.
#[derive(Debug)]
pub(crate) struct Arbiter {
    claims: Claims,
    /// The users of those who have claims.
    users: BTreeMap<u64, u32>,
    /// Who was asked to shrink, and until when that is to be done.
    deadlines: BTreeMap<ClaimId, u64>,
    /// What is to be told, to which process.
    news: Vec<(u32, host::ClaimChange)>,
}

impl Arbiter {
    pub(crate) fn new(topology: Topology) -> Arbiter {
        let mut claims = Claims::new(topology);
        // Others are not kept off claimed CPUs, and so need none for themselves.
        claims.unclaimed_min = 0;
        Arbiter { claims, users: BTreeMap::new(), deadlines: BTreeMap::new(), news: Vec::new() }
    }

    /// How many claims there are.
    pub(crate) fn count(&self) -> usize {
        self.claims.owners().count()
    }

    /// Asks for CPUs.
    pub(crate) fn invade(
        &mut self,
        peer: Peer,
        asked: host::Invade,
        now_ns: u64,
    ) -> Result<host::Invaded, Refusal> {
        let owner = u64::from(peer.pid);
        if asked.claim.is_none() {
            let of_process = self.claims.owners().filter(|(_, o)| *o == owner).count();
            let of_user = self.claims.owners().filter(|(_, o)| self.users.get(o) == Some(&peer.uid)).count();
            let limits = [
                (of_process, "claims of a process", CLAIMS_PER_PROCESS_MAX),
                (of_user, "claims of a user", CLAIMS_PER_USER_MAX),
            ];
            if let Some((_, what, limit)) = limits.iter().find(|(count, _, limit)| count >= limit) {
                return Err(Refusal::TooMany { what: (*what).into(), limit: *limit as u64 });
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
        self.heed(&outcome, Some(id), now_ns);
        Ok(host::Invaded { claim: id.0, cpus: numbers(&self.claims.cpus(id)) })
    }

    /// Gives CPUs back.
    pub(crate) fn retreat(
        &mut self,
        peer: Peer,
        asked: host::Retreat,
        now_ns: u64,
    ) -> Result<host::Retreated, Refusal> {
        let (id, owner) = (ClaimId(asked.claim), u64::from(peer.pid));
        let outcome = match (asked.to, asked.cpus) {
            (Some(_), Some(_)) => {
                let why = "give either how many CPUs to keep, or which to give back".into();
                return Err(Refusal::BadRequest { why });
            }
            (None | Some(0), None) => self.claims.end(id, owner),
            (Some(to), None) => self.claims.retreat(id, owner, Retreat::To(to)),
            (None, Some(cpus)) => self.claims.retreat(id, owner, Retreat::Cpus(cpu_set(cpus)?)),
        };
        let outcome = outcome.map_err(refusal)?;
        self.heed(&outcome, Some(id), now_ns);
        Ok(host::Retreated { cpus: numbers(&self.claims.cpus(id)) })
    }

    /// The claims of a process, or everybody's.
    pub(crate) fn list(&self, of: Option<u32>) -> host::Claims {
        let is_theirs = |owner: u64| of.is_none_or(|pid| u64::from(pid) == owner);
        let claims = self.claims.list().filter(|(_, owner, _)| is_theirs(*owner)).map(|(id, owner, cpus)| {
            let (pid, keep) = (i32::try_from(owner).unwrap_or(0), self.claims.keep(id));
            host::Claim { claim: id.0, pid, cpus: numbers(&cpus), keep: keep.map(numbers) }
        });
        host::Claims { claims: claims.collect() }
    }

    /// A process has ended, or has closed its last connection.
    pub(crate) fn forget(&mut self, pid: u32, now_ns: u64) {
        let owner = u64::from(pid);
        if self.users.remove(&owner).is_some() {
            let outcome = self.claims.dead(owner);
            self.heed(&outcome, None, now_ns);
        }
    }

    /// Takes from those whose time to shrink is over.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let is_over = |(id, at): (&ClaimId, &u64)| (*at <= now_ns).then_some(*id);
        let over: Vec<ClaimId> = self.deadlines.iter().filter_map(is_over).collect();
        for id in over {
            self.deadlines.remove(&id);
            let outcome = self.claims.deadline(id);
            self.heed(&outcome, None, now_ns);
        }
    }

    /// When the first one's time is over.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.deadlines.values().min().copied()
    }

    /// What is to be told, once.
    pub(crate) fn take_news(&mut self) -> Vec<(u32, host::ClaimChange)> {
        std::mem::take(&mut self.news)
    }

    /// Notes what came of an event. `answered` is the claim whose holder is told by the answer.
    fn heed(&mut self, outcome: &Outcome, answered: Option<ClaimId>, now_ns: u64) {
        self.deadlines.retain(|id, _| self.claims.keep(*id).is_some());
        for (id, keep) in &outcome.asked {
            let Some(owner) = self.claims.owner(*id) else { continue };
            let is_withdrawn = *keep == self.claims.cpus(*id);
            let deadline_ms = (!is_withdrawn).then(|| {
                // Who is asked for something else before it is over gets no more time: else it could go on for ever.
                let at_ns = *self.deadlines.entry(*id).or_insert(now_ns + SHRINK_NS);
                at_ns.saturating_sub(now_ns) / 1_000_000
            });
            self.tell(owner, host::ClaimChange { claim: id.0, cpus: numbers(keep), deadline_ms });
        }
        let is_asked = |id: &ClaimId| outcome.asked.iter().any(|(asked, _)| asked == id);
        for (id, cpus) in outcome.changed.iter().filter(|(id, _)| Some(*id) != answered && !is_asked(id)) {
            let Some(owner) = self.claims.owner(*id) else { continue };
            self.tell(owner, host::ClaimChange { claim: id.0, cpus: numbers(cpus), deadline_ms: None });
        }
    }

    fn tell(&mut self, owner: u64, change: host::ClaimChange) {
        self.news.extend(u32::try_from(owner).map(|pid| (pid, change)));
    }
}

fn cpu_set(cpus: Vec<u32>) -> Result<CpuSet, Refusal> {
    match cpus.iter().find(|cpu| **cpu >= CPU_MAX) {
        Some(cpu) => {
            Err(Refusal::BadRequest { why: format!("there is no CPU {cpu}; they end at {CPU_MAX}") })
        }
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
        ClaimError::TooMany => Refusal::TooMany { what: "claims".into(), limit: CLAIMS_MAX as u64 },
        ClaimError::Range { .. } | ClaimError::Elsewhere { .. } => Refusal::BadRequest { why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ask(arbiter: &mut Arbiter, pid: u32, min: u32, now_ns: u64) -> host::Invaded {
        let asked = host::Invade { claim: None, min, max: 9, numa: None, within: None, prefer: None };
        arbiter.invade(Peer { uid: 1, pid }, asked, now_ns).unwrap()
    }

    #[test]
    fn holder_that_is_asked_again_gets_no_more_time() {
        let mut arbiter = Arbiter::new(Topology::flat(9));
        ask(&mut arbiter, 1, 1, 0);
        ask(&mut arbiter, 2, 1, SECOND);
        let first = arbiter.due_ns();
        assert_eq!(first, Some(SECOND + SHRINK_NS));
        ask(&mut arbiter, 3, 1, SECOND + SHRINK_NS / 2);
        assert_eq!(arbiter.due_ns(), first);
        let left_ms =
            arbiter.take_news().into_iter().filter_map(|(pid, c)| c.deadline_ms.filter(|_| pid == 1));
        assert_eq!(left_ms.collect::<Vec<_>>(), [500, 250]);
    }

    #[test]
    fn holder_that_gives_back_in_time_has_no_deadline_any_more() {
        let mut arbiter = Arbiter::new(Topology::flat(9));
        let claim = ask(&mut arbiter, 1, 1, 0).claim;
        ask(&mut arbiter, 2, 1, SECOND);
        assert!(arbiter.due_ns().is_some());
        let back = host::Retreat { claim, to: Some(4), cpus: None };
        arbiter.retreat(Peer { uid: 1, pid: 1 }, back, SECOND).unwrap();
        assert_eq!(arbiter.due_ns(), None);
    }
}
