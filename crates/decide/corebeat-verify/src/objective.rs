//! The figures that a search brings to their worst case, each found in the record of a simulation.
//!
//! Briand (2012) searches for missed deadlines, starvation, deadlocks and high use of processors. A
//! deadlock cannot occur in a [`System`]: critical sections are not nested.

use crate::model::TaskId;
use crate::simulation::{Record, Span};
use crate::system::System;
use std::collections::VecDeque;

/// The figure whose worst case is searched. Times are in nanoseconds and above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// The response time of a task as a share of its deadline; of any task if none is named.
    Response {
        /// The task.
        task: Option<TaskId>,
    },
    /// Starvation: the longest time in which a released job has no core, without a break. A job
    /// that spins has one. The job behind another one of its task counts from the end of that one.
    Wait {
        /// The task; any if none is named.
        task: Option<TaskId>,
        /// Longest permitted time.
        limit_ns: u64,
    },
    /// The time that a core is busy, spinning included, in any window of a given length.
    Load {
        /// Length of the window.
        window_ns: u64,
        /// Longest permitted time.
        limit_ns: u64,
    },
}

/// The task or core of a worst case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// An entry of the system.
    Entry(usize),
    /// A core.
    Core(usize),
}

/// The worst case of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worst {
    /// The task or core.
    pub subject: Subject,
    /// The time in nanoseconds: response, wait, or busy time in the window.
    pub value_ns: u64,
    /// The longest permitted time in nanoseconds; a task may have no deadline.
    pub limit_ns: Option<u64>,
    /// When it is over, in nanoseconds: the end of the job or of the window.
    pub end_ns: u64,
}

impl Worst {
    /// The time as a share of the limit; without a limit, in seconds.
    pub fn share(&self) -> f64 {
        share(self.value_ns, self.limit_ns)
    }

    /// Whether the limit is exceeded.
    pub fn is_miss(&self) -> bool {
        self.limit_ns.is_some_and(|limit| self.value_ns > limit)
    }
}

/// A time as a share of its limit; without a limit, in seconds.
pub(crate) fn share(value_ns: u64, limit_ns: Option<u64>) -> f64 {
    value_ns as f64 / limit_ns.map_or(1e9, |limit| limit as f64)
}

impl Objective {
    /// Time that a scenario must last, so that the limit can be exceeded.
    pub fn least_ns(self) -> u64 {
        match self {
            Objective::Response { .. } => 0,
            Objective::Wait { limit_ns, .. } => limit_ns,
            Objective::Load { window_ns, .. } => window_ns,
        }
    }

    /// Whether the search is for any violation, not for the longest time of one task.
    pub fn stops_at_miss(self) -> bool {
        !matches!(self, Objective::Response { task: Some(_) })
    }

    /// The limit of an entry, if the objective considers the entry: outer `None` if not.
    pub(crate) fn limit_ns(self, system: &System, entry: usize) -> Option<Option<u64>> {
        let entry = &system.entries[entry];
        match self {
            // Without a deadline, a task that is not named has no share.
            Objective::Response { task: None } => entry.deadline_ns.map(Some),
            Objective::Response { task } => (task == Some(entry.task)).then_some(entry.deadline_ns),
            Objective::Wait { task, limit_ns } => {
                task.is_none_or(|task| task == entry.task).then_some(Some(limit_ns))
            }
            Objective::Load { .. } => None,
        }
    }

    /// The worst case of a record; the first one of equal ones.
    pub fn worst(self, system: &System, record: &Record) -> Option<Worst> {
        let mut worst: Option<Worst> = None;
        let mut note = |next: Worst| {
            if worst.as_ref().is_none_or(|worst| next.share() > worst.share()) {
                worst = Some(next);
            }
        };
        let limits: Vec<_> =
            (0..system.entries.len()).map(|entry| self.limit_ns(system, entry)).collect();
        let mut of_entry = |entry: usize, value_ns: u64, end_ns: u64| {
            if let Some(limit_ns) = limits[entry] {
                note(Worst { subject: Subject::Entry(entry), value_ns, limit_ns, end_ns });
            }
        };
        match self {
            Objective::Response { .. } => {
                for done in &record.completions {
                    of_entry(done.entry, done.end_ns - done.job.arrival_ns, done.end_ns);
                }
            }
            Objective::Wait { .. } => {
                for (entry, wait_ns, end_ns) in waits(system.entries.len(), record) {
                    of_entry(entry, wait_ns, end_ns);
                }
            }
            Objective::Load { window_ns, limit_ns } => {
                for (core, value_ns, end_ns) in loads(system.policies.len(), record, window_ns) {
                    let limit_ns = Some(limit_ns);
                    note(Worst { subject: Subject::Core(core), value_ns, limit_ns, end_ns });
                }
            }
        }
        worst
    }
}

/// The times for which a released job does not run: entry, length, and end of the job.
fn waits(entries: usize, record: &Record) -> Vec<(usize, u64, u64)> {
    let mut spans: Vec<Vec<&Span>> = vec![vec![]; entries];
    for span in record.spans.iter().rev() {
        spans[span.entry].push(span);
    }
    let mut last_end = vec![0; entries];
    let mut waits = Vec::new();
    for done in &record.completions {
        let entry = done.entry;
        let mut since = done.job.release_ns.max(last_end[entry]);
        while let Some(span) = spans[entry].pop_if(|span| span.from_ns < done.end_ns) {
            waits.push((entry, span.from_ns - since, done.end_ns));
            since = span.to_ns;
        }
        // A job without execution time has no span.
        waits.push((entry, done.end_ns - since, done.end_ns));
        last_end[entry] = done.end_ns;
    }
    waits
}

/// The busy time of a core in each window that ends when the core becomes idle: core, busy time and
/// end of the window. A window in which a core is busy for the longest time can be moved until it
/// ends there.
fn loads(cores: usize, record: &Record, window_ns: u64) -> Vec<(usize, u64, u64)> {
    // The spans of each core in the window, and the sum of their lengths.
    let mut inside: Vec<(VecDeque<(u64, u64)>, u64)> = vec![Default::default(); cores];
    let mut loads = Vec::new();
    for span in &record.spans {
        let (spans, sum) = &mut inside[span.core];
        spans.push_back((span.from_ns, span.to_ns));
        *sum += span.to_ns - span.from_ns;
        let begin = span.to_ns.saturating_sub(window_ns);
        while let Some((from, to)) = spans.front_mut().filter(|(from, _)| *from < begin) {
            *sum -= begin.min(*to) - *from;
            *from = begin;
            if *to > begin {
                break;
            }
            spans.pop_front();
        }
        loads.push((span.core, *sum, span.to_ns));
    }
    loads
}
