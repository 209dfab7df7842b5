//! State of the programs, and the settings that are in effect.

use super::{Gauge, Usage};
use crate::fixed_slice::{Fixed, FixedSlice};
use crate::progress::Work;
use crate::refusal::Support;
use corebeat_machine::{Action, CpuSet, Decision, NodeId, ProgramId, Target};
use std::collections::{BTreeMap, VecDeque};

/// State of one program.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// Behaviour alone on all cores.
    pub(super) alone: Option<Usage>,
    /// CPUs to which the program is pinned.
    pub(super) cpus: Option<CpuSet>,
    pub(super) fixed: FixedSlice,
    pub(super) memory: Memory,
    pub(super) frozen: bool,
    pub(super) pages: Support,
    pub(super) gauge: Gauge,
    pub(super) work: Work,
    /// The first vector since the last change.
    pub(super) first: Option<Usage>,
    /// The two newest vectors.
    pub(super) vectors: VecDeque<Vector>,
    pub(super) used_ns: f64,
}

/// A fixed slice, if there is one, and the placement of memory.
pub(super) type Settings = (Option<u32>, Memory);

/// Observation of a program in one interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vector {
    pub(super) usage: Usage,
    /// Used share of the program's core set, if the program has one.
    pub(super) used: Option<f64>,
}

/// Placement of a program's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Memory {
    /// The default of the machine.
    #[default]
    Near,
    /// All nodes.
    All,
    /// The nodes of the program's cores.
    Nodes(Vec<NodeId>),
}

/// Work of programs, and their shares of the speed that they have alone.
pub(super) type Progress = BTreeMap<ProgramId, (Work, f64)>;

/// Comparison of progress with and without slices and memory settings.
#[derive(Debug, Clone, Default)]
pub(super) enum Trial {
    /// There are no settings, or the result is known.
    #[default]
    Over,
    /// The programs run without the settings.
    Without,
    /// The programs run with the settings. Contains their progress without.
    With(Progress),
    /// The programs run in a configuration of the other kind. Contains their progress in the one
    /// before, and its core sets.
    Other(Progress, BTreeMap<ProgramId, u32>),
}

/// An incomplete interval.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    pub(super) span_ns: u64,
    /// Predicted mean user-mode share of the configuration.
    pub(super) predicted: Option<f64>,
    /// Number of successive intervals below the prediction.
    pub(super) short: u32,
    pub(super) trial: Trial,
    /// New programs without a decision.
    pub(super) new: Vec<ProgramId>,
    /// Time since the last of them started.
    pub(super) new_ns: u64,
}

impl State {
    /// Returns the share of its speed alone that the program has had since the last change, by its
    /// time in user mode; 1 if that is unknown.
    pub(super) fn part(&self) -> f64 {
        let now = self.vectors.back().map_or_else(|| self.gauge.clone().usage(), |v| v.usage);
        let part =
            now.usr.zip(self.alone.and_then(|alone| alone.usr)).map(|(now, alone)| now / alone);
        part.filter(|part| part.is_finite()).map_or(1.0, |part| part.clamp(0.01, 1.0))
    }

    /// Discards observations from before a change.
    pub(super) fn forget(&mut self) {
        (self.gauge, self.work, self.used_ns) = (Gauge::default(), Work::default(), 0.0);
        self.vectors.clear();
        self.first = None;
    }

    /// Returns whether the behaviour has changed since the first vector with the current settings.
    pub(super) fn has_changed(&self, band: f64) -> bool {
        self.first
            .zip(self.vectors.back())
            .is_some_and(|(first, now)| differ(&first, &now.usage, band))
    }

    pub(super) fn freeze(
        &mut self,
        program: ProgramId,
        frozen: bool,
        decisions: &mut Vec<Decision>,
        why: &str,
    ) {
        if self.frozen != frozen {
            self.frozen = frozen;
            decisions.push(Decision {
                policy: "adapt",
                action: Action::SetFrozen { program, frozen },
                why: why.to_owned(),
            });
        }
    }

    pub(super) fn pin(
        &mut self,
        program: ProgramId,
        cpus: Option<CpuSet>,
        decisions: &mut Vec<Decision>,
        why: &str,
    ) {
        if self.cpus != cpus {
            self.cpus.clone_from(&cpus);
            let target = Target::Program(program);
            decisions.push(Decision {
                policy: "adapt",
                action: Action::SetCpus { target, cpus },
                why: why.to_owned(),
            });
        }
    }

    /// Sets a fixed slice and the batch class, or restores the program's own.
    pub(super) fn set_slice(
        &mut self,
        program: ProgramId,
        slice_us: Option<u32>,
        decisions: &mut Vec<Decision>,
        why: &str,
    ) {
        let decision = |action| Decision { policy: "adapt", action, why: why.to_owned() };
        decisions
            .extend(self.fixed.set(program, slice_us.map(Fixed::batch)).into_iter().map(decision));
    }

    pub(super) fn place_memory(
        &mut self,
        program: ProgramId,
        memory: Memory,
        all: &[NodeId],
        decisions: &mut Vec<Decision>,
        why: &str,
    ) {
        let is_refused = memory != Memory::Near && !self.pages.may_request();
        if self.memory == memory || is_refused {
            return;
        }
        let action = match &memory {
            Memory::Near => Action::SpreadPages { program, spread: false },
            Memory::All => Action::SpreadPages { program, spread: true },
            Memory::Nodes(nodes) => {
                Action::MovePages { program, from: all.to_vec(), to: nodes.clone() }
            }
        };
        self.memory = memory;
        decisions.push(Decision { policy: "adapt", action, why: why.to_owned() });
    }
}

/// Returns whether the behaviour of a program has changed.
pub(super) fn differ(before: &Usage, now: &Usage, band: f64) -> bool {
    let moved = |of: fn(&Usage) -> Option<f64>| {
        of(before).zip(of(now)).is_some_and(|(a, b)| (a - b).abs() > band)
    };
    moved(|u| u.usr) || moved(|u| u.lock)
}
