//! The model: tasks on cores, with the data and the resources that they share.
//!
//! Elements refer to each other by their index in the vectors of [`Model`]. [`Model::check`]
//! verifies every index, so that the other modules need no further check.

use crate::error::Error;
use crate::time::TIME_MAX_NS;
use std::collections::HashMap;

/// Index of a task in [`Model::tasks`].
pub type TaskId = usize;
/// Index of a core in [`Model::cores`].
pub type CoreId = usize;

/// Largest number of tasks of a model.
pub const TASKS_MAX: usize = 10_000;
/// Largest number of elements of any other kind.
pub const ELEMENTS_MAX: usize = 1_000_000;
/// Largest number of spans of an arrival curve.
pub const SPANS_MAX: usize = 1_000;
/// Largest number of cores of a unit.
const UNIT_CORES_MAX: usize = 1_024;
/// Largest number of frequencies of a unit.
const UNIT_FREQUENCIES_MAX: usize = 100;
/// Largest number of modes.
pub const MODES_MAX: usize = 64;

/// Tasks on cores. [`Default`] is a model without elements.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    /// Cores of all units.
    pub cores: Vec<Core>,
    /// Memories of all units.
    pub memories: Vec<Memory>,
    /// Times of accesses from cores to memories.
    pub latencies: Vec<Latency>,
    /// Data that tasks share.
    pub labels: Vec<Label>,
    /// Names of the resources that exclude each other's users: OSEK resources on one core, spin
    /// locks between cores.
    pub resources: Vec<String>,
    /// Functions that tasks call.
    pub runnables: Vec<Runnable>,
    /// Tasks and interrupt service routines.
    pub tasks: Vec<Task>,
    /// Chains of tasks from a cause to its effect.
    pub chains: Vec<Chain>,
    /// Names of modes that exclude each other, such as driving and charging.
    pub modes: Vec<String>,
    /// The unit that partitioning multiplies, if the model defines one.
    pub unit: Option<UnitKind>,
    /// Limits of the model: parts of its source that were not understood.
    pub notes: Vec<Note>,
}

/// A core and its scheduler.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Core {
    /// Name, unique among cores.
    pub name: String,
    /// Control unit that has the core. Empty: the only unit.
    pub unit: String,
    /// Kind of processor, to which execution times in ticks may refer. Empty: any.
    pub kind: String,
    /// Ticks per second; `None` if the model has no ticks.
    pub frequency_hz: Option<u64>,
    /// Scheduling policy.
    pub policy: Policy,
    /// Name of the group of equal cores that share one queue (global scheduling): each task of one
    /// of them runs on all. Empty: the core has a queue of its own.
    pub cluster: String,
}

/// Scheduling policy of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The ready task with the highest priority runs.
    #[default]
    FixedPriority,
    /// The ready task with the earliest absolute deadline runs.
    EarliestDeadline,
}

/// A memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    /// Name, unique among memories.
    pub name: String,
    /// Size in bytes, if known.
    pub size_bytes: Option<u64>,
}

/// Time that a core takes to access a memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// The core.
    pub core: CoreId,
    /// Index of the memory.
    pub memory: usize,
    /// Time of a read of [`Latency::access_bytes`], in nanoseconds.
    pub read_ns: u64,
    /// Time of a write of [`Latency::access_bytes`], in nanoseconds.
    pub write_ns: u64,
    /// Bytes of one access, at least 1. An access to a larger label repeats.
    pub access_bytes: u64,
    /// Longest time for which an access waits for other cores, in nanoseconds.
    pub wait_ns: u64,
}

/// Data that tasks share.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Label {
    /// Name, unique among labels.
    pub name: String,
    /// Size in bytes; `None` if unknown.
    pub size_bytes: Option<u64>,
    /// Index of the memory that holds the label.
    pub memory: Option<usize>,
}

/// A range from the best to the worst case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// Lower bound.
    pub best: u64,
    /// Upper bound, at least [`Range::best`].
    pub worst: u64,
}

impl Range {
    /// A range of one value.
    pub fn exactly(value: u64) -> Range {
        Range { best: value, worst: value }
    }

    /// The range of the sum of values of both ranges.
    #[must_use]
    pub fn plus(self, other: Range) -> Range {
        Range {
            best: self.best.saturating_add(other.best),
            worst: self.worst.saturating_add(other.worst),
        }
    }

    /// The range of values of either range.
    #[must_use]
    pub fn or(self, other: Range) -> Range {
        Range { best: self.best.min(other.best), worst: self.worst.max(other.worst) }
    }

    /// The range of products with a factor from a range.
    #[must_use]
    pub fn times(self, factor: Range) -> Range {
        Range {
            best: self.best.saturating_mul(factor.best),
            worst: self.worst.saturating_mul(factor.worst),
        }
    }
}

/// Execution cost of a piece of code: a fixed time, ticks of the core's clock, and accesses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cost {
    /// Time that does not depend on the core, in nanoseconds.
    pub time_ns: Range,
    /// Ticks by kind of core, sorted. The kind `""` applies to cores without an entry of their own.
    pub ticks: Vec<(String, Range)>,
    /// Accesses to labels.
    pub accesses: Vec<Access>,
}

/// Accesses to a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Index of the label.
    pub label: usize,
    /// Number of times the code reads the whole label.
    pub reads: Range,
    /// Number of times the code writes the whole label.
    pub writes: Range,
}

/// A critical section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Index of the resource that the section holds.
    pub resource: usize,
    /// Longest time that the section holds the resource, in nanoseconds.
    pub worst_ns: u64,
}

/// A function that tasks call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Runnable {
    /// Name, unique among runnables.
    pub name: String,
    /// Its cost.
    pub cost: Cost,
}

/// Arrivals of the jobs of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activation {
    /// One arrival each period.
    Periodic {
        /// Period in nanoseconds, at least 1.
        period_ns: u64,
        /// First arrival in nanoseconds; `None` if the phase is arbitrary.
        offset_ns: Option<u64>,
        /// Longest delay from an arrival to the release of its job, in nanoseconds.
        jitter_ns: u64,
    },
    /// Arrivals with at least this distance.
    Sporadic {
        /// Smallest distance of two arrivals in nanoseconds, at least 1.
        distance_ns: u64,
    },
    /// Arrivals bounded by a curve: element k is the smallest length of a span with k + 2
    /// arrivals, in nanoseconds. The distances do not decrease, and the last one is at least 1;
    /// after it, the curve repeats.
    Curve(Vec<u64>),
    /// Each end of a job of the other task releases a job.
    After(TaskId),
}

/// How a task may be preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preemption {
    /// At any time.
    #[default]
    Preemptive,
    /// By cooperative tasks only between two runnables, by other tasks at any time.
    Cooperative,
    /// By any task, but only between two runnables (schedule points of OSEK).
    BetweenRunnables,
    /// Never.
    NonPreemptive,
}

/// Automotive safety integrity level (ISO 26262).
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub enum Safety {
    /// Quality management: no safety requirement.
    #[default]
    QM,
    /// ASIL A.
    A,
    /// ASIL B.
    B,
    /// ASIL C.
    C,
    /// ASIL D.
    D,
}

/// A task or an interrupt service routine.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Name, unique among tasks.
    pub name: String,
    /// The task is an interrupt service routine.
    pub is_isr: bool,
    /// Arrivals; `None` if the model does not define them.
    pub activation: Option<Activation>,
    /// Longest permitted response time in nanoseconds. `None`: the period, if there is one.
    pub deadline_ns: Option<u64>,
    /// Cost beside that of the runnables.
    pub cost: Cost,
    /// Indices of the runnables that each job calls, in order.
    pub runnables: Vec<usize>,
    /// Critical sections of each job.
    pub sections: Vec<Section>,
    /// Priority; a larger number is more urgent. `None`: the model does not define one.
    pub priority: Option<u32>,
    /// The core that runs the task.
    pub core: Option<CoreId>,
    /// Preemption.
    pub preemption: Preemption,
    /// Indices of the modes in which the task is active; empty: all modes.
    pub modes: Vec<usize>,
    /// Safety level.
    pub safety: Safety,
    /// Component of the task: partitioning keeps the tasks of a component on one core. Empty: the
    /// task is a component of its own.
    pub component: String,
    /// Memory for code, data and stack beside labels, in bytes.
    pub memory_bytes: u64,
}

impl Task {
    /// A preemptive task with a name, an arbitrary phase, and a fixed execution time, on core 0.
    pub fn new(
        name: impl Into<String>,
        period_ns: u64,
        execution_ns: Range,
        priority: u32,
    ) -> Task {
        Task {
            name: name.into(),
            is_isr: false,
            activation: Some(Activation::Periodic { period_ns, offset_ns: None, jitter_ns: 0 }),
            deadline_ns: None,
            cost: Cost { time_ns: execution_ns, ..Cost::default() },
            runnables: vec![],
            sections: vec![],
            priority: Some(priority),
            core: Some(0),
            preemption: Preemption::Preemptive,
            modes: vec![],
            safety: Safety::QM,
            component: String::new(),
            memory_bytes: 0,
        }
    }

    /// Whether the task is active in a mode.
    pub fn is_active(&self, mode: Option<usize>) -> bool {
        self.modes.is_empty() || mode.is_none_or(|m| self.modes.contains(&m))
    }
}

/// A chain of tasks from a cause to its effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// Name, unique among chains.
    pub name: String,
    /// The tasks in the order of the data.
    pub tasks: Vec<TaskId>,
    /// How data passes from a task to the next.
    pub communication: Communication,
    /// Longest permitted time from a cause to the first reaction, in nanoseconds.
    pub reaction_max_ns: Option<u64>,
    /// Largest permitted age of data at the end of the chain, in nanoseconds.
    pub age_max_ns: Option<u64>,
}

/// How data passes from a task to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Communication {
    /// A job reads its inputs when it starts and writes its outputs when it ends.
    #[default]
    Implicit,
    /// Logical Execution Time: a job reads at its arrival and writes at the end of its period.
    Let,
}

/// The unit that partitioning multiplies: a control unit with equal cores.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnitKind {
    /// Number of cores of a unit, from 1.
    pub cores: usize,
    /// Kind of the cores.
    pub kind: String,
    /// Ticks per second of the cores.
    pub frequency_hz: Option<u64>,
    /// Ticks per second that the Pareto front tries, which require `frequency_hz`; empty: only
    /// `frequency_hz`.
    pub frequencies_hz: Vec<u64>,
    /// Power of a unit whose cores are idle, in milliwatts.
    pub idle_mw: u64,
    /// Additional power of a core that is always busy at `frequency_hz`, in milliwatts.
    pub core_mw: u64,
    /// Memory of a unit in bytes; `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Highest safety level that each core supports, such as D for a lock-step core. Cores without
    /// an entry support all levels.
    pub safety: Vec<Safety>,
}

/// How a limit of the reader affects the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The results do not change.
    None,
    /// Bounds may be higher than necessary.
    Pessimistic,
    /// Results may be too low, so the verdict about the affected tasks is "unknown".
    Optimistic,
}

/// A limit: a part of a model's source that the reader did not understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The element with its name and line.
    pub place: String,
    /// The part that is not supported, and what is assumed instead.
    pub what: String,
    /// Effect on the results.
    pub effect: Effect,
    /// The only task that the note concerns; `None`: all tasks.
    pub task: Option<TaskId>,
}

impl Model {
    /// Time of a cost on a core, in nanoseconds, with the accesses to labels in their memories
    /// (Gut et al. 2012, section 5: the run time of a task depends on the memory).
    ///
    /// # Errors
    /// The reason why the time is unknown: no ticks for the kind of the core, or no frequency.
    pub fn time(&self, cost: &Cost, core: &Core, id: Option<CoreId>) -> Result<Range, String> {
        let mut time = cost.time_ns;
        if !cost.ticks.is_empty() {
            let of =
                |kind: &str| cost.ticks.iter().find(|(k, _)| k == kind).map(|(_, ticks)| *ticks);
            let ticks = of(&core.kind).or_else(|| of("")).ok_or_else(|| {
                format!(
                    "no ticks for cores of kind '{}', the kind of core '{}'",
                    core.kind, core.name
                )
            })?;
            let hz = core
                .frequency_hz
                .ok_or_else(|| format!("ticks, but core '{}' has no frequency", core.name))?;
            let ns = |ticks: u64, up: u64| {
                (u128::from(ticks) * 1_000_000_000 + u128::from(up)) / u128::from(hz)
            };
            let limit = |ns: u128| u64::try_from(ns).unwrap_or(u64::MAX);
            time = time.plus(Range {
                best: limit(ns(ticks.best, 0)),
                worst: limit(ns(ticks.worst, hz - 1)),
            });
        }
        for access in &cost.accesses {
            time = time.plus(self.access_time(access, id));
        }
        Ok(time)
    }

    /// Time of accesses from a core. Accesses without a known latency take no time.
    fn access_time(&self, access: &Access, core: Option<CoreId>) -> Range {
        let label = &self.labels[access.label];
        let known = |l: &&Latency| Some(l.core) == core && Some(l.memory) == label.memory;
        let Some(latency) = self.latencies.iter().find(known) else { return Range::default() };
        let pieces =
            label.size_bytes.unwrap_or(latency.access_bytes).div_ceil(latency.access_bytes);
        let piece = |count: Range, ns: u64| {
            let worst = pieces.saturating_mul(ns.saturating_add(latency.wait_ns));
            count.times(Range { best: pieces.saturating_mul(ns), worst })
        };
        piece(access.reads, latency.read_ns).plus(piece(access.writes, latency.write_ns))
    }

    /// Execution time of a task on a core, in nanoseconds.
    ///
    /// # Errors
    /// As [`Model::time`], with the name of the runnable.
    pub fn execution(&self, task: &Task, core: &Core, id: Option<CoreId>) -> Result<Range, String> {
        let mut time = self.time(&task.cost, core, id)?;
        for runnable in task.runnables.iter().map(|&r| &self.runnables[r]) {
            let part = self.time(&runnable.cost, core, id);
            time = time.plus(part.map_err(|e| format!("runnable '{}' has {e}", runnable.name))?);
        }
        Ok(time)
    }

    /// Worst-case times of the parts between which cooperative tasks may preempt a task, in
    /// nanoseconds.
    ///
    /// # Errors
    /// As [`Model::execution`].
    pub fn chunks(&self, task: &Task, core: &Core, id: Option<CoreId>) -> Result<Vec<u64>, String> {
        let own = self.time(&task.cost, core, id)?.worst;
        let mut chunks = if own > 0 || task.runnables.is_empty() { vec![own] } else { vec![] };
        for &r in &task.runnables {
            chunks.push(self.time(&self.runnables[r].cost, core, id)?.worst);
        }
        Ok(chunks)
    }

    /// Period of a task for deadlines and use: the smallest average distance of its arrivals, in
    /// nanoseconds. A task that follows another has the period of that task.
    pub fn period_ns(&self, task: TaskId) -> Option<u64> {
        let mut task = task;
        // A valid model has no cycle; the bound holds for others, too.
        for _ in 0..=self.tasks.len() {
            match self.tasks[task].activation.as_ref()? {
                Activation::Periodic { period_ns, .. } => return Some(*period_ns),
                Activation::Sporadic { distance_ns } => return Some(*distance_ns),
                Activation::Curve(spans) => {
                    return spans.last().map(|last| (last / spans.len() as u64).max(1));
                }
                Activation::After(other) => task = *other,
            }
        }
        None
    }

    /// Deadline of a task relative to its arrival, in nanoseconds: its own, or else its period.
    pub fn deadline_ns(&self, task: TaskId) -> Option<u64> {
        self.tasks[task].deadline_ns.or_else(|| self.period_ns(task))
    }

    /// The modes to analyse: `None` stands for the only mode of a model without modes.
    pub fn all_modes(&self) -> Vec<Option<usize>> {
        match self.modes.len() {
            0 => vec![None],
            n => (0..n).map(Some).collect(),
        }
    }

    /// Verifies that names are unique, references exist, numbers are valid, and activations form no
    /// cycle.
    ///
    /// # Errors
    /// The first mistake with its element.
    pub fn check(&self) -> Result<(), Error> {
        let counts = [
            ("tasks", self.tasks.len(), TASKS_MAX),
            ("cores", self.cores.len(), TASKS_MAX),
            ("modes", self.modes.len(), MODES_MAX),
            ("memories", self.memories.len(), ELEMENTS_MAX),
            ("latencies", self.latencies.len(), ELEMENTS_MAX),
            ("labels", self.labels.len(), ELEMENTS_MAX),
            ("resources", self.resources.len(), ELEMENTS_MAX),
            ("runnables", self.runnables.len(), ELEMENTS_MAX),
            ("chains", self.chains.len(), ELEMENTS_MAX),
            ("notes", self.notes.len(), ELEMENTS_MAX),
        ];
        for (what, count, max) in counts {
            if count > max {
                return Err(Error::new("model", format!("{count} {what}; {max} are permitted")));
            }
        }
        self.check_references()?;
        unique("core", self.cores.iter().map(|c| &c.name))?;
        unique("memory", self.memories.iter().map(|m| &m.name))?;
        unique("label", self.labels.iter().map(|l| &l.name))?;
        unique("resource", self.resources.iter())?;
        unique("runnable", self.runnables.iter().map(|r| &r.name))?;
        unique("task", self.tasks.iter().map(|t| &t.name))?;
        unique("chain", self.chains.iter().map(|c| &c.name))?;
        unique("mode", self.modes.iter())?;
        self.check_hardware()?;
        for label in &self.labels {
            number(&named("label", &label.name), "size in bytes", label.size_bytes, 0)?;
        }
        for runnable in &self.runnables {
            check_cost(&named("runnable", &runnable.name), &runnable.cost)?;
        }
        for id in 0..self.tasks.len() {
            self.check_task(id)?;
        }
        for chain in &self.chains {
            let place = named("chain", &chain.name);
            if chain.tasks.is_empty() {
                return Err(Error::new(place, "no tasks; write one or more"));
            }
            number(&place, "reaction in nanoseconds", chain.reaction_max_ns, 0)?;
            number(&place, "age in nanoseconds", chain.age_max_ns, 0)?;
        }
        Ok(())
    }

    /// Verifies the indices by which elements refer to each other.
    fn check_references(&self) -> Result<(), Error> {
        let within = |place: String, kind: &str, index: Option<usize>, count: usize| match index {
            Some(index) if index >= count => {
                let what = format!("no {kind} has index {index}; the model has {count}");
                Err(Error::new(place, what))
            }
            _ => Ok(()),
        };
        for latency in &self.latencies {
            within("latency".into(), "core", Some(latency.core), self.cores.len())?;
            within("latency".into(), "memory", Some(latency.memory), self.memories.len())?;
        }
        for label in &self.labels {
            within(named("label", &label.name), "memory", label.memory, self.memories.len())?;
        }
        let of_runnables = self.runnables.iter().map(|r| (named("runnable", &r.name), &r.cost));
        let of_tasks = self.tasks.iter().map(|t| (named("task", &t.name), &t.cost));
        for (place, cost) in of_runnables.chain(of_tasks) {
            let last = cost.accesses.iter().map(|a| a.label).max();
            within(place, "label", last, self.labels.len())?;
        }
        for task in &self.tasks {
            let before = match task.activation {
                Some(Activation::After(before)) => Some(before),
                _ => None,
            };
            let resource = task.sections.iter().map(|s| s.resource).max();
            for (kind, index, count) in [
                ("task", before, self.tasks.len()),
                ("runnable", task.runnables.iter().copied().max(), self.runnables.len()),
                ("resource", resource, self.resources.len()),
                ("core", task.core, self.cores.len()),
                ("mode", task.modes.iter().copied().max(), self.modes.len()),
            ] {
                within(named("task", &task.name), kind, index, count)?;
            }
        }
        for chain in &self.chains {
            let last = chain.tasks.iter().copied().max();
            within(named("chain", &chain.name), "task", last, self.tasks.len())?;
        }
        for note in &self.notes {
            within(named("note", &note.place), "task", note.task, self.tasks.len())?;
        }
        Ok(())
    }

    /// Of each core, the first core of its cluster, or itself.
    pub(crate) fn homes(&self) -> Vec<CoreId> {
        let mut first: HashMap<&str, CoreId> = HashMap::new();
        let named = self.cores.iter().enumerate();
        named
            .map(|(core, c)| match c.cluster.as_str() {
                "" => core,
                cluster => *first.entry(cluster).or_insert(core),
            })
            .collect()
    }

    fn check_hardware(&self) -> Result<(), Error> {
        for (core, home) in self.cores.iter().zip(self.homes()) {
            number(&named("core", &core.name), "frequency in hertz", core.frequency_hz, 1)?;
            let first = &self.cores[home];
            let parts = |c: &Core| (c.kind.clone(), c.frequency_hz, c.policy);
            if parts(core) != parts(first) {
                let what = format!(
                    "it shares a queue with core '{}', but its kind, frequency or policy differs; \
                     make them equal",
                    first.name
                );
                return Err(Error::new(named("core", &core.name), what));
            }
        }
        for memory in &self.memories {
            number(&named("memory", &memory.name), "size in bytes", memory.size_bytes, 0)?;
        }
        for latency in &self.latencies {
            let place = named("latency of core", &self.cores[latency.core].name);
            number(&place, "number of bytes of an access", Some(latency.access_bytes), 1)?;
            let longest = latency.read_ns.max(latency.write_ns).max(latency.wait_ns);
            number(&place, "time of an access in nanoseconds", Some(longest), 0)?;
        }
        if let Some(unit) = &self.unit {
            if unit.cores == 0 || unit.cores > UNIT_CORES_MAX {
                let what = format!("write a number from 1 to {UNIT_CORES_MAX}");
                return Err(Error::new("unit", format!("{} cores; {what}", unit.cores)));
            }
            for hz in unit.frequency_hz.iter().chain(&unit.frequencies_hz) {
                number("unit", "frequency in hertz", Some(*hz), 1)?;
            }
            if unit.frequencies_hz.len() > UNIT_FREQUENCIES_MAX {
                let what = format!("more than {UNIT_FREQUENCIES_MAX} frequencies; leave some out");
                return Err(Error::new("unit", what));
            }
            if unit.frequency_hz.is_none() && !unit.frequencies_hz.is_empty() {
                let what = "frequencies_hz without frequency_hz, to which the power of a core \
                            refers; write frequency_hz";
                return Err(Error::new("unit", what));
            }
            number("unit", "power in milliwatts", Some(unit.idle_mw.max(unit.core_mw)), 0)?;
            number("unit", "memory in bytes", unit.memory_bytes, 0)?;
        }
        Ok(())
    }

    fn check_task(&self, id: TaskId) -> Result<(), Error> {
        let task = &self.tasks[id];
        let place = named("task", &task.name);
        let wrong = |what: &str| Err(Error::new(&place, what));
        check_cost(&place, &task.cost)?;
        match &task.activation {
            Some(Activation::Periodic { period_ns: 0, .. }) => {
                return wrong("period 0; write a longer period");
            }
            Some(Activation::Periodic { period_ns, offset_ns, jitter_ns })
                if [*period_ns, offset_ns.unwrap_or(0), *jitter_ns].iter().max()
                    > Some(&TIME_MAX_NS) =>
            {
                return wrong("a time of more than 52 days; write a shorter time");
            }
            Some(Activation::Curve(spans))
                if spans.last().is_none_or(|last| *last == 0 || *last > TIME_MAX_NS)
                    || spans.len() > SPANS_MAX
                    || !spans.is_sorted() =>
            {
                return wrong(
                    "arrival curve that decreases, ends at 0, or has over 1,000 spans; correct it",
                );
            }
            Some(Activation::Sporadic { distance_ns }) => {
                number(&place, "distance of arrivals in nanoseconds", Some(*distance_ns), 1)?;
            }
            Some(Activation::After(_)) if self.period_ns(id).is_none() => {
                self.check_origin(id, &place)?;
            }
            _ => {}
        }
        number(&place, "deadline in nanoseconds", task.deadline_ns, 1)?;
        number(&place, "memory in bytes", Some(task.memory_bytes), 0)?;
        if task.sections.iter().any(|s| s.worst_ns > TIME_MAX_NS) {
            return wrong("critical section of more than 52 days; write a shorter time");
        }
        Ok(())
    }

    /// A chain of activations that ends at no period is a cycle, unless a task without activation
    /// is its origin.
    fn check_origin(&self, id: TaskId, place: &str) -> Result<(), Error> {
        let mut task = id;
        for _ in 0..=self.tasks.len() {
            match self.tasks[task].activation {
                Some(Activation::After(other)) => task = other,
                _ => return Ok(()),
            }
        }
        Err(Error::new(place, "its activations form a cycle; activate one of the tasks by a timer"))
    }
}

/// Verifies that a number is from `min` to 2^52. The TOML form has integers of 63 bits, and sums of
/// thousands of such numbers fit into 64 bits.
fn number(place: &str, what: &str, value: Option<u64>, min: u64) -> Result<(), Error> {
    match value {
        Some(value) if value < min || value > TIME_MAX_NS => {
            let what = format!("the {what} is {value}; write a number from {min} to 2^52");
            Err(Error::new(place, what))
        }
        _ => Ok(()),
    }
}

/// The element with its name, as places of errors state it.
pub(crate) fn named(kind: &str, name: &str) -> String {
    format!("{kind} '{name}'")
}

fn check_cost(place: &str, cost: &Cost) -> Result<(), Error> {
    let ranges = cost.ticks.iter().map(|(_, r)| r).chain([&cost.time_ns]);
    let accesses = cost.accesses.iter().flat_map(|a| [&a.reads, &a.writes]);
    for range in ranges.chain(accesses) {
        if range.best > range.worst {
            let what =
                format!("best case {} above worst case {}; exchange them", range.best, range.worst);
            return Err(Error::new(place, what));
        }
        if range.worst > TIME_MAX_NS {
            return Err(Error::new(place, "a value above 2^52; write a smaller one"));
        }
    }
    Ok(())
}

fn unique<'a>(kind: &str, names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let mut known = std::collections::HashSet::new();
    for name in names {
        if name.is_empty() {
            return Err(Error::new(kind, "an element has no name; write one"));
        }
        // A terminal would execute it.
        if name.contains(char::is_control) {
            let what = "the name has a control character; remove it";
            return Err(Error::new(named(kind, &name.escape_debug().to_string()), what));
        }
        if !known.insert(name) {
            return Err(Error::new(named(kind, name), "the name is used twice; write another"));
        }
    }
    Ok(())
}
