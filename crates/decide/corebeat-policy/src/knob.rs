//! Knobs: the groups of settings that policies change.

use corebeat_machine::Action;

/// A group of settings that at most one policy may change for a program. Two policies that change
/// the same knob undo each other's changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Knob {
    /// Number of threads: the size of OpenMP teams.
    Size,
    /// Run duration and preemption: scheduling class and time slice.
    Slice,
    /// Placement of memory pages.
    Memory,
    /// CPU affinity.
    Place,
    /// Share of CPU time: nice values, weights, quotas, freezing.
    Share,
}

impl Knob {
    /// All knobs.
    pub const ALL: [Knob; 5] = [Knob::Size, Knob::Slice, Knob::Memory, Knob::Place, Knob::Share];

    /// Returns the knob that an action changes.
    pub fn of(action: &Action) -> Knob {
        match action {
            Action::SetTeam { .. } => Knob::Size,
            Action::SetClass { .. } | Action::SetSlice { .. } => Knob::Slice,
            Action::SpreadPages { .. } | Action::MovePages { .. } => Knob::Memory,
            Action::SetCpus { .. } => Knob::Place,
            Action::SetNice { .. }
            | Action::SetWeight { .. }
            | Action::SetQuota { .. }
            | Action::SetFrozen { .. } => Knob::Share,
        }
    }
}
