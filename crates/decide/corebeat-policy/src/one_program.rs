//! Policies that act on each program independently; [`auto`] combines them.

pub mod auto;
pub mod faithful;
pub mod shuffler;
pub mod team;
pub mod tranquilizer;

use corebeat_machine::{Decision, Inaction, Policy, ProgramId, ProgramSample, Snapshot};
use std::collections::BTreeMap;

/// A policy that can leave programs to other policies.
pub(crate) trait ProgramPolicy: Policy {
    /// Decides as [`Policy::decide`] does, but only for programs that `is_mine` returns true for.
    /// The policy discards its state of all others, which still count as load.
    fn decide_for(
        &mut self,
        snapshot: &Snapshot,
        is_mine: &dyn Fn(ProgramId) -> bool,
    ) -> Vec<Decision>;
}

/// Returns the inaction of one policy, if there is a reason.
pub(crate) fn inaction(policy: &'static str, why: Option<impl Into<String>>) -> Vec<Inaction> {
    why.map(|why| Inaction { policy, why: why.into() }).into_iter().collect()
}

/// Reason for which policies about several threads do not act.
pub(crate) const ONE_THREAD: &str = "the program has one thread";

/// A policy that acts on each program independently, by a state of that program.
pub(crate) trait PerProgram: Policy {
    /// State of one program.
    type State: Default;

    /// States of the programs.
    fn states(&mut self) -> &mut BTreeMap<ProgramId, Self::State>;

    /// Returns the state of a program that is first observed in a snapshot.
    fn new_state(&self, _snapshot: &Snapshot) -> Self::State {
        Self::State::default()
    }

    /// Decides about one program after a snapshot.
    fn step(
        &self,
        state: &mut Self::State,
        program: &ProgramSample,
        snapshot: &Snapshot,
    ) -> Vec<Decision>;
}

impl<P: PerProgram> ProgramPolicy for P {
    /// Discards the state of a program that is missing from the snapshot: the program has ended.
    fn decide_for(
        &mut self,
        snapshot: &Snapshot,
        is_mine: &dyn Fn(ProgramId) -> bool,
    ) -> Vec<Decision> {
        let mut states = std::mem::take(self.states());
        states.retain(|&id, _| is_mine(id) && snapshot.program(id).is_some());
        let mut decisions = Vec::new();
        for program in snapshot.programs.iter().filter(|program| is_mine(program.id)) {
            let state = states.entry(program.id).or_insert_with(|| self.new_state(snapshot));
            decisions.extend(self.step(state, program, snapshot));
        }
        *self.states() = states;
        decisions
    }
}
