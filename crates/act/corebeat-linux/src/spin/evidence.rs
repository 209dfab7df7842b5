//! Evidence that a loop with calls waits: where its samples are.
//!
//! A loop that waits spends its time on its idle cycle. A loop that computes may have an idle cycle
//! as well, which it would take after an error, and whose first instructions are also on its other
//! cycles. Such a loop has samples in the functions that it calls, outside the idle cycle.

use super::LoopId;
use super::call::{self, Outcome, Pages};
use super::ring::Context;
use std::collections::{HashMap, HashSet};

/// Number of samples on the cycle from which on a loop may count as waiting.
const IDLE_MIN: u32 = 8;

/// A loop waits if at most one in this number of its samples is outside its cycle.
const OTHER_ONE_IN: u32 = 16;

/// At most one in this number of its samples is in code that was not followed to its end.
const CUT_ONE_IN: u32 = 4;

/// Number of samples of a loop above which older samples lose weight.
const SAMPLES_MAX: u32 = 4_096;

/// Number of loops, calls and callers that are kept; full tables are emptied.
const ENTRIES_MAX: usize = 1 << 14;

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    idle: u32,
    other: u32,
    cut: u32,
}

/// Samples of loops with calls.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The loop, by process and address behind one of its calls.
    loops: HashMap<(i32, u64), LoopId>,
    counts: HashMap<LoopId, Count>,
    /// Cache of [`call::callers`], by process and address.
    callers: HashMap<(i32, u64), Vec<(usize, u64)>>,
}

impl Evidence {
    /// Adds a sample on the idle cycle of a loop. Returns the loop, if the outcome has one.
    pub(super) fn add_idle(&mut self, pid: i32, outcome: &Outcome) -> Option<LoopId> {
        if self.loops.len() + self.counts.len() >= ENTRIES_MAX {
            self.loops.clear();
            self.counts.clear();
        }
        let lowest = *outcome.calls.iter().min()?;
        let known = outcome.calls.iter().find_map(|&call| self.loops.get(&(pid, call)).copied());
        let id = known.unwrap_or((pid, lowest));
        for &call in &outcome.calls {
            self.loops.entry((pid, call)).or_insert(id);
        }
        self.count(id, |count| count.idle += 1);
        Some(id)
    }

    /// Adds a sample that is on no idle cycle: it counts against the loop that has called the code.
    /// `is_cut` states that the analysis did not follow all paths.
    pub(super) fn add_other(
        &mut self,
        pid: i32,
        ip: u64,
        context: &Context<'_>,
        pages: &mut Pages,
        is_cut: bool,
    ) {
        if !self.loops.keys().any(|key| key.0 == pid) {
            return;
        }
        if self.callers.len() >= ENTRIES_MAX {
            self.callers.clear();
        }
        let callers = self.callers.entry((pid, ip)).or_default();
        if callers.is_empty() || !call::are_on_stack(callers, context) {
            *callers = call::callers(pid, ip, context, pages);
        }
        let id = callers.iter().find_map(|&(_, caller)| self.loops.get(&(pid, caller)).copied());
        if let Some(id) = id {
            self.count(id, |count| *if is_cut { &mut count.cut } else { &mut count.other } += 1);
        }
    }

    fn count(&mut self, id: LoopId, add: impl Fn(&mut Count)) {
        let count = self.counts.entry(id).or_default();
        add(count);
        let Count { idle, other, cut } = *count;
        if idle + other + cut > SAMPLES_MAX {
            *count = Count { idle: idle / 2, other: other / 2, cut: cut / 2 };
        }
    }

    /// Returns whether the samples show that a loop waits.
    pub(super) fn shows_waiting(&self, id: LoopId) -> bool {
        let Count { idle, other, cut } = self.counts.get(&id).copied().unwrap_or_default();
        idle >= IDLE_MIN
            && other.saturating_mul(OTHER_ONE_IN) <= idle + other
            && cut.saturating_mul(CUT_ONE_IN) <= idle + other + cut
    }

    /// Discards all data on these processes.
    pub(super) fn forget(&mut self, pids: &HashSet<i32>) {
        self.loops.retain(|key, _| !pids.contains(&key.0));
        self.counts.retain(|key, _| !pids.contains(&key.0));
        self.callers.retain(|key, _| !pids.contains(&key.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(calls: &[u64]) -> Outcome {
        Outcome { returns: Vec::new(), calls: calls.into(), is_cut: false, followed: 0 }
    }

    #[test]
    fn loop_waits_while_nearly_all_of_its_samples_are_on_its_cycle() {
        let mut evidence = Evidence::default();
        let id = evidence.add_idle(1, &outcome(&[20, 10])).unwrap();
        assert_eq!(id, (1, 10));
        assert!(!evidence.shows_waiting(id), "one sample is no evidence");
        for _ in 0..59 {
            // Another cycle of the same loop.
            assert_eq!(evidence.add_idle(1, &outcome(&[20])), Some(id));
        }
        for other in 0..4 {
            evidence.count(id, |count| count.other += 1);
            assert!(evidence.shows_waiting(id), "{other}");
        }
        evidence.count(id, |count| count.other += 1);
        assert!(!evidence.shows_waiting(id));
        evidence.count(id, |count| *count = Count { idle: 60, other: 0, cut: 20 });
        assert!(evidence.shows_waiting(id));
        evidence.count(id, |count| count.cut += 1);
        assert!(!evidence.shows_waiting(id));
        assert_eq!(evidence.add_idle(2, &outcome(&[20])), Some((2, 20)), "another process");
        evidence.forget(&HashSet::from([1]));
        assert!(evidence.counts.len() == 1 && evidence.loops.len() == 1);
    }

    #[test]
    fn evidence_of_the_past_loses_weight() {
        let mut evidence = Evidence::default();
        let id = evidence.add_idle(1, &outcome(&[10])).unwrap();
        (0..SAMPLES_MAX).for_each(|_| evidence.count(id, |count| count.other += 1));
        assert!(!evidence.shows_waiting(id));
        (0..20 * SAMPLES_MAX).for_each(|_| evidence.count(id, |count| count.idle += 1));
        assert!(evidence.shows_waiting(id));
        assert!(evidence.counts[&id].idle <= SAMPLES_MAX);
    }
}
