//! Coscheduled sets of a scenario.

use serde::Deserialize;

/// Maximum number of sets in a scenario.
pub(crate) const SETS_MAX: usize = 4096;

/// A coscheduled set: in a scenario, a table `[[sets]]`. Without a coscheduler, the tasks of a set
/// are scheduled like all other threads.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Name of the set.
    pub name: String,
    /// Number of CPUs on which its tasks run at the same time.
    pub cpus: u32,
    /// The set that contains this one, and precedes it in the scenario. Default: the machine.
    pub within: Option<String>,
}

/// Result of a set.
#[derive(Debug, Clone, PartialEq)]
pub struct SetOutcome {
    /// Name of the set.
    pub name: String,
    /// Time during which some tasks of the set ran, those of inner sets included, in nanoseconds.
    pub ran_ns: u64,
    /// The part of it during which all runnable tasks ran, or all of the set's CPUs were in use.
    pub coscheduled_ns: u64,
}
