//! A program at run time.

use crate::group::Group;
use crate::program::{Placement, Program, StartClass};
use crate::progress::Progress;
use crate::time::ns;
use corebeat_machine::{Class, CpuSet};
use std::ops::Range;

/// The run-time state of a program.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    /// Its threads, by their numbers among all threads.
    pub(crate) threads: Range<usize>,
    pub(crate) watched: bool,
    pub(crate) start: u64,
    /// Number of threads that have not ended.
    pub(crate) alive: usize,
    pub(crate) ended: Option<u64>,
    /// How long its threads spin before they block, in nanoseconds; `u64::MAX` without limit.
    pub(crate) spin: u64,

    /// The scenario's values, which hold until an action changes them.
    pub(crate) class: Class,
    pub(crate) nice: i8,
    pub(crate) cpus: CpuSet,
    own_placement: Placement,

    /// The placement of pages from now on.
    pub(crate) placement: Placement,

    /// Its shared data by node, in millionths; empty until one of its threads first runs.
    pub(crate) pages: Vec<u64>,
    pub(crate) memory_mib: u32,
    /// An action has spread the pages over all nodes.
    pub(crate) is_spread: bool,
    pub(crate) group: Group,
    /// The coscheduled set of its threads.
    pub(crate) set: Option<usize>,
    pub(crate) progress: Progress,
    pub(crate) io_bytes: u64,
    /// `io_bytes` at the last observation.
    pub(crate) io_bytes_observed: u64,
    /// Start and number of each phase.
    pub(crate) phases: Vec<(u64, usize)>,
}

impl Process {
    /// A program before its start, with these threads on these CPUs, in this coscheduled set.
    pub(crate) fn new(
        program: &Program,
        threads: Range<usize>,
        cpus: CpuSet,
        set: Option<usize>,
    ) -> Self {
        let spin = match program.spin_us.is_infinite() {
            true => u64::MAX,
            false => ns(program.spin_us, 1e3),
        };
        Process {
            name: program.name.clone(),
            alive: threads.len(),
            threads,
            watched: program.watched,
            start: ns(program.start_ms, 1e6),
            ended: None,
            spin,
            class: class(program.class),
            nice: program.nice,
            cpus,
            own_placement: program.placement,
            placement: program.placement,
            pages: vec![],
            memory_mib: program.memory_mib,
            is_spread: false,
            group: Group::default(),
            set,
            progress: Progress::new(program.goal),
            io_bytes: 0,
            io_bytes_observed: 0,
            phases: vec![],
        }
    }

    /// The placement that the scenario has set.
    pub(crate) fn own_placement(&self) -> Placement {
        self.own_placement
    }

    /// Begins a phase, unless the program is in it.
    pub(crate) fn begin_phase(&mut self, phase: usize, now: u64) {
        if self.phases.last().is_none_or(|p| p.1 != phase) {
            self.phases.push((now, phase));
        }
    }
}

/// The machine's class for a program's.
pub(crate) fn class(class: StartClass) -> Class {
    match class {
        StartClass::Normal => Class::Normal,
        StartClass::Batch => Class::Batch,
        StartClass::Idle => Class::Idle,
    }
}
