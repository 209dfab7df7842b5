//! Coscheduled sets: tasks that are to run at the same time (Schönherr, Lutz, Richling, *Non-intrusive Coscheduling for General
//! Purpose Operating Systems*, 2012, section 3).

/// A group of tasks, and on how many CPUs they are to run together. Which CPUs those are is not said: the set is put where there
/// is room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoscheduledSet {
    /// How many CPUs: as many of its tasks run at a time, if it has so many to run.
    pub cpus: u32,
    /// The set that it is a part of, by its place among all, which is before its own; `None` for the machine itself.
    pub within: Option<usize>,
}

/// Who has which CPU from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// By CPU, in the topology's order: the set whose own tasks alone may run there, by its place; `None` for tasks that are in no
    /// set. A set that sets are nested in is named only where its own tasks are meant.
    pub cpus: Vec<Option<usize>>,
    /// When to ask again although nothing has changed, in nanoseconds; `u64::MAX` for never.
    pub until_ns: u64,
}

/// Says which sets run where. Pure: what it says follows from what it was told.
pub trait Coscheduler {
    /// Who has which CPU from `now_ns` on, which never goes back. `runnable` has for each set how many of its own tasks run or are
    /// ready to, `loose` how many of those in no set do. To be asked whenever one of these has changed.
    fn plan(&mut self, now_ns: u64, runnable: &[u32], loose: u32) -> Plan;
}
