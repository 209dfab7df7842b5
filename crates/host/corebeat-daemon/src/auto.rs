//! Programs that use the CPU, under the policy `auto`: the search, and the decisions.

use crate::busy::Search;
use crate::limit::{SEARCH_EACH_NS, SEARCH_PART};
use crate::selection::{ProcFacts, Selection};
use crate::steer::Watched;
use corebeat_host::{apply, now_ns, own_cpu_s};
use corebeat_linux::{LinuxMachine, Listed, process_id, processes};
use corebeat_machine::{
    AppliedAction, Inaction, Machine, Policy, ProgramId, Snapshot, ThreadId, Topology,
};
use corebeat_policy::auto as policy;
use corebeat_policy::knob::Knob;
use std::collections::{BTreeMap, BTreeSet};

/// The programs, and the policy.
pub(crate) struct Auto {
    search: Search<ProcFacts>,
    policy: policy::Auto,
    topology: Topology,
    knobs: Vec<Knob>,
    /// Programs by their first process.
    programs: BTreeMap<ThreadId, Watched>,
    /// Earliest time of the next search.
    search_at_ns: u64,
}

impl Auto {
    /// Creates the policy without programs. `user` is the user whose programs are steered; `None`
    /// for all users.
    pub(crate) fn new(selection: &Selection, user: Option<u32>, topology: &Topology) -> Auto {
        let own = std::process::id() as i32;
        Auto {
            search: Search::new(selection.clone(), user, own, ProcFacts),
            policy: policy::Auto::new(topology, None).only(&selection.knobs),
            topology: topology.clone(),
            knobs: selection.knobs.clone(),
            programs: BTreeMap::new(),
            search_at_ns: 0,
        }
    }

    /// Continues with a new policy without memory of the programs.
    pub(crate) fn forget(&mut self) {
        self.policy = policy::Auto::new(&self.topology, None).only(&self.knobs);
    }

    /// Whether no program is steered.
    pub(crate) fn is_idle(&self) -> bool {
        self.programs.is_empty()
    }

    /// The programs with their first processes.
    pub(crate) fn programs(&self) -> impl Iterator<Item = (ThreadId, &Watched)> {
        self.programs.iter().map(|(&process, program)| (process, program))
    }

    /// Decides about a snapshot, and acts. The programs that are not steered count as load.
    pub(crate) fn decide<M: Machine>(
        &mut self,
        machine: &mut M,
        snapshot: &Snapshot,
    ) -> Vec<AppliedAction> {
        let ids: BTreeSet<ProgramId> = self.programs.values().map(|program| program.id).collect();
        let part = part(snapshot, &ids);
        apply(machine, &mut self.policy, &part)
    }

    /// Why the policies leave programs as they are, by process.
    pub(crate) fn inactions(&self) -> Vec<(i32, Inaction)> {
        let of_program = |(process, program): (ThreadId, &Watched)| {
            let inactions = self.policy.inactions(program.id);
            inactions.into_iter().map(move |inaction| (process.tid, inaction))
        };
        self.programs().flat_map(of_program).collect()
    }

    /// Leaves a program alone as long as its first process lives.
    pub(crate) fn refuse(&mut self, program: ProgramId) {
        let process = self.programs().find(|(_, p)| p.id == program).map(|(process, _)| process);
        if let Some(process) = process {
            self.programs.remove(&process);
            self.search.refuse(process);
        }
    }

    /// Searches for programs, if a search is due: releases those that are quiet or left alone, and
    /// begins to observe new ones. Calls `released` for each released program. Returns what
    /// happened, one line each.
    pub(crate) fn search(
        &mut self,
        machine: &mut LinuxMachine,
        apart: &BTreeSet<i32>,
        mut released: impl FnMut(ProgramId),
    ) -> Vec<String> {
        let (at_ns, before_s) = (now_ns(), own_cpu_s());
        if at_ns < self.search_at_ns {
            return vec![];
        }
        let found = self.search.search(&processes(), apart, at_ns);
        let mut lines = vec![];
        for (process, why) in found.end {
            let Some(program) = self.programs.remove(&process) else { continue };
            machine.release(program.id);
            released(program.id);
            lines.push(format!("process {} is released: {why}", process.tid));
        }
        for process in found.begin {
            match begin(machine, process) {
                Some(program) => {
                    self.programs.insert(process, program);
                    lines.push(format!("process {} is steered by auto", process.tid));
                }
                None => self.search.refuse(process),
            }
        }
        let cost_ns = ((own_cpu_s() - before_s) * 1e9) as u64;
        self.search_at_ns = at_ns + (cost_ns * SEARCH_PART).max(SEARCH_EACH_NS);
        lines
    }
}

/// Starts to observe a program. Actions change only the threads of the user of its first process.
/// `None` if the process has ended.
fn begin(machine: &mut LinuxMachine, process: ThreadId) -> Option<Watched> {
    let uid = Listed::read(process.tid)?.user()?;
    Watched::begin(machine, process.tid, uid, || process_id(process.tid) == Some(process))
}

/// The part of a snapshot that contains these programs. All others are load of the host.
fn part(snapshot: &Snapshot, ids: &BTreeSet<ProgramId>) -> Snapshot {
    let (programs, others): (Vec<_>, Vec<_>) =
        snapshot.programs.iter().cloned().partition(|program| ids.contains(&program.id));
    let mut host = snapshot.host;
    for other in others {
        let running = other.cpus(snapshot.span_ns, |s| s.running()).unwrap_or(0.0);
        let runnable = other.cpus(snapshot.span_ns, |s| s.runnable());
        host.others_busy = host.others_busy.map(|busy| busy + running);
        host.others_runnable = host.others_runnable.map(|all| all + runnable.unwrap_or(running));
    }
    Snapshot { programs, host, ..*snapshot }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Counters, HostSample, ProgramSample, ThreadSample, TimeShares};

    #[test]
    fn programs_that_are_not_steered_count_as_load() {
        let program = |number, user| ProgramSample {
            id: ProgramId(number),
            name: "p".into(),
            threads: vec![ThreadSample {
                id: ThreadId { tid: number as i32, start_ticks: 1 },
                pid: number as i32,
                name: "t".into(),
                cpu: None,
                span_ns: 1000,
                shares: TimeShares { user: Some(user), wait: Some(1.0 - user), ..TimeShares::ZERO },
                counters: Counters::ZERO,
            }],
            io_bytes: None,
            team: None,
            progress: None,
        };
        let host = HostSample {
            others_busy: Some(0.5),
            others_runnable: Some(2.0),
            ..HostSample::default()
        };
        let programs = vec![program(1, 0.25), program(2, 0.75)];
        let whole = Snapshot { at_ns: 9000, span_ns: 1000, host, programs };
        let part = part(&whole, &[ProgramId(2)].into());
        assert_eq!((part.at_ns, part.programs.len()), (9000, 1));
        assert_eq!(part.programs[0], whole.programs[1]);
        assert_eq!(part.host.others_busy, Some(0.75));
        assert_eq!(part.host.others_runnable, Some(3.0));
    }
}
