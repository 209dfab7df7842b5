//! The best fixed division of the cores for each mix of programs, known in advance, which does not
//! change until a program ends. Pusukuri 2012, chapter 6.

use crate::adapt::{self, MIXES, mixed, saved};
use crate::report::{Figure, Report, Row};
use corebeat_machine::{
    Action, Class, CpuId, CpuSet, Decision, NodeId, Policy, ProgramId, Snapshot, Target, Topology,
};
use corebeat_policy::adapt::{PARTS, PARTS_MIN, core_set, distribute, divisions, places};
use std::collections::BTreeMap;

/// The slice where slices are fixed, in microseconds: the longest one of FaithFul (Table 5.1).
const SLICE_US: u32 = 100_000;

/// A configuration. When a program ends, the others share its cores, as with ADAPT.
#[derive(Debug, Clone)]
struct Fixed {
    /// Parts of the machine for each program; empty if all programs share all cores.
    sets: Vec<u32>,
    has_slices: bool,
    places: Vec<CpuId>,
    /// The nodes with their CPUs.
    nodes: Vec<(NodeId, CpuSet)>,
    known: Vec<ProgramId>,
    parts: BTreeMap<ProgramId, u32>,
}

impl Fixed {
    fn new(topology: &Topology, sets: Vec<u32>, has_slices: bool) -> Fixed {
        Fixed {
            sets,
            has_slices,
            places: places(topology),
            nodes: topology.nodes().iter().map(|node| (node.id, node.cpus.clone())).collect(),
            known: vec![],
            parts: BTreeMap::new(),
        }
    }

    /// Divides the cores anew among the programs that are present.
    fn divide(&mut self, present: &[ProgramId]) {
        if self.known.is_empty() {
            self.parts = present.iter().copied().zip(self.sets.iter().copied()).collect();
        }
        let gone = self.known.iter().filter(|id| !present.contains(id));
        for freed in gone.filter_map(|id| self.parts.remove(id)).collect::<Vec<u32>>() {
            distribute(freed, &mut self.parts);
        }
    }

    /// The memory placement of a program: the nodes of its cores, or all nodes.
    fn memory(&self, program: ProgramId, cpus: Option<&CpuSet>) -> Action {
        let all: Vec<NodeId> = self.nodes.iter().map(|(id, _)| *id).collect();
        let Some(cpus) = cpus else { return Action::SpreadPages { program, spread: true } };
        let holds = |(_, node): &&(NodeId, CpuSet)| node.iter().any(|cpu| cpus.contains(cpu));
        let to = self.nodes.iter().filter(holds).map(|(id, _)| *id).collect();
        Action::MovePages { program, from: all, to }
    }
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        let present: Vec<ProgramId> =
            snapshot.programs.iter().filter(|p| !p.threads.is_empty()).map(|p| p.id).collect();
        if present == self.known {
            return vec![];
        }
        self.divide(&present);
        self.known = present;
        let is_alone = self.known.len() < 2;
        let (mut actions, mut at) = (vec![], 0);
        for &id in &self.known {
            let target = Target::Program(id);
            let cpus: Option<CpuSet> = self.parts.get(&id).filter(|_| !is_alone).map(|parts| {
                let set = core_set(&self.places, PARTS, at, *parts);
                at += parts;
                set
            });
            actions.push(self.memory(id, cpus.as_ref()));
            actions.push(Action::SetCpus { target, cpus });
            if self.has_slices {
                let class = (!is_alone).then_some(Class::Batch);
                actions.push(Action::SetClass { target, class });
                actions.push(Action::SetSlice { target, slice_us: class.map(|_| SLICE_US) });
            }
        }
        let decision = |action| Decision { policy: "fixed", action, why: String::new() };
        actions.into_iter().map(decision).collect()
    }
}

/// Figure 6.9, with the best configuration instead of ADAPT.
pub(crate) fn gains() -> Report {
    let wholes = adapt::wholes();
    let mut rows = vec![];
    let (mut sum, mut with_sets) = (0.0, 0.0);
    for mix in MIXES {
        let programs: Vec<_> = mix.iter().map(|short| wholes[short].clone()).collect();
        let plain = mixed(&programs, |_| None);
        // Without any change nothing is saved.
        let mut best = (0.0, 0.0);
        for sets in [vec![vec![]], divisions(PARTS, mix.len(), PARTS_MIN)].concat() {
            for has_slices in [false, true] {
                let policy = |topology: &Topology| {
                    let fixed = Fixed::new(topology, sets.clone(), has_slices);
                    Some(Box::new(fixed) as Box<dyn Policy>)
                };
                let gain = saved(&plain, &mixed(&programs, policy));
                if gain > best.0 {
                    best = (gain, f64::from(u8::from(!sets.is_empty())));
                }
            }
        }
        sum += best.0 / MIXES.len() as f64;
        with_sets += best.1 / MIXES.len() as f64;
        let figures = vec![Figure::shown(None, best.0), Figure::shown(None, best.1)];
        rows.push(Row { name: mix.join(" "), figures });
    }
    let figures = vec![Figure::shown(None, sum), Figure::shown(None, with_sets)];
    rows.push(Row { name: "mean".into(), figures });
    Report {
        what: "programs",
        columns: vec!["time saved, %", "core sets (1: yes)"],
        rows,
        notes: vec![
            "All divisions of the cores in eighths, and all cores shared, each with and without \
             fixed slices; memory on the nodes of the cores, or on all nodes.",
        ],
    }
}
