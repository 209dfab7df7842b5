//! Placement of sets on the parts of a topology.

use super::{Cosched, Fragments};
use corebeat_machine::Cpu;

impl Cosched {
    /// Returns the CPUs for a set that gets `need` of the free CPUs, and at most `most`.
    pub(super) fn place(
        &self,
        s: usize,
        need: usize,
        free: &[usize],
        most: usize,
    ) -> Option<Vec<usize>> {
        let q = &self.queues[s];
        if self.fragments == Fragments::Idle {
            let suits = |part: &&Vec<usize>| {
                (q.cpus as usize..=most).contains(&part.len())
                    && part.iter().all(|c| free.contains(c))
            };
            let was_there = |part: &&Vec<usize>| part.iter().all(|c| q.place.contains(c));
            return self
                .parts
                .iter()
                .filter(suits)
                .min_by_key(|p| (p.len(), !was_there(p)))
                .cloned();
        }
        if need > most {
            return None;
        }
        let (kept, other): (Vec<usize>, Vec<usize>) =
            free.iter().partition(|c| q.place.contains(c));
        let within = |part: &[usize], of: &[usize]| of.iter().filter(|c| part.contains(c)).count();
        let rank = |part: &&Vec<usize>| {
            let (kept, free) = (within(part, &kept), within(part, free));
            (free >= need).then_some((kept < need, part.len(), std::cmp::Reverse(kept), free))
        };
        let part = self.parts.iter().filter(|p| rank(p).is_some()).min_by_key(|p| rank(p))?;
        Some(kept.into_iter().chain(other).filter(|c| part.contains(c)).take(need).collect())
    }
}

/// Lists the parts of a topology: packages, nodes, caches, cores and CPUs, and halves of several.
pub(super) fn divide(
    all: &[Cpu],
    siblings: Vec<Vec<usize>>,
    level: usize,
    parts: &mut Vec<Vec<usize>>,
) {
    let key = |c: usize| match level {
        0 => all[c].package,
        1 => all[c].node.0,
        2 => all[c].cache,
        3 => all[c].core,
        _ => all[c].id.0,
    };
    if siblings.len() > 1 {
        parts.push(siblings.concat());
        let (left, right) = siblings.split_at(siblings.len().div_ceil(2));
        divide(all, left.to_vec(), level, parts);
        divide(all, right.to_vec(), level, parts);
        return;
    }
    let Some(one) = siblings.into_iter().next() else { return };
    if one.len() == 1 {
        parts.push(one);
        return;
    }
    let mut keys: Vec<u32> = one.iter().map(|&c| key(c)).collect();
    keys.sort_unstable();
    keys.dedup();
    let below =
        keys.iter().map(|&k| one.iter().copied().filter(|&c| key(c) == k).collect()).collect();
    divide(all, below, level + 1, parts);
}
