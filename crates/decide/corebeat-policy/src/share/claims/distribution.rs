//! Distribution of CPUs among claims.

use super::matching::Matching;
use super::{Ask, ClaimId, Claims, Numa, without};
use corebeat_machine::{Cpu, CpuId, CpuSet, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl Claims {
    /// Returns the number of CPUs that each claim would have if all CPUs were distributed again.
    pub(super) fn fair_parts(&self) -> BTreeMap<ClaimId, usize> {
        let cpus: Vec<CpuId> = self.topology.cpus().iter().map(|c| c.id).collect();
        let asks: Vec<&Ask> = self.claims.values().map(|c| &c.ask).collect();
        let mut matching = Matching::new(&cpus, &asks, self.claimable());
        let have = vec![0; asks.len()];
        matching.level(&have, &vec![1; asks.len()]);
        matching.meet(&have, &asks.iter().map(|a| a.min as usize).collect::<Vec<_>>());
        matching.level(&have, &asks.iter().map(|a| a.max as usize).collect::<Vec<_>>());
        self.claims.keys().copied().zip(matching.counts).collect()
    }

    /// Returns the free CPUs and the claims that get them.
    pub(super) fn hand_out(&self, parts: &BTreeMap<ClaimId, usize>) -> Vec<(CpuId, ClaimId)> {
        let mut free: Vec<CpuId> = self.unclaimed().iter().collect();
        let budget = self.claimable().saturating_sub(self.holders.len());
        let asks: Vec<&Ask> = self.claims.values().map(|c| &c.ask).collect();
        let have: Vec<usize> = self.claims.keys().map(|&id| self.count(id)).collect();
        let mut matching = Matching::new(&free, &asks, budget);
        let parts: Vec<usize> = parts.values().copied().collect();
        let dues: Vec<usize> =
            asks.iter().zip(&parts).map(|(a, &part)| part.min(a.min as usize)).collect();
        matching.meet(&have, &dues);
        matching.level(&have, &parts);
        matching.level(&have, &asks.iter().map(|a| a.max as usize).collect::<Vec<_>>());
        let mut counts = matching.counts;

        let mut given = Vec::new();
        for (i, &id) in self.claims.keys().enumerate() {
            let mut mine = self.cpus(id);
            while counts[i] > 0 {
                // A claim must not take a CPU if a later claim with constraints would then get
                // fewer CPUs than the matching found for it.
                let may_have = |cpu: CpuId| {
                    let is_constrained =
                        |(j, &n): (usize, &usize)| j != i && n > 0 && asks[j].within.is_some();
                    if !counts.iter().enumerate().any(is_constrained) {
                        return true;
                    }
                    let rest: Vec<CpuId> = free.iter().copied().filter(|&c| c != cpu).collect();
                    let mut counts = counts.clone();
                    counts[i] -= 1;
                    Matching::new(&rest, &asks, budget).reaches(&counts)
                };
                let Some(cpu) = self.most_wanted(id, &mine, &free, counts[i], may_have) else {
                    break;
                };
                counts[i] -= 1;
                free.retain(|&c| c != cpu);
                mine.insert(cpu);
                given.push((cpu, id));
            }
        }
        given
    }

    /// Returns the free CPU with the lowest cost for a claim that has `mine` and gets `count` more.
    fn most_wanted(
        &self,
        id: ClaimId,
        mine: &CpuSet,
        free: &[CpuId],
        count: usize,
        may_have: impl Fn(CpuId) -> bool,
    ) -> Option<CpuId> {
        let ask = &self.claims.get(&id)?.ask;
        let own = self.by_node(mine.iter());
        let room = self.by_node(free.iter().copied().filter(|&cpu| ask.allows(cpu)));
        let crowded: BTreeSet<_> = self
            .holders
            .iter()
            .filter(|(_, other)| **other != id)
            .map(|(&cpu, _)| self.core(cpu))
            .collect();
        let key = |&cpu: &CpuId| {
            let node = self.node(cpu);
            let on =
                |counts: &BTreeMap<Option<NodeId>, usize>| counts.get(&node).copied().unwrap_or(0);
            let cost = match ask.numa {
                None => (0, 0),
                // The node with the fewest own CPUs, then with the most free CPUs.
                Some(Numa::Scatter) => (on(&own), usize::MAX - on(&room)),
                // A node with own CPUs; then the smallest node with enough free CPUs; then the node
                // with the most free CPUs.
                Some(Numa::Compact) if on(&own) > 0 => (0, 0),
                Some(Numa::Compact) if on(&room) >= count => (1, on(&room)),
                Some(Numa::Compact) => (2, usize::MAX - on(&room)),
            };
            // One node after the other, if nodes matter. Cores without CPUs of other claims come
            // first.
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

    /// Returns the number of these CPUs on each node.
    pub(super) fn by_node(
        &self,
        cpus: impl Iterator<Item = CpuId>,
    ) -> BTreeMap<Option<NodeId>, usize> {
        let mut counts = BTreeMap::new();
        cpus.for_each(|cpu| *counts.entry(self.node(cpu)).or_default() += 1);
        counts
    }

    /// Returns the CPU of `mine` that a claim returns first, of those that `fits` accepts: a
    /// requested CPU, then the CPU with the lowest cost by node.
    pub(super) fn least_missed(
        &self,
        id: ClaimId,
        mine: &CpuSet,
        fits: impl Fn(CpuId) -> bool,
    ) -> Option<CpuId> {
        let claim = self.claims.get(&id)?;
        let kept = |cpu: CpuId| claim.keep.as_ref().is_some_and(|k| k.contains(cpu));
        let counts = self.by_node(mine.iter());
        let cost = |cpu: CpuId| {
            let count = counts.get(&self.node(cpu)).copied().unwrap_or(0);
            let cost = match claim.ask.numa {
                None => 0,
                Some(Numa::Scatter) => usize::MAX - count,
                Some(Numa::Compact) => count,
            };
            (kept(cpu), cost, claim.ask.prefer.contains(cpu), Reverse(cpu))
        };
        mine.iter().filter(|&cpu| fits(cpu)).min_by_key(|&cpu| cost(cpu))
    }

    /// Returns the CPUs that claims above their fair parts may keep, so that claims below theirs
    /// get the others.
    pub(super) fn requests(&self, parts: &BTreeMap<ClaimId, usize>) -> BTreeMap<ClaimId, CpuSet> {
        let mut left = self.held();
        let mut asked = BTreeSet::new();
        for (&id, claim) in &self.claims {
            let lacks = parts[&id].saturating_sub(self.count(id));
            for _ in 0..lacks {
                let fits = |cpu: CpuId| claim.ask.allows(cpu);
                let spare =
                    |other: ClaimId, cpus: &CpuSet| cpus.len().saturating_sub(parts[&other].max(1));
                let found = left
                    .iter()
                    .filter(|&(&other, cpus)| other != id && spare(other, cpus) > 0)
                    .filter_map(|(&other, cpus)| {
                        let cpu = self.least_missed(other, cpus, fits)?;
                        let is_asked =
                            self.claims[&other].keep.as_ref().is_some_and(|k| !k.contains(cpu));
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
