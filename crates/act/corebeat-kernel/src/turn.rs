//! The plans of turns: from the numbers of runnable threads to the owners of CPUs.

use crate::state::Counter;
use corebeat_machine::Coscheduler;

/// Part of a CPU that the runnable threads of a set may use beyond whole CPUs without counting as
/// one more CPU.
const SLACK: f64 = 0.1;

/// Requests plans from a coscheduler, with the runnable threads since the last plan.
pub(crate) struct Planner {
    coscheduler: Box<dyn Coscheduler + Send>,
    /// Group of each set, in the order of the coscheduler.
    sets: Vec<u32>,
    /// Number of CPUs of the coscheduler.
    cpus: usize,
    before: Option<(u64, Vec<Counter>)>,
    needs: Vec<u32>,
    loose: u32,
    until_ns: u64,
}

impl Planner {
    pub(crate) fn new(
        coscheduler: Box<dyn Coscheduler + Send>,
        sets: Vec<u32>,
        cpus: usize,
    ) -> Planner {
        let needs = vec![0; sets.len()];
        Planner { coscheduler, sets, cpus, before: None, needs, loose: 0, until_ns: 0 }
    }

    /// Returns the group that owns each CPU from now on. `None` if the present plan stays.
    pub(crate) fn plan(&mut self, now_ns: u64, groups: Vec<Counter>) -> Option<Vec<Option<u32>>> {
        let needs: Option<Vec<u32>> =
            self.sets.iter().map(|&set| self.need(set, now_ns, &groups)).collect();
        // After a torn reading the earlier needs stay, and the next reading has a longer span.
        let is_torn = needs.is_none();
        let needs = needs.unwrap_or_else(|| self.needs.clone());
        // Threads of no program (group 0) compete with each set in its turns.
        let loose =
            (1u32..).zip(groups.iter().skip(1)).filter(|(group, _)| !self.sets.contains(group));
        let loose: u64 = loose.map(|(_, counter)| counter.runnable).sum();
        let loose = u32::try_from(loose).unwrap_or(u32::MAX);
        if !is_torn {
            self.before = Some((now_ns, groups));
        }
        if now_ns < self.until_ns && needs == self.needs && loose == self.loose {
            return None;
        }
        let plan = self.coscheduler.plan(now_ns, &needs, loose);
        (self.needs, self.loose, self.until_ns) = (needs, loose, plan.until_ns);
        let group = |set: &Option<usize>| self.sets.get((*set)?).copied();
        Some(plan.cpus.iter().take(self.cpus).map(group).collect())
    }

    /// Returns the time of the next plan if nothing changes before, in nanoseconds.
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Returns the number of CPUs that a set can use; `None` for a torn reading.
    fn need(&self, set: u32, now_ns: u64, groups: &[Counter]) -> Option<u32> {
        let Some(&counter) = groups.get(set as usize) else { return Some(0) };
        let before =
            self.before.as_ref().and_then(|(ns, all)| Some((*ns, *all.get(set as usize)?)));
        let mean = match before {
            Some((before_ns, before)) => counter.mean(now_ns, before, before_ns)?,
            None => counter.runnable as f64,
        };
        let least = u32::from(counter.runnable > 0);
        Some(((mean - SLACK).ceil().max(0.0) as u32).max(least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{CoscheduledSet, Topology};
    use corebeat_policy::cosched::{Cosched, Fragments};

    const SLICE_NS: u64 = 50_000_000;

    fn planner(sets: u32) -> Planner {
        let all: Vec<CoscheduledSet> =
            (0..sets).map(|_| CoscheduledSet { cpus: 4, within: None }).collect();
        let topology = Topology::flat(4);
        let cosched = Cosched::new(&topology, &all, SLICE_NS, Fragments::Fill).unwrap();
        Planner::new(Box::new(cosched), (1..=sets).collect(), 4)
    }

    /// Counters of groups in which this number of threads has been runnable all the time.
    fn steady(runnable: &[u64]) -> Vec<Counter> {
        runnable.iter().map(|&runnable| Counter { runnable, base_ns: 0 }).collect()
    }

    #[test]
    fn sets_of_all_cpus_take_turns_of_one_slice() {
        let mut planner = planner(2);
        let first = planner.plan(1_000, steady(&[0, 4, 4])).unwrap();
        assert_eq!(first, [Some(1); 4]);
        assert_eq!(planner.plan(10_000_000, steady(&[0, 4, 4])), None, "the turn continues");
        let second = planner.plan(planner.until_ns(), steady(&[0, 4, 4])).unwrap();
        assert_eq!(second, [Some(2); 4]);
    }

    #[test]
    fn sets_that_fit_run_side_by_side_and_a_change_leads_to_a_plan() {
        let mut planner = planner(2);
        let plan = planner.plan(1_000, steady(&[0, 2, 2])).unwrap();
        let own = |group| plan.iter().filter(|owner| **owner == Some(group)).count();
        assert_eq!((own(1), own(2)), (2, 2), "{plan:?}");
        // A set ends.
        let plan = planner.plan(2_000_000, steady(&[0, 0, 2]));
        assert!(plan.is_some_and(|plan| plan.iter().all(|owner| *owner != Some(1))));
    }

    #[test]
    fn threads_that_block_at_the_moment_of_the_reading_count_by_their_time() {
        let mut planner = planner(1);
        let four = Counter { runnable: 4, base_ns: 0 };
        planner.plan(1_000_000, vec![Counter::default(), four]).unwrap();
        // All four have just fallen asleep: they ran for 10 ms, and sleep for 0.1 ms.
        let asleep = Counter { runnable: 0, base_ns: 4 * 10_900_000 };
        let plan = planner.plan(11_000_000, vec![Counter::default(), asleep]);
        assert_eq!(plan, None, "the set still needs four CPUs");
    }
}
