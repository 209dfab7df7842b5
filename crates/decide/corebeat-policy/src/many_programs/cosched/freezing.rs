//! Coscheduling of programs by freezing: for machines that cannot coschedule sets themselves.

use super::{Cosched, Fragments, SetError};
use crate::one_program::inaction;
use corebeat_machine::{
    Action, AppliedAction, CoscheduledSet, Coscheduler, Decision, Inaction, Policy, ProgramId,
    ProgramSample, Snapshot, Topology,
};

/// Name of the policy.
pub(crate) const NAME: &str = "coscheduling";

/// CPU time that a program may use beyond whole CPUs without counting as one more CPU.
const NEED_SLACK: f64 = 0.1;

/// Reason for which turns end if the machine does not freeze a program.
pub(crate) const REFUSED: &str = "the machine refused to freeze a program";

/// Reasons of the ordinary decisions: a program is frozen, and a program is thawed.
const TURN: [&str; 2] = ["it is the turn of other programs", "it is the turn of this program"];

/// Reasons why no program waited: there is one program, and there are several.
const ALONE: &str = "there is no other program to take turns with";
const ROOM: &str = "the programs never needed more CPUs at the same time than there are";

/// The policy for programs as sets: programs whose turn it is not are frozen. A turn lasts at least
/// from one snapshot to the next. If the machine refuses to freeze a program, the policy thaws all
/// programs and ends the turns.
pub struct Coscheduling {
    core: Cosched,
    pub(super) gangs: Vec<Gang>,
    /// Whether the machine refused to freeze a program.
    is_refused: bool,
    /// Whether a program has waited for its turn.
    has_waited: bool,
}

/// A program as a set.
pub(super) struct Gang {
    program: ProgramId,
    /// Number of CPUs that the program could use when it ran last.
    need: u32,
    pub(super) frozen: bool,
}

impl Coscheduling {
    /// Returns the policy for programs with the number of CPUs that each can use, and the duration
    /// of a turn.
    ///
    /// # Errors
    /// [`SetError`], as [`Cosched::new`].
    pub fn new(
        topology: &Topology,
        programs: &[(ProgramId, u32)],
        slice_ns: u64,
    ) -> Result<Coscheduling, SetError> {
        let sets: Vec<CoscheduledSet> =
            programs.iter().map(|&(_, cpus)| CoscheduledSet { cpus, within: None }).collect();
        let gang = |&(program, need): &(ProgramId, u32)| Gang { program, need, frozen: false };
        Ok(Coscheduling {
            core: Cosched::new(topology, &sets, slice_ns, Fragments::Fill)?,
            gangs: programs.iter().map(gang).collect(),
            is_refused: false,
            has_waited: false,
        })
    }

    /// Returns the programs.
    pub fn programs(&self) -> Vec<ProgramId> {
        self.gangs.iter().map(|gang| gang.program).collect()
    }

    /// Returns whether a program is frozen.
    pub fn is_frozen(&self, program: ProgramId) -> bool {
        self.gangs.iter().any(|gang| gang.program == program && gang.frozen)
    }

    /// Returns whether the machine has refused to freeze a program.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Thaws all programs, with this reason.
    pub fn end(&mut self, why: &str) -> Vec<Decision> {
        let frozen = self.gangs.iter_mut().filter(|gang| gang.frozen);
        let thaw = |gang: &mut Gang| {
            gang.frozen = false;
            let action = Action::SetFrozen { program: gang.program, frozen: false };
            Decision { policy: NAME, action, why: why.to_owned() }
        };
        frozen.map(thaw).collect()
    }

    /// Updates the number of CPUs that each program can use.
    fn measure(&mut self, snapshot: &Snapshot) {
        for gang in &mut self.gangs {
            let program = snapshot.program(gang.program);
            match program.filter(|p| !p.threads.is_empty()) {
                None => gang.need = 0,
                // The need of a frozen program is not observable.
                Some(_) if gang.frozen => {}
                Some(program) => {
                    let used = program.cpus(snapshot.span_ns, |s| s.runnable());
                    gang.need = used.map_or(gang.need.max(1), |used| {
                        (used - NEED_SLACK).ceil().max(0.0) as u32
                    });
                }
            }
        }
    }
}

impl Policy for Coscheduling {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        self.measure(snapshot);
        let needs: Vec<u32> = self.gangs.iter().map(|g| g.need).collect();
        let plan = self.core.plan(snapshot.at_ns, &needs, 0);
        let has_turn = |at: usize| self.is_refused || plan.cpus.contains(&Some(at));
        let why = match self.is_refused {
            true => REFUSED,
            false => TURN[1],
        };
        let mut decisions = vec![];
        // Programs are frozen before others are thawed.
        for frozen in [true, false] {
            for (at, gang) in self.gangs.iter_mut().enumerate() {
                // An idle program disturbs no other program.
                let must_freeze = gang.need > 0 && !has_turn(at);
                if must_freeze == frozen && gang.frozen != frozen {
                    gang.frozen = frozen;
                    self.has_waited |= frozen;
                    let why = if frozen { TURN[0] } else { why };
                    let action = Action::SetFrozen { program: gang.program, frozen };
                    decisions.push(Decision { policy: NAME, action, why: why.into() });
                }
            }
        }
        decisions
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        let Action::SetFrozen { program, frozen: true } = applied.decision.action else { return };
        let gang = self.gangs.iter_mut().find(|gang| gang.program == program);
        if let Some(gang) = gang.filter(|_| applied.refusal().is_some()) {
            gang.frozen = false;
            self.is_refused = true;
        }
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        let why = match self.gangs[..] {
            _ if self.has_waited => None,
            [_] => Some(ALONE),
            _ => Some(ROOM),
        };
        let is_mine = self.gangs.iter().any(|gang| gang.program == program);
        inaction(NAME, why.filter(|_| is_mine))
    }
}

/// Returns whether a decision only gives a turn to a program or ends a turn, as many others do. The
/// begin and the end of the turns are not such decisions.
pub fn is_turn(decision: &Decision) -> bool {
    let is_freeze = matches!(decision.action, Action::SetFrozen { .. });
    is_freeze && (decision.policy != NAME || TURN.contains(&decision.why.as_str()))
}

/// Returns a lower bound of the share of a time span in which a program was coscheduled on `cpus`
/// CPUs, from 0 to 1: in this time no thread waited while the program had fewer CPUs. `None` if the
/// share is unknown or the program had no runnable thread.
pub fn coscheduled(program: &ProgramSample, span_ns: u64, cpus: u32) -> Option<f64> {
    let running = program.cpus(span_ns, |s| s.running())?;
    let waiting = program.cpus(span_ns, |s| s.wait)?;
    (running > 0.0).then(|| 1.0 - waiting.min((f64::from(cpus) - running).max(0.0)).min(1.0))
}
