//! Choice of a configuration, and its settings.

use super::state::{Memory, Settings, State, Trial, Watch};
use super::{Adapt, Kind, SETS_MAX, Usage, key, parts};
use crate::faithful::slice_us;
use corebeat_machine::{CpuId, CpuSet, Decision, NodeId, ProgramId};
use std::collections::BTreeMap;

impl Adapt {
    /// Chooses the configuration with the best measured or predicted mean.
    pub(super) fn choose(&mut self, decisions: &mut Vec<Decision>, why: &str) {
        let actual = self.tried.get(&key(&self.sets)).copied();
        if let Some((predicted, actual)) = self.watch.predicted.filter(|p| *p > 0.0).zip(actual) {
            let part = &mut self.accuracy[usize::from(!self.sets.is_empty())];
            *part = (*part * actual / predicted).min(1.0);
        }
        let mut best: Option<(BTreeMap<ProgramId, u32>, f64)> = None;
        let mut current = None;
        let mut consider = |sets: BTreeMap<ProgramId, u32>, predicted: Option<f64>| {
            let tried = self.tried.get(&key(&sets)).copied();
            let predicted = predicted.map(|p| p * self.accuracy[usize::from(!sets.is_empty())]);
            if sets == self.sets {
                current = predicted;
            }
            // Of equal configurations the first one, except for rounding.
            if let Some(value) = tried.or(predicted)
                && best.as_ref().is_none_or(|b| value > b.1 + 1e-9)
            {
                best = Some((sets, value));
            }
        };
        for (sets, predicted) in self.configurations() {
            if self.kept.is_none_or(|kept| kept == Kind::of(&sets)) {
                consider(sets, predicted);
            }
        }
        // Another configuration must be better by gamma.
        let now = actual.or(current).map(|value| (self.sets.clone(), value));
        let best =
            best.filter(|best| now.as_ref().is_none_or(|now| best.1 > now.1 + self.gamma)).or(now);
        let (sets, predicted) =
            best.map_or((BTreeMap::new(), None), |(sets, value)| (sets, Some(value)));
        self.sets = sets;
        self.watch =
            Watch { predicted, new: std::mem::take(&mut self.watch.new), ..Watch::default() };
        let predicted = predicted.map_or(String::new(), |p| {
            format!("; predicted share of time in user mode: {:.0}%", p * 100.0)
        });
        self.apply(decisions, &format!("{why}{predicted}"));
    }

    /// The possible configurations, with their predicted means: all cores first.
    fn configurations(&self) -> Vec<(BTreeMap<ProgramId, u32>, Option<f64>)> {
        let ids: Vec<ProgramId> = self.programs.keys().copied().collect();
        let usages: Vec<Usage> = self.programs.values().filter_map(|state| state.alone).collect();
        if usages.len() != ids.len() || usages.len() < 2 {
            return vec![];
        }
        let mean = |shares: Vec<f64>| shares.iter().sum::<f64>() / shares.len() as f64;
        let mut all = vec![(BTreeMap::new(), self.predict_all(&usages).map(mean))];
        let (parts, least) = parts(self.cores);
        let least = if ids.len() as u32 * least <= parts { least } else { 1 };
        let fits = ids.len() <= SETS_MAX && ids.len() as u32 * least <= parts;
        if !fits || self.is_pinning_refused || self.are_easy(&usages) {
            return all;
        }
        for division in divisions(parts, ids.len(), least) {
            let of = |(n, usage): (&u32, &Usage)| self.predict_set(usage, self.cores * n / parts);
            let shares: Option<Vec<f64>> = division.iter().zip(&usages).map(of).collect();
            all.push((ids.iter().copied().zip(division).collect(), shares.map(mean)));
        }
        all
    }

    /// Starts a trial of the best configuration of the other kind, once. Returns whether it did.
    pub(super) fn try_other(&mut self, decisions: &mut Vec<Decision>) -> bool {
        let kind = Kind::of(&self.sets);
        // If spread memory does not help, each thread may have its own, near its CPU. Then a move
        // to a core set is not undone by a move back.
        let is_near = kind == Kind::Shared && self.rejected.contains(&key(&self.sets));
        if self.kept.is_some() || is_near {
            return false;
        }
        let mut other: Option<(BTreeMap<ProgramId, u32>, f64)> = None;
        for (sets, predicted) in self.configurations() {
            let value = predicted.unwrap_or(0.0);
            if Kind::of(&sets) != kind && other.as_ref().is_none_or(|(_, v)| value > v + 1e-9) {
                other = Some((sets, value));
            }
        }
        let Some((sets, _)) = other else { return false };
        self.kept = Some(kind);
        let progress = self.progress();
        let before = std::mem::replace(&mut self.sets, sets);
        self.move_to(decisions, "the other kind of configuration is on trial");
        self.watch.trial = Trial::Other(progress, before);
        true
    }

    /// Ends a trial of the other kind without a result, because programs change. The programs move
    /// back when their next configuration applies, or when there can be no solo run.
    pub(super) fn leave_other(&mut self) {
        if let Trial::Other(_, before) = std::mem::take(&mut self.watch.trial) {
            self.sets = before;
        }
    }

    /// Moves programs to the cores of the configuration, with their settings.
    pub(super) fn move_to(&mut self, decisions: &mut Vec<Decision>, why: &str) {
        self.pin(decisions, why);
        self.apply_settings(self.settings(), decisions, why);
    }

    /// Applies the configuration: cores at once; slices and memory at once if no program gets a new
    /// one, else after a trial.
    pub(super) fn apply(&mut self, decisions: &mut Vec<Decision>, why: &str) {
        self.pin(decisions, why);
        let settings = self.settings();
        let is_new = |id: &ProgramId, (fixed_us, memory): &Settings| {
            let state = &self.programs[id];
            (!state.fixed.is_set() && fixed_us.is_some())
                || (state.memory == Memory::Near && *memory != Memory::Near)
        };
        if settings.iter().any(|(id, settings)| is_new(id, settings)) {
            self.watch.trial = Trial::Without;
            self.restart();
        } else {
            self.watch.trial = Trial::Over;
            self.apply_settings(settings, decisions, why);
        }
    }

    pub(super) fn pin(&mut self, decisions: &mut Vec<Decision>, why: &str) {
        let (parts, _) = parts(self.cores);
        let mut at = 0;
        for (&id, state) in &mut self.programs {
            let own = self.sets.get(&id).map(|n| {
                let set = core_set(&self.places, parts, at, *n);
                at += n;
                set
            });
            state.pin(id, own, decisions, why);
        }
    }

    /// Returns the slice and the memory placement of each program on its current cores.
    pub(super) fn settings(&self) -> BTreeMap<ProgramId, Settings> {
        let is_plain = self.programs.len() < 2 || self.rejected.contains(&key(&self.sets));
        // Different slices on the same cores are worse than equal ones (section 6.2.2).
        let mut on_all = self.programs.keys().filter(|id| !self.sets.contains_key(id));
        let is_fixed_on_all = on_all.any(|id| self.is_hard(*id));
        let of = |(&id, state): (&ProgramId, &State)| {
            let is_hard = !is_plain && (state.cpus.is_some() || self.is_hard(id));
            let is_fixed = !is_plain && (state.cpus.is_some() || is_fixed_on_all);
            let memory = match &state.cpus {
                _ if !is_hard || self.nodes.len() < 2 => Memory::Near,
                None => Memory::All,
                Some(cpus) => {
                    let holds =
                        |(_, node): &&(NodeId, CpuSet)| node.iter().any(|cpu| cpus.contains(cpu));
                    Memory::Nodes(self.nodes.iter().filter(holds).map(|(id, _)| *id).collect())
                }
            };
            let factor = state.alone.map(|u| 1.0 - u.mpa.unwrap_or(0.0).max(u.lock.unwrap_or(0.0)));
            (id, (is_fixed.then(|| slice_us(factor.unwrap_or(1.0))), memory))
        };
        self.programs.iter().map(of).collect()
    }

    /// Sets the slice and the memory placement of each program, and starts an interval.
    pub(super) fn apply_settings(
        &mut self,
        settings: BTreeMap<ProgramId, Settings>,
        decisions: &mut Vec<Decision>,
        why: &str,
    ) {
        let all: Vec<NodeId> = self.nodes.iter().map(|(id, _)| *id).collect();
        for (id, (fixed_us, memory)) in settings {
            let Some(state) = self.programs.get_mut(&id) else { continue };
            state.set_slice(id, fixed_us, decisions, why);
            state.place_memory(id, memory, &all, decisions, why);
        }
        self.restart();
    }

    pub(super) fn restart(&mut self) {
        self.programs.values_mut().for_each(State::forget);
        self.watch.span_ns = 0;
    }
}

/// Returns the CPUs of `n` parts of a machine from the part `at` on, of `parts` parts. `places` has
/// its CPUs in order.
///
/// # Panics
/// If the machine has fewer parts.
pub fn core_set(places: &[CpuId], parts: u32, at: u32, n: u32) -> CpuSet {
    let place = |part: u32| (places.len() as u32 * part / parts) as usize;
    places[place(at)..place(at + n)].iter().copied().collect()
}

/// Distributes the parts that a program had among the others, as evenly as possible.
pub fn distribute(freed: u32, sets: &mut BTreeMap<ProgramId, u32>) {
    let count = sets.len() as u32;
    for (at, parts) in sets.values_mut().enumerate() {
        *parts += freed / count + u32::from((at as u32) < freed % count);
    }
}

/// Returns all divisions of `parts` among this number of programs, with at least `least` for each;
/// the most even ones first.
pub fn divisions(parts: u32, programs: usize, least: u32) -> Vec<Vec<u32>> {
    let mut all = splits(parts, programs, least);
    all.sort_by_key(|division| division.iter().map(|n| n * n).sum::<u32>());
    all
}

fn splits(parts: u32, programs: usize, least: u32) -> Vec<Vec<u32>> {
    match programs {
        0 => vec![],
        1 => vec![vec![parts]],
        _ => {
            let others = least * (programs as u32 - 1);
            let first = least..=parts.saturating_sub(others);
            let with = |n: u32| {
                splits(parts - n, programs - 1, least).into_iter().map(move |mut rest| {
                    rest.insert(0, n);
                    rest
                })
            };
            first.filter(|n| *n <= parts).flat_map(with).collect()
        }
    }
}
