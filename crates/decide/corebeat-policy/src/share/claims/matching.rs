//! Matching of CPUs to claims.

use super::{Ask, SHORT_MAX};
use corebeat_machine::CpuId;
use std::cmp::Reverse;

/// A matching of CPUs to claims with constraints. To give a claim one more CPU, other claims may
/// move to CPUs that are left (an augmenting path).
///
/// The number of CPUs of a claim never falls, and each step adds one CPU along such a path. When no
/// claim has a path, no other matching claims more CPUs.
#[derive(Debug, Clone)]
pub(super) struct Matching<'a> {
    cpus: &'a [CpuId],
    asks: &'a [&'a Ask],
    pub(super) takers: Vec<Option<usize>>,
    pub(super) counts: Vec<usize>,
    /// Number of CPUs that may still be given.
    budget: usize,
}

impl<'a> Matching<'a> {
    pub(super) fn new(cpus: &'a [CpuId], asks: &'a [&'a Ask], budget: usize) -> Self {
        Matching { cpus, asks, takers: vec![None; cpus.len()], counts: vec![0; asks.len()], budget }
    }

    /// Gives a claim one more CPU, if there is an augmenting path.
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

    /// Gives one CPU after the other to the claim with the fewest, up to the limit of each.
    pub(super) fn level(&mut self, have: &[usize], up_to: &[usize]) {
        let mut open: Vec<usize> = (0..have.len()).collect();
        loop {
            open.retain(|&i| have[i] + self.counts[i] < up_to[i]);
            let least = open.iter().copied().min_by_key(|&i| (have[i] + self.counts[i], i));
            let Some(least) = least.filter(|_| self.budget > 0) else { return };
            // A claim without a path stays without one, because further CPUs of other claims open
            // no new path.
            if !self.grow(least) {
                open.retain(|&i| i != least);
            }
        }
    }

    /// Gives as many claims as possible the CPUs that they need.
    pub(super) fn meet(&mut self, have: &[usize], need: &[usize]) {
        let lacks = |m: &Self, i: usize| need[i].saturating_sub(have[i] + m.counts[i]);
        let mut short: Vec<usize> =
            (0..have.len()).filter(|&i| (1..=self.budget).contains(&lacks(self, i))).collect();
        let meets = |m: &mut Self, i: usize| (0..lacks(m, i)).all(|_| m.grow(i));
        if short.len() <= SHORT_MAX {
            let mut choices: Vec<u32> = (0..1 << short.len()).collect();
            // The largest choices first; among equals, the choices with the oldest claims, which
            // have the lowest bits.
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

    /// Returns whether each claim can get its number of CPUs.
    pub(super) fn reaches(mut self, counts: &[usize]) -> bool {
        counts.iter().enumerate().all(|(i, &n)| (0..n).all(|_| self.grow(i)))
    }
}
