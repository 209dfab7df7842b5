//! Conformance suite for implementations of [`Machine`]: the semantics of actions, checked against
//! ground truth that does not come from the machine under test.
//!
//! Place in the loop: act; uses `corebeat-machine`; used by the tests of the machines only.
//!
//! # Example
//!
//! A machine under test implements [`Subject`]. Its test is one line:
//!
//! ```
//! # use corebeat_conformance::{ProgramSpec, Subject, failures};
//! fn check<S: Subject>(start: impl Fn(&[ProgramSpec]) -> S) {
//!     assert_eq!(failures(start), Vec::<String>::new());
//! }
//! ```
//!
//! # Model
//!
//! ```text
//!   ProgramSpec ----> Subject ----> programs that run on the machine
//!                      |    |
//!            machine() |    | settings(), program_settings(): ground truth (Linux: the kernel;
//!                      v    v                                 simulator: its state)
//!                 act, restore, observe  == compared by ==>  failures
//! ```
//!
//! # Invariants
//!
//! 1. A machine that keeps the contract has no failures (`faultless_machine_conforms`).
//! 2. Each planted deviation from the contract has a failure
//!    (`every_planted_deviation_is_detected`).
//!
//! # Failure
//!
//! [`failures`] returns one line for each deviation: the name of the check, the actual value and
//! the expected value. Methods of [`Subject`] panic if the subject cannot be set up.
//!
//! # Limits
//!
//! - The suite does not check where memory is: Linux does not move pages back.
//! - An action that the host does not support or permit ([`Subject::is_unsupported`]) must change
//!   nothing; the suite skips the rest of that check.
#![forbid(unsafe_code)]

mod check;
#[cfg(test)]
mod fake;

use corebeat_machine::{Class, CpuSet, Machine, ProgramId, ThreadId};

pub use check::failures;

/// A program that a [`Subject`] starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramSpec {
    /// Number of threads.
    pub threads: u32,
    /// Own nice value of each thread.
    pub nice: i8,
    /// Whether [`Subject::grow`] will start more threads. A machine whose programs start all
    /// threads at once may start no thread before.
    pub grows: bool,
    /// Whether the program has an OpenMP team whose size can be set.
    pub has_team: bool,
}

impl Default for ProgramSpec {
    fn default() -> Self {
        ProgramSpec { threads: 3, nice: 0, grows: false, has_team: false }
    }
}

/// Settings of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// CPUs on which the thread may run.
    pub cpus: CpuSet,
    /// Scheduling class.
    pub class: Class,
    /// Nice value.
    pub nice: i8,
    /// Slice in nanoseconds; `None` if the machine or its kernel has no slice for each thread.
    pub slice_ns: Option<u64>,
}

/// Settings of a program.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ProgramSettings {
    /// Weight of the group of the program; `None` for a program without a group.
    pub weight: Option<u32>,
    /// Limit of CPU time, in CPUs.
    pub quota: Option<f64>,
    /// Whether the program is frozen.
    pub frozen: bool,
}

/// A machine under test, the programs on it, and ground truth about both.
pub trait Subject {
    /// Type of the machine.
    type Machine: Machine;

    /// Returns the machine.
    fn machine(&mut self) -> &mut Self::Machine;

    /// Returns the id of a program, by its position among the specifications.
    fn program(&self, position: usize) -> ProgramId;

    /// Returns a thread that exists but belongs to no program of the machine.
    fn unknown_thread(&self) -> ThreadId;

    /// Lets some time pass, at most about 10 ms.
    fn wait(&mut self);

    /// Starts more threads of a program.
    fn grow(&mut self, position: usize);

    /// Ends a program.
    fn end(&mut self, position: usize);

    /// Returns the settings that the threads of a program have, or will have, before any action.
    fn own_settings(&mut self, position: usize) -> Settings;

    /// Returns the settings of a thread that runs.
    fn settings(&mut self, thread: ThreadId) -> Settings;

    /// Returns the settings of a program.
    fn program_settings(&mut self, position: usize) -> ProgramSettings;

    /// Returns the size that is set for the team of a program.
    fn team_size(&mut self, position: usize) -> Option<u32>;

    /// Returns whether the error means that this host does not support or permit an action.
    fn is_unsupported(&self, error: &<Self::Machine as Machine>::Error) -> bool;
}
