//! The TOML form of a model: the same information with names instead of indices.

use crate::error::Error;
use crate::model::{
    Access, Activation, Chain, Communication, Core, Cost, Effect, Label, Latency, Memory, Model,
    Note, Policy, Preemption, Range, Runnable, Safety, Section, Task, UnitKind, named,
};
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Reads the TOML form.
///
/// # Errors
/// The first mistake, with its line or its element.
pub fn read_toml(text: &str) -> Result<Model, Error> {
    let form: Form = toml::from_str(text).map_err(|e| {
        let before = &text[..e.span().map_or(0, |span| span.start).min(text.len())];
        let line = 1 + before.matches('\n').count();
        Error::new(format!("line {line}"), e.message().trim())
    })?;
    let model = form.model()?;
    model.check()?;
    Ok(model)
}

/// Writes the TOML form. [`read_toml`] returns the same model.
pub fn write_toml(model: &Model) -> String {
    // Strings, numbers and tables have a form in TOML, so this cannot fail.
    toml::to_string(&Form::of(model)).unwrap_or_default()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default, skip_serializing_if = "is_default")]
    modes: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    resources: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<UnitForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    cores: Vec<CoreForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    memories: Vec<MemoryForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    latencies: Vec<LatencyForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    labels: Vec<LabelForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    runnables: Vec<RunnableForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    tasks: Vec<TaskForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    chains: Vec<ChainForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    notes: Vec<NoteForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnitForm {
    cores: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    kind: String,
    frequency_hz: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    frequencies_hz: Vec<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    idle_mw: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    core_mw: u64,
    memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    safety: Vec<Safety>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct CoreForm {
    name: String,
    #[serde(default, skip_serializing_if = "is_default")]
    unit: String,
    #[serde(default, skip_serializing_if = "is_default")]
    kind: String,
    frequency_hz: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    policy: Policy,
    #[serde(default, skip_serializing_if = "is_default")]
    cluster: String,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct MemoryForm {
    name: String,
    size_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct LatencyForm {
    core: String,
    memory: String,
    read: Time,
    write: Time,
    access_bytes: u64,
    wait: Option<Time>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct LabelForm {
    name: String,
    size_bytes: Option<u64>,
    memory: Option<String>,
}

/// One value, or the best and the worst.
#[derive(Serialize, Deserialize, PartialEq, Clone, Copy)]
#[serde(untagged, expecting = "write one value, or a list of the best and the worst")]
enum Bounds<T> {
    One(T),
    Two([T; 2]),
}

impl<T: Copy + Into<u64> + From<u64>> Bounds<T> {
    fn of(range: Range) -> Bounds<T> {
        match range.best == range.worst {
            true => Bounds::One(range.best.into()),
            false => Bounds::Two([range.best.into(), range.worst.into()]),
        }
    }

    fn range(self) -> Range {
        match self {
            Bounds::One(value) => Range::exactly(value.into()),
            Bounds::Two([best, worst]) => Range { best: best.into(), worst: worst.into() },
        }
    }
}

impl From<Time> for u64 {
    fn from(time: Time) -> u64 {
        time.ns
    }
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct AccessForm {
    label: String,
    reads: Option<Bounds<u64>>,
    writes: Option<Bounds<u64>>,
}

/// The name in `ticks` that stands for every other kind of core.
const ANY_KIND: &str = "any";

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct RunnableForm {
    name: String,
    execution: Option<Bounds<Time>>,
    #[serde(default, skip_serializing_if = "is_default")]
    ticks: BTreeMap<String, Bounds<u64>>,
    #[serde(default, skip_serializing_if = "is_default")]
    accesses: Vec<AccessForm>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct SectionForm {
    resource: String,
    execution: Time,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct TaskForm {
    name: String,
    #[serde(default, skip_serializing_if = "is_default")]
    isr: bool,
    period: Option<Time>,
    offset: Option<Time>,
    jitter: Option<Time>,
    min_distance: Option<Time>,
    arrival_spans: Option<Vec<Time>>,
    after: Option<String>,
    deadline: Option<Time>,
    execution: Option<Bounds<Time>>,
    #[serde(default, skip_serializing_if = "is_default")]
    runnables: Vec<String>,
    priority: Option<u32>,
    core: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    preemption: Preemption,
    #[serde(default, skip_serializing_if = "is_default")]
    modes: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    safety: Safety,
    #[serde(default, skip_serializing_if = "is_default")]
    component: String,
    #[serde(default, skip_serializing_if = "is_default")]
    memory_bytes: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    ticks: BTreeMap<String, Bounds<u64>>,
    #[serde(default, skip_serializing_if = "is_default")]
    accesses: Vec<AccessForm>,
    #[serde(default, skip_serializing_if = "is_default")]
    sections: Vec<SectionForm>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct ChainForm {
    name: String,
    tasks: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    communication: Communication,
    reaction_max: Option<Time>,
    age_max: Option<Time>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct NoteForm {
    place: String,
    what: String,
    effect: Effect,
    task: Option<String>,
}

/// Indices by name.
struct Names<'a>(&'static str, HashMap<&'a str, usize>);

impl<'a> Names<'a> {
    fn new(kind: &'static str, names: impl Iterator<Item = &'a String>) -> Names<'a> {
        Names(kind, names.map(String::as_str).zip(0..).collect())
    }

    fn find(&self, place: &str, name: &str) -> Result<usize, Error> {
        self.1.get(name).copied().ok_or_else(|| {
            let what = format!("no {} '{name}' exists; define it, or correct the name", self.0);
            Error::new(place, what)
        })
    }

    fn all(&self, place: &str, names: &[String]) -> Result<Vec<usize>, Error> {
        names.iter().map(|name| self.find(place, name)).collect()
    }
}

/// Time, ticks and accesses of a cost.
type CostForm = (Option<Bounds<Time>>, BTreeMap<String, Bounds<u64>>, Vec<AccessForm>);

/// Converts a cost to its form, with the names of labels.
fn cost_form(cost: &Cost, model: &Model) -> CostForm {
    let kind = |kind: &String| if kind.is_empty() { ANY_KIND.to_owned() } else { kind.clone() };
    let some = |range: Range| (range != Range::default()).then(|| Bounds::of(range));
    let access = |a: &Access| AccessForm {
        label: model.labels[a.label].name.clone(),
        reads: some(a.reads),
        writes: some(a.writes),
    };
    let time = cost.time_ns;
    (
        (time != Range::default()).then(|| Bounds::of(time)),
        cost.ticks.iter().map(|(k, ticks)| (kind(k), Bounds::of(*ticks))).collect(),
        cost.accesses.iter().map(access).collect(),
    )
}

fn cost(
    place: &str,
    execution: Option<Bounds<Time>>,
    ticks: &BTreeMap<String, Bounds<u64>>,
    accesses: &[AccessForm],
    labels: &Names<'_>,
) -> Result<Cost, Error> {
    let range = |bounds: Option<Bounds<u64>>| bounds.map_or(Range::default(), Bounds::range);
    let access = |a: &AccessForm| {
        let label = labels.find(place, &a.label)?;
        Ok(Access { label, reads: range(a.reads), writes: range(a.writes) })
    };
    let kind = |kind: &String| if kind == ANY_KIND { String::new() } else { kind.clone() };
    let mut by_kind: Vec<(String, Range)> =
        ticks.iter().map(|(k, bounds)| (kind(k), bounds.range())).collect();
    by_kind.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Cost {
        time_ns: execution.map_or(Range::default(), Bounds::range),
        ticks: by_kind,
        accesses: accesses.iter().map(access).collect::<Result<_, Error>>()?,
    })
}

impl Form {
    fn model(self) -> Result<Model, Error> {
        let cores = Names::new("core", self.cores.iter().map(|c| &c.name));
        let memories = Names::new("memory", self.memories.iter().map(|m| &m.name));
        let labels = Names::new("label", self.labels.iter().map(|l| &l.name));
        let tasks = Names::new("task", self.tasks.iter().map(|t| &t.name));
        let latency = |l: &LatencyForm| {
            let place = named("latency of core", &l.core);
            Ok(Latency {
                core: cores.find(&place, &l.core)?,
                memory: memories.find(&place, &l.memory)?,
                read_ns: l.read.ns,
                write_ns: l.write.ns,
                access_bytes: l.access_bytes,
                wait_ns: l.wait.map_or(0, |t| t.ns),
            })
        };
        let label = |l: &LabelForm| {
            let place = named("label", &l.name);
            let memory = l.memory.as_ref().map(|m| memories.find(&place, m)).transpose()?;
            Ok(Label { name: l.name.clone(), size_bytes: l.size_bytes, memory })
        };
        let runnable = |r: &RunnableForm| {
            let place = named("runnable", &r.name);
            let cost = cost(&place, r.execution, &r.ticks, &r.accesses, &labels)?;
            Ok(Runnable { name: r.name.clone(), cost })
        };
        let chain = |c: &ChainForm| {
            Ok(Chain {
                name: c.name.clone(),
                tasks: tasks.all(&named("chain", &c.name), &c.tasks)?,
                communication: c.communication,
                reaction_max_ns: c.reaction_max.map(|t| t.ns),
                age_max_ns: c.age_max.map(|t| t.ns),
            })
        };
        let note = |n: &NoteForm| {
            Ok(Note {
                place: n.place.clone(),
                what: n.what.clone(),
                effect: n.effect,
                task: n.task.as_ref().map(|t| tasks.find("note", t)).transpose()?,
            })
        };
        let core = |c: &CoreForm| Core {
            name: c.name.clone(),
            unit: c.unit.clone(),
            kind: c.kind.clone(),
            frequency_hz: c.frequency_hz,
            policy: c.policy,
            cluster: c.cluster.clone(),
        };
        let memory = |m: &MemoryForm| Memory { name: m.name.clone(), size_bytes: m.size_bytes };
        Ok(Model {
            cores: self.cores.iter().map(core).collect(),
            memories: self.memories.iter().map(memory).collect(),
            latencies: self.latencies.iter().map(latency).collect::<Result<_, Error>>()?,
            labels: self.labels.iter().map(label).collect::<Result<_, Error>>()?,
            runnables: self.runnables.iter().map(runnable).collect::<Result<_, Error>>()?,
            tasks: self.tasks(&cores, &labels, &tasks)?,
            chains: self.chains.iter().map(chain).collect::<Result<_, Error>>()?,
            notes: self.notes.iter().map(note).collect::<Result<_, Error>>()?,
            unit: self.unit.as_ref().map(|u| UnitKind {
                cores: u.cores,
                kind: u.kind.clone(),
                frequency_hz: u.frequency_hz,
                frequencies_hz: u.frequencies_hz.clone(),
                idle_mw: u.idle_mw,
                core_mw: u.core_mw,
                memory_bytes: u.memory_bytes,
                safety: u.safety.clone(),
            }),
            modes: self.modes,
            resources: self.resources,
        })
    }

    fn tasks(
        &self,
        cores: &Names<'_>,
        labels: &Names<'_>,
        tasks: &Names<'_>,
    ) -> Result<Vec<Task>, Error> {
        let runnables = Names::new("runnable", self.runnables.iter().map(|r| &r.name));
        let resources = Names::new("resource", self.resources.iter());
        let modes = Names::new("mode", self.modes.iter());
        let task = |t: &TaskForm| {
            let place = named("task", &t.name);
            let section = |s: &SectionForm| {
                let resource = resources.find(&place, &s.resource)?;
                Ok(Section { resource, worst_ns: s.execution.ns })
            };
            Ok(Task {
                name: t.name.clone(),
                is_isr: t.isr,
                activation: t.activation(&place, tasks)?,
                deadline_ns: t.deadline.map(|d| d.ns),
                cost: cost(&place, t.execution, &t.ticks, &t.accesses, labels)?,
                runnables: runnables.all(&place, &t.runnables)?,
                sections: t.sections.iter().map(section).collect::<Result<_, Error>>()?,
                priority: t.priority,
                core: t.core.as_ref().map(|c| cores.find(&place, c)).transpose()?,
                preemption: t.preemption,
                modes: modes.all(&place, &t.modes)?,
                safety: t.safety,
                component: t.component.clone(),
                memory_bytes: t.memory_bytes,
            })
        };
        self.tasks.iter().map(task).collect()
    }

    fn of(model: &Model) -> Form {
        let core = |c: &Core| CoreForm {
            name: c.name.clone(),
            unit: c.unit.clone(),
            kind: c.kind.clone(),
            frequency_hz: c.frequency_hz,
            policy: c.policy,
            cluster: c.cluster.clone(),
        };
        let latency = |l: &Latency| LatencyForm {
            core: model.cores[l.core].name.clone(),
            memory: model.memories[l.memory].name.clone(),
            read: l.read_ns.into(),
            write: l.write_ns.into(),
            access_bytes: l.access_bytes,
            wait: (l.wait_ns > 0).then(|| l.wait_ns.into()),
        };
        let label = |l: &Label| LabelForm {
            name: l.name.clone(),
            size_bytes: l.size_bytes,
            memory: l.memory.map(|m| model.memories[m].name.clone()),
        };
        let memory = |m: &Memory| MemoryForm { name: m.name.clone(), size_bytes: m.size_bytes };
        let runnable = |r: &Runnable| {
            let (execution, ticks, accesses) = cost_form(&r.cost, model);
            RunnableForm { name: r.name.clone(), execution, ticks, accesses }
        };
        let task_name = |&t: &usize| model.tasks[t].name.clone();
        let chain = |c: &Chain| ChainForm {
            name: c.name.clone(),
            tasks: c.tasks.iter().map(task_name).collect(),
            communication: c.communication,
            reaction_max: c.reaction_max_ns.map(Time::from),
            age_max: c.age_max_ns.map(Time::from),
        };
        let note = |n: &Note| NoteForm {
            place: n.place.clone(),
            what: n.what.clone(),
            effect: n.effect,
            task: n.task.as_ref().map(task_name),
        };
        Form {
            modes: model.modes.clone(),
            resources: model.resources.clone(),
            unit: model.unit.as_ref().map(|u| UnitForm {
                cores: u.cores,
                kind: u.kind.clone(),
                frequency_hz: u.frequency_hz,
                frequencies_hz: u.frequencies_hz.clone(),
                idle_mw: u.idle_mw,
                core_mw: u.core_mw,
                memory_bytes: u.memory_bytes,
                safety: u.safety.clone(),
            }),
            cores: model.cores.iter().map(core).collect(),
            memories: model.memories.iter().map(memory).collect(),
            latencies: model.latencies.iter().map(latency).collect(),
            labels: model.labels.iter().map(label).collect(),
            runnables: model.runnables.iter().map(runnable).collect(),
            tasks: model.tasks.iter().map(|t| TaskForm::of(t, model)).collect(),
            chains: model.chains.iter().map(chain).collect(),
            notes: model.notes.iter().map(note).collect(),
        }
    }
}

impl TaskForm {
    fn activation(&self, place: &str, tasks: &Names<'_>) -> Result<Option<Activation>, Error> {
        let kinds = [
            self.period.is_some(),
            self.min_distance.is_some(),
            self.arrival_spans.is_some(),
            self.after.is_some(),
        ];
        if kinds.iter().filter(|is_set| **is_set).count() > 1 {
            let what = "several of period, min_distance, arrival_spans and after; keep one";
            return Err(Error::new(place, what));
        }
        if self.period.is_none() && (self.offset.is_some() || self.jitter.is_some()) {
            return Err(Error::new(place, "offset or jitter without period; add the period"));
        }
        let spans = |s: &Vec<Time>| Activation::Curve(s.iter().map(|t| t.ns).collect());
        let after = self.after.as_ref().map(|name| tasks.find(place, name)).transpose()?;
        let periodic = self.period.map(|period| Activation::Periodic {
            period_ns: period.ns,
            offset_ns: self.offset.map(|t| t.ns),
            jitter_ns: self.jitter.map_or(0, |t| t.ns),
        });
        Ok(periodic
            .or(self.min_distance.map(|t| Activation::Sporadic { distance_ns: t.ns }))
            .or(self.arrival_spans.as_ref().map(spans))
            .or(after.map(Activation::After)))
    }

    fn of(task: &Task, model: &Model) -> TaskForm {
        let (execution, ticks, accesses) = cost_form(&task.cost, model);
        let section = |s: &Section| SectionForm {
            resource: model.resources[s.resource].clone(),
            execution: s.worst_ns.into(),
        };
        let mut form = TaskForm {
            name: task.name.clone(),
            isr: task.is_isr,
            period: None,
            offset: None,
            jitter: None,
            min_distance: None,
            arrival_spans: None,
            after: None,
            deadline: task.deadline_ns.map(Time::from),
            execution,
            runnables: task.runnables.iter().map(|&r| model.runnables[r].name.clone()).collect(),
            priority: task.priority,
            core: task.core.map(|c| model.cores[c].name.clone()),
            preemption: task.preemption,
            modes: task.modes.iter().map(|&m| model.modes[m].clone()).collect(),
            safety: task.safety,
            component: task.component.clone(),
            memory_bytes: task.memory_bytes,
            ticks,
            accesses,
            sections: task.sections.iter().map(section).collect(),
        };
        match &task.activation {
            Some(Activation::Periodic { period_ns, offset_ns, jitter_ns }) => {
                form.period = Some((*period_ns).into());
                form.offset = offset_ns.map(Time::from);
                form.jitter = (*jitter_ns > 0).then(|| (*jitter_ns).into());
            }
            Some(Activation::Sporadic { distance_ns }) => {
                form.min_distance = Some((*distance_ns).into());
            }
            Some(Activation::Curve(spans)) => {
                form.arrival_spans = Some(spans.iter().map(|&s| s.into()).collect());
            }
            Some(Activation::After(other)) => form.after = Some(model.tasks[*other].name.clone()),
            None => {}
        }
        form
    }
}
