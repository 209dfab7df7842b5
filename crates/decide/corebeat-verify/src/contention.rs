//! Waiting of cores for each other at memories.

use crate::model::{Access, Effect, Model, Note};

/// The note of a model whose figures lack this waiting.
pub(crate) const NOTE: &str =
    "waiting for other cores at connections and memories is not considered";

/// The model with the longest time that each access waits, if each memory serves the cores in turns
/// (round robin) and a core has at most one access at a time: an access waits for one access of
/// each other core whose tasks use the memory (Pellizzoni, Schranzhofer, Chen, Caccamo, Thiele,
/// *Worst Case Delay Analysis for Memory Interference in Multicore Systems*, 2010). Connections
/// between cores and memories are assumed to add no waiting. A longer [`crate::Latency::wait_ns`]
/// of the model stays.
pub fn contend(model: &Model) -> Model {
    let homes = model.homes();
    // Of each memory, whether the tasks of each core use it.
    let mut uses = vec![vec![false; model.cores.len()]; model.memories.len()];
    for task in &model.tasks {
        let Some(home) = task.core.map(|core| homes[core]) else { continue };
        let costs = task.runnables.iter().map(|&r| &model.runnables[r].cost).chain([&task.cost]);
        let memory = |access: &Access| model.labels[access.label].memory;
        for memory in costs.flat_map(|cost| &cost.accesses).filter_map(memory) {
            for (core, is_used) in uses[memory].iter_mut().enumerate() {
                *is_used |= homes[core] == home;
            }
        }
    }
    let mut contended = model.clone();
    for latency in &mut contended.latencies {
        let others = model.latencies.iter().filter(|other| {
            other.memory == latency.memory
                && other.core != latency.core
                && uses[other.memory][other.core]
        });
        let wait = others.map(|o| o.read_ns.max(o.write_ns)).fold(0, u64::saturating_add);
        latency.wait_ns = latency.wait_ns.max(wait.min(crate::TIME_MAX_NS));
    }
    contended.notes.retain(|note| note.what != NOTE);
    contended.notes.push(Note {
        place: "model".into(),
        what: "each access to a memory waits for one access of each other core that uses the \
               memory, which need not happen"
            .into(),
        effect: Effect::Pessimistic,
        task: None,
    });
    contended
}
