//! Components onto cores of as few units as possible (Gut, Allmann, Schurius, Schmidt, *Reduction
//! of Electronic Control Units in Electric Vehicles Using Multicore Technology*, 2012, section 6).
//!
//! ```text
//!   components --> lower bound: use of cores, memory, safety levels
//!        |              |
//!        v              v
//!   first fit ----> branch and bound for lower bound, lower bound + 1, ... units
//!   (upper bound)       |
//!                       `--> then the least communication between units
//! ```
//!
//! A core must be schedulable in each mode; tasks of modes that exclude each other do not compete.
//! Branch and bound places the components in order of decreasing use. Empty cores and units of a
//! kind are equal, so that only the first is tried.

use crate::error::Error;
use crate::model::{Activation, Core, Model, Preemption, Safety, TaskId, UnitKind, named};
use crate::response::{CoreSet, Load};
use std::collections::BTreeMap;

/// Largest number of components for branch and bound, which is recursive.
const EXACT_MAX: usize = 200;
/// Largest number of cores that a partition may use.
const CORES_MAX: usize = 10_000;
/// The error of a model without a unit.
pub(crate) const NO_UNIT: &str = "no table [unit]; define the cores and the memory of a unit";

/// Settings of a partitioning.
#[derive(Debug, Clone)]
pub struct PartitionOptions {
    /// Tasks of modes that exclude each other may occupy the same time of a core. Without it, all
    /// tasks count as active together.
    pub shares_modes: bool,
    /// A core may have components of different safety levels, all developed at the highest of
    /// them. Without it, a core has components of one level.
    pub lifts_safety: bool,
    /// Largest number of nodes that each branch and bound visits.
    pub nodes: u64,
}

impl Default for PartitionOptions {
    fn default() -> PartitionOptions {
        PartitionOptions { shares_modes: true, lifts_safety: false, nodes: 200_000 }
    }
}

/// Tasks that stay together.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// Name: that of the component, or of its only task.
    pub name: String,
    /// Its tasks.
    pub tasks: Vec<TaskId>,
    /// Highest safety level of the tasks.
    pub safety: Safety,
    /// Memory of the tasks, and of the labels that no earlier component uses, in bytes.
    pub memory_bytes: u64,
    /// Share of a core in each mode.
    pub shares: Vec<f64>,
}

/// Place of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the unit, from 0.
    pub unit: usize,
    /// Number of the core in its unit, from 0.
    pub core: usize,
}

/// A constraint that can be left out, to find which one forbids a unit less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constraint {
    /// Response times within deadlines; the use of a core may still not exceed 1.
    Deadlines,
    /// Use of a core, and deadlines.
    Cores,
    /// Memory of units.
    Memory,
    /// Safety levels.
    Safety,
}

impl Constraint {
    /// All constraints.
    pub const ALL: [Constraint; 4] =
        [Constraint::Deadlines, Constraint::Cores, Constraint::Memory, Constraint::Safety];

    /// The name in explanations.
    pub fn name(self) -> &'static str {
        match self {
            Constraint::Deadlines => "the deadlines",
            Constraint::Cores => "the time of the cores",
            Constraint::Memory => "the memory of the units",
            Constraint::Safety => "the safety levels",
        }
    }
}

/// Whether a number of units suffices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It suffices.
    Yes,
    /// It does not.
    No,
    /// The limit of nodes was reached, or the analysis of a core reached its limits.
    Undecided,
}

/// A partition.
#[derive(Debug, Clone, PartialEq)]
pub struct Partition {
    /// The components.
    pub components: Vec<Component>,
    /// Place of each component.
    pub places: Vec<Place>,
    /// Number of units.
    pub units: usize,
    /// No partition has fewer units than this.
    pub lower_bound: usize,
    /// Data that pass between units, in bytes per second.
    pub communication: u64,
    /// No partition with this number of units has less communication.
    pub is_least_communication: bool,
}

/// The problem in the form of the search.
struct Problem<'a> {
    unit: &'a UnitKind,
    components: Vec<Component>,
    /// Loads of each component with the rank of the task and its modes as bits.
    loads: Vec<Vec<(usize, u64, Load)>>,
    modes: usize,
    lifts_safety: bool,
    /// Bytes per second between two components.
    traffic: Vec<BTreeMap<usize, u64>>,
    /// Order in which components are placed.
    order: Vec<usize>,
    without: Option<Constraint>,
    nodes_max: u64,
}

/// Components on the cores of a number of units.
#[derive(Clone)]
struct State {
    cores: Vec<Vec<usize>>,
    /// Used memory of each unit: sums of sizes may exceed 64 bits.
    memory: Vec<u128>,
    places: Vec<Option<Place>>,
    communication: u64,
    nodes: u64,
    best: Option<(u64, Vec<Place>)>,
    set: CoreSet,
    /// A place was refused although no late task is known: the analysis reached its limits.
    is_unsure: bool,
}

/// Partitions the tasks of a model, whatever cores they have, onto units of [`Model::unit`].
///
/// # Errors
/// The model has no unit, a task lacks a part or has one that partitioning does not support, or a
/// component fits on no core.
pub fn partition(model: &Model, options: &PartitionOptions) -> Result<Partition, Error> {
    let mut problem = Problem::new(model, options)?;
    for c in 0..problem.components.len() {
        problem.fits_alone(c)?;
    }
    let lower = problem.lower_bound();
    let (most, first) = problem.first_fit()?;
    let (mut units, mut places) = (most, first);
    let mut proven = lower;
    if problem.components.len() <= EXACT_MAX {
        for count in lower..most {
            let state = problem.search(count, true);
            if let Some((_, found)) = state.best {
                (units, places) = (count, found);
                break;
            }
            if state.is_complete(problem.nodes_max) && proven == count {
                proven = count + 1;
            }
        }
    }
    let mut communication = problem.communication(&places);
    let mut is_least = communication == 0;
    if problem.components.len() <= EXACT_MAX && !is_least {
        let state = problem.search(units, false);
        is_least = state.is_complete(problem.nodes_max);
        if let Some((cost, found)) = state.best.filter(|best| best.0 < communication) {
            (communication, places) = (cost, found);
        }
    }
    let components = std::mem::take(&mut problem.components);
    Ok(Partition {
        components,
        places,
        units,
        lower_bound: proven.min(units),
        communication,
        is_least_communication: is_least,
    })
}

/// Partitions onto at most this number of units, so that the use of the cores is even: each
/// component goes to the core with the least use that permits it. `None` if a component finds no
/// core.
///
/// # Errors
/// As [`partition`].
pub(crate) fn spread(
    model: &Model,
    options: &PartitionOptions,
    units: usize,
) -> Result<Option<Partition>, Error> {
    let problem = Problem::new(model, options)?;
    let mut state = problem.empty(units);
    for &c in &problem.order {
        let cores = problem.unit.cores;
        let share = |at: usize| -> f64 {
            let of = |mode: usize| -> f64 {
                state.cores[at].iter().map(|&o| problem.components[o].shares[mode]).sum()
            };
            (0..problem.modes).map(of).fold(0.0, f64::max)
        };
        let mut by_use: Vec<(f64, usize)> =
            (0..state.cores.len()).map(|at| (share(at), at)).collect();
        by_use.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let place = |(_, at)| Place { unit: at / cores, core: at % cores };
        let found =
            by_use.into_iter().map(place).find(|place| problem.permits(&mut state, c, *place));
        let Some(place) = found else { return Ok(None) };
        problem.place(&mut state, c, place);
    }
    let lower_bound = problem.lower_bound();
    let mut places: Vec<Place> = state.places.into_iter().flatten().collect();
    // Units without components are left out.
    let mut used: Vec<usize> = places.iter().map(|p| p.unit).collect();
    used.sort_unstable();
    used.dedup();
    for place in &mut places {
        place.unit = used.partition_point(|u| *u < place.unit);
    }
    Ok(Some(Partition {
        components: problem.components,
        places,
        units: used.len(),
        lower_bound: lower_bound.min(used.len()),
        communication: state.communication,
        is_least_communication: state.communication == 0,
    }))
}

/// Whether a number of units would suffice without each of the constraints: the constraints whose
/// answer is yes forbid the number.
///
/// # Errors
/// As [`partition`].
pub fn explain(
    model: &Model,
    options: &PartitionOptions,
    units: usize,
) -> Result<Vec<(Constraint, Answer)>, Error> {
    let mut problem = Problem::new(model, options)?;
    if units == 0 || problem.components.len() > EXACT_MAX {
        let answer = if units == 0 { Answer::No } else { Answer::Undecided };
        return Ok(Constraint::ALL.map(|c| (c, answer)).to_vec());
    }
    let mut answers = Vec::new();
    for constraint in Constraint::ALL {
        problem.without = Some(constraint);
        let state = problem.search(units, true);
        let answer = match (state.best.is_some(), state.is_complete(problem.nodes_max)) {
            (true, _) => Answer::Yes,
            (false, true) => Answer::No,
            (false, false) => Answer::Undecided,
        };
        answers.push((constraint, answer));
    }
    Ok(answers)
}

impl State {
    /// Whether the search has considered every partition.
    fn is_complete(&self, nodes_max: u64) -> bool {
        self.nodes <= nodes_max && !self.is_unsure
    }
}

impl Partition {
    /// The model with the cores of the partition: each task is mapped, and the tasks of a core have
    /// distinct priorities in the order of the test.
    pub fn apply(&self, model: &Model) -> Model {
        let mut mapped = model.clone();
        (mapped.cores, mapped.latencies) = (vec![], vec![]);
        let order = ranks(model);
        let Some(unit) = &model.unit else { return mapped };
        for u in 0..self.units {
            for c in 0..unit.cores {
                mapped.cores.push(Core {
                    name: format!("unit{u}.core{c}"),
                    unit: format!("unit{u}"),
                    kind: unit.kind.clone(),
                    frequency_hz: unit.frequency_hz,
                    ..Core::default()
                });
            }
        }
        for (component, place) in self.components.iter().zip(&self.places) {
            for &task in &component.tasks {
                mapped.tasks[task].core = Some(place.unit * unit.cores + place.core);
                mapped.tasks[task].priority = Some((model.tasks.len() - order[task]) as u32);
            }
        }
        mapped
    }
}

/// Rank of each task, the most urgent first: by priority if every task has one, else by deadline
/// (Leung, Whitehead, *On the Complexity of Fixed-Priority Scheduling of Periodic, Real-Time
/// Tasks*, 1982). Equal tasks keep their order.
fn ranks(model: &Model) -> Vec<usize> {
    let has_priorities = model.tasks.iter().all(|t| t.priority.is_some());
    let mut order: Vec<TaskId> = (0..model.tasks.len()).collect();
    order.sort_by_key(|&t| {
        let priority = model.tasks[t].priority.filter(|_| has_priorities);
        (std::cmp::Reverse(priority), model.deadline_ns(t))
    });
    let mut ranks = vec![0; order.len()];
    for (rank, task) in order.into_iter().enumerate() {
        ranks[task] = rank;
    }
    ranks
}

impl<'a> Problem<'a> {
    fn new(model: &'a Model, options: &PartitionOptions) -> Result<Problem<'a>, Error> {
        let unit = model.unit.as_ref().ok_or_else(|| Error::new("model", NO_UNIT))?;
        if let Some(note) = model.notes.iter().find(|n| n.effect == crate::Effect::Optimistic) {
            let what = format!("{}; a partition would not be proven", note.what);
            return Err(Error::new(&note.place, what));
        }
        let modes = if options.shares_modes { model.modes.len().max(1) } else { 1 };
        let core = Core {
            name: "of the unit".into(),
            kind: unit.kind.clone(),
            frequency_hz: unit.frequency_hz,
            ..Core::default()
        };
        let order = ranks(model);
        let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
        let (mut components, mut loads): (Vec<Component>, Vec<Vec<_>>) = (vec![], vec![]);
        let mut owner: Vec<Option<usize>> = vec![None; model.labels.len()];
        for (t, task) in model.tasks.iter().enumerate() {
            let load = load(model, t, &core)?;
            let name = match task.component.is_empty() {
                true => format!("task {}", task.name),
                false => task.component.clone(),
            };
            let c = *by_name.entry(name).or_insert_with_key(|name| {
                components.push(Component {
                    name: name.strip_prefix("task ").unwrap_or(name).to_owned(),
                    tasks: vec![],
                    safety: Safety::QM,
                    memory_bytes: 0,
                    shares: vec![0.0; modes],
                });
                loads.push(vec![]);
                components.len() - 1
            });
            let component = &mut components[c];
            component.tasks.push(t);
            component.safety = component.safety.max(task.safety);
            component.memory_bytes = component.memory_bytes.saturating_add(task.memory_bytes);
            for (label, ..) in labels(model, t) {
                owner[label].get_or_insert(c);
            }
            let mut bits = 0;
            for mode in 0..modes {
                if modes == 1 || task.is_active(Some(mode)) {
                    bits |= 1 << mode;
                    component.shares[mode] += load.worst_ns as f64 / load.period_ns as f64;
                }
            }
            loads[c].push((order[t], bits, load));
        }
        for (label, owner) in owner.iter().enumerate() {
            if let Some(c) = owner {
                let size = model.labels[label].size_bytes.unwrap_or(0);
                components[*c].memory_bytes = components[*c].memory_bytes.saturating_add(size);
            }
        }
        let traffic = traffic(model, &components);
        let mut order: Vec<usize> = (0..components.len()).collect();
        let share = |c: usize| components[c].shares.iter().copied().fold(0.0, f64::max);
        order.sort_by(|&a, &b| share(b).total_cmp(&share(a)).then(a.cmp(&b)));
        Ok(Problem {
            unit,
            components,
            loads,
            modes,
            lifts_safety: options.lifts_safety,
            traffic,
            order,
            without: None,
            nodes_max: options.nodes,
        })
    }

    fn keeps(&self, constraint: Constraint) -> bool {
        self.without != Some(constraint)
    }

    /// Highest safety level of a core of a unit.
    fn level(&self, core: usize) -> Safety {
        self.unit.safety.get(core).copied().unwrap_or(Safety::D)
    }

    /// A component must fit on an empty core of some kind.
    fn fits_alone(&self, c: usize) -> Result<(), Error> {
        let mut state = self.empty(1);
        if (0..self.unit.cores).any(|core| self.permits(&mut state, c, Place { unit: 0, core })) {
            return Ok(());
        }
        let what = match state.is_unsure {
            true => {
                "the analysis of the component on an empty core has reached its limits; divide it"
            }
            false => {
                "the component fits on no empty core: its use, a deadline, its memory or its \
                 safety level exceeds the unit; divide it, or choose a larger unit"
            }
        };
        Err(Error::new(named("component", &self.components[c].name), what))
    }

    fn empty(&self, units: usize) -> State {
        State {
            cores: vec![vec![]; units * self.unit.cores],
            memory: vec![0; units],
            places: vec![None; self.components.len()],
            communication: 0,
            nodes: 0,
            best: None,
            set: CoreSet::default(),
            is_unsure: false,
        }
    }

    /// Number of units that use, safety levels and memory require at least.
    fn lower_bound(&self) -> usize {
        let levels = [Safety::QM, Safety::A, Safety::B, Safety::C, Safety::D];
        // Cores that the components of at least one level require.
        let cores = |from: Safety| -> usize {
            let needed = |of: &dyn Fn(Safety) -> bool| {
                let share = |m: usize| -> f64 {
                    let all = self.components.iter().filter(|c| of(c.safety));
                    all.map(|c| c.shares[m]).sum()
                };
                let most = (0..self.modes).map(share).fold(0.0, f64::max);
                (most - 1e-9).ceil().max(0.0) as usize
            };
            match self.lifts_safety {
                true => needed(&|level| level >= from),
                false => levels
                    .iter()
                    .filter(|l| **l >= from)
                    .map(|l| needed(&|level| level == *l))
                    .sum(),
            }
        };
        let by_level = |from: Safety| {
            let able = (0..self.unit.cores).filter(|&c| self.level(c) >= from).count();
            if able == 0 { 1 } else { cores(from).div_ceil(able) }
        };
        let memory: u64 =
            self.components.iter().map(|c| c.memory_bytes).fold(0, u64::saturating_add);
        let by_memory =
            self.unit.memory_bytes.map_or(1, |size| memory.div_ceil(size.max(1)) as usize);
        levels.into_iter().map(by_level).max().unwrap_or(1).max(by_memory).max(1)
    }

    /// Whether a component may go to a place.
    fn permits(&self, state: &mut State, c: usize, place: Place) -> bool {
        let component = &self.components[c];
        let core = &state.cores[place.unit * self.unit.cores + place.core];
        if self.keeps(Constraint::Safety) {
            let is_apart = core.iter().any(|&o| self.components[o].safety != component.safety);
            if component.safety > self.level(place.core) || (is_apart && !self.lifts_safety) {
                return false;
            }
        }
        let memory = state.memory[place.unit] + u128::from(component.memory_bytes);
        if self.keeps(Constraint::Memory)
            && self.unit.memory_bytes.is_some_and(|size| memory > u128::from(size))
        {
            return false;
        }
        if !self.keeps(Constraint::Cores) {
            return true;
        }
        for mode in 0..self.modes {
            let all = core.iter().chain([&c]);
            let share: f64 = all.clone().map(|&o| self.components[o].shares[mode]).sum();
            if share > 1.0 + 1e-9 {
                return false;
            }
            if !self.keeps(Constraint::Deadlines) {
                continue;
            }
            let loads =
                all.flat_map(|&o| &self.loads[o]).filter(|(_, bits, _)| bits >> mode & 1 == 1);
            let mut loads: Vec<(usize, Load)> =
                loads.map(|(rank, _, l)| (*rank, l.clone())).collect();
            loads.sort_by_key(|(rank, _)| *rank);
            let mut blocking = 0;
            for (_, load) in loads.iter_mut().rev() {
                load.blocking_ns = blocking;
                if load.is_non_preemptive {
                    blocking = blocking.max(load.worst_ns.saturating_sub(1));
                }
            }
            state.set.replace(loads.into_iter().map(|(_, load)| load).collect());
            if !state.set.analyse() {
                state.is_unsure |= !state.set.has_late();
                return false;
            }
        }
        true
    }

    fn place(&self, state: &mut State, c: usize, place: Place) {
        let own = |o: &usize| state.places[*o].is_some_and(|p| p.unit != place.unit);
        let traffic: u64 = self.traffic[c].iter().filter(|(o, _)| own(o)).map(|(_, t)| t).sum();
        state.communication += traffic;
        state.cores[place.unit * self.unit.cores + place.core].push(c);
        state.memory[place.unit] += u128::from(self.components[c].memory_bytes);
        state.places[c] = Some(place);
    }

    /// Undoes the last placing.
    fn remove(&self, state: &mut State, c: usize, place: Place) {
        state.places[c] = None;
        let own = |o: &usize| state.places[*o].is_some_and(|p| p.unit != place.unit);
        let traffic: u64 = self.traffic[c].iter().filter(|(o, _)| own(o)).map(|(_, t)| t).sum();
        state.communication -= traffic;
        state.cores[place.unit * self.unit.cores + place.core].pop();
        state.memory[place.unit] -= u128::from(self.components[c].memory_bytes);
    }

    /// First fit in order of decreasing use: the number of units and the places.
    fn first_fit(&self) -> Result<(usize, Vec<Place>), Error> {
        let mut state = self.empty(1);
        for &c in &self.order {
            let mut found = None;
            while found.is_none() {
                let units = state.memory.len();
                let all = (0..units)
                    .flat_map(|unit| (0..self.unit.cores).map(move |core| Place { unit, core }));
                found = all.into_iter().find(|place| self.permits(&mut state, c, *place));
                if found.is_none() {
                    if state.cores.len() >= CORES_MAX {
                        return Err(Error::new(
                            "partition",
                            "more than 10,000 cores; divide the model",
                        ));
                    }
                    state.memory.push(0);
                    state.cores.resize(state.cores.len() + self.unit.cores, vec![]);
                }
            }
            if let Some(place) = found {
                self.place(&mut state, c, place);
            }
        }
        let units = state.memory.len();
        Ok((units, state.places.into_iter().flatten().collect()))
    }

    /// Branch and bound with a number of units: the first partition, or that with the least
    /// communication.
    fn search(&self, units: usize, first: bool) -> State {
        let mut state = self.empty(units);
        self.branch(&mut state, 0, first);
        state
    }

    /// Returns whether the search ends.
    fn branch(&self, state: &mut State, depth: usize, first: bool) -> bool {
        state.nodes += 1;
        if state.nodes > self.nodes_max {
            return true;
        }
        if state.best.as_ref().is_some_and(|(best, _)| state.communication >= *best) {
            return false;
        }
        let Some(&c) = self.order.get(depth) else {
            let places = state.places.iter().flatten().copied().collect();
            state.best = Some((state.communication, places));
            return first;
        };
        let mut tried_empty_unit = false;
        for unit in 0..state.memory.len() {
            let cores = unit * self.unit.cores..(unit + 1) * self.unit.cores;
            let is_empty = state.cores[cores].iter().all(Vec::is_empty);
            if is_empty && std::mem::replace(&mut tried_empty_unit, true) {
                continue;
            }
            let mut tried: Vec<Safety> = vec![];
            for core in 0..self.unit.cores {
                if state.cores[unit * self.unit.cores + core].is_empty() {
                    let level = self.level(core);
                    if tried.contains(&level) {
                        continue;
                    }
                    tried.push(level);
                }
                let place = Place { unit, core };
                if !self.permits(state, c, place) {
                    continue;
                }
                self.place(state, c, place);
                let ends = self.branch(state, depth + 1, first);
                self.remove(state, c, place);
                if ends {
                    return true;
                }
            }
        }
        false
    }

    fn communication(&self, places: &[Place]) -> u64 {
        let between = |c: usize| {
            let others = self.traffic[c].iter().filter(move |(o, _)| **o > c);
            others.filter(move |(o, _)| places[c].unit != places[**o].unit).map(|(_, t)| *t)
        };
        (0..places.len()).flat_map(between).sum()
    }
}

/// The load of a task on a core of the unit.
fn load(model: &Model, t: TaskId, core: &Core) -> Result<Load, Error> {
    let task = &model.tasks[t];
    let wrong = |what: &str| Error::new(named("task", &task.name), what);
    let is_divided =
        matches!(task.preemption, Preemption::Cooperative | Preemption::BetweenRunnables);
    if !task.sections.is_empty() || is_divided {
        return Err(wrong("partitioning does not support critical sections and cooperative tasks"));
    }
    if !model.latencies.is_empty() && labels(model, t).next().is_some() {
        return Err(wrong("partitioning does not support the latencies of accesses to labels"));
    }
    let (period_ns, jitter_ns) = match task.activation {
        Some(Activation::Periodic { period_ns, jitter_ns, .. }) => (period_ns, jitter_ns),
        Some(Activation::Sporadic { distance_ns }) => (distance_ns, 0),
        _ => return Err(wrong("partitioning supports only tasks with a period or a min_distance")),
    };
    let execution = model.execution(task, core, None).map_err(|e| wrong(&format!("it has {e}")))?;
    let deadline_ns = task.deadline_ns.unwrap_or(period_ns);
    let is_non_preemptive = task.preemption == Preemption::NonPreemptive;
    Ok(Load { jitter_ns, deadline_ns, is_non_preemptive, ..Load::new(period_ns, execution.worst) })
}

/// The labels that a task accesses, with the number of reads and writes of each job.
fn labels(model: &Model, t: TaskId) -> impl Iterator<Item = (usize, u64, u64)> {
    let task = &model.tasks[t];
    let costs = task.runnables.iter().map(|&r| &model.runnables[r].cost).chain([&task.cost]);
    costs.flat_map(|cost| &cost.accesses).map(|a| (a.label, a.reads.worst, a.writes.worst))
}

/// Bytes per second between components: each read of a label passes the label from the components
/// that write it.
fn traffic(model: &Model, components: &[Component]) -> Vec<BTreeMap<usize, u64>> {
    let mut writers: Vec<Vec<usize>> = vec![vec![]; model.labels.len()];
    for (c, component) in components.iter().enumerate() {
        for &t in &component.tasks {
            for (label, _, writes) in labels(model, t) {
                if writes > 0 && !writers[label].contains(&c) {
                    writers[label].push(c);
                }
            }
        }
    }
    let mut traffic = vec![BTreeMap::new(); components.len()];
    for (c, component) in components.iter().enumerate() {
        for &t in &component.tasks {
            let period = model.period_ns(t).unwrap_or(u64::MAX);
            for (label, reads, _) in labels(model, t) {
                let size = model.labels[label].size_bytes.unwrap_or(1);
                let bytes =
                    u128::from(size) * u128::from(reads) * 1_000_000_000 / u128::from(period);
                let bytes = u64::try_from(bytes).unwrap_or(u64::MAX >> 20).min(u64::MAX >> 20);
                for &w in writers[label].iter().filter(|&&w| w != c && bytes > 0) {
                    *traffic[c].entry(w).or_insert(0) += bytes;
                    *traffic[w].entry(c).or_insert(0) += bytes;
                }
            }
        }
    }
    traffic
}
