//! Claims: CPUs that a program requests, has exclusively, and returns.
//!
//! Hollmann and Gerndt, *Invasive Computing: An Application Assisted Resource Management Approach*
//! (2012), section 2: `invade` requests CPUs under constraints, `retreat` returns them, and no
//! program waits: if no CPU is free, the program continues with the CPUs that it has. A claim "can
//! grow and shrink under the control of the program and the system resource management". The paper
//! does not define the distribution among several programs. This module is the arbiter: it receives
//! events, and returns changed claims and requests to shrink. The caller identifies owners and sets
//! the deadline for shrinking.
//!
//! ```text
//!            invade                 another invades          retreat, or the deadline passes
//!   nothing --------> up to its maximum ----------> asked to ------------------> its fair part
//!      ^     of the free CPUs                       shrink                           |
//!      |                                                 another retreats: grows <---+
//!      +-------------------------- end, or the end of the owner ---------------------+
//! ```
//!
//! # Distribution
//!
//! Each claim has a *fair part* of the claimable CPUs: first one CPU each, oldest claims first;
//! then the minimums, so that as many minimums as possible are met; then one more CPU for the claim
//! with the fewest, up to the maximums. After each event:
//!
//! 1. **Free CPUs are distributed**, in this order of priority. First, as many claims as possible
//!    get what they are due: their minimum, as far as the minimum is within their fair part.
//!    Second, as many CPUs as possible are claimed, up to the maximums. Third, the claim with the
//!    fewest CPUs gets the next one, first up to its fair part, then beyond. Each claim gets the
//!    CPUs that cost the least: with [`Numa::Scatter`] the cost is the sum over the nodes of the
//!    squared number of CPUs there; with [`Numa::Compact`] it is the number of nodes. (If several
//!    claims grow in one event, the oldest chooses first.) Both results are optimal
//!    (`hand_out_is_the_best_of_all_ways`), the first one for up to [`SHORT_MAX`] claims below
//!    their due; with more such claims, those that lack the fewest CPUs come first.
//! 2. **A claim above its fair part is requested to shrink**, if another claim is below its own
//!    part: by the number of CPUs that the other claim lacks and can use. The claim with the
//!    largest excess is first. When the claim has returned the CPUs, or the deadline has passed,
//!    step 1 gives the CPUs to the other claim. The request is withdrawn when no claim lacks CPUs
//!    any more.
//!
//! The CPUs of a claim are never exchanged for others.
//!
//! # Invariants
//!
//! 1. A CPU belongs to at most one claim: one table maps CPUs to claims.
//! 2. A claim that has a CPU keeps at least one until the claim ends
//!    (`events_in_any_order_keep_the_rules`).
//! 3. [`Claims::unclaimed_min`] CPUs stay free for programs without a claim, if the machine has
//!    more.
//! 4. No claim has more CPUs than its maximum, or a CPU outside its request. Exception: if a new
//!    request allows other CPUs only and none of them is free, the claim keeps its last CPU until
//!    one is free.
//!
//! # Limits
//!
//! A claim that allows few CPUs, all of which belong to other claims within their fair parts, gets
//! none: no claim is moved. The time for an event is quadratic in the number of CPUs: 0.4 ms for
//! 64, 9 ms for 256, 40 ms for 512, measured on a busy host.

mod distribution;
mod matching;

use corebeat_machine::{Arbiter, CpuId, CpuSet, ProgramId, Topology};
use std::collections::BTreeMap;

/// Largest number of claims.
pub const CLAIMS_MAX: usize = 512;
/// Largest number of claims of an owner, which is a process.
pub const CLAIMS_PER_OWNER_MAX: usize = 16;
/// Default number of CPUs that stay free for programs without a claim, if the machine has more.
pub const UNCLAIMED_MIN: usize = 1;
/// Largest number of claims below their due for which the distribution is optimal.
pub const SHORT_MAX: usize = 6;

/// Number of a claim. Numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId(pub u64);

/// Distribution of a claim's CPUs over the NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// The same number on each node, for the memory bandwidth of all nodes.
    Scatter,
    /// As few nodes as possible, for short distances to memory and caches.
    Compact,
}

/// Request for CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Desired minimum, at most `max`. The claim may get fewer CPUs.
    pub min: u32,
    /// Maximum, at least 1.
    pub max: u32,
    /// Distribution over the NUMA nodes, if it matters.
    pub numa: Option<Numa>,
    /// CPUs that the claim may use; `None` for all.
    pub within: Option<CpuSet>,
    /// CPUs that are preferred among CPUs with equal costs.
    pub prefer: CpuSet,
}

impl Ask {
    /// Returns a request for `min` to `max` CPUs without further constraints.
    pub fn new(min: u32, max: u32) -> Ask {
        Ask { min, max, numa: None, within: None, prefer: CpuSet::new() }
    }

    /// Lowers the request after a retreat from `had` to `left` CPUs: further CPUs return only after
    /// another request. A retreat that released no CPU changes nothing, unless it names a number.
    pub fn lower(&mut self, retreat: &Retreat, had: usize, left: usize) {
        let most = match retreat {
            Retreat::To(count) => *count,
            Retreat::Cpus(_) if left == had => return,
            Retreat::Cpus(_) => left as u32,
        };
        self.max = self.max.min(most.max(1));
        self.min = self.min.min(self.max);
    }

    fn allows(&self, cpu: CpuId) -> bool {
        self.within.as_ref().is_none_or(|w| w.contains(cpu))
    }
}

/// CPUs to return. A claim that has CPUs keeps one; [`Claims::end`] returns all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retreat {
    /// All CPUs except this number. The CPUs with the lowest cost for the claim are returned.
    To(u32),
    /// These CPUs.
    Cpus(CpuSet),
}

/// Result of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Claims whose CPUs have changed, with their CPUs.
    pub changed: Vec<(ClaimId, CpuSet)>,
    /// Claims whose request to shrink has changed, with the CPUs to keep. All CPUs of the claim, if
    /// the request is withdrawn.
    pub asked: Vec<(ClaimId, CpuSet)>,
}

/// Reason why an event is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The claim has ended or belongs to another owner.
    #[error("this program has no claim {0}; create one with 'invade'")]
    NoSuchClaim(u64),
    /// The numbers of CPUs are invalid.
    #[error(
        "a claim cannot have {min} to {max} CPUs; request a maximum of at least 1 and a minimum \
         of at most the maximum"
    )]
    Range {
        /// The requested minimum.
        min: u32,
        /// The requested maximum.
        max: u32,
    },
    /// The request allows no CPU that a claim may have.
    #[error("a claim within the CPUs {{{within}}} is impossible; request CPUs from {cpus}")]
    Elsewhere {
        /// The CPUs that the request allows.
        within: String,
        /// The CPUs that a claim may have.
        cpus: String,
    },
    /// There are too many claims.
    #[error("the limit of {limit} {what} is reached; end a claim first")]
    TooMany {
        /// The claims that are counted.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

#[derive(Debug, Clone)]
struct Claim {
    owner: u64,
    ask: Ask,
    /// CPUs to keep, if the claim is requested to shrink.
    keep: Option<CpuSet>,
}

/// With this interface each program has at most one claim.
impl Arbiter for Claims {
    fn claim(&mut self, program: ProgramId, min: u32, max: u32) {
        // An invalid request, or one beyond the limit, changes nothing.
        let _ = self.invade(self.claim_of_program(program), program.0.into(), Ask::new(min, max));
    }

    fn release(&mut self, program: ProgramId, to: u32) {
        let Some(id) = self.claim_of_program(program) else { return };
        let _ = match to {
            0 => self.end(id, program.0.into()),
            _ => self.retreat(id, program.0.into(), Retreat::To(to)),
        };
    }

    fn take(&mut self, program: ProgramId) {
        if let Some(id) = self.claim_of_program(program) {
            self.deadline(id);
        }
    }

    fn cpus_of(&self, program: ProgramId) -> CpuSet {
        self.claim_of_program(program).map_or_else(CpuSet::new, |id| self.cpus(id))
    }

    fn keeps(&self, program: ProgramId) -> Option<CpuSet> {
        self.keep(self.claim_of_program(program)?).cloned()
    }
}

/// All claims on the CPUs of a machine. See the [module](self) for the distribution.
#[derive(Debug, Clone)]
pub struct Claims {
    /// Number of CPUs that stay free for programs without a claim, if the machine has more. Default
    /// [`UNCLAIMED_MIN`].
    pub unclaimed_min: usize,
    topology: Topology,
    /// Oldest first.
    claims: BTreeMap<ClaimId, Claim>,
    /// The claim that has each claimed CPU.
    holders: BTreeMap<CpuId, ClaimId>,
    next: u64,
}

impl Claims {
    /// Returns an arbiter without claims.
    pub fn new(topology: Topology) -> Claims {
        let (claims, holders) = (BTreeMap::new(), BTreeMap::new());
        Claims { unclaimed_min: UNCLAIMED_MIN, topology, claims, holders, next: 1 }
    }

    fn claim_of_program(&self, program: ProgramId) -> Option<ClaimId> {
        self.owners().find(|(_, owner)| *owner == u64::from(program.0)).map(|(id, _)| id)
    }

    /// Requests CPUs for an owner: with a new claim, or with a new request for an existing claim.
    /// The claim gets free CPUs, possibly none. It gets further CPUs when other claims return them;
    /// [`Outcome::changed`] of those events contains the claim. CPUs that the new request does not
    /// allow are returned at once, except one.
    ///
    /// # Errors
    /// [`ClaimError`]. Nothing changes in this case.
    pub fn invade(
        &mut self,
        claim: Option<ClaimId>,
        owner: u64,
        ask: Ask,
    ) -> Result<(ClaimId, Outcome), ClaimError> {
        if ask.max == 0 || ask.min > ask.max {
            return Err(ClaimError::Range { min: ask.min, max: ask.max });
        }
        if !self.topology.cpus().iter().any(|c| ask.allows(c.id)) {
            let within = ask.within.unwrap_or_default().to_string();
            return Err(ClaimError::Elsewhere {
                within,
                cpus: self.topology.cpu_set().to_string(),
            });
        }
        let before = self.held();
        let id = match claim {
            Some(id) => {
                self.owned(id, owner)?.ask = ask;
                id
            }
            None => {
                let of_owner = self.owners().filter(|(_, o)| *o == owner).count();
                let limits = [
                    (of_owner, "claims of a process", CLAIMS_PER_OWNER_MAX),
                    (self.claims.len(), "claims", CLAIMS_MAX),
                ];
                let reached = limits.into_iter().find(|(count, _, limit)| count >= limit);
                if let Some((_, what, limit)) = reached {
                    return Err(ClaimError::TooMany { what, limit });
                }
                let id = ClaimId(self.next);
                self.next += 1;
                self.claims.insert(id, Claim { owner, ask, keep: None });
                id
            }
        };
        self.drop_disallowed(id);
        self.shrink(id, self.claims[&id].ask.max as usize);
        let fresh = claim.is_none().then_some(id);
        Ok((id, self.settle(&before, fresh)))
    }

    /// Returns CPUs of a claim. The remaining number is the new maximum until the claim invades
    /// again. Exception: a claim that was requested to shrink may get the CPUs again when they are
    /// free.
    ///
    /// # Errors
    /// [`ClaimError::NoSuchClaim`], if the owner has no such claim.
    pub fn retreat(
        &mut self,
        id: ClaimId,
        owner: u64,
        retreat: Retreat,
    ) -> Result<Outcome, ClaimError> {
        self.owned(id, owner)?;
        let before = self.held();
        let had = self.cpus(id).len();
        match &retreat {
            Retreat::To(count) => self.shrink(id, *count as usize),
            Retreat::Cpus(cpus) => cpus.iter().for_each(|cpu| self.give_back(id, cpu)),
        }
        let left = self.cpus(id).len();
        let claim = self.owned(id, owner)?;
        let is_asked = left < had && claim.keep.as_ref().is_some_and(|keep| left >= keep.len());
        if !is_asked {
            claim.ask.lower(&retreat, had, left);
        }
        Ok(self.settle(&before, None))
    }

    /// Takes the CPUs that a claim was requested to return, after its deadline. Changes nothing if
    /// the request was withdrawn.
    pub fn deadline(&mut self, id: ClaimId) -> Outcome {
        let before = self.held();
        if let Some(count) = self.claims.get(&id).and_then(|c| c.keep.as_ref()).map(CpuSet::len) {
            self.shrink(id, count);
        }
        self.settle(&before, None)
    }

    /// Ends a claim.
    ///
    /// # Errors
    /// [`ClaimError::NoSuchClaim`], if the owner has no such claim.
    pub fn end(&mut self, id: ClaimId, owner: u64) -> Result<Outcome, ClaimError> {
        self.owned(id, owner)?;
        let before = self.held();
        self.remove(id);
        Ok(self.settle(&before, None))
    }

    /// Ends all claims of an owner that has ended.
    pub fn dead(&mut self, owner: u64) -> Outcome {
        let before = self.held();
        let ids: Vec<ClaimId> =
            self.claims.iter().filter(|(_, c)| c.owner == owner).map(|(&id, _)| id).collect();
        ids.into_iter().for_each(|id| self.remove(id));
        self.settle(&before, None)
    }

    /// Returns all claims with their owners and CPUs, oldest first.
    pub fn list(&self) -> impl Iterator<Item = (ClaimId, u64, CpuSet)> + '_ {
        let mut held = self.held();
        self.owners().map(move |(id, owner)| (id, owner, held.remove(&id).unwrap_or_default()))
    }

    /// Returns all claims with their owners, oldest first.
    pub fn owners(&self) -> impl Iterator<Item = (ClaimId, u64)> + '_ {
        self.claims.iter().map(|(&id, c)| (id, c.owner))
    }

    /// Returns the owner of a claim; `None` if there is no such claim.
    pub fn owner(&self, id: ClaimId) -> Option<u64> {
        self.claims.get(&id).map(|c| c.owner)
    }

    /// Returns the CPUs to keep, if the claim is requested to shrink.
    pub fn keep(&self, id: ClaimId) -> Option<&CpuSet> {
        self.claims.get(&id)?.keep.as_ref()
    }

    /// Returns the CPUs of a claim; an empty set if there is no such claim.
    pub fn cpus(&self, id: ClaimId) -> CpuSet {
        self.holders.iter().filter(|(_, holder)| **holder == id).map(|(&cpu, _)| cpu).collect()
    }

    /// Returns the CPUs that belong to no claim.
    pub fn unclaimed(&self) -> CpuSet {
        self.topology
            .cpus()
            .iter()
            .map(|c| c.id)
            .filter(|c| !self.holders.contains_key(c))
            .collect()
    }

    /// Returns the CPUs of each claim that has any.
    fn held(&self) -> BTreeMap<ClaimId, CpuSet> {
        let mut held: BTreeMap<ClaimId, CpuSet> = BTreeMap::new();
        self.holders.iter().for_each(|(&cpu, &id)| held.entry(id).or_default().insert(cpu));
        held
    }

    fn owned(&mut self, id: ClaimId, owner: u64) -> Result<&mut Claim, ClaimError> {
        self.claims.get_mut(&id).filter(|c| c.owner == owner).ok_or(ClaimError::NoSuchClaim(id.0))
    }

    fn remove(&mut self, id: ClaimId) {
        self.claims.remove(&id);
        self.holders.retain(|_, holder| *holder != id);
    }

    /// Takes a CPU from a claim, except its last one.
    fn give_back(&mut self, id: ClaimId, cpu: CpuId) {
        if self.holders.get(&cpu) == Some(&id) && self.cpus(id).len() > 1 {
            self.holders.remove(&cpu);
        }
    }

    /// Takes all CPUs that the request of a claim does not allow, except its last one.
    fn drop_disallowed(&mut self, id: ClaimId) {
        let (allowed, disallowed): (Vec<_>, Vec<_>) =
            self.cpus(id).iter().partition(|&cpu| self.claims[&id].ask.allows(cpu));
        disallowed
            .into_iter()
            .skip(usize::from(allowed.is_empty()))
            .for_each(|cpu| self.give_back(id, cpu));
    }

    /// Returns the number of CPUs of a claim that its request allows.
    fn count(&self, id: ClaimId) -> usize {
        let may = |cpu: &CpuId| self.claims.get(&id).is_some_and(|c| c.ask.allows(*cpu));
        self.cpus(id).iter().filter(may).count()
    }

    /// Takes CPUs from a claim until this number is left. Requested CPUs come first.
    fn shrink(&mut self, id: ClaimId, count: usize) {
        let mut cpus = self.cpus(id);
        while cpus.len() > count.max(1) {
            let Some(cpu) = self.least_missed(id, &cpus, |_| true) else { return };
            self.holders.remove(&cpu);
            cpus = without(&cpus, cpu);
        }
    }

    /// Returns the number of CPUs that may be claimed.
    fn claimable(&self) -> usize {
        let all = self.topology.cpus().len();
        if all > self.unclaimed_min { all - self.unclaimed_min } else { all }
    }

    /// Distributes free CPUs after an event, requests others, and returns what has changed.
    fn settle(&mut self, before: &BTreeMap<ClaimId, CpuSet>, fresh: Option<ClaimId>) -> Outcome {
        let parts = self.fair_parts();
        // Twice: a claim whose only CPU is no longer allowed gets another one in the first round
        // and returns its old one for the second round.
        for _ in 0..2 {
            for (cpu, id) in self.hand_out(&parts) {
                self.holders.insert(cpu, id);
            }
            self.held().into_keys().for_each(|id| self.drop_disallowed(id));
        }
        let held = self.held();
        let keeps = self.requests(&parts);
        let mut outcome = Outcome::default();
        for (&id, claim) in &mut self.claims {
            let cpus = held.get(&id).cloned().unwrap_or_default();
            let keep = keeps.get(&id).cloned();
            if fresh == Some(id) || cpus != before.get(&id).cloned().unwrap_or_default() {
                outcome.changed.push((id, cpus.clone()));
            }
            if claim.keep != keep {
                // A claim that has returned all requested CPUs needs no notice of the withdrawal.
                let is_done =
                    keep.is_none() && claim.keep.as_ref().is_some_and(|k| cpus.len() <= k.len());
                if !is_done {
                    outcome.asked.push((id, keep.clone().unwrap_or(cpus)));
                }
                claim.keep = keep;
            }
        }
        outcome
    }
}

fn without(cpus: &CpuSet, cpu: CpuId) -> CpuSet {
    cpus.iter().filter(|&c| c != cpu).collect()
}

#[cfg(test)]
mod tests;
