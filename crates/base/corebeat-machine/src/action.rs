//! What may be done to a machine's programs.

use crate::{CpuSet, NodeId, ProgramId, ThreadId};
use serde::Serialize;

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

/// One thing to do. Everything is undone when Corebeat ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Lets the target run on these CPUs alone.
    SetCpus {
        /// Whom.
        target: Target,
        /// Where; not empty.
        cpus: CpuSet,
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
    /// Sets the nice value.
    SetNice {
        /// Whom.
        target: Target,
        /// From -20 (most CPU time) to 19; below what it was needs `CAP_SYS_NICE`.
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
    /// Moves a program's memory from some nodes to others.
    MovePages {
        /// Which program.
        program: ProgramId,
        /// Where the pages are now.
        from: Vec<NodeId>,
        /// Where they are to go.
        to: Vec<NodeId>,
    },
    /// Sets the size of the next OpenMP team; `None` gives the program what it asks for.
    SetTeam {
        /// Which program.
        program: ProgramId,
        /// The size, at least 1.
        size: Option<u32>,
    },
}

/// An action, and why a policy wants it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// One clause for the report: what was seen that asks for it.
    pub why: String,
}
