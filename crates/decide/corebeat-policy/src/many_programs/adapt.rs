//! ADAPT: which programs share cores and which have separate cores, by models that predict their
//! interference.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 6.
//! Programs that run at the same time can share all cores, or each can have its own set of cores.
//! The better choice depends on their waiting for locks, cores and memory. The thesis trains two
//! models of the share of time that a program spends in user mode: PAAP predicts the share beside
//! another program on all cores, PACC the share on fewer cores. The **cores allocator** chooses the
//! configuration with the best mean. The **policy allocator** gives programs with high contention
//! or many cache misses memory on all nodes, or on the nodes of their cores, and fixed slices as in
//! [`faithful`](crate::faithful).
//!
//! ```text
//!   a program starts ---> Solo run: 100 ms alone, others frozen ---> choose by predictions
//!        ^                                                                  |
//!        |   one set is used less by alpha / a program fell by beta /       v
//!        |   all are worse than predicted by gamma        Trial: slices and memory, 1 s without
//!        |                                                                  |
//!        |                                                                  v
//!        +------------- Watch, every 2 s <---------------- Trial: the other kind, once, for 1 s
//!
//!   all cores   A A A A A A A A          core sets   A A A A A|B B B    eighths of the machine,
//!               B B B B B B B B                                         at least two of them
//! ```
//!
//! # Differences from the thesis
//!
//! - **Solo runs.** The thesis assumes that the behaviour of each program alone is known, and names
//!   stopping the other programs as an alternative (section 6.2.3). This policy uses the
//!   alternative: [`Adapt::solo_ns`] for each new program, and for all programs after a change.
//! - **More than two programs.** The thesis evaluates pairs and defines no combination. Here each
//!   further program adds its own slowdown: two programs that each halve the speed of a third leave
//!   it one third.
//! - **Bounded changes.** The measured result of a configuration replaces its prediction until
//!   programs change, and lowers the predictions of other configurations of the same kind. So each
//!   configuration is tried at most once, and few are tried. A new configuration must be better by
//!   gamma. Configurations are reconsidered after 1, 2, 4, ... intervals while nothing changes.
//! - **Progress decides.** The share of user mode does not measure progress where programs wait for
//!   memory or share cores unequally. So trials compare progress: the sum over all programs of
//!   their changes of speed. The weight of a program is its share of user mode relative to that
//!   alone.
//! - **Settings that do not help are undone.** The thesis sets slices and memory without a check.
//!   Here programs first run on their cores for [`Adapt::trial_ns`]. If progress in the interval
//!   with the settings is worse, they are undone for this configuration, until programs start, end
//!   or change.
//! - **The other kind is tried once.** After the first interval, the best predicted core sets are
//!   tried if the programs share all cores, and the reverse, for [`Adapt::trial_ns`]. They stay if
//!   progress is better. Until programs start, end or change, only configurations of the better
//!   kind are considered then. There is no trial of core sets where the settings were undone: each
//!   thread may have memory of its own near its CPU, and a move to a core set is not undone by
//!   a move back.
//! - **Programs that only compute** get core sets, too, if they have more threads than there are
//!   cores.
//! - **Spinning** is not progress: detected spinning counts as waiting for locks.
//! - **Thresholds.** Chapter 6 defines no numbers for memory-intensive programs and high
//!   contention; see [`Adapt::lock_min`] and [`Adapt::mpa_min`].
//!
//! # Failure
//!
//! If the machine refuses to pin a program, all programs share all cores. If it refuses to freeze a
//! program, there are no solo runs. A refused slice, class or memory placement is requested once
//! for each program.

mod choice;
mod model;
mod observation;
mod solo;
mod state;

pub use choice::{core_set, distribute, divisions};
pub use model::{
    Case, Fitted, Formula, Gauge, Identity, MODEL_VERSION, Model, ModelError, Predictor, Score,
    Step, Usage,
};

use corebeat_machine::{
    Action, AppliedAction, CpuId, CpuSet, Decision, NodeId, Policy, ProgramId, Snapshot, Topology,
};
use solo::SoloRun;
use state::{Memory, State, Watch};
use std::collections::{BTreeMap, BTreeSet};

/// Number of parts of the machine for core sets (Figure 6.1 (b)), if it has as many cores.
pub const PARTS: u32 = 8;
/// Smallest core set in parts, if there are enough parts.
pub const PARTS_MIN: u32 = 2;
/// Largest number of programs with core sets.
const SETS_MAX: usize = PARTS as usize;

/// The policy. All fields may be changed before the first snapshot.
#[derive(Debug, Clone)]
pub struct Adapt {
    /// Duration of a solo run, in nanoseconds. Default 100 ms: half a sample of section 6.2.3,
    /// because all other programs are frozen.
    pub solo_ns: u64,
    /// Time from one usage vector of all programs to the next, in nanoseconds. Default 2 s (section
    /// 6.2.3).
    pub interval_ns: u64,
    /// Time on the chosen cores without slices and memory settings, and in a configuration of the
    /// other kind, for comparison, in nanoseconds. Default 1 s, as the profiles of section 3.2.
    pub trial_ns: u64,
    /// Relative loss of progress for which slices and memory settings are undone, and gain for
    /// which a configuration of the other kind is kept. Default 0.05: one and two seconds of a
    /// constant program differ by less.
    pub margin: f64,
    /// Difference of the used shares of two core sets for which configurations are reconsidered.
    /// Default 0.06 (section 6.2.3).
    pub alpha: f64,
    /// Decrease of the user-mode share of a program for which configurations are reconsidered.
    /// Default 0.04 (section 6.2.3).
    pub beta: f64,
    /// Difference between the predicted and the measured mean user-mode share, twice, for which
    /// configurations are reconsidered. Default 0.08 (section 6.2.3).
    pub gamma: f64,
    /// Share of time spent waiting for locks from which a program has high contention. Default
    /// 0.05, the threshold of section 4.2.
    pub lock_min: f64,
    /// Misses per reference of the last-level cache from which a program is memory-intensive.
    /// Default 0.1: from this value on, FaithFul's table gives longer slices (Table 5.1).
    pub mpa_min: f64,
    /// Change of the shares of a program since its solo run from which results are discarded.
    /// Default 0.1.
    pub band: f64,
    /// Largest number of intervals until configurations are reconsidered. Default 64.
    pub rest_max: u32,
    /// Known behaviour of programs alone, by name, as the thesis assumes for all programs (section
    /// 6.2.3). These programs need no solo run. Default none.
    pub solo: BTreeMap<String, Usage>,
    model: Model,
    cores: u32,
    /// CPUs in an order in which neighbours are near each other.
    places: Vec<CpuId>,
    nodes: Vec<(NodeId, CpuSet)>,
    programs: BTreeMap<ProgramId, State>,
    /// Parts of the machine for each program with a core set; empty if all programs share all
    /// cores.
    sets: BTreeMap<ProgramId, u32>,
    solo_run: Option<SoloRun>,
    watch: Watch,
    /// Measured result of each configuration since programs last changed.
    tried: BTreeMap<Vec<(ProgramId, u32)>, f64>,
    /// Configurations in which slices and memory settings did not help.
    rejected: BTreeSet<Vec<(ProgramId, u32)>>,
    /// The kind of configuration that is better by measured progress, since programs last changed.
    kept: Option<Kind>,
    /// Measured results relative to predictions since then: on all cores, and in core sets.
    accuracy: [f64; 2],
    /// Intervals from one reconsideration to the next.
    every: u32,
    /// Intervals until the next reconsideration.
    left: u32,
    /// Whether the machine refused to pin a program.
    is_pinning_refused: bool,
    /// Whether the machine refused to freeze a program.
    is_freezing_refused: bool,
}

/// Returns the CPUs in an order in which neighbours are near each other. Core sets are intervals of
/// this order.
pub fn places(topology: &Topology) -> Vec<CpuId> {
    crate::shuffler::chain(topology)
        .iter()
        .flat_map(|place| place.iter().collect::<Vec<_>>())
        .collect()
}

fn parts(cores: u32) -> (u32, u32) {
    if cores >= PARTS { (PARTS, PARTS_MIN) } else { (cores, 1) }
}

/// Returns the sizes of core sets, without the whole machine: 56, 48, 40, 32, 24 and 16 of 64 cores
/// (section 6.2.1).
pub fn reduced(cores: u32) -> Vec<u32> {
    let (parts, least) = parts(cores);
    (least..parts).rev().map(|n| cores * n / parts).collect()
}

impl Adapt {
    /// Returns the policy with default thresholds.
    ///
    /// # Errors
    /// [`ModelError`], if the model is invalid or of another machine.
    pub fn new(topology: &Topology, name: &str, model: Model) -> Result<Adapt, ModelError> {
        model.check(&Identity::new(name, topology))?;
        Ok(Adapt {
            solo_ns: 100_000_000,
            interval_ns: 2_000_000_000,
            trial_ns: 1_000_000_000,
            margin: 0.05,
            alpha: 0.06,
            beta: 0.04,
            gamma: 0.08,
            lock_min: 0.05,
            mpa_min: 0.1,
            band: 0.1,
            rest_max: 64,
            solo: BTreeMap::new(),
            model,
            cores: topology.cpus().len() as u32,
            places: places(topology),
            nodes: topology.nodes().iter().map(|n| (n.id, n.cpus.clone())).collect(),
            programs: BTreeMap::new(),
            sets: BTreeMap::new(),
            solo_run: None,
            watch: Watch::default(),
            tried: BTreeMap::new(),
            rejected: BTreeSet::new(),
            kept: None,
            accuracy: [1.0; 2],
            every: 1,
            left: 0,
            is_pinning_refused: false,
            is_freezing_refused: false,
        })
    }

    /// Predicts the user-mode share of each program if all programs share all cores.
    pub fn predict_all(&self, programs: &[Usage]) -> Option<Vec<f64>> {
        let of = |(at, a): (usize, &Usage)| {
            let alone = a.usr?;
            let mut slower = 1.0;
            for (_, b) in programs.iter().enumerate().filter(|(other, _)| *other != at) {
                let case = Case { a, b: Some(b), cores: self.cores, given: self.cores };
                // Another program never accelerates this one.
                let beside = self.model.paap.predict(case)?.min(alone);
                slower += if beside > 0.0 { alone / beside - 1.0 } else { f64::INFINITY };
            }
            Some(alone / slower)
        };
        programs.iter().enumerate().map(of).collect()
    }

    /// Predicts the user-mode share of a program with this number of its own cores.
    pub fn predict_set(&self, program: &Usage, cores: u32) -> Option<f64> {
        self.model.pacc.predict(Case { a: program, b: None, cores: self.cores, given: cores })
    }

    /// Returns whether a program is CPU-intensive with low contention.
    fn is_easy(&self, usage: &Usage) -> bool {
        usage.lock.is_none_or(|lock| lock < self.lock_min)
            && usage.mpa.is_none_or(|mpa| mpa < self.mpa_min)
    }

    /// Returns whether nothing is to be done for these programs: all of them are CPU-intensive with
    /// low contention, and their threads have a core each.
    fn are_easy(&self, usages: &[Usage]) -> bool {
        let threads: u32 = usages.iter().map(|usage| usage.threads).sum();
        usages.iter().all(|usage| self.is_easy(usage)) && threads <= self.cores
    }

    fn is_hard(&self, id: ProgramId) -> bool {
        self.programs[&id].alone.is_some_and(|usage| !self.is_easy(&usage))
    }

    /// Ends what needs settings that the machine has refused.
    fn handle_refusals(&mut self, decisions: &mut Vec<Decision>) {
        if self.is_freezing_refused && self.solo_run.take().is_some() {
            self.thaw(decisions, "the machine refused to freeze a program");
        }
        if self.is_pinning_refused && !self.sets.is_empty() {
            self.sets.clear();
            self.watch.predicted = None;
            self.apply(decisions, "the machine refused to pin a program");
        }
    }
}

impl Policy for Adapt {
    fn name(&self) -> &'static str {
        "adapt"
    }

    /// Discards the state of a program that is missing from the snapshot or has no threads: the
    /// program has ended.
    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.remove_ended(snapshot, &mut decisions);
        self.handle_refusals(&mut decisions);
        if self.solo_run.is_some() {
            self.continue_solo(snapshot, &mut decisions);
        } else {
            self.watch(snapshot, &mut decisions);
            self.admit(snapshot, &mut decisions);
        }
        self.add_new(snapshot, &mut decisions);
        decisions
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        let program = applied.decision.action.program();
        let Some(state) = program.and_then(|id| self.programs.get_mut(&id)) else { return };
        let is_refused = applied.refusal().is_some();
        match applied.decision.action {
            Action::SetCpus { cpus: Some(_), .. } if is_refused => {
                state.cpus = None;
                self.is_pinning_refused = true;
            }
            Action::SetFrozen { frozen: true, .. } if is_refused => {
                state.frozen = false;
                self.is_freezing_refused = true;
            }
            Action::SpreadPages { spread: true, .. } | Action::MovePages { .. } => {
                state.pages.record(applied);
                if is_refused {
                    state.memory = Memory::Near;
                }
            }
            _ => state.fixed.record(applied),
        }
    }
}

/// The kinds of configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All programs share all cores.
    Shared,
    /// Each program has a core set.
    Sets,
}

impl Kind {
    fn of(sets: &BTreeMap<ProgramId, u32>) -> Kind {
        if sets.is_empty() { Kind::Shared } else { Kind::Sets }
    }
}

fn key(sets: &BTreeMap<ProgramId, u32>) -> Vec<(ProgramId, u32)> {
    sets.iter().map(|(id, n)| (*id, *n)).collect()
}

#[cfg(test)]
mod tests;
