//! Evidence that a loop with calls waits: where its samples are.
//!
//! A loop that waits spends its time on its idle cycle. A loop that computes may have an idle cycle
//! as well, which it would take after an error, and whose first instructions are also on its other
//! cycles. Such a loop has samples outside the idle cycle, in itself or in functions that it calls.

use super::LoopId;
use super::call::{self, Pages, Waiting};
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

/// Number of loops and callers that are kept; full tables are emptied.
const ENTRIES_MAX: usize = 1 << 14;

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    idle: u32,
    other: u32,
    cut: u32,
}

/// A loop with calls.
#[derive(Debug)]
struct Loop {
    id: LoopId,
    /// Addresses behind its calls.
    calls: HashSet<u64>,
    /// The lowest and the highest address of its instructions, without the called functions.
    span: (u64, u64),
}

impl Loop {
    /// Returns whether an address is in the loop, or behind one of its calls.
    fn contains(&self, address: u64) -> bool {
        self.calls.contains(&address) || (self.span.0..=self.span.1).contains(&address)
    }
}

/// Samples of loops with calls.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// By process.
    loops: HashMap<i32, Vec<Loop>>,
    counts: HashMap<LoopId, Count>,
    /// Cache of [`call::callers`], by process and address.
    callers: HashMap<(i32, u64), Vec<(usize, u64)>>,
}

impl Evidence {
    /// Adds a sample on the idle cycle of a loop. Returns the loop.
    pub(super) fn add_idle(&mut self, pid: i32, waiting: &Waiting) -> LoopId {
        if self.counts.len() >= ENTRIES_MAX {
            self.loops.clear();
            self.counts.clear();
        }
        let loops = self.loops.entry(pid).or_default();
        let is_known = |known: &&mut Loop| waiting.calls.iter().any(|c| known.calls.contains(c));
        let id = match loops.iter_mut().find(is_known) {
            Some(known) => {
                known.calls.extend(&waiting.calls);
                let (low, high) = waiting.span;
                known.span = (known.span.0.min(low), known.span.1.max(high));
                known.id
            }
            None => {
                let id = (pid, waiting.span.0);
                let calls = waiting.calls.iter().copied().collect();
                loops.push(Loop { id, calls, span: waiting.span });
                id
            }
        };
        self.count(id, |count| count.idle += 1);
        id
    }

    /// Adds a sample that is on no idle cycle: it counts against the loop that it is in, or that
    /// has called the code. `is_cut` states that the analysis did not follow all paths. The search
    /// for callers takes instructions from `left`.
    pub(super) fn add_other(
        &mut self,
        (pid, ip): (i32, u64),
        context: &Context<'_>,
        pages: &mut Pages,
        is_cut: bool,
        left: &mut usize,
    ) {
        let Some(loops) = self.loops.get(&pid) else { return };
        if self.callers.len() >= ENTRIES_MAX {
            self.callers.clear();
        }
        let known = self.callers.get(&(pid, ip));
        if !known.is_some_and(|callers| call::are_on_stack(callers, context)) {
            if *left < call::INSTRUCTIONS_MAX {
                // The sample may be of any of the loops.
                let ids: Vec<LoopId> = loops.iter().map(|known| known.id).collect();
                ids.into_iter().for_each(|id| self.count(id, |count| count.cut += 1));
                return;
            }
            let (callers, followed) = call::callers(pid, ip, context, pages);
            *left -= followed;
            self.callers.insert((pid, ip), callers);
        }
        let callers = self.callers[&(pid, ip)].iter().map(|caller| caller.1);
        let mut addresses = std::iter::once(ip).chain(callers);
        let id = addresses.find_map(|address| {
            loops.iter().find(|known| known.contains(address)).map(|known| known.id)
        });
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
        self.loops.retain(|pid, _| !pids.contains(pid));
        self.counts.retain(|key, _| !pids.contains(&key.0));
        self.callers.retain(|key, _| !pids.contains(&key.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spin::ring::REGISTER_COUNT;

    fn waiting(calls: &[u64]) -> Waiting {
        let (low, high) = (calls.iter().min().unwrap(), calls.iter().max().unwrap());
        Waiting { calls: calls.into(), span: (low - 2, high + 2), attempt: None }
    }

    #[test]
    fn loop_waits_while_nearly_all_of_its_samples_are_on_its_cycle() {
        let mut evidence = Evidence::default();
        let id = evidence.add_idle(1, &waiting(&[20, 10]));
        assert_eq!(id, (1, 8));
        assert!(!evidence.shows_waiting(id), "one sample is no evidence");
        for _ in 0..59 {
            // Another cycle of the same loop.
            assert_eq!(evidence.add_idle(1, &waiting(&[20])), id);
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
        assert_eq!(evidence.add_idle(2, &waiting(&[20])), (2, 18), "another process");
        evidence.forget(&HashSet::from([1]));
        assert!(evidence.counts.len() == 1 && evidence.loops.len() == 1);
    }

    #[test]
    fn samples_in_the_loop_count_against_it() {
        let mut evidence = Evidence::default();
        let id = evidence.add_idle(1, &waiting(&[10, 20]));
        let context = Context { registers: [0; REGISTER_COUNT], flags: 0, stack: &[] };
        let pages = &mut Pages::default();
        for ip in [8, 15, 22, 7, 23] {
            for pid in [1, 2] {
                let mut left = call::INSTRUCTIONS_MAX;
                evidence.add_other((pid, ip), &context, pages, false, &mut left);
            }
        }
        let counts = |evidence: &Evidence| (evidence.counts[&id].other, evidence.counts[&id].cut);
        assert_eq!((counts(&evidence), evidence.counts.len()), ((3, 0), 1));
        // Without an analysis, the sample may be one of the loop.
        evidence.add_other((1, 99), &context, pages, false, &mut 0);
        assert_eq!(counts(&evidence), (3, 1));
    }

    #[test]
    fn evidence_of_the_past_loses_weight() {
        let mut evidence = Evidence::default();
        let id = evidence.add_idle(1, &waiting(&[10]));
        (0..SAMPLES_MAX).for_each(|_| evidence.count(id, |count| count.other += 1));
        assert!(!evidence.shows_waiting(id));
        (0..20 * SAMPLES_MAX).for_each(|_| evidence.count(id, |count| count.idle += 1));
        assert!(evidence.shows_waiting(id));
        assert!(evidence.counts[&id].idle <= SAMPLES_MAX);
    }
}
