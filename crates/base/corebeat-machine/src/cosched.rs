//! Coscheduled sets: tasks that run at the same time (Schönherr, Lutz, Richling,
//! *Non-intrusive Coscheduling for General Purpose Operating Systems*, 2012, section 3).

/// A group of tasks with the number of CPUs on which they run together. The coscheduler selects the
/// CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoscheduledSet {
    /// Number of CPUs: up to this number of tasks run at a time.
    pub cpus: u32,
    /// Position of the enclosing set, which comes before this set; `None` for the machine.
    pub within: Option<usize>,
}

/// Assignment of CPUs to coscheduled sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Position of the set whose tasks may run on each CPU, in the order of the topology; `None`
    /// for tasks without a set. An enclosing set is named only for its own tasks.
    pub cpus: Vec<Option<usize>>,
    /// Time of the next plan if nothing changes before, in nanoseconds; `u64::MAX` for never.
    pub until_ns: u64,
}

/// Decides which sets run on which CPUs. Pure: plans depend on the calls only.
pub trait Coscheduler {
    /// Returns the assignment from `now_ns` on; the time never decreases. `runnable` has the number
    /// of own tasks of each set that run or are ready, `loose` that of tasks without a set. Call
    /// this function after each change of these numbers.
    fn plan(&mut self, now_ns: u64, runnable: &[u32], loose: u32) -> Plan;
}
