//! Waiting of cores for each other at memories.

use crate::model::{Access, CoreId, Effect, Model, Note, Task, TaskId, named};
use crate::time::TIME_MAX_NS;
use std::collections::{BTreeSet, HashSet};

/// The note of a task whose figures lack the waiting at memories.
pub(crate) const MEMORY_NOTE: &str = "waiting for other cores at memories is not considered";
/// The note of a task whose figures lack the waiting at connections, which no function adds.
pub(crate) const CONNECTION_NOTE: &str = "waiting for other cores at connections is not considered";
/// The note of a task whose accesses wait.
const WAIT_NOTE: &str = "each access to a memory waits for one access of each other core that uses \
                         the memory, which need not happen";

/// The model with the longest time that each access waits, if each memory serves the cores in turns
/// (round robin) and a core has at most one access at a time: an access waits for one access of
/// each other core whose tasks use the memory (Pellizzoni, Schranzhofer, Chen, Caccamo, Thiele,
/// *Worst Case Delay Analysis for Memory Interference in Multicore Systems*, 2010). Waiting at
/// connections between cores and memories is not modelled: the notes about it stay. A longer
/// [`crate::Latency::wait_ns`] of the model stays.
///
/// Which accesses of a job are inside of a critical section is not known here. Each section grows
/// by the time that the whole job waits; where the sections of a job would become longer than the
/// job, the task has an optimistic note instead. Another one states that a core uses a memory for
/// an unknown time.
pub fn contend(model: &Model) -> Model {
    let homes = model.homes();
    let uses = uses(model, &homes);
    let mut contended = model.clone();
    contended.notes.retain(|note| note.what != MEMORY_NOTE);
    // The memories and the cores whose accesses to them wait.
    let mut waits = HashSet::new();
    for latency in &mut contended.latencies {
        let others = model.latencies.iter().filter(|other| {
            other.memory == latency.memory
                && other.core != latency.core
                && uses.contains(&(other.memory, other.core))
        });
        let wait = others.map(|o| o.read_ns.max(o.write_ns)).fold(0, u64::saturating_add);
        let wait = wait.min(TIME_MAX_NS);
        if wait > 0 {
            latency.wait_ns = latency.wait_ns.max(wait);
            waits.insert((latency.memory, homes[latency.core]));
        }
    }
    for (id, task) in model.tasks.iter().enumerate() {
        let Some(home) = task.core.map(|core| homes[core]) else { continue };
        let mut memories = accesses(model, task).filter_map(|a| model.labels[a.label].memory);
        if memories.any(|memory| waits.contains(&(memory, home))) {
            add(&mut contended, named("task", &task.name), WAIT_NOTE, Effect::Pessimistic, id);
            lengthen(model, &mut contended, id, home);
        }
    }
    note_unknown(model, &uses, &mut contended);
    contended
}

/// All accesses of a job.
fn accesses<'a>(model: &'a Model, task: &'a Task) -> impl Iterator<Item = &'a Access> {
    let of_runnables = task.runnables.iter().map(|&r| &model.runnables[r].cost);
    of_runnables.chain([&task.cost]).flat_map(|cost| &cost.accesses)
}

/// The memories with the cores whose tasks use them.
fn uses(model: &Model, homes: &[CoreId]) -> BTreeSet<(usize, CoreId)> {
    let mut uses = HashSet::new();
    for task in &model.tasks {
        let Some(home) = task.core.map(|core| homes[core]) else { continue };
        let memories = accesses(model, task).filter_map(|a| model.labels[a.label].memory);
        uses.extend(memories.map(|memory| (memory, home)));
    }
    // Every core of a group with one queue runs its tasks.
    let with = |home: CoreId| (0..homes.len()).filter(move |&core| homes[core] == home);
    uses.into_iter().flat_map(|(memory, home)| with(home).map(move |core| (memory, core))).collect()
}

/// Adds a note about a task, unless the model has it.
fn add(model: &mut Model, place: String, what: &str, effect: Effect, task: TaskId) {
    let note = Note { place, what: what.to_owned(), effect, task: Some(task) };
    if !model.notes.contains(&note) {
        model.notes.push(note);
    }
}

/// Lengthens the critical sections of a task by the time that its accesses wait.
fn lengthen(model: &Model, contended: &mut Model, id: TaskId, core: CoreId) {
    let task = &model.tasks[id];
    let time = |of: &Model| of.execution(task, &of.cores[core], Some(core));
    // A task without a known execution time is not analysed.
    let (Ok(before), Ok(after)) = (time(model), time(contended)) else { return };
    if task.sections.is_empty() || after.worst > TIME_MAX_NS {
        return;
    }
    let more = after.worst.saturating_sub(before.worst);
    let lengths = task.sections.iter().map(|s| s.worst_ns.saturating_add(more));
    if lengths.fold(0, u64::saturating_add) <= after.worst {
        contended.tasks[id].sections.iter_mut().for_each(|s| s.worst_ns += more);
    } else {
        let what = "which of its critical sections wait at memories is not known, so that they may \
                    be longer";
        add(contended, named("task", &task.name), what, Effect::Optimistic, id);
    }
}

/// Notes a core that uses a memory for an unknown time, so that other cores wait for an unknown
/// time.
fn note_unknown(model: &Model, uses: &BTreeSet<(usize, CoreId)>, contended: &mut Model) {
    let known: HashSet<(usize, CoreId)> =
        model.latencies.iter().map(|l| (l.memory, l.core)).collect();
    let is_shared = |used: &&(usize, CoreId)| {
        let (memory, core) = **used;
        uses.range((memory, 0)..=(memory, CoreId::MAX)).any(|&(_, other)| other != core)
    };
    let missing = uses.iter().filter(|used| !known.contains(used)).find(is_shared);
    let mut notes = vec![];
    if let Some(&(memory, core)) = missing {
        let what = format!(
            "the core uses memory '{}' for an unknown time, because the latency is missing: other \
             cores may wait longer",
            model.memories[memory].name
        );
        notes.push((named("core", &model.cores[core].name), what));
    }
    let all = model.tasks.iter().flat_map(|task| accesses(model, task)).map(|a| a.label);
    let nowhere = all.into_iter().find(|&label| model.labels[label].memory.is_none());
    if let Some(label) = nowhere.filter(|_| !uses.is_empty() && model.cores.len() > 1) {
        let what = "the label is in no memory, so that cores may wait longer".to_owned();
        notes.push((named("label", &model.labels[label].name), what));
    }
    for (place, what) in notes {
        let note = Note { place, what, effect: Effect::Optimistic, task: None };
        if !contended.notes.contains(&note) {
            contended.notes.push(note);
        }
    }
}
