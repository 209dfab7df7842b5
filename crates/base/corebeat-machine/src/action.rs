//! What may be done to a machine's programs.

use crate::{CpuSet, NodeId, ProgramId, ThreadId};
use serde::Serialize;
use std::fmt;

/// Whom an action is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// All threads of a program, and those that it will start.
    Program(ProgramId),
    /// One thread.
    Thread(ThreadId),
}

/// A scheduling class that needs no privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The time-sharing default (`SCHED_OTHER`).
    Normal,
    /// Fair, but a thread that wakes up takes the CPU from nobody (`SCHED_BATCH`).
    Batch,
    /// Only what nobody else wants (`SCHED_IDLE`).
    Idle,
}

/// One thing to do. Everything is undone when Corebeat ends, but that memory which was moved stays where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Lets the target run on these CPUs alone; `None` gives each thread back those that it had.
    SetCpus {
        /// Whom.
        target: Target,
        /// Where, not empty; or where it might before.
        cpus: Option<CpuSet>,
    },
    /// Sets how long the target may run before another gets its turn; `None` asks for the system's own default.
    SetSlice {
        /// Whom.
        target: Target,
        /// The slice in microseconds, or the default.
        slice_us: Option<u32>,
    },
    /// Sets the scheduling class; `None` gives each thread back the class it had.
    SetClass {
        /// Whom.
        target: Target,
        /// The class, or the one before.
        class: Option<Class>,
    },
    /// Sets the nice value, on top of what each thread has by itself.
    SetNice {
        /// Whom.
        target: Target,
        /// How much more it is to be (less CPU time), or less; 0 is as before. What comes out is cut to -20 to 19. Less than what
        /// a thread has needs `CAP_SYS_NICE`.
        nice: i8,
    },
    /// Sets a program's weight against other programs (a control group's `cpu.weight`).
    SetWeight {
        /// Which program.
        program: ProgramId,
        /// From 1 to 10,000; 100 is the default, and what a single thread of nice 0 weighs outside of any group.
        weight: u32,
    },
    /// Limits a program's CPU time, on however many CPUs it runs (a control group's `cpu.max`); `None` takes the limit away.
    SetQuota {
        /// Which program.
        program: ProgramId,
        /// CPU seconds a second: 1.5 is one CPU and a half. Above 0.
        cpus: Option<f64>,
    },
    /// Freezes a program: none of its threads runs until it is thawed. How is the machine's business.
    SetFrozen {
        /// Which program.
        program: ProgramId,
        /// Whether it is to be frozen.
        frozen: bool,
    },
    /// Moves a program's memory from some nodes to others.
    MovePages {
        /// Which program.
        program: ProgramId,
        /// Where the pages are now.
        from: Vec<NodeId>,
        /// Where they are to go.
        to: Vec<NodeId>,
    },
    /// Lays a program's memory evenly over all nodes, or gives it back to the machine's own way: near to whoever uses it.
    SpreadPages {
        /// Which program.
        program: ProgramId,
        /// Evenly, or as before.
        spread: bool,
    },
    /// Sets the size of the next OpenMP team; `None` gives the program what it asks for.
    SetTeam {
        /// Which program.
        program: ProgramId,
        /// The size, at least 1.
        size: Option<u32>,
    },
}

impl Action {
    /// The program that it is for. `None` if it is for a thread.
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

/// In a few words, without whom it is for.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::SetCpus { cpus: Some(cpus), .. } => write!(f, "run on CPUs {cpus}"),
            Action::SetCpus { cpus: None, .. } => f.write_str("run on its CPUs of before"),
            Action::SetSlice { slice_us: Some(us), .. } => write!(f, "slice {} ms", f64::from(*us) / 1000.0),
            Action::SetSlice { slice_us: None, .. } => f.write_str("slice back to the default"),
            Action::SetClass { class: Some(Class::Normal), .. } => f.write_str("class normal"),
            Action::SetClass { class: Some(Class::Batch), .. } => f.write_str("class batch"),
            Action::SetClass { class: Some(Class::Idle), .. } => f.write_str("class idle"),
            Action::SetClass { class: None, .. } => f.write_str("class as before"),
            Action::SetNice { nice, .. } => write!(f, "nice {nice:+} on top of its own"),
            Action::SetWeight { weight, .. } => write!(f, "weight {weight}"),
            Action::SetQuota { cpus: Some(cpus), .. } => write!(f, "at most {cpus:.2} CPUs"),
            Action::SetQuota { cpus: None, .. } => f.write_str("no limit of CPU time"),
            Action::SetFrozen { frozen: true, .. } => f.write_str("freeze"),
            Action::SetFrozen { frozen: false, .. } => f.write_str("thaw"),
            Action::MovePages { from, to, .. } => {
                write!(f, "move pages from nodes {} to {}", nodes(from), nodes(to))
            }
            Action::SpreadPages { spread: true, .. } => f.write_str("memory evenly over all nodes"),
            Action::SpreadPages { spread: false, .. } => f.write_str("memory near to who uses it"),
            Action::SetTeam { size: Some(size), .. } => write!(f, "teams of {size}"),
            Action::SetTeam { size: None, .. } => f.write_str("teams as the program asks"),
        }
    }
}

fn nodes(nodes: &[NodeId]) -> String {
    let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    numbers.join(",")
}

/// An action, and why a policy wants it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// One clause for the report: what was seen that asks for it.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_is_told_in_words() {
        let program = ProgramId(1);
        let target = Target::Program(program);
        let told = [
            (Action::SetCpus { target, cpus: Some("0-3".parse().unwrap()) }, "run on CPUs 0-3"),
            (Action::SetCpus { target, cpus: None }, "run on its CPUs of before"),
            (Action::SetSlice { target, slice_us: Some(2500) }, "slice 2.5 ms"),
            (Action::SetClass { target, class: Some(Class::Batch) }, "class batch"),
            (Action::SetWeight { program, weight: 57 }, "weight 57"),
            (Action::SetQuota { program, cpus: Some(1.5) }, "at most 1.50 CPUs"),
            (
                Action::MovePages { program, from: vec![NodeId(0), NodeId(2)], to: vec![NodeId(1)] },
                "move pages from nodes 0,2 to 1",
            ),
            (Action::SpreadPages { program, spread: true }, "memory evenly over all nodes"),
            (Action::SetTeam { program, size: None }, "teams as the program asks"),
        ];
        for (action, words) in told {
            assert_eq!(action.to_string(), words);
        }
    }
}
