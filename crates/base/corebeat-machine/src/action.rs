//! Actions on the programs of a machine, and their outcomes.

use crate::{CpuSet, NodeId, ProgramId, ThreadId};
use serde::Serialize;
use std::fmt;

/// Target of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// All threads of a program, including later ones.
    Program(ProgramId),
    /// One thread.
    Thread(ThreadId),
}

/// Scheduling class that requires no privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Default time-sharing class (`SCHED_OTHER`).
    Normal,
    /// Fair class without preemption at wake-up (`SCHED_BATCH`).
    Batch,
    /// Class that runs only on otherwise idle CPUs (`SCHED_IDLE`).
    Idle,
}

/// A change to make. When Corebeat ends, all changes are undone, except that moved memory stays
/// where it is.
///
/// A value of `None` restores the value that each thread or the program had before the first
/// change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Restricts the target to a set of CPUs.
    SetCpus {
        /// Target.
        target: Target,
        /// CPUs, not empty; `None` for the original ones.
        cpus: Option<CpuSet>,
    },
    /// Sets the time that the target runs before the scheduler may select another thread.
    SetSlice {
        /// Target.
        target: Target,
        /// Slice in microseconds; `None` for the original one.
        slice_us: Option<u32>,
    },
    /// Sets the scheduling class.
    SetClass {
        /// Target.
        target: Target,
        /// Class; `None` for the original one.
        class: Option<Class>,
    },
    /// Sets the nice value, relative to the original value of each thread.
    SetNice {
        /// Target.
        target: Target,
        /// Number to add to the original value: positive for less CPU time, 0 for the original
        /// value. The sum is clamped to -20..=19. A negative number requires `CAP_SYS_NICE`.
        nice: i8,
    },
    /// Sets the weight of a program relative to other programs (`cpu.weight` of a control group).
    SetWeight {
        /// Program.
        program: ProgramId,
        /// Weight from 1 to 10,000. The default is 100, the weight of a single thread of nice 0
        /// outside of any group.
        weight: u32,
    },
    /// Limits the CPU time of a program on all CPUs (`cpu.max` of a control group).
    SetQuota {
        /// Program.
        program: ProgramId,
        /// CPU seconds per second, above 0: 1.5 is one and a half CPUs; `None` for no limit.
        cpus: Option<f64>,
    },
    /// Freezes or thaws a program. No thread of a frozen program runs.
    SetFrozen {
        /// Program.
        program: ProgramId,
        /// Whether to freeze or to thaw the program.
        frozen: bool,
    },
    /// Moves memory of a program between nodes.
    MovePages {
        /// Program.
        program: ProgramId,
        /// Present nodes of the pages.
        from: Vec<NodeId>,
        /// New nodes of the pages.
        to: Vec<NodeId>,
    },
    /// Distributes the memory of a program evenly over all nodes, or returns to the default
    /// placement of the machine: near the threads that use the memory.
    SpreadPages {
        /// Program.
        program: ProgramId,
        /// Whether to distribute the memory evenly.
        spread: bool,
    },
    /// Sets the size of later OpenMP teams.
    SetTeam {
        /// Program.
        program: ProgramId,
        /// Size, at least 1; `None` for the size that the program requests.
        size: Option<u32>,
    },
}

/// Error of [`Action::validate`]: a value that no machine accepts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAction(String);

impl Action {
    /// Checks the values of the action, independent of any machine. Every machine calls this
    /// function before it carries out an action.
    ///
    /// # Errors
    /// [`InvalidAction`] for an empty CPU set, a slice of 0, a weight outside 1..=10000, a quota
    /// that is not a positive finite number, an empty list of nodes, or a team of 0 threads.
    pub fn validate(&self) -> Result<(), InvalidAction> {
        let invalid = |why: String| Err(InvalidAction(why));
        match self {
            Action::SetCpus { cpus: Some(cpus), .. } if cpus.is_empty() => {
                invalid("the set of CPUs is empty: name at least one CPU".into())
            }
            Action::SetSlice { slice_us: Some(0), .. } => {
                invalid("a slice of 0 us is invalid: use 1 us or more".into())
            }
            Action::SetWeight { weight, .. } if !(1..=10_000).contains(weight) => {
                invalid(format!("weight {weight} is invalid: use 1 to 10000"))
            }
            Action::SetQuota { cpus: Some(cpus), .. } if !(cpus.is_finite() && *cpus > 0.0) => {
                invalid(format!("a quota of {cpus} CPUs is invalid: use a number above 0"))
            }
            Action::MovePages { from, to, .. } if from.is_empty() || to.is_empty() => {
                invalid("pages move from at least one node to at least one node".into())
            }
            Action::SetTeam { size: Some(0), .. } => {
                invalid("a team of 0 threads is invalid: use 1 or more".into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the program that the action concerns; `None` for an action on a single thread.
    pub fn program(&self) -> Option<ProgramId> {
        match *self {
            Action::SetCpus { target, .. }
            | Action::SetSlice { target, .. }
            | Action::SetClass { target, .. }
            | Action::SetNice { target, .. } => match target {
                Target::Program(program) => Some(program),
                Target::Thread(_) => None,
            },
            Action::SetWeight { program, .. }
            | Action::SetQuota { program, .. }
            | Action::SetFrozen { program, .. }
            | Action::MovePages { program, .. }
            | Action::SpreadPages { program, .. }
            | Action::SetTeam { program, .. } => Some(program),
        }
    }
}

/// A description in a few words, without the target.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::SetCpus { cpus: Some(cpus), .. } => write!(f, "run on CPUs {cpus}"),
            Action::SetCpus { cpus: None, .. } => f.write_str("run on its original CPUs"),
            Action::SetSlice { slice_us: Some(us), .. } => {
                write!(f, "slice {} ms", f64::from(*us) / 1000.0)
            }
            Action::SetSlice { slice_us: None, .. } => f.write_str("original slice"),
            Action::SetClass { class: Some(Class::Normal), .. } => f.write_str("class normal"),
            Action::SetClass { class: Some(Class::Batch), .. } => f.write_str("class batch"),
            Action::SetClass { class: Some(Class::Idle), .. } => f.write_str("class idle"),
            Action::SetClass { class: None, .. } => f.write_str("original class"),
            Action::SetNice { nice, .. } => write!(f, "nice {nice:+} relative to its own"),
            Action::SetWeight { weight, .. } => write!(f, "weight {weight}"),
            Action::SetQuota { cpus: Some(cpus), .. } => write!(f, "at most {cpus:.2} CPUs"),
            Action::SetQuota { cpus: None, .. } => f.write_str("no CPU quota"),
            Action::SetFrozen { frozen: true, .. } => f.write_str("freeze"),
            Action::SetFrozen { frozen: false, .. } => f.write_str("thaw"),
            Action::MovePages { from, to, .. } => {
                write!(f, "move pages from nodes {} to {}", nodes(from), nodes(to))
            }
            Action::SpreadPages { spread: true, .. } => f.write_str("memory evenly over all nodes"),
            Action::SpreadPages { spread: false, .. } => f.write_str("memory near its users"),
            Action::SetTeam { size: Some(size), .. } => write!(f, "teams of {size}"),
            Action::SetTeam { size: None, .. } => f.write_str("teams of the requested size"),
        }
    }
}

fn nodes(nodes: &[NodeId]) -> String {
    let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    numbers.join(",")
}

/// An action and the reason for which a policy requests it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Name of the policy.
    pub policy: &'static str,
    /// Change to make.
    pub action: Action,
    /// Observation that justifies the action: one clause for the report.
    pub why: String,
}

/// Reason for which a policy leaves a program as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inaction {
    /// Name of the policy.
    pub policy: &'static str,
    /// The observation and the limit that it is compared with: one clause for the report.
    pub why: String,
}

/// Effect of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Effect {
    /// Number of threads whose setting changed; 1 for a changed setting of a whole program; 0 if
    /// the setting was in effect already or the target has ended.
    pub changed: u32,
}

impl Effect {
    /// Returns whether the action changed anything.
    pub fn has_changed(self) -> bool {
        self.changed > 0
    }
}

/// A decision that was carried out or refused.
#[derive(Debug, Clone, PartialEq)]
pub struct AppliedAction {
    /// Time of the snapshot that led to the decision, in nanoseconds on the clock of the machine.
    pub at_ns: u64,
    /// Action, policy and reason.
    pub decision: Decision,
    /// Effect of the action, or the reason why the machine refused it.
    pub outcome: Result<Effect, String>,
}

impl AppliedAction {
    /// Returns the reason why the machine refused the action, if it did.
    pub fn refusal(&self) -> Option<&str> {
        self.outcome.as_ref().err().map(String::as_str)
    }
}

/// Result of undoing changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// Changes that were undone, one line each.
    pub undone: Vec<String>,
    /// Settings that still differ from their original values, with the reason; one line each.
    pub left: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_has_a_description() {
        let program = ProgramId(1);
        let target = Target::Program(program);
        let descriptions = [
            (Action::SetCpus { target, cpus: Some("0-3".parse().unwrap()) }, "run on CPUs 0-3"),
            (Action::SetCpus { target, cpus: None }, "run on its original CPUs"),
            (Action::SetSlice { target, slice_us: Some(2500) }, "slice 2.5 ms"),
            (Action::SetClass { target, class: Some(Class::Batch) }, "class batch"),
            (Action::SetWeight { program, weight: 57 }, "weight 57"),
            (Action::SetQuota { program, cpus: Some(1.5) }, "at most 1.50 CPUs"),
            (
                Action::MovePages {
                    program,
                    from: vec![NodeId(0), NodeId(2)],
                    to: vec![NodeId(1)],
                },
                "move pages from nodes 0,2 to 1",
            ),
            (Action::SpreadPages { program, spread: true }, "memory evenly over all nodes"),
            (Action::SetTeam { program, size: None }, "teams of the requested size"),
        ];
        for (action, words) in descriptions {
            assert_eq!(action.to_string(), words);
        }
    }
}
