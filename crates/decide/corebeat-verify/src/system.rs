//! The tasks of one mode with everything resolved: the common ground of analysis and simulation.

use crate::model::{Activation, CoreId, Model, Policy, Preemption, Range, Section, TaskId};
use crate::time::TIME_MAX_NS;
use std::collections::HashMap;

/// Rank of a task that no other task preempts.
pub(crate) const RANK_MAX: u64 = u64::MAX;

/// A task with its times on its core. Equal priorities are served in order of arrival.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The task.
    pub task: TaskId,
    /// Its core.
    pub core: CoreId,
    /// Arrivals. [`Activation::After`] has the index of an entry here, not of a task.
    pub activation: Activation,
    /// Deadline relative to the arrival, in nanoseconds.
    pub deadline_ns: Option<u64>,
    /// Execution time in nanoseconds, without spinning.
    pub execution_ns: Range,
    /// Priority; a larger number is more urgent.
    pub priority: u32,
    /// Preemption.
    pub preemption: Preemption,
    /// Worst-case lengths of the parts between which cooperative tasks may preempt this one, in
    /// nanoseconds.
    pub chunks_ns: Vec<u64>,
    /// Critical sections.
    pub sections: Vec<Section>,
}

impl Entry {
    /// Smallest average distance of arrivals; `None` for tasks that follow others.
    pub(crate) fn period_ns(&self) -> Option<u64> {
        match &self.activation {
            Activation::Periodic { period_ns, .. } => Some(*period_ns),
            Activation::Sporadic { distance_ns } => Some(*distance_ns),
            Activation::Curve(spans) => Some((spans.last()? / spans.len() as u64).max(1)),
            Activation::After(_) => None,
        }
    }
}

/// A resource as its users' cores determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Highest priority of the users.
    pub(crate) ceiling: u32,
    /// Tasks of several cores use the resource: it is a spin lock.
    pub(crate) is_global: bool,
}

/// The tasks of one mode.
#[derive(Debug, Clone)]
pub struct System {
    /// The tasks that can be analysed.
    pub entries: Vec<Entry>,
    /// Policies of the cores.
    pub policies: Vec<Policy>,
    /// Resources by index.
    pub(crate) resources: Vec<Resource>,
    /// Of each core, the cores that share its queue, with itself. Entries name the first of them.
    pub(crate) groups: Vec<Vec<CoreId>>,
    /// Tasks that cannot be analysed, with the reason.
    pub omitted: Vec<(TaskId, String)>,
}

impl System {
    /// Resolves the tasks of a model that are active in a mode (`None`: all tasks).
    pub fn new(model: &Model, mode: Option<usize>) -> System {
        let active = (0..model.tasks.len()).filter(|&t| model.tasks[t].is_active(mode));
        let mut omitted = Vec::new();
        let mut entries = Vec::new();
        let homes = model.homes();
        for task in active {
            match entry(model, &homes, task) {
                Ok(entry) => entries.push(entry),
                Err(why) => omitted.push((task, why)),
            }
        }
        let mut has_origin = origins(&entries).into_iter();
        entries.retain(|entry| {
            let is_kept = has_origin.next() == Some(true);
            if !is_kept {
                let why = "the task that activates it is not analysed or not active".to_owned();
                omitted.push((entry.task, why));
            }
            is_kept
        });
        let positions = positions(&entries);
        for entry in &mut entries {
            if let Activation::After(other) = &mut entry.activation
                && let Some(position) = positions.get(other)
            {
                *other = *position;
            }
        }
        let resources = resources(&entries, model.resources.len());
        let policies = model.cores.iter().map(|c| c.policy).collect();
        let groups = groups(&homes);
        System { entries, policies, resources, groups, omitted }
    }

    /// A system of entries on fixed-priority cores without resources.
    pub fn of(entries: Vec<Entry>) -> System {
        let cores = entries.iter().map(|e| e.core + 1).max().unwrap_or(0);
        let policies = vec![Policy::FixedPriority; cores];
        let groups = (0..cores).map(|core| vec![core]).collect();
        System { entries, policies, resources: vec![], groups, omitted: vec![] }
    }

    /// The entries of a core, the most urgent first.
    pub(crate) fn on_core(&self, core: CoreId) -> Vec<usize> {
        let mut on: Vec<usize> =
            (0..self.entries.len()).filter(|&e| self.entries[e].core == core).collect();
        on.sort_by_key(|&e| std::cmp::Reverse(self.entries[e].priority));
        on
    }

    /// The cores that share the queue of a core, with itself.
    pub(crate) fn group(&self, core: CoreId) -> &[CoreId] {
        &self.groups[core]
    }

    /// Utilisation of a core by worst-case execution times: its part of the group's.
    pub(crate) fn utilisation(&self, core: CoreId) -> f64 {
        let of = |e: &Entry| {
            let period = self.rate_ns(e)?;
            Some(e.execution_ns.worst as f64 / period as f64)
        };
        let home = self.groups[core][0];
        // The sum of no numbers would be -0.
        let all = self.entries.iter().filter(|e| e.core == home).filter_map(of);
        all.fold(0.0, |a, b| a + b) / self.groups[core].len() as f64
    }

    /// Time by which the first job of an entry must have ended after the release of all tasks, in
    /// nanoseconds: offset, jitter and deadline, or the period without a deadline.
    pub fn deadline_of_first_ns(&self, entry: &Entry) -> u64 {
        let begin_ns = match entry.activation {
            Activation::Periodic { offset_ns, jitter_ns, .. } => {
                offset_ns.unwrap_or(0).saturating_add(jitter_ns)
            }
            _ => 0,
        };
        let length_ns = entry.deadline_ns.or_else(|| self.rate_ns(entry)).unwrap_or(0);
        begin_ns.saturating_add(length_ns)
    }

    /// Period of an entry, or of the origin of its activations.
    pub(crate) fn rate_ns(&self, entry: &Entry) -> Option<u64> {
        let mut entry = entry;
        for _ in 0..=self.entries.len() {
            match entry.activation {
                Activation::After(other) => entry = self.entries.get(other)?,
                _ => return entry.period_ns(),
            }
        }
        None
    }
}

fn entry(model: &Model, homes: &[CoreId], id: TaskId) -> Result<Entry, String> {
    let task = &model.tasks[id];
    let core = homes[task.core.ok_or("the task has no core; map it to one")?];
    let kind = &model.cores[core];
    let is_global =
        !kind.cluster.is_empty() && homes.iter().filter(|&&home| home == core).count() > 1;
    if is_global && (!task.sections.is_empty() || task.preemption != Preemption::Preemptive) {
        return Err("blocking is not analysed under global scheduling".into());
    }
    let is_edf = kind.policy == Policy::EarliestDeadline;
    let priority = match task.priority {
        Some(priority) => priority,
        None if is_edf => 0,
        None => return Err("the task has no priority; write one".into()),
    };
    let activation = task.activation.clone().ok_or("the task has no activation; write one")?;
    if let Activation::Periodic { jitter_ns, .. } = activation
        && jitter_ns > 0
        && is_edf
    {
        return Err("release jitter is not analysed under earliest deadline first".into());
    }
    if is_edf && (!task.sections.is_empty() || task.preemption != Preemption::Preemptive) {
        return Err("blocking is not analysed under earliest deadline first".into());
    }
    let mut execution_ns = model.execution(task, kind, Some(core))?;
    for other in (core + 1..homes.len()).filter(|&o| is_global && homes[o] == core) {
        let there = model.execution(task, &model.cores[other], Some(other))?;
        execution_ns = execution_ns.or(there);
    }
    if execution_ns.worst > TIME_MAX_NS {
        return Err("the execution time is longer than 52 days; correct it".into());
    }
    let sections: u64 = task.sections.iter().map(|s| s.worst_ns).fold(0, u64::saturating_add);
    if sections > execution_ns.worst {
        return Err("critical sections are longer than the execution time; correct one".into());
    }
    Ok(Entry {
        task: id,
        core,
        activation,
        deadline_ns: model.deadline_ns(id),
        execution_ns,
        priority,
        preemption: task.preemption,
        chunks_ns: model.chunks(task, kind, Some(core))?,
        sections: task.sections.clone(),
    })
}

/// The groups of cores that have the same first core.
fn groups(homes: &[CoreId]) -> Vec<Vec<CoreId>> {
    let mut of_home: Vec<Vec<CoreId>> = vec![vec![]; homes.len()];
    for (core, &home) in homes.iter().enumerate() {
        of_home[home].push(core);
    }
    homes.iter().map(|&home| of_home[home].clone()).collect()
}

/// The positions of the entries by their tasks.
fn positions(entries: &[Entry]) -> HashMap<TaskId, usize> {
    entries.iter().map(|e| e.task).zip(0..).collect()
}

/// Of each entry, whether its chain of activations begins at an entry that is activated by time. An
/// entry that follows a task without an entry is not analysed either.
fn origins(entries: &[Entry]) -> Vec<bool> {
    let positions = positions(entries);
    let mut known: Vec<Option<bool>> = vec![None; entries.len()];
    for start in 0..entries.len() {
        let (mut path, mut next) = (Vec::new(), Some(start));
        // A chain that is longer than the number of entries is a cycle.
        let has_origin = loop {
            let Some(e) = next.filter(|_| path.len() <= entries.len()) else { break false };
            if let Some(has_origin) = known[e] {
                break has_origin;
            }
            path.push(e);
            match entries[e].activation {
                Activation::After(other) => next = positions.get(&other).copied(),
                _ => break true,
            }
        };
        path.into_iter().for_each(|e| known[e] = Some(has_origin));
    }
    known.into_iter().map(|known| known == Some(true)).collect()
}

fn resources(entries: &[Entry], count: usize) -> Vec<Resource> {
    let mut resources = vec![Resource { ceiling: 0, is_global: false }; count];
    let mut cores: Vec<Option<CoreId>> = vec![None; count];
    for entry in entries {
        for section in &entry.sections {
            let resource = &mut resources[section.resource];
            let other = cores[section.resource].replace(entry.core);
            resource.ceiling = resource.ceiling.max(entry.priority);
            resource.is_global |= other.is_some_and(|core| core != entry.core);
        }
    }
    resources
}
