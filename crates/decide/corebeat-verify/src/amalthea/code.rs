//! Costs, critical sections and triggers of runnables and tasks.

use super::hardware::instructions_per_cycle;
use super::xml::Element;
use super::{Reader, key, value};
use crate::error::Error;
use crate::model::{Access, Cost, Effect, Label, Model, Preemption, Range, Runnable, Task};

/// Deepest nesting of calls, groups and alternatives.
const DEPTH_MAX: usize = 100;
/// Largest number of critical sections, and of triggers, of a piece of code: a section occurs once
/// for each way by which calls lead to it.
const OCCURRENCES_MAX: usize = 10_000;
/// The kind of core for which ticks are known if they are known for no kind.
const NO_KIND: &str = "(none)";

/// A piece of code.
#[derive(Debug, Clone, Default)]
pub(super) struct Flow {
    /// Cost without that of `runnables`.
    pub(super) cost: Cost,
    /// Runnables that a task calls in sequence.
    pub(super) runnables: Vec<usize>,
    /// Complete critical sections: the resource, and the cost while it is held.
    pub(super) sections: Vec<(usize, Cost)>,
    /// Stimuli that the code triggers.
    pub(super) triggers: Vec<String>,
    /// Sections that have begun.
    open: Vec<(usize, Cost)>,
    /// Of each schedule point of a task: the number of runnables before it.
    points: Vec<usize>,
}

impl Flow {
    /// Appends a cost, also to the sections that have begun.
    fn spend(&mut self, cost: &Cost) {
        self.cost = plus(&self.cost, cost);
        self.hold(cost);
    }

    fn hold(&mut self, cost: &Cost) {
        for (_, held) in &mut self.open {
            *held = plus(held, cost);
        }
    }

    /// Appends a piece of code without runnables.
    fn append(&mut self, other: Flow) {
        self.spend(&other.cost);
        self.sections.extend(other.sections);
        self.triggers.extend(other.triggers);
    }
}

fn ticks(cost: &Cost, kind: &str) -> Option<Range> {
    let of = |kind: &str| cost.ticks.iter().find(|(k, _)| k == kind).map(|(_, range)| *range);
    if cost.ticks.is_empty() { Some(Range::default()) } else { of(kind).or_else(|| of("")) }
}

/// Combines two costs, part by part.
fn combine(one: &Cost, other: &Cost, with: fn(Range, Range) -> Range) -> Cost {
    let mut kinds: Vec<&String> = one.ticks.iter().chain(&other.ticks).map(|(k, _)| k).collect();
    kinds.sort();
    kinds.dedup();
    let both = |kind: &&String| Some(with(ticks(one, kind)?, ticks(other, kind)?));
    let mut all: Vec<(String, Range)> =
        kinds.iter().filter_map(|kind| Some(((*kind).clone(), both(kind)?))).collect();
    if all.is_empty() && !kinds.is_empty() {
        all.push((NO_KIND.to_owned(), Range::default()));
    }
    let mut accesses = one.accesses.clone();
    let mut by_label: std::collections::HashMap<usize, usize> =
        accesses.iter().map(|a| a.label).zip(0..).collect();
    let none = Range::default();
    for access in &other.accesses {
        let at = *by_label.entry(access.label).or_insert_with(|| {
            accesses.push(Access { label: access.label, reads: none, writes: none });
            accesses.len() - 1
        });
        accesses[at].reads = with(accesses[at].reads, access.reads);
        accesses[at].writes = with(accesses[at].writes, access.writes);
    }
    let is_missing = |a: &&mut Access| !other.accesses.iter().any(|o| o.label == a.label);
    for access in accesses.iter_mut().filter(is_missing) {
        (access.reads, access.writes) = (with(access.reads, none), with(access.writes, none));
    }
    Cost { time_ns: with(one.time_ns, other.time_ns), ticks: all, accesses }
}

fn plus(one: &Cost, other: &Cost) -> Cost {
    combine(one, other, Range::plus)
}

/// A runnable while its calls are followed.
enum State {
    New,
    Open,
    Done(Flow),
}

/// Follows the code.
struct Walker<'r, 'a> {
    reader: &'r mut Reader<'a>,
    hardware: Vec<&'a Element>,
    elements: Vec<&'a Element>,
    states: Vec<State>,
    kinds: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Reads labels, resources, runnables, tasks and interrupt service routines. Returns the code
    /// of each task.
    pub(super) fn software(
        &mut self,
        parts: &[&'a Element],
        systems: &[&'a Element],
        model: &mut Model,
    ) -> Result<Vec<Flow>, Error> {
        let harmless = [
            "activations",
            "events",
            "modes",
            "modeLabels",
            "processPrototypes",
            "processChains",
            "customEntities",
            "typeDefinitions",
            "sections",
            "osDataConsistency",
        ];
        let mut elements = Vec::new();
        for part in parts {
            self.rest(part, &["tasks", "isrs", "runnables", "labels"], &harmless);
            for label in part.all("labels") {
                let name = self.define("label", label, model.labels.len())?;
                model.labels.push(Label { name, size_bytes: value::size(label)?, memory: None });
            }
            for runnable in part.all("runnables") {
                let name = self.define("runnable", runnable, elements.len())?;
                elements.push(runnable);
                model.runnables.push(Runnable { name, cost: Cost::default() });
            }
            for (element, is_isr) in
                part.all("tasks").map(|t| (t, false)).chain(part.all("isrs").map(|t| (t, true)))
            {
                self.process(element, is_isr, model)?;
            }
        }
        for system in systems {
            self.rest(system, &["semaphores", "operatingSystems"], &["osDataConsistency"]);
            for semaphore in system.all("semaphores") {
                let name = self.define("semaphore", semaphore, model.resources.len())?;
                let count = value::number(semaphore, "maxValue", true)?.unwrap_or(1);
                if count > 1 || semaphore.get("semaphoreType") == "CountingSemaphore" {
                    let what = "counting semaphore: it is taken for one with the value 1";
                    self.repeat(semaphore, Effect::Pessimistic, what);
                }
                model.resources.push(name);
            }
        }
        let mut kinds: Vec<String> = model.cores.iter().map(|c| c.kind.clone()).collect();
        kinds.sort();
        kinds.dedup();
        let states = elements.iter().map(|_| State::New).collect();
        let hardware = self.hardware_parts.clone();
        let mut walker = Walker { reader: self, hardware, elements, states, kinds };
        for r in 0..model.runnables.len() {
            model.runnables[r].cost = walker.runnable(r, 0, walker.elements[r])?.cost;
        }
        let tasks = walker.reader.tasks.clone();
        let mut flows = Vec::new();
        for (id, element) in tasks.into_iter().enumerate() {
            let flow = walker.body(element, id)?;
            let task = &mut model.tasks[id];
            if task.preemption == Preemption::NonPreemptive && !flow.points.is_empty() {
                let between: Vec<usize> = (1..flow.runnables.len()).collect();
                if flow.points == between && flow.cost == Cost::default() {
                    task.preemption = Preemption::BetweenRunnables;
                } else {
                    let what = "schedule points that are not between all runnables are ignored";
                    walker.reader.note(&element.place(), Effect::Optimistic, what, Some(id));
                }
            }
            model.tasks[id].cost = flow.cost.clone();
            model.tasks[id].runnables = flow.runnables.clone();
            flows.push(flow);
        }
        Ok(flows)
    }

    fn process(
        &mut self,
        element: &'a Element,
        is_isr: bool,
        model: &mut Model,
    ) -> Result<(), Error> {
        let id = model.tasks.len();
        let name = self.define("task", element, id)?;
        let preemption = match element.get("preemption") {
            "non_preemptive" | "nonpreemptive" => Preemption::NonPreemptive,
            "cooperative" => Preemption::Cooperative,
            "" | "preemptive" | "undefined" | "_undefined_" => Preemption::Preemptive,
            other => {
                let what = format!("preemption '{other}' is not supported");
                self.note(&element.place(), Effect::Optimistic, what, Some(id));
                Preemption::Preemptive
            }
        };
        self.rest(element, &["callGraph", "activityGraph"], &["size"]);
        let memory_bytes = value::size(element)?.unwrap_or(0);
        let task = Task::new(name, 1, Range::default(), 0);
        model.tasks.push(Task {
            is_isr,
            preemption,
            memory_bytes,
            activation: None,
            priority: None,
            core: None,
            ..task
        });
        self.tasks.push(element);
        Ok(())
    }
}

impl Walker<'_, '_> {
    /// The whole cost of a runnable, with the runnables that it calls.
    fn runnable(&mut self, r: usize, depth: usize, from: &Element) -> Result<Flow, Error> {
        match &self.states[r] {
            State::Done(flow) => return Ok(flow.clone()),
            State::Open => {
                let what = "calls form a cycle; remove one of them";
                return Err(Error::new(self.elements[r].place(), what));
            }
            State::New if depth > DEPTH_MAX => {
                return Err(Error::new(from.place(), "calls nested more than 100 deep"));
            }
            State::New => {}
        }
        self.states[r] = State::Open;
        let element = self.elements[r];
        let graphs = ["callGraph", "activityGraph"];
        self.reader.rest(
            element,
            &["callGraph", "activityGraph", "runnableItems"],
            &["size", "activation", "parameters", "ports", "localLabels"],
        );
        let mut flow = Flow::default();
        for graph in graphs.iter().filter_map(|g| element.child(g)) {
            self.items(graph, &mut flow, None, depth + 1)?;
        }
        for item in element.all("runnableItems") {
            self.item(item, &mut flow, None, depth + 1)?;
        }
        self.close(element, &mut flow, None);
        self.states[r] = State::Done(flow.clone());
        Ok(flow)
    }

    /// The code of a task.
    fn body(&mut self, element: &Element, id: usize) -> Result<Flow, Error> {
        let mut flow = Flow::default();
        for graph in ["callGraph", "activityGraph"].iter().filter_map(|g| element.child(g)) {
            self.items(graph, &mut flow, Some(id), 0)?;
        }
        self.close(element, &mut flow, Some(id));
        Ok(flow)
    }

    /// Sections that never end.
    fn close(&mut self, element: &Element, flow: &mut Flow, task: Option<usize>) {
        if !flow.open.is_empty() {
            flow.sections.append(&mut flow.open);
            let what = "a semaphore that is requested is not released on every path";
            self.reader.note(&element.place(), Effect::Optimistic, what, task);
        }
    }

    fn items(
        &mut self,
        parent: &Element,
        flow: &mut Flow,
        task: Option<usize>,
        depth: usize,
    ) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(parent.place(), "items nested more than 100 deep"));
        }
        parent.all("items").try_for_each(|item| self.item(item, flow, task, depth))
    }

    /// Appends an item. `task` is the task whose own sequence contains the item.
    fn item(
        &mut self,
        item: &Element,
        flow: &mut Flow,
        task: Option<usize>,
        depth: usize,
    ) -> Result<(), Error> {
        match item.kind() {
            "Group" => self.items(item, flow, task, depth + 1),
            "Ticks" => {
                let cost = self.ticks(item)?;
                flow.spend(&cost);
                Ok(())
            }
            "ExecutionNeed" => {
                let cost = self.execution_need(item)?;
                flow.spend(&cost);
                Ok(())
            }
            "LabelAccess" | "SenderReceiverRead" | "SenderReceiverWrite" => {
                let cost = self.access(item)?;
                flow.spend(&cost);
                Ok(())
            }
            "RunnableCall" => self.call(item, flow, task, depth),
            "SemaphoreAccess" => self.semaphore(item, flow),
            "InterProcessTrigger" => {
                flow.triggers.push(key(item.get("stimulus")));
                Ok(())
            }
            "SchedulePoint" => {
                let what = "SchedulePoint inside of a runnable or an alternative is ignored";
                match task {
                    Some(_) => flow.points.push(flow.runnables.len()),
                    None => self.reader.repeat(item, Effect::Optimistic, what),
                }
                Ok(())
            }
            "ModeLabelAccess"
            | "SetEvent"
            | "ClearEvent"
            | "TerminateProcess"
            | "CustomEventTrigger"
            | "EventChainSynchronization" => {
                let what = format!("{} takes no time", item.kind());
                self.reader.repeat(item, Effect::None, &what);
                Ok(())
            }
            kind if kind.ends_with("Switch") => self.alternatives(item, flow, depth),
            kind => {
                let what = match kind {
                    "WaitEvent" => "the time that the task waits is not considered",
                    _ => "the item is not supported, so its time is not considered",
                };
                let what = format!("{kind}: {what}");
                match task {
                    Some(_) => self.reader.note(&item.place(), Effect::Optimistic, what, task),
                    None => self.reader.repeat(item, Effect::Optimistic, &what),
                }
                Ok(())
            }
        }
    }

    fn call(
        &mut self,
        item: &Element,
        flow: &mut Flow,
        task: Option<usize>,
        depth: usize,
    ) -> Result<(), Error> {
        let r = self.reader.find("runnable", item, item.get("runnable"))?;
        let called = self.runnable(r, depth, item)?;
        if item.child("counter").is_some() {
            let what = "a call with a counter is taken for a call at every activation";
            self.reader.repeat(item, Effect::Pessimistic, what);
        }
        if task.is_some() {
            flow.runnables.push(r);
            flow.hold(&called.cost);
            flow.sections.extend(called.sections);
            flow.triggers.extend(called.triggers);
        } else {
            flow.append(called);
        }
        match flow.sections.len().max(flow.triggers.len()) > OCCURRENCES_MAX {
            true => {
                let what = "calls lead to more than 10,000 critical sections or triggers";
                Err(Error::new(item.place(), format!("{what}; remove calls")))
            }
            false => Ok(()),
        }
    }

    fn semaphore(&mut self, item: &Element, flow: &mut Flow) -> Result<(), Error> {
        let resource = self.reader.find("semaphore", item, item.get("semaphore"))?;
        let at = flow.open.iter().rposition(|(held, _)| *held == resource);
        match (item.get("access"), at) {
            ("request" | "exclusive", None) => flow.open.push((resource, Cost::default())),
            ("release", Some(at)) => {
                let section = flow.open.remove(at);
                flow.sections.push(section);
            }
            (access, _) => {
                let what = format!("semaphore access '{access}' without its counterpart");
                self.reader.repeat(item, Effect::Optimistic, &what);
            }
        }
        Ok(())
    }

    /// One of the entries runs.
    fn alternatives(&mut self, item: &Element, flow: &mut Flow, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(item.place(), "items nested more than 100 deep"));
        }
        let what = "of alternatives, the longest of each kind of cost is taken";
        self.reader.repeat(item, Effect::Pessimistic, what);
        let entries = item.all("entries").chain(item.all("defaultEntry"));
        let is_complete =
            item.child("defaultEntry").is_some() || item.kind() == "ProbabilitySwitch";
        let mut all = (!is_complete).then(Flow::default);
        for entry in entries {
            let mut path = Flow::default();
            self.items(entry, &mut path, None, depth + 1)?;
            self.close(entry, &mut path, None);
            all = Some(match all {
                None => path,
                Some(other) => {
                    let cost = combine(&other.cost, &path.cost, Range::or);
                    let mut merged = Flow { cost, ..other };
                    merged.sections.extend(path.sections);
                    merged.triggers.extend(path.triggers);
                    merged
                }
            });
        }
        flow.append(all.unwrap_or_default());
        Ok(())
    }

    fn ticks(&mut self, item: &Element) -> Result<Cost, Error> {
        let mut cost = Cost::default();
        let default = item.child("default").map(|d| (String::new(), d));
        let extended =
            item.all("extended").filter_map(|e| Some((key(e.get("key")), e.child("value")?)));
        for (kind, distribution) in default.into_iter().chain(extended) {
            match value::range(distribution)? {
                Some(range) => cost.ticks.push((kind, range)),
                None => {
                    let what = "a distribution without upperBound: the time is not considered";
                    self.reader.repeat(item, Effect::Optimistic, what);
                }
            }
        }
        Ok(cost)
    }

    fn execution_need(&mut self, item: &Element) -> Result<Cost, Error> {
        let mut cost = Cost::default();
        for need in item.all("needs") {
            let range = match (need.get("key"), need.child("value")) {
                ("Instructions", Some(v)) => value::range(v)?,
                _ => None,
            };
            let Some(range) = range else {
                let what = "a need that is not a bounded number of Instructions is ignored";
                self.reader.repeat(item, Effect::Optimistic, what);
                continue;
            };
            for kind in self.kinds.clone() {
                let Some(ipc) = instructions_per_cycle(&self.hardware, &kind) else {
                    let what = format!("cores of kind '{kind}' have no feature Instructions");
                    self.reader.repeat(item, Effect::Optimistic, &what);
                    continue;
                };
                let best = (range.best as f64 / ipc).floor() as u64;
                let worst = (range.worst as f64 / ipc).ceil() as u64;
                cost = plus(
                    &cost,
                    &Cost { ticks: vec![(kind, Range { best, worst })], ..Cost::default() },
                );
            }
        }
        Ok(cost)
    }

    fn access(&mut self, item: &Element) -> Result<Cost, Error> {
        let label = self.reader.find("label", item, item.get("data")).or_else(|e| {
            if item.get("data").is_empty() {
                self.reader.find("label", item, item.get("label"))
            } else {
                Err(e)
            }
        })?;
        let mut count = Range::exactly(1);
        if let Some(statistic) = item.child("statistic").and_then(|s| s.child("value")) {
            let bound = value::number(statistic, "max", true)?;
            let single = value::number(statistic, "value", true)?;
            match bound.or(single) {
                Some(worst) => count = Range { best: 0, worst },
                None => {
                    let what = "a number of accesses without max is taken for one";
                    self.reader.repeat(item, Effect::Optimistic, what);
                }
            }
        }
        let none = Range::default();
        let is_write = item.kind() == "SenderReceiverWrite" || item.get("access") == "write";
        let is_both = !is_write && item.kind() == "LabelAccess" && item.get("access") != "read";
        let (reads, writes) = match (is_write, is_both) {
            (true, _) => (none, count),
            (_, true) => (count, count),
            _ => (count, none),
        };
        Ok(Cost { accesses: vec![Access { label, reads, writes }], ..Cost::default() })
    }
}
