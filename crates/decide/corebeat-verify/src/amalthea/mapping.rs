//! The mapping of tasks to cores by schedulers, and of labels to memories.

use super::code::Flow;
use super::xml::Element;
use super::{Reader, key};
use crate::contention;
use crate::error::Error;
use crate::model::{Cost, Effect, Latency, Model, Policy, Section};
use std::collections::HashMap;

/// Priorities of interrupt service routines begin here: every interrupt preempts every task.
pub(super) const ISR_PRIORITY_MIN: u32 = 1 << 31;

/// A scheduler: its cores, its policy (`None` if it is not supported), and what is not considered.
struct Scheduler {
    cores: Vec<usize>,
    policy: Option<Policy>,
    limits: Vec<String>,
}

impl Reader<'_> {
    /// Maps tasks to cores, and labels to memories.
    pub(super) fn mapping(
        &mut self,
        parts: &[&Element],
        systems: &[&Element],
        flows: &[Flow],
        model: &mut Model,
    ) -> Result<(), Error> {
        let mut schedulers = self.schedulers(systems)?;
        for part in parts {
            self.rest(
                part,
                &["schedulerAllocation", "taskAllocation", "isrAllocation", "memoryMapping"],
                &["physicalSectionMapping", "runnableAllocation"],
            );
            for allocation in part.all("schedulerAllocation") {
                let name = key(allocation.get("scheduler"));
                let cores = self.find_all("core", allocation, "responsibility")?;
                let scheduler = schedulers.get_mut(&name).ok_or_else(|| {
                    Error::new(
                        allocation.place(),
                        format!("no scheduler '{name}' exists; define it"),
                    )
                })?;
                scheduler.cores = cores;
            }
        }
        for part in parts {
            for allocation in part.all("taskAllocation") {
                self.allocate(allocation, "task", &schedulers, model)?;
            }
            for allocation in part.all("isrAllocation") {
                self.allocate(allocation, "isr", &schedulers, model)?;
            }
            for mapping in part.all("memoryMapping") {
                let element = mapping.get("abstractElement");
                if element.ends_with("?type=Label") {
                    let label = self.find("label", mapping, element)?;
                    model.labels[label].memory =
                        Some(self.find("memory", mapping, mapping.get("memory"))?);
                }
            }
        }
        self.note_pinned(model);
        self.unmapped(flows, model);
        Ok(())
    }

    fn schedulers(&mut self, systems: &[&Element]) -> Result<HashMap<String, Scheduler>, Error> {
        let mut schedulers = HashMap::new();
        let all = systems.iter().flat_map(|s| s.all("operatingSystems"));
        for system in all.collect::<Vec<_>>() {
            self.rest(system, &["taskSchedulers", "interruptControllers"], &["osDataConsistency"]);
            let kinds = ["taskSchedulers", "interruptControllers"];
            for element in kinds.iter().flat_map(|kind| system.all(kind)) {
                let name = element.get("name").to_owned();
                let algorithm = element.child("schedulingAlgorithm").map_or("", |a| a.kind());
                let defined = key(element.get("definition"));
                let algorithm = if algorithm.is_empty() { &defined } else { algorithm };
                let policy = match algorithm {
                    "FixedPriorityPreemptive" | "OSEK" | "PriorityBased" | "Priority-Based" => {
                        Some(Policy::FixedPriority)
                    }
                    "EarliestDeadlineFirst" => Some(Policy::EarliestDeadline),
                    "" if element.name == "interruptControllers" => Some(Policy::FixedPriority),
                    _ => None,
                };
                let place = element.place();
                let mut limits = Vec::new();
                if policy.is_none() {
                    limits.push(format!("{place}: algorithm '{algorithm}' is not supported"));
                }
                if let Some(parent) = element.child("parentAssociation") {
                    let parent = key(parent.get("parent"));
                    limits.push(format!(
                        "{place}: it is below '{parent}', whose budgets are not considered"
                    ));
                }
                schedulers.insert(name, Scheduler { cores: vec![], policy, limits });
            }
        }
        Ok(schedulers)
    }

    fn allocate(
        &mut self,
        allocation: &Element,
        kind: &str,
        schedulers: &HashMap<String, Scheduler>,
        model: &mut Model,
    ) -> Result<(), Error> {
        let id = self.find("task", allocation, allocation.get(kind))?;
        let reference = if kind == "task" { "scheduler" } else { "controller" };
        let name = key(allocation.get(reference));
        let place = self.tasks[id].place();
        let scheduler = schedulers.get(&name).ok_or_else(|| {
            Error::new(allocation.place(), format!("no scheduler '{name}' exists; define it"))
        })?;
        for limit in &scheduler.limits {
            self.note(&place, Effect::Optimistic, limit, Some(id));
        }
        let affinity = self.find_all("core", allocation, "affinity")?;
        let permitted: Vec<usize> = match affinity.is_empty() {
            true => scheduler.cores.clone(),
            false => affinity,
        };
        let permitted = sorted(&permitted);
        if !permitted.is_empty()
            && self.allocated.insert(id, permitted.clone()).is_some_and(|other| other != permitted)
        {
            return Err(Error::new(place, "two allocations to different cores; keep one"));
        }
        match permitted[..] {
            [core] => {
                model.tasks[id].core = Some(core);
                self.pinned.push((id, core));
                if let Some(policy) = scheduler.policy {
                    model.cores[core].policy = policy;
                    let other = self.policies.insert(core, policy);
                    if other.is_some_and(|other| other != policy) {
                        let what = "schedulers of different policies share its core";
                        self.note(&place, Effect::Optimistic, what, Some(id));
                    }
                }
            }
            [] => {
                let what = format!("scheduler '{name}' has no core");
                self.note(&place, Effect::Optimistic, what, Some(id));
            }
            _ => self.share(&place, id, &name, scheduler, &permitted, model),
        }
        let priority = self.priority(allocation, id)?;
        let top = ISR_PRIORITY_MIN;
        model.tasks[id].priority = match (kind, priority) {
            ("isr", priority) => Some(top.saturating_add(priority.unwrap_or(0))),
            (_, priority) => priority.map(|p| p.min(top - 1)),
        };
        Ok(())
    }

    /// Maps a task to the cores of its scheduler, which share one queue.
    fn share(
        &mut self,
        place: &str,
        id: usize,
        name: &str,
        scheduler: &Scheduler,
        permitted: &[usize],
        model: &mut Model,
    ) {
        let same = |a: usize, b: usize| {
            let parts = |c: usize| (&model.cores[c].kind, model.cores[c].frequency_hz);
            parts(a) == parts(b)
        };
        let is_free = |c: &usize| {
            let cluster = &model.cores[*c].cluster;
            let is_other = self.policies.get(c).is_some_and(|p| Some(*p) != scheduler.policy);
            !is_other && (cluster.is_empty() || cluster == name)
        };
        let what = match scheduler.policy {
            // A limit of the scheduler states it.
            None => return,
            _ if permitted != sorted(&scheduler.cores) => {
                "only some cores of its scheduler may run the task, which is not analysed"
            }
            Some(_) if !permitted.iter().all(|&c| same(c, permitted[0])) => {
                "different cores may run the task, which is not analysed"
            }
            Some(policy) if permitted.iter().all(is_free) => {
                for &core in permitted {
                    model.cores[core].cluster = name.to_owned();
                    model.cores[core].policy = policy;
                    self.policies.insert(core, policy);
                }
                model.tasks[id].core = Some(permitted[0]);
                return;
            }
            _ => "its scheduler shares cores with another one, which is not analysed",
        };
        self.note(place, Effect::Optimistic, what, Some(id));
    }

    /// Notes the tasks that only one core of several with one queue may run.
    fn note_pinned(&mut self, model: &Model) {
        for (id, core) in std::mem::take(&mut self.pinned) {
            let cluster = &model.cores[core].cluster;
            if !cluster.is_empty() {
                let what = format!(
                    "only core '{}' of scheduler '{cluster}' may run the task, which is not \
                     analysed",
                    model.cores[core].name
                );
                self.note(&self.tasks[id].place(), Effect::Optimistic, what, Some(id));
            }
        }
    }

    /// The priority of an allocation. Versions before 2 have an attribute, later ones a parameter.
    fn priority(&mut self, allocation: &Element, id: usize) -> Result<Option<u32>, Error> {
        let number = |element: &Element, attribute: &str| {
            let wrong = |text: &str| {
                Error::new(
                    allocation.place(),
                    format!("priority '{text}'; write a whole number from 0"),
                )
            };
            let text = element.get(attribute);
            if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| wrong(text)) }
        };
        for parameters in allocation.all("schedulingParameters") {
            if let Some(priority) = number(parameters, "priority")? {
                return Ok(Some(priority));
            }
            if key(parameters.get("key")).rsplit('/').next() == Some("priority")
                && let Some(value) = parameters.child("value")
            {
                return number(value, "value");
            }
        }
        if let Some(priority) = number(allocation, "priority")? {
            return Ok(Some(priority));
        }
        // Some tools export the priority as a property of the task.
        let element = self.tasks[id];
        let property = element.all("customProperties").find(|p| p.get("key") == "priority");
        match property.and_then(|p| p.child("value")) {
            Some(value) => {
                let what = "the priority is that of the custom property 'priority'";
                self.repeat(element, Effect::None, what);
                number(value, "value")
            }
            None => Ok(None),
        }
    }

    /// Notes labels without the information for their access times, and sets critical sections.
    fn unmapped(&mut self, flows: &[Flow], model: &mut Model) {
        let has_latencies = !model.latencies.is_empty();
        let homes = model.homes();
        for (id, flow) in flows.iter().enumerate() {
            let element = self.tasks[id];
            let Some(core) = model.tasks[id].core else { continue };
            let costs = model.tasks[id].runnables.iter().map(|&r| &model.runnables[r].cost);
            let accesses = costs.chain([&model.tasks[id].cost]).flat_map(|c| &c.accesses);
            let labels: Vec<usize> = accesses.map(|a| a.label).collect();
            // Each core of the queue may run the task.
            let permitted = || (0..homes.len()).filter(|&other| homes[other] == homes[core]);
            let unknown = labels.iter().find_map(|&label| {
                Some((label, permitted().find(|&core| !is_known(model, label, core))?))
            });
            if has_latencies && model.cores.len() > 1 && !labels.is_empty() {
                let notes = [contention::MEMORY_NOTE, contention::CONNECTION_NOTE];
                for what in &notes[..1 + usize::from(self.has_connections)] {
                    self.note(&element.place(), Effect::Optimistic, *what, Some(id));
                }
            }
            if let Some((label, core)) = unknown.filter(|_| has_latencies) {
                let what = format!(
                    "accesses to label '{}' take an unknown time: its size, its memory or the \
                     latency from core '{}' is missing",
                    model.labels[label].name, model.cores[core].name
                );
                self.note(&element.place(), Effect::Optimistic, what, Some(id));
            } else if let Some((label, _)) = unknown {
                let what = format!(
                    "accesses to labels such as '{}' take no time of their own: the model has no \
                     latencies",
                    model.labels[label].name
                );
                self.note(&element.place(), Effect::None, what, Some(id));
            }
            let of = |cost: &Cost| model.time(cost, &model.cores[core], Some(core));
            let section = |(resource, cost): &(usize, Cost)| {
                Ok(Section { resource: *resource, worst_ns: of(cost)?.worst })
            };
            match flow.sections.iter().map(section).collect::<Result<Vec<Section>, String>>() {
                Ok(sections) => model.tasks[id].sections = sections,
                Err(why) => {
                    let what = format!("critical sections of unknown length: {why}");
                    self.note(&element.place(), Effect::Optimistic, what, Some(id));
                }
            }
        }
    }
}

/// Cores in the order of their indices.
fn sorted(cores: &[usize]) -> Vec<usize> {
    let mut cores = cores.to_vec();
    cores.sort_unstable();
    cores.dedup();
    cores
}

/// Whether the time of an access from a core to a label is known.
fn is_known(model: &Model, label: usize, core: usize) -> bool {
    let label = &model.labels[label];
    let latency = |l: &Latency| l.core == core && Some(l.memory) == label.memory;
    label.size_bytes.is_some() && model.latencies.iter().any(latency)
}
