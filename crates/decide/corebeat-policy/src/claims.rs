//! Claims: CPUs that a program asks for, has for itself, and gives back.
//!
//! Hollmann and Gerndt, *Invasive Computing: An Application Assisted Resource Management Approach* (2012), section 2: `invade`
//! asks for CPUs under constraints, `retreat` gives them back, and nobody waits: where nothing is free, a program goes on with
//! what it has. A claim "can grow and shrink under the control of the program and the system resource management". The paper does
//! not say who gets what where several ask. This is the arbiter's decision: events in; claims that changed, and requests to
//! shrink, out. Who asks, and how long a holder may take to shrink, is the caller's business.
//!
//! ```text
//!             invade                     another invades            retreats, or the deadline passes
//!   nothing ---------> up to its maximum ---------------> asked to ---------------------------------> its fair part
//!      ^      of what is free                             shrink                                        |
//!      |                                                                  somebody gives back: grows <--+
//!      +----------------------------- end, or its owner dies ----------------------------------------------
//! ```
//!
//! # Who gets what
//!
//! Each claim has a *fair part* of the CPUs that may be claimed: one CPU each, the oldest claims first; then what the minimums
//! want, so that as many as possible are met; then one more to whoever has least, up to the maximums. After each event:
//!
//! 1. **Free CPUs are handed out**, such that, in this order, as many claims as possible have what is due to them
//!    (their minimum, as far as it is within their fair part), and as many CPUs as possible are claimed (up to the
//!    maximums); and of the ways to do so, to whoever has least up to its fair part, then beyond it. Each claim gets
//!    those CPUs that cost it least: with [`Numa::Scatter`] the sum over the nodes of its CPUs there, squared; with
//!    [`Numa::Compact`] the number of its nodes. (For several claims that grow in the same event: the oldest chooses
//!    first.) Both are the optimum (`hand_out_is_the_best_of_all_ways`), the first for up to [`SHORT_MAX`] claims that
//!    lack what is due; beyond those it is sought by least want first.
//! 2. **Who has more than its fair part is asked to shrink**, if somebody else has less: for as many CPUs as the other lacks, and as
//!    it can use; the one with most to spare first. When it gives them back, or the deadline has passed, they are free, and
//!    step 1 gives them to the one who lacks them. Where nobody lacks anything any more the request is withdrawn.
//!
//! CPUs that a claim has are never exchanged for others.
//!
//! # Invariants
//!
//! 1. A CPU belongs to one claim or to none: there is one table, from CPUs to claims.
//! 2. A claim that has a CPU keeps at least one until it ends (`events_in_any_order_keep_the_rules`).
//! 3. [`Claims::unclaimed_min`] CPUs stay free for programs without a claim, if there are more than that.
//! 4. No claim has more CPUs than its maximum, or one that it did not ask for: but one that asks for others, none of which is
//!    free, keeps its last until one is.
//!
//! # Limits
//!
//! A claim that may use few CPUs, all of which are held by others within their part, gets none: nobody is asked to move. An event
//! takes time by the square of the CPUs: on a busy host 0.4 ms for 64, 9 ms for 256, 40 ms for 512.

use corebeat_machine::{Arbiter, Cpu, CpuId, CpuSet, NodeId, ProgramId, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Claims at once.
pub const CLAIMS_MAX: usize = 512;
/// CPUs that stay free for programs without a claim, where the machine has more.
pub const UNCLAIMED_MIN: usize = 1;
/// For so many claims that lack what is due to them, the best choice of those to help is found; for more, a good one.
pub const SHORT_MAX: usize = 6;

/// A claim, by a number that is not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId(pub u64);

/// How a claim's CPUs should lie on the machine's memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// As many on each: for the memory bandwidth of all.
    Scatter,
    /// On as few as possible: for the nearness of memory and caches.
    Compact,
}

/// What a claim is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// So many CPUs at least. A wish: it may get fewer. At most `max`.
    pub min: u32,
    /// So many at most; at least 1.
    pub max: u32,
    /// How they should lie.
    pub numa: Option<Numa>,
    /// None but these.
    pub within: Option<CpuSet>,
    /// Rather these, where all else is equal.
    pub prefer: CpuSet,
}

impl Ask {
    /// From `min` to `max` CPUs, wherever they are.
    pub fn new(min: u32, max: u32) -> Ask {
        Ask { min, max, numa: None, within: None, prefer: CpuSet::new() }
    }

    fn allows(&self, cpu: CpuId) -> bool {
        self.within.as_ref().is_none_or(|w| w.contains(cpu))
    }
}

/// What to give back. A claim that has CPUs keeps one: [`Claims::end`] gives back all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retreat {
    /// All but so many: those go whose loss costs the claim least.
    To(u32),
    /// These.
    Cpus(CpuSet),
}

/// What came of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The claims that have other CPUs than before, and which.
    pub changed: Vec<(ClaimId, CpuSet)>,
    /// The claims that are asked for something else than before: to keep these CPUs and to give back the rest. All of its
    /// CPUs, where it may keep them after all.
    pub asked: Vec<(ClaimId, CpuSet)>,
}

/// Why an event makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim has ended, or belongs to somebody else.
    #[error("you have no claim {0}; 'invade' makes one")]
    NoSuchClaim(u64),
    /// There is no such number of CPUs.
    #[error("a claim takes from 1 CPU up, and no more at least than at most; {min} to {max} is not that")]
    Range {
        /// The least that was asked for.
        min: u32,
        /// The most.
        max: u32,
    },
    /// The claim may use none of this machine's CPUs.
    #[error("this machine has none of the CPUs {within}; it has {cpus}")]
    Elsewhere {
        /// What was asked for.
        within: String,
        /// What is there.
        cpus: String,
    },
    /// There are too many claims.
    #[error("there are {CLAIMS_MAX} claims already; end one first")]
    TooMany,
}

#[derive(Debug, Clone)]
struct Claim {
    owner: u64,
    ask: Ask,
    /// What it is asked to keep, if it is to give something back.
    keep: Option<CpuSet>,
}

/// Each program has one claim here.
impl Arbiter for Claims {
    fn claim(&mut self, program: ProgramId, min: u32, max: u32) {
        // What makes no sense, or is one too many, changes nothing.
        let _ = self.invade(self.of_program(program), program.0.into(), Ask::new(min, max));
    }

    fn release(&mut self, program: ProgramId, to: u32) {
        let Some(id) = self.of_program(program) else { return };
        let _ = match to {
            0 => self.end(id, program.0.into()),
            _ => self.retreat(id, program.0.into(), Retreat::To(to)),
        };
    }

    fn take(&mut self, program: ProgramId) {
        if let Some(id) = self.of_program(program) {
            self.deadline(id);
        }
    }

    fn cpus_of(&self, program: ProgramId) -> CpuSet {
        self.of_program(program).map_or_else(CpuSet::new, |id| self.cpus(id))
    }

    fn keeps(&self, program: ProgramId) -> Option<CpuSet> {
        self.keep(self.of_program(program)?).cloned()
    }
}

/// All claims on a machine's CPUs. See the [module](self) for who gets what.
#[derive(Debug, Clone)]
pub struct Claims {
    /// CPUs that stay free for programs without a claim, where the machine has more. Default [`UNCLAIMED_MIN`].
    pub unclaimed_min: usize,
    topology: Topology,
    /// By age.
    claims: BTreeMap<ClaimId, Claim>,
    /// Whose each claimed CPU is.
    holders: BTreeMap<CpuId, ClaimId>,
    next: u64,
}

impl Claims {
    /// No claims on any of these CPUs.
    pub fn new(topology: Topology) -> Claims {
        let (claims, holders) = (BTreeMap::new(), BTreeMap::new());
        Claims { unclaimed_min: UNCLAIMED_MIN, topology, claims, holders, next: 1 }
    }

    fn of_program(&self, program: ProgramId) -> Option<ClaimId> {
        self.owners().find(|(_, owner)| *owner == u64::from(program.0)).map(|(id, _)| id)
    }

    /// An owner asks for CPUs: with a new claim, or for one that it has, which is to have this from now on. It gets what is
    /// free, which may be nothing; what it lacks it gets when others have given it back, and [`Outcome::changed`] tells of it. CPUs
    /// that a claim has and that its new ask does not allow go back at once, all but one.
    ///
    /// # Errors
    /// See [`ClaimError`]. Nothing has changed then.
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
            return Err(ClaimError::Elsewhere { within, cpus: self.topology.cpu_set().to_string() });
        }
        let before = self.held();
        let id = match claim {
            Some(id) => {
                self.of(id, owner)?.ask = ask;
                id
            }
            None if self.claims.len() >= CLAIMS_MAX => return Err(ClaimError::TooMany),
            None => {
                let id = ClaimId(self.next);
                self.next += 1;
                self.claims.insert(id, Claim { owner, ask, keep: None });
                id
            }
        };
        self.drop_foreign(id);
        self.shrink(id, self.claims[&id].ask.max as usize);
        let fresh = claim.is_none().then_some(id);
        Ok((id, self.settle(&before, fresh)))
    }

    /// An owner gives CPUs back. It will not be given more than what remains until it invades again, unless it does what it
    /// was asked for: then it may have them again when they are free.
    ///
    /// # Errors
    /// [`ClaimError::NoSuchClaim`].
    pub fn retreat(&mut self, id: ClaimId, owner: u64, retreat: Retreat) -> Result<Outcome, ClaimError> {
        self.of(id, owner)?;
        let before = self.held();
        let had = self.cpus(id).len();
        let most = match retreat {
            Retreat::To(count) => {
                self.shrink(id, count as usize);
                count.max(1)
            }
            Retreat::Cpus(cpus) => {
                cpus.iter().for_each(|cpu| self.give_back(id, cpu));
                match self.cpus(id).len() {
                    // Who gives nothing back says nothing about what he wants.
                    left if left == had => u32::MAX,
                    left => (left as u32).max(1),
                }
            }
        };
        let left = self.cpus(id).len();
        let claim = self.of(id, owner)?;
        let is_asked = left < had && claim.keep.as_ref().is_some_and(|keep| left >= keep.len());
        if !is_asked {
            claim.ask.max = claim.ask.max.min(most);
            claim.ask.min = claim.ask.min.min(claim.ask.max);
        }
        Ok(self.settle(&before, None))
    }

    /// A claim's time to shrink is over: what it was asked for is taken. Nothing happens where it is not asked any more.
    pub fn deadline(&mut self, id: ClaimId) -> Outcome {
        let before = self.held();
        if let Some(count) = self.claims.get(&id).and_then(|c| c.keep.as_ref()).map(CpuSet::len) {
            self.shrink(id, count);
        }
        self.settle(&before, None)
    }

    /// An owner ends a claim.
    ///
    /// # Errors
    /// [`ClaimError::NoSuchClaim`].
    pub fn end(&mut self, id: ClaimId, owner: u64) -> Result<Outcome, ClaimError> {
        self.of(id, owner)?;
        let before = self.held();
        self.remove(id);
        Ok(self.settle(&before, None))
    }

    /// An owner has died: all its claims end.
    pub fn dead(&mut self, owner: u64) -> Outcome {
        let before = self.held();
        let ids: Vec<ClaimId> =
            self.claims.iter().filter(|(_, c)| c.owner == owner).map(|(&id, _)| id).collect();
        ids.into_iter().for_each(|id| self.remove(id));
        self.settle(&before, None)
    }

    /// The claims with their owners and CPUs, oldest first.
    pub fn list(&self) -> impl Iterator<Item = (ClaimId, u64, CpuSet)> + '_ {
        let mut held = self.held();
        self.owners().map(move |(id, owner)| (id, owner, held.remove(&id).unwrap_or_default()))
    }

    /// The claims with their owners, oldest first.
    pub fn owners(&self) -> impl Iterator<Item = (ClaimId, u64)> + '_ {
        self.claims.iter().map(|(&id, c)| (id, c.owner))
    }

    /// Whose a claim is; nobody's where there is no such claim.
    pub fn owner(&self, id: ClaimId) -> Option<u64> {
        self.claims.get(&id).map(|c| c.owner)
    }

    /// What a claim is asked to keep, if it is to give something back.
    pub fn keep(&self, id: ClaimId) -> Option<&CpuSet> {
        self.claims.get(&id)?.keep.as_ref()
    }

    /// A claim's CPUs; none where there is no such claim.
    pub fn cpus(&self, id: ClaimId) -> CpuSet {
        self.holders.iter().filter(|(_, holder)| **holder == id).map(|(&cpu, _)| cpu).collect()
    }

    /// The CPUs that no claim has.
    pub fn unclaimed(&self) -> CpuSet {
        self.topology.cpus().iter().map(|c| c.id).filter(|c| !self.holders.contains_key(c)).collect()
    }

    /// The claims that have CPUs, with them.
    fn held(&self) -> BTreeMap<ClaimId, CpuSet> {
        let mut held: BTreeMap<ClaimId, CpuSet> = BTreeMap::new();
        self.holders.iter().for_each(|(&cpu, &id)| held.entry(id).or_default().insert(cpu));
        held
    }

    fn of(&mut self, id: ClaimId, owner: u64) -> Result<&mut Claim, ClaimError> {
        self.claims.get_mut(&id).filter(|c| c.owner == owner).ok_or(ClaimError::NoSuchClaim(id.0))
    }

    fn remove(&mut self, id: ClaimId) {
        self.claims.remove(&id);
        self.holders.retain(|_, holder| *holder != id);
    }

    /// Takes a CPU from a claim, unless it is its last.
    fn give_back(&mut self, id: ClaimId, cpu: CpuId) {
        if self.holders.get(&cpu) == Some(&id) && self.cpus(id).len() > 1 {
            self.holders.remove(&cpu);
        }
    }

    /// Takes the CPUs from a claim that it may not use, unless it has no other.
    fn drop_foreign(&mut self, id: ClaimId) {
        let (allowed, foreign): (Vec<_>, Vec<_>) =
            self.cpus(id).iter().partition(|&cpu| self.claims[&id].ask.allows(cpu));
        foreign.into_iter().skip(usize::from(allowed.is_empty())).for_each(|cpu| self.give_back(id, cpu));
    }

    /// How many CPUs a claim has that it may use.
    fn count(&self, id: ClaimId) -> usize {
        let may = |cpu: &CpuId| self.claims.get(&id).is_some_and(|c| c.ask.allows(*cpu));
        self.cpus(id).iter().filter(may).count()
    }

    /// Takes CPUs from a claim until it has so many: those first that it was asked for.
    fn shrink(&mut self, id: ClaimId, count: usize) {
        let mut cpus = self.cpus(id);
        while cpus.len() > count.max(1) {
            let Some(cpu) = self.least_missed(id, &cpus, |_| true) else { return };
            self.holders.remove(&cpu);
            cpus = without(&cpus, cpu);
        }
    }

    /// How many CPUs may be claimed.
    fn claimable(&self) -> usize {
        let all = self.topology.cpus().len();
        if all > self.unclaimed_min { all - self.unclaimed_min } else { all }
    }

    /// After an event: hands out what is free, asks for what is not, and tells what is not as it was.
    fn settle(&mut self, before: &BTreeMap<ClaimId, CpuSet>, fresh: Option<ClaimId>) -> Outcome {
        let parts = self.fair_parts();
        // Twice: a claim that had nothing but a CPU that it may not use any more has others now, and gives that one back.
        for _ in 0..2 {
            for (cpu, id) in self.hand_out(&parts) {
                self.holders.insert(cpu, id);
            }
            self.held().into_keys().for_each(|id| self.drop_foreign(id));
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
                // Who has given back all that it was asked for knows that nothing more is wanted.
                let is_done = keep.is_none() && claim.keep.as_ref().is_some_and(|k| cpus.len() <= k.len());
                if !is_done {
                    outcome.asked.push((id, keep.clone().unwrap_or(cpus)));
                }
                claim.keep = keep;
            }
        }
        outcome
    }

    /// How many CPUs each claim would have if all could be arranged anew.
    fn fair_parts(&self) -> BTreeMap<ClaimId, usize> {
        let cpus: Vec<CpuId> = self.topology.cpus().iter().map(|c| c.id).collect();
        let asks: Vec<&Ask> = self.claims.values().map(|c| &c.ask).collect();
        let mut matching = Matching::new(&cpus, &asks, self.claimable());
        let have = vec![0; asks.len()];
        matching.level(&have, &vec![1; asks.len()]);
        matching.meet(&have, &asks.iter().map(|a| a.min as usize).collect::<Vec<_>>());
        matching.level(&have, &asks.iter().map(|a| a.max as usize).collect::<Vec<_>>());
        self.claims.keys().copied().zip(matching.counts).collect()
    }

    /// Which free CPUs go to whom.
    fn hand_out(&self, parts: &BTreeMap<ClaimId, usize>) -> Vec<(CpuId, ClaimId)> {
        let mut free: Vec<CpuId> = self.unclaimed().iter().collect();
        let budget = self.claimable().saturating_sub(self.holders.len());
        let asks: Vec<&Ask> = self.claims.values().map(|c| &c.ask).collect();
        let have: Vec<usize> = self.claims.keys().map(|&id| self.count(id)).collect();
        let mut matching = Matching::new(&free, &asks, budget);
        let parts: Vec<usize> = parts.values().copied().collect();
        let dues: Vec<usize> = asks.iter().zip(&parts).map(|(a, &part)| part.min(a.min as usize)).collect();
        matching.meet(&have, &dues);
        matching.level(&have, &parts);
        matching.level(&have, &asks.iter().map(|a| a.max as usize).collect::<Vec<_>>());
        let mut counts = matching.counts;

        let mut given = Vec::new();
        for (i, &id) in self.claims.keys().enumerate() {
            let mut mine = self.cpus(id);
            while counts[i] > 0 {
                // Unless those who come later, and may not use all that is left, would get fewer than was found for them.
                let may_have = |cpu: CpuId| {
                    let is_choosy = |(j, &n): (usize, &usize)| j != i && n > 0 && asks[j].within.is_some();
                    if !counts.iter().enumerate().any(is_choosy) {
                        return true;
                    }
                    let rest: Vec<CpuId> = free.iter().copied().filter(|&c| c != cpu).collect();
                    let mut counts = counts.clone();
                    counts[i] -= 1;
                    Matching::new(&rest, &asks, budget).reaches(&counts)
                };
                let Some(cpu) = self.most_wanted(id, &mine, &free, counts[i], may_have) else { break };
                counts[i] -= 1;
                free.retain(|&c| c != cpu);
                mine.insert(cpu);
                given.push((cpu, id));
            }
        }
        given
    }

    /// The free CPU that costs a claim least, which has `mine` and is to get `count` more.
    fn most_wanted(
        &self,
        id: ClaimId,
        mine: &CpuSet,
        free: &[CpuId],
        count: usize,
        may_have: impl Fn(CpuId) -> bool,
    ) -> Option<CpuId> {
        let ask = &self.claims.get(&id)?.ask;
        let here = self.by_node(mine.iter());
        let room = self.by_node(free.iter().copied().filter(|&cpu| ask.allows(cpu)));
        let crowded: BTreeSet<_> =
            self.holders.iter().filter(|(_, other)| **other != id).map(|(&cpu, _)| self.core(cpu)).collect();
        let key = |&cpu: &CpuId| {
            let node = self.node(cpu);
            let on = |counts: &BTreeMap<Option<NodeId>, usize>| counts.get(&node).copied().unwrap_or(0);
            let cost = match ask.numa {
                None => (0, 0),
                // Where it has fewest, then where most are free.
                Some(Numa::Scatter) => (on(&here), usize::MAX - on(&room)),
                // Where it is already; then where all the rest fits, as tightly as possible; then where most fits.
                Some(Numa::Compact) if on(&here) > 0 => (0, 0),
                Some(Numa::Compact) if on(&room) >= count => (1, on(&room)),
                Some(Numa::Compact) => (2, usize::MAX - on(&room)),
            };
            // One node after the other, if nodes matter. Cores on which no other claim computes come first.
            let node = ask.numa.map(|_| node);
            (cost, node, !ask.prefer.contains(cpu), crowded.contains(&self.core(cpu)), cpu)
        };
        let mut keys: Vec<_> = free.iter().filter(|&&cpu| ask.allows(cpu)).map(key).collect();
        keys.sort_unstable();
        keys.into_iter().map(|key| key.4).find(|&cpu| may_have(cpu))
    }

    fn cpu(&self, cpu: CpuId) -> Option<&Cpu> {
        let cpus = self.topology.cpus();
        cpus.binary_search_by_key(&cpu, |c| c.id).ok().map(|i| &cpus[i])
    }

    fn node(&self, cpu: CpuId) -> Option<NodeId> {
        self.cpu(cpu).map(|c| c.node)
    }

    fn core(&self, cpu: CpuId) -> Option<(u32, u32)> {
        self.cpu(cpu).map(|c| (c.package, c.core))
    }

    /// How many of these CPUs are on each node.
    fn by_node(&self, cpus: impl Iterator<Item = CpuId>) -> BTreeMap<Option<NodeId>, usize> {
        let mut counts = BTreeMap::new();
        cpus.for_each(|cpu| *counts.entry(self.node(cpu)).or_default() += 1);
        counts
    }

    /// The CPU of `mine` that a claim misses least, of those that `fits`: one that it was asked for, then by its nodes.
    fn least_missed(&self, id: ClaimId, mine: &CpuSet, fits: impl Fn(CpuId) -> bool) -> Option<CpuId> {
        let claim = self.claims.get(&id)?;
        let kept = |cpu: CpuId| claim.keep.as_ref().is_some_and(|k| k.contains(cpu));
        let counts = self.by_node(mine.iter());
        let cost = |cpu: CpuId| {
            let here = counts.get(&self.node(cpu)).copied().unwrap_or(0);
            let cost = match claim.ask.numa {
                None => 0,
                Some(Numa::Scatter) => usize::MAX - here,
                Some(Numa::Compact) => here,
            };
            (kept(cpu), cost, claim.ask.prefer.contains(cpu), Reverse(cpu))
        };
        mine.iter().filter(|&cpu| fits(cpu)).min_by_key(|&cpu| cost(cpu))
    }

    /// What those who have more than their part are to keep, where others have less.
    fn requests(&self, parts: &BTreeMap<ClaimId, usize>) -> BTreeMap<ClaimId, CpuSet> {
        let mut left = self.held();
        let mut asked = BTreeSet::new();
        for (&id, claim) in &self.claims {
            let lacks = parts[&id].saturating_sub(self.count(id));
            for _ in 0..lacks {
                let fits = |cpu: CpuId| claim.ask.allows(cpu);
                let spare = |other: ClaimId, cpus: &CpuSet| cpus.len().saturating_sub(parts[&other].max(1));
                let found = left
                    .iter()
                    .filter(|&(&other, cpus)| other != id && spare(other, cpus) > 0)
                    .filter_map(|(&other, cpus)| {
                        let cpu = self.least_missed(other, cpus, fits)?;
                        let is_asked = self.claims[&other].keep.as_ref().is_some_and(|k| !k.contains(cpu));
                        Some(((is_asked, spare(other, cpus), Reverse(other)), other, cpu))
                    })
                    .max_by_key(|&(key, _, _)| key);
                let Some((_, other, cpu)) = found else { break };
                if let Some(cpus) = left.get_mut(&other) {
                    *cpus = without(cpus, cpu);
                }
                asked.insert(other);
            }
        }
        left.retain(|id, _| asked.contains(id));
        left
    }
}

fn without(cpus: &CpuSet, cpu: CpuId) -> CpuSet {
    cpus.iter().filter(|&c| c != cpu).collect()
}

/// CPUs for claims that may not take all of them: who has one that another needs more moves to one that is left.
///
/// How many each has never falls, and each step adds one CPU along such a path of moves. When there is no path for anybody, no
/// other way claims more CPUs.
#[derive(Debug, Clone)]
struct Matching<'a> {
    cpus: &'a [CpuId],
    asks: &'a [&'a Ask],
    takers: Vec<Option<usize>>,
    counts: Vec<usize>,
    /// CPUs that may still be given.
    budget: usize,
}

impl<'a> Matching<'a> {
    fn new(cpus: &'a [CpuId], asks: &'a [&'a Ask], budget: usize) -> Self {
        Matching { cpus, asks, takers: vec![None; cpus.len()], counts: vec![0; asks.len()], budget }
    }

    /// Gives a claim one CPU more, if there is a way.
    fn grow(&mut self, claim: usize) -> bool {
        let is_given = self.budget > 0 && self.take(claim, &mut vec![false; self.asks.len()]);
        if is_given {
            self.budget -= 1;
            self.counts[claim] += 1;
        }
        is_given
    }

    fn take(&mut self, claim: usize, tried: &mut [bool]) -> bool {
        tried[claim] = true;
        let allowed = |i: &usize| self.asks[claim].allows(self.cpus[*i]);
        let allowed: Vec<usize> = (0..self.cpus.len()).filter(allowed).collect();
        if let Some(&i) = allowed.iter().find(|&&i| self.takers[i].is_none()) {
            self.takers[i] = Some(claim);
            return true;
        }
        for i in allowed {
            if let Some(other) = self.takers[i].filter(|&other| !tried[other])
                && self.take(other, tried)
            {
                self.takers[i] = Some(claim);
                return true;
            }
        }
        false
    }

    /// Gives one CPU after the other to whoever has least, up to what each is to have.
    fn level(&mut self, have: &[usize], up_to: &[usize]) {
        let mut open: Vec<usize> = (0..have.len()).collect();
        loop {
            open.retain(|&i| have[i] + self.counts[i] < up_to[i]);
            let least = open.iter().copied().min_by_key(|&i| (have[i] + self.counts[i], i));
            let Some(least) = least.filter(|_| self.budget > 0) else { return };
            // Who gets none now will get none later: what others get leaves no new way open.
            if !self.grow(least) {
                open.retain(|&i| i != least);
            }
        }
    }

    /// Gives as many claims as possible what they need.
    fn meet(&mut self, have: &[usize], need: &[usize]) {
        let lacks = |m: &Self, i: usize| need[i].saturating_sub(have[i] + m.counts[i]);
        let mut short: Vec<usize> =
            (0..have.len()).filter(|&i| (1..=self.budget).contains(&lacks(self, i))).collect();
        let meets = |m: &mut Self, i: usize| (0..lacks(m, i)).all(|_| m.grow(i));
        if short.len() <= SHORT_MAX {
            let mut choices: Vec<u32> = (0..1 << short.len()).collect();
            // The most first; of as many, those with the oldest, who have the lowest bits.
            choices.sort_by_key(|c| Reverse((c.count_ones(), c.reverse_bits())));
            for choice in choices {
                let mut tried = self.clone();
                let chosen = short.iter().enumerate().filter(|(bit, _)| choice & (1 << bit) != 0);
                if chosen.map(|(_, &i)| i).all(|i| meets(&mut tried, i)) {
                    *self = tried;
                    return;
                }
            }
        }
        short.sort_by_key(|&i| (lacks(self, i), i));
        for i in short {
            let mut tried = self.clone();
            if meets(&mut tried, i) {
                *self = tried;
            }
        }
    }

    /// Whether each claim can have so many.
    fn reaches(mut self, counts: &[usize]) -> bool {
        counts.iter().enumerate().all(|(i, &n)| (0..n).all(|_| self.grow(i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::Node;
    use proptest::prelude::*;

    const ME: u64 = 1;
    const YOU: u64 = 2;

    /// CPUs on nodes in turn, or in blocks; two to a core.
    fn machine(cpus: u32, nodes: u32, in_turn: bool) -> Topology {
        let node = |c: u32| NodeId(if in_turn { c % nodes } else { c * nodes / cpus });
        let all: Vec<Cpu> = (0..cpus)
            .map(|c| Cpu { id: CpuId(c), package: 0, core: c / 2, node: node(c), cache: 0 })
            .collect();
        let of = |n: u32| all.iter().filter(|c| c.node.0 == n).map(|c| c.id).collect();
        let distances = vec![10; nodes as usize];
        let nodes = (0..nodes).map(|n| Node { id: NodeId(n), cpus: of(n), distances: distances.clone() });
        Topology::new(all.clone(), nodes.collect()).unwrap()
    }

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// What the issue calls `Numa(...)`: the sum of squares, or the number of nodes.
    fn cost(claims: &Claims, numa: Option<Numa>, cpus: &CpuSet) -> usize {
        let counts = claims.by_node(cpus.iter());
        match numa {
            None => 0,
            Some(Numa::Scatter) => counts.values().map(|n| n * n).sum(),
            Some(Numa::Compact) => counts.len(),
        }
    }

    #[test]
    fn invade_takes_what_is_free_up_to_the_maximum() {
        let mut claims = Claims::new(Topology::flat(8));
        let (a, outcome) = claims.invade(None, ME, Ask::new(1, 4)).unwrap();
        assert_eq!(outcome, Outcome { changed: vec![(a, set("0-3"))], asked: vec![] });
        // One of the rest stays for programs without a claim.
        let (b, _) = claims.invade(None, YOU, Ask::new(1, 8)).unwrap();
        assert_eq!((claims.cpus(b), claims.unclaimed()), (set("4-6"), set("7")));
        assert_eq!(claims.list().map(|(id, owner, _)| (id, owner)).collect::<Vec<_>>(), [(a, ME), (b, YOU)]);
    }

    #[test]
    fn invade_lies_as_it_was_asked_to() {
        let lie = |in_turn, count, numa| {
            let mut claims = Claims::new(machine(8, 2, in_turn));
            let (id, _) = claims.invade(None, ME, Ask { numa, ..Ask::new(1, count) }).unwrap();
            claims.cpus(id)
        };
        assert_eq!(lie(false, 4, Some(Numa::Scatter)), set("0-1,4-5"));
        assert_eq!(lie(true, 4, Some(Numa::Compact)), set("0,2,4,6"));
        assert_eq!(lie(true, 3, None), set("0-2"));
        let mut claims = Claims::new(machine(8, 2, false));
        let ask = Ask { within: Some(set("2-5")), prefer: set("5"), ..Ask::new(1, 2) };
        let (id, _) = claims.invade(None, ME, ask).unwrap();
        assert_eq!(claims.cpus(id), set("2,5"));
    }

    #[test]
    fn invade_avoids_cores_on_which_others_compute() {
        let mut claims = Claims::new(machine(8, 1, false));
        claims.invade(None, ME, Ask::new(1, 1)).unwrap();
        let (id, _) = claims.invade(None, YOU, Ask::new(1, 2)).unwrap();
        assert_eq!(claims.cpus(id), set("2-3"));
    }

    #[test]
    fn invade_where_nothing_is_free_has_others_shrink_to_their_part() {
        let mut claims = Claims::new(Topology::flat(9));
        let (a, _) = claims.invade(None, ME, Ask::new(1, 8)).unwrap();
        let (b, outcome) = claims.invade(None, YOU, Ask::new(2, 8)).unwrap();
        assert_eq!(outcome.changed, [(b, CpuSet::new())], "nobody waits");
        assert_eq!(outcome.asked, [(a, set("0-3"))]);
        // It gives back some of it, and then its time is over.
        let outcome = claims.retreat(a, ME, Retreat::Cpus(set("7"))).unwrap();
        assert_eq!(outcome.changed, [(a, set("0-6")), (b, set("7"))]);
        assert_eq!(outcome.asked, [], "it knows");
        let outcome = claims.deadline(a);
        assert_eq!(outcome.changed, [(a, set("0-3")), (b, set("4-7"))]);
        assert_eq!(claims.deadline(a), Outcome::default(), "once");
        // Because it was asked to, it may have them again.
        let outcome = claims.dead(YOU);
        assert_eq!(outcome.changed, [(a, set("0-7"))]);
    }

    #[test]
    fn request_is_withdrawn_when_nobody_lacks_anything() {
        let mut claims = Claims::new(Topology::flat(9));
        let (a, _) = claims.invade(None, ME, Ask::new(1, 8)).unwrap();
        let (b, _) = claims.invade(None, YOU, Ask::new(2, 8)).unwrap();
        let outcome = claims.end(b, YOU).unwrap();
        assert_eq!(outcome, Outcome { changed: vec![], asked: vec![(a, set("0-7"))] });
        assert_eq!(claims.deadline(a), Outcome::default());
    }

    #[test]
    fn retreat_of_ones_own_will_lasts_until_the_next_invade() {
        let mut claims = Claims::new(Topology::flat(4));
        let (a, _) = claims.invade(None, ME, Ask::new(1, 3)).unwrap();
        assert_eq!(claims.retreat(a, ME, Retreat::To(1)).unwrap().changed, [(a, set("0"))]);
        assert_eq!(claims.retreat(a, ME, Retreat::To(0)).unwrap(), Outcome::default(), "one stays");
        let (b, _) = claims.invade(None, YOU, Ask::new(1, 1)).unwrap();
        claims.end(b, YOU).unwrap();
        assert_eq!(claims.cpus(a), set("0"));
        claims.invade(Some(a), ME, Ask::new(1, 2)).unwrap();
        assert_eq!(claims.cpus(a), set("0-1"));
    }

    #[test]
    fn invade_anew_elsewhere_moves() {
        let mut claims = Claims::new(Topology::flat(4));
        let (a, _) = claims.invade(None, ME, Ask::new(1, 2)).unwrap();
        claims.invade(Some(a), ME, Ask { within: Some(set("2-3")), ..Ask::new(1, 2) }).unwrap();
        assert_eq!(claims.cpus(a), set("2-3"));
    }

    #[test]
    fn senseless_asks_are_told_and_change_nothing() {
        let mut claims = Claims::new(Topology::flat(2));
        assert!(matches!(claims.invade(None, ME, Ask::new(0, 0)), Err(ClaimError::Range { .. })));
        assert!(matches!(claims.invade(None, ME, Ask::new(2, 1)), Err(ClaimError::Range { .. })));
        let far = Ask { within: Some(set("7")), ..Ask::new(1, 1) };
        assert!(matches!(claims.invade(None, ME, far), Err(ClaimError::Elsewhere { .. })));
        let (a, _) = claims.invade(None, ME, Ask::new(1, 1)).unwrap();
        assert_eq!(claims.end(a, YOU), Err(ClaimError::NoSuchClaim(a.0)), "somebody else's");
        assert_eq!(claims.retreat(ClaimId(9), ME, Retreat::To(1)), Err(ClaimError::NoSuchClaim(9)));
        for _ in 1..CLAIMS_MAX {
            claims.invade(None, ME, Ask::new(1, 1)).unwrap();
        }
        assert_eq!(claims.invade(None, ME, Ask::new(1, 1)), Err(ClaimError::TooMany));
    }

    fn any_machine() -> impl Strategy<Value = Topology> {
        (1u32..5, 1u32..3, any::<bool>())
            .prop_map(|(cpus, nodes, in_turn)| machine(cpus, nodes.min(cpus), in_turn))
    }

    fn any_cpus() -> impl Strategy<Value = CpuSet> {
        proptest::collection::vec(0u32..4, 0..4).prop_map(|cpus| cpus.into_iter().map(CpuId).collect())
    }

    fn any_ask() -> impl Strategy<Value = Ask> {
        let numa = prop_oneof![Just(None), Just(Some(Numa::Scatter)), Just(Some(Numa::Compact))];
        // CPU 0 is in all machines.
        let within =
            proptest::option::of(any_cpus()).prop_map(|w| w.map(|w| w.iter().chain([CpuId(0)]).collect()));
        (0u32..4, 0u32..4, numa, within, any_cpus()).prop_map(|(min, more, numa, within, prefer)| Ask {
            min,
            max: (min + more).max(1),
            numa,
            within,
            prefer,
        })
    }

    #[derive(Debug, Clone)]
    enum Event {
        Invade(Ask),
        InvadeAnew(usize, Ask),
        To(usize, u32),
        Cpus(usize, CpuSet),
        Deadline(usize),
        End(usize),
        Dead(u64),
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => any_ask().prop_map(Event::Invade),
            1 => (0usize..5, any_ask()).prop_map(|(i, ask)| Event::InvadeAnew(i, ask)),
            1 => (0usize..5, 0u32..4).prop_map(|(i, n)| Event::To(i, n)),
            1 => (0usize..5, any_cpus()).prop_map(|(i, cpus)| Event::Cpus(i, cpus)),
            3 => (0usize..5).prop_map(Event::Deadline),
            1 => (0usize..5).prop_map(Event::End),
            1 => (0u64..2).prop_map(Event::Dead),
        ]
    }

    /// All ways to give free CPUs to claims: for each of the CPUs, which claim gets it, if any.
    fn ways(free: &[CpuId], asks: &[&Ask]) -> Vec<Vec<Option<usize>>> {
        let Some((&cpu, rest)) = free.split_first() else { return vec![vec![]] };
        let takers: Vec<Option<usize>> =
            std::iter::once(None).chain((0..asks.len()).filter(|&i| asks[i].allows(cpu)).map(Some)).collect();
        let ways = ways(rest, asks);
        let with = |taker: &Option<usize>| {
            ways.iter().map(|w| [&[*taker], w.as_slice()].concat()).collect::<Vec<_>>()
        };
        takers.iter().flat_map(with).collect()
    }

    proptest! {
        /// Up to 4 CPUs and 3 claims, in any state: as many dues met and CPUs claimed as in the best of all ways; and where
        /// one claim alone grows, no other CPUs of as many would have cost it less.
        #[test]
        fn hand_out_is_the_best_of_all_ways(
            topology in any_machine(),
            asks in proptest::collection::vec(any_ask(), 1..4),
            holders in proptest::collection::vec(proptest::option::of(0usize..3), 4),
        ) {
            let mut claims = Claims::new(topology);
            for (i, ask) in asks.iter().enumerate() {
                claims.claims.insert(ClaimId(i as u64), Claim { owner: ME, ask: ask.clone(), keep: None });
            }
            let all: Vec<CpuId> = claims.topology.cpus().iter().map(|c| c.id).collect();
            for (&cpu, holder) in all.iter().zip(holders) {
                let Some(i) = holder.filter(|&i| i < asks.len() && asks[i].allows(cpu)) else { continue };
                let id = ClaimId(i as u64);
                if claims.cpus(id).len() < asks[i].max as usize && claims.holders.len() < claims.claimable() {
                    claims.holders.insert(cpu, id);
                }
            }
            let ids: Vec<ClaimId> = claims.claims.keys().copied().collect();
            let asks: Vec<&Ask> = asks.iter().collect();
            let parts = claims.fair_parts();
            let free: Vec<CpuId> = claims.unclaimed().iter().collect();
            let budget = claims.claimable() - claims.holders.len();
            let have = |way: &[Option<usize>], i: usize| -> CpuSet {
                let new = free.iter().zip(way).filter(|(_, taker)| **taker == Some(i)).map(|(&cpu, _)| cpu);
                claims.cpus(ids[i]).iter().chain(new).collect()
            };
            let is_way = |way: &Vec<Option<usize>>| {
                way.iter().flatten().count() <= budget
                    && (0..ids.len()).all(|i| have(way, i).len() <= asks[i].max as usize)
            };
            let score = |way: &[Option<usize>]| {
                let met = (0..ids.len()).filter(|&i| have(way, i).len() >= parts[&ids[i]].min(asks[i].min as usize)).count();
                (met, way.iter().flatten().count())
            };
            let given: BTreeMap<CpuId, ClaimId> = claims.hand_out(&parts).into_iter().collect();
            let ours: Vec<Option<usize>> = free.iter().map(|cpu| given.get(cpu).map(|id| id.0 as usize)).collect();
            let ways: Vec<_> = ways(&free, &asks).into_iter().filter(is_way).collect();
            prop_assert!(ways.contains(&ours), "{:?}", ours);
            prop_assert_eq!(score(&ours), ways.iter().map(|w| score(w)).max().unwrap());
            let growing: BTreeSet<usize> = ours.iter().flatten().copied().collect();
            if let (1, Some(&i)) = (growing.len(), growing.first()) {
                let count = score(&ours).1;
                let alone = |w: &&Vec<Option<usize>>| w.iter().flatten().all(|&j| j == i) && score(w).1 == count;
                let least = ways.iter().filter(alone).map(|w| cost(&claims, asks[i].numa, &have(w, i))).min();
                prop_assert_eq!(Some(cost(&claims, asks[i].numa, &have(&ours, i))), least);
            }
        }

        #[test]
        fn events_in_any_order_keep_the_rules(
            topology in any_machine(), events in proptest::collection::vec(any_event(), 1..25), unclaimed_min in 0usize..3,
        ) {
            let mut claims = Claims { unclaimed_min, ..Claims::new(topology) };
            let mut ids: Vec<(ClaimId, u64)> = Vec::new();
            let play = |events: &[Event], claims: &mut Claims, ids: &mut Vec<(ClaimId, u64)>| -> Result<Vec<Outcome>, TestCaseError> {
                let mut outcomes = Vec::new();
                for (turn, event) in events.iter().enumerate() {
                    let before = claims.clone();
                    let of = |i: &usize| ids.get(*i).copied().unwrap_or((ClaimId(0), 0));
                    let outcome = match event {
                        Event::Invade(ask) => {
                            let owner = turn as u64 % 2;
                            claims.invade(None, owner, ask.clone()).map(|(id, outcome)| {
                                ids.push((id, owner));
                                outcome
                            })
                        }
                        Event::InvadeAnew(i, ask) => {
                            let (id, owner) = of(i);
                            claims.invade(Some(id), owner, ask.clone()).map(|o| o.1)
                        }
                        Event::To(i, n) => claims.retreat(of(i).0, of(i).1, Retreat::To(*n)),
                        Event::Cpus(i, cpus) => claims.retreat(of(i).0, of(i).1, Retreat::Cpus(cpus.clone())),
                        Event::Deadline(i) => Ok(claims.deadline(of(i).0)),
                        Event::End(i) => claims.end(of(i).0, of(i).1),
                        Event::Dead(owner) => Ok(claims.dead(*owner)),
                    };
                    prop_assert!(claims.holders.len() <= claims.claimable());
                    for (&id, claim) in &claims.claims {
                        let cpus = claims.cpus(id);
                        prop_assert!(cpus.len() <= claim.ask.max as usize, "{:?} has {}", claim, cpus);
                        prop_assert!(cpus.len() == 1 || cpus.iter().all(|c| claim.ask.allows(c)), "{:?} has {}", claim, cpus);
                        prop_assert!(!cpus.is_empty() || before.cpus(id).is_empty(), "{:?} lost its last CPU", claim);
                        if let Some(keep) = &claim.keep {
                            prop_assert!(!keep.is_empty() && keep.len() < cpus.len());
                            prop_assert!(keep.iter().all(|c| cpus.contains(c)));
                        }
                        let told = outcome.as_ref().ok().and_then(|o| o.changed.iter().find(|(c, _)| *c == id));
                        match told {
                            Some((_, told)) => prop_assert_eq!(told, &cpus),
                            None => prop_assert_eq!(&before.cpus(id), &cpus),
                        }
                    }
                    outcomes.push(outcome.unwrap_or_default());
                }
                Ok(outcomes)
            };
            let again = (claims.clone(), ids.clone());
            let first = play(&events, &mut claims, &mut ids)?;
            let (mut claims_again, mut ids_again) = again;
            prop_assert_eq!(&first, &play(&events, &mut claims_again, &mut ids_again)?, "it repeats itself");

            // All who are asked give back: then nobody is asked any more.
            let mut rounds = 0;
            while let Some(id) = claims.claims.iter().find(|(_, c)| c.keep.is_some()).map(|(&id, _)| id) {
                claims.deadline(id);
                rounds += 1;
                prop_assert!(rounds <= 100, "it goes round in circles");
            }
            // And if all may use all CPUs, everybody who has its turn has its fair part.
            if claims.claims.values().all(|c| c.ask.within.is_none()) {
                let parts = claims.fair_parts();
                let holders = parts.keys().filter(|&&id| claims.count(id) > 0).count();
                if holders == parts.len() {
                    for (&id, &part) in &parts {
                        prop_assert!(claims.count(id) >= part, "{:?} of {}", claims.cpus(id), part);
                    }
                }
            }
        }
    }
}
