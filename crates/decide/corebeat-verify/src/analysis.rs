//! The analysis of a whole model: response times, use of cores and memories, latencies of chains.

use crate::demand::{Demand, processor_demand};
use crate::global;
use crate::latency::{ChainResult, chains, inactive};
use crate::model::{Activation, CoreId, Effect, Model, Policy, Preemption, TaskId};
use crate::offset::{Timed, longest_responses};
use crate::response::{CoreSet, Load};
use crate::system::{Entry, System};
use crate::time::TIME_MAX_NS;

/// Largest number of rounds of the holistic analysis.
const ROUNDS_MAX: usize = 1_000;
/// Largest delay of a task that follows another, in periods, which the holistic analysis follows.
/// Its equations often have no solution, and a longer delay helps no user.
const DELAY_PERIODS_MAX: u64 = 100;

/// An answer with its ground.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Every deadline is met.
    Schedulable,
    /// The analysis proves neither.
    Unknown,
    /// A deadline can be missed, or a memory is too small.
    Unschedulable,
}

impl Verdict {
    /// The word of reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Schedulable => "schedulable",
            Verdict::Unknown => "unknown",
            Verdict::Unschedulable => "not schedulable",
        }
    }
}

/// Methods of the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Response time under preemptive fixed priorities.
    Preemptive,
    /// Response time of a task with an offset under preemptive fixed priorities.
    Offsets,
    /// Response time of a task that is not preempted.
    NonPreemptive,
    /// Response time of a task that others preempt between runnables.
    Cooperative,
    /// Response time with blocking by resources of one core.
    Ceiling,
    /// Response time with spinning for resources of other cores.
    Spinning,
    /// Response time of a task that follows another.
    Holistic,
    /// Processor demand under earliest deadline first.
    Demand,
    /// Sufficient test for fixed priorities on several cores with one queue.
    GlobalPriority,
    /// Sufficient tests for earliest deadline first on several cores with one queue.
    GlobalDeadline,
    /// No method applies.
    None,
}

impl Method {
    /// The name with the paper.
    pub fn source(self) -> &'static str {
        match self {
            Method::Preemptive => {
                "response time (Joseph, Pandya 1986; Lehoczky 1990; Audsley et al. 1993)"
            }
            Method::Offsets => "schedule of the offsets (Leung, Merrill 1980)",
            Method::NonPreemptive => "non-preemptive response time (Davis et al. 2007)",
            Method::Cooperative => {
                "response time with blocking by runnables (Audsley et al. 1993; OSEK OS 2.2.3)"
            }
            Method::Ceiling => "response time with priority ceiling (Sha, Rajkumar, Lehoczky 1990)",
            Method::Spinning => "response time with spin locks (Gai, Lipari, Di Natale 2001: MSRP)",
            Method::Holistic => "holistic response time (Tindell, Clark 1994)",
            Method::Demand => "processor demand (Baruah et al. 1990; Zhang, Burns 2009)",
            Method::GlobalPriority => {
                "sufficient test of global fixed priorities (Bertogna, Cirinei 2007)"
            }
            Method::GlobalDeadline => {
                "sufficient tests of global earliest deadline first (Goossens, Funk, Baruah 2003; \
                 Bertogna, Cirinei, Lipari 2005)"
            }
            Method::None => "none",
        }
    }
}

/// The result for a task in a mode.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskResult {
    /// The task.
    pub task: TaskId,
    /// The mode; `None` in a model without modes.
    pub mode: Option<usize>,
    /// Its core.
    pub core: Option<CoreId>,
    /// Worst-case execution time in nanoseconds, if it is known.
    pub worst_ns: Option<u64>,
    /// Response time in nanoseconds. `None`: no bound, or the method has none.
    pub response_ns: Option<u64>,
    /// Deadline in nanoseconds.
    pub deadline_ns: Option<u64>,
    /// The method.
    pub method: Method,
    /// The response time is reached, not only a bound.
    pub is_exact: bool,
    /// No response is longer. False without a response time, and if a part of the model that could
    /// make it longer is missing or not supported.
    pub is_bound: bool,
    /// The answer for this task.
    pub verdict: Verdict,
    /// The ground of a verdict other than schedulable; empty if it is schedulable.
    pub why: String,
}

/// Use of a core in a mode.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreUse {
    /// The core.
    pub core: CoreId,
    /// The mode.
    pub mode: Option<usize>,
    /// Share of the time that worst-case execution times occupy; 1 is the whole time.
    pub share: f64,
}

/// Use of a memory by labels.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryUse {
    /// Index of the memory.
    pub memory: usize,
    /// Bytes of its labels, as far as their sizes are known.
    pub used_bytes: u64,
    /// The size of every label is known.
    pub is_complete: bool,
    /// The labels fit.
    pub fits: bool,
}

/// The results for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The answer for all tasks, chains and memories.
    pub verdict: Verdict,
    /// Tasks in each mode.
    pub tasks: Vec<TaskResult>,
    /// Cores in each mode.
    pub cores: Vec<CoreUse>,
    /// Memories.
    pub memories: Vec<MemoryUse>,
    /// Chains in each mode.
    pub chains: Vec<ChainResult>,
}

/// Analyses a model in each of its modes. Between two modes the cores are assumed to become idle
/// (Real, Crespo, *Mode Change Protocols for Real-Time Systems*, 2004).
pub fn analyse(model: &Model) -> Report {
    let (mut tasks, mut cores, mut chain_results) = (vec![], vec![], vec![]);
    for mode in model.all_modes() {
        let system = System::new(model, mode);
        let bounds = responses(&system);
        let mut results = task_results(model, mode, &system, &bounds);
        taint(model, &system, &mut results);
        chain_results.extend(chains(model, mode, &results));
        tasks.extend(results);
        let share = |core| CoreUse { core, mode, share: system.utilisation(core) };
        cores.extend((0..model.cores.len()).map(share));
    }
    chain_results.extend(inactive(model));
    let memories: Vec<MemoryUse> = (0..model.memories.len()).map(|m| memory(model, m)).collect();
    let of_memory = |m: &MemoryUse| match (m.fits, m.is_complete) {
        (false, _) => Verdict::Unschedulable,
        (true, false) => Verdict::Unknown,
        _ => Verdict::Schedulable,
    };
    let verdicts = tasks.iter().map(|t| t.verdict).chain(chain_results.iter().map(|c| c.verdict));
    let verdict = verdicts.chain(memories.iter().map(of_memory)).max();
    // A model without tasks has no proven deadline.
    let global = model.notes.iter().any(|n| n.effect == Effect::Optimistic && n.task.is_none());
    let floor = if global || tasks.is_empty() { Verdict::Unknown } else { Verdict::Schedulable };
    let verdict = verdict.unwrap_or(floor).max(floor);
    Report { verdict, tasks, cores, memories, chains: chain_results }
}

fn memory(model: &Model, memory: usize) -> MemoryUse {
    let labels = model.labels.iter().filter(|l| l.memory == Some(memory));
    let used_bytes = labels.clone().filter_map(|l| l.size_bytes).fold(0, u64::saturating_add);
    let size = model.memories[memory].size_bytes;
    MemoryUse {
        memory,
        used_bytes,
        // The sizes only matter if the memory has one.
        is_complete: size.is_none() || labels.clone().all(|l| l.size_bytes.is_some()),
        fits: size.is_none_or(|size| used_bytes <= size),
    }
}

/// A bound of an entry: the response time, its method, and whether it is exact.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Upper bound in nanoseconds; `None` if there is none.
    pub response_ns: Option<u64>,
    /// The method.
    pub method: Method,
    /// The bound is reached.
    pub is_exact: bool,
    /// Earliest deadline first: the result of the test.
    pub(crate) demand: Option<Demand>,
}

/// Bounds of the response times of all entries.
pub fn responses(system: &System) -> Vec<Bound> {
    let mut bounds: Vec<Bound> = (0..system.entries.len())
        .map(|e| {
            let (method, is_exact) = method(system, e);
            Bound { response_ns: None, method, is_exact, demand: None }
        })
        .collect();
    let spins: Vec<Vec<u64>> = (0..system.policies.len()).map(|c| spin_times(system, c)).collect();
    let fixed = timed_responses(system, &mut bounds);
    let mut jitter = vec![Some(0); system.entries.len()];
    for round in 0..=ROUNDS_MAX {
        let before: Vec<Option<u64>> = bounds.iter().map(|b| b.response_ns).collect();
        for (core, spins) in spins.iter().enumerate() {
            match system.policies[core] {
                _ if system.group(core).len() > 1 => global::bounds(system, core, &mut bounds),
                Policy::FixedPriority => fixed_priority(system, core, spins, &jitter, &mut bounds),
                Policy::EarliestDeadline => earliest_deadline(system, core, &mut bounds),
            }
        }
        for (e, response) in &fixed {
            bounds[*e].response_ns = Some(*response);
        }
        let after: Vec<Option<u64>> = bounds.iter().map(|b| b.response_ns).collect();
        let follows = system.entries.iter().any(|e| matches!(e.activation, Activation::After(_)));
        if after == before || !follows {
            break;
        }
        if round == ROUNDS_MAX {
            bounds.iter_mut().for_each(|b| b.response_ns = None);
        }
        for e in 0..system.entries.len() {
            if let Activation::After(other) = system.entries[e].activation {
                // The origin releases the job at any time up to the end of the task before.
                let end = after[other].zip(jitter[other]).map(|(r, j)| r + j);
                let period = system.rate_ns(&system.entries[e]).unwrap_or(TIME_MAX_NS);
                let limit = (TIME_MAX_NS / 4).min(period.saturating_mul(DELAY_PERIODS_MAX));
                jitter[e] = end.filter(|end| *end < limit);
            }
        }
    }
    bounds
}

/// Exact response times of the tasks that only tasks with offsets delay. States their method.
fn timed_responses(system: &System, bounds: &mut [Bound]) -> Vec<(usize, u64)> {
    let mut fixed = vec![];
    for core in 0..system.policies.len() {
        let order = system.on_core(core);
        let is_preemptive = |&e: &usize| {
            let entry = &system.entries[e];
            entry.preemption == Preemption::Preemptive && entry.sections.is_empty()
        };
        let applies = system.policies[core] == Policy::FixedPriority
            && system.group(core).len() == 1
            && order.iter().all(is_preemptive);
        // The order of tasks with equal priorities is not known.
        let priority = |at: usize| order.get(at).map(|&e| system.entries[e].priority);
        let is_alone = |at: &usize| {
            let above = at.checked_sub(1).and_then(priority);
            above != priority(*at) && priority(at + 1) != priority(*at)
        };
        let timed = |e: usize| match system.entries[e].activation {
            Activation::Periodic { period_ns, offset_ns: Some(offset_ns), jitter_ns: 0 } => {
                let worst_ns = system.entries[e].execution_ns.worst;
                Some((e, Timed { offset_ns, period_ns, worst_ns }))
            }
            _ => None,
        };
        let alone = (0..order.len()).take_while(is_alone);
        let upper: Vec<(usize, Timed)> = alone.map_while(|at| timed(order[at])).collect();
        // A common offset is a critical instant, which the response-time analysis has.
        let is_common = || {
            upper.iter().all(|(e, t)| t.offset_ns == upper[0].1.offset_ns && bounds[*e].is_exact)
        };
        if !applies || upper.is_empty() || is_common() {
            continue;
        }
        let tasks: Vec<Timed> = upper.iter().map(|(_, timed)| *timed).collect();
        let Some(responses) = longest_responses(&tasks) else { continue };
        for ((e, _), response) in upper.into_iter().zip(responses) {
            (bounds[e].method, bounds[e].is_exact) = (Method::Offsets, true);
            fixed.push((e, response));
        }
    }
    fixed
}

/// The method for an entry, and whether its result is exact.
fn method(system: &System, e: usize) -> (Method, bool) {
    let entry = &system.entries[e];
    if system.group(entry.core).len() > 1 {
        return (global::method(system.policies[entry.core]), false);
    }
    let on_core: Vec<&Entry> = system.entries.iter().filter(|o| o.core == entry.core).collect();
    if system.policies[entry.core] == Policy::EarliestDeadline {
        return (Method::Demand, true);
    }
    if matches!(entry.activation, Activation::After(_)) {
        return (Method::Holistic, false);
    }
    let uses = |global: bool| {
        let is = |o: &&&Entry| {
            o.sections.iter().any(|s| system.resources[s.resource].is_global == global)
        };
        on_core.iter().any(|o| is(&o))
    };
    if uses(true) {
        return (Method::Spinning, false);
    }
    if uses(false) {
        return (Method::Ceiling, false);
    }
    let all = |p: Preemption| on_core.iter().all(|o| o.preemption == p);
    let is_free = |o: &&&Entry| match o.activation {
        Activation::Periodic { offset_ns, .. } => offset_ns.is_none(),
        Activation::Sporadic { .. } => true,
        // The spans of a curve need not be reached together.
        Activation::Curve(_) | Activation::After(_) => false,
    };
    let offset = |o: &Entry| match o.activation {
        Activation::Periodic { offset_ns, jitter_ns: 0, .. } => offset_ns,
        _ => None,
    };
    let first = on_core.first().and_then(|o| offset(o));
    let is_synchronous = first.is_some() && on_core.iter().all(|o| offset(o) == first);
    let has_ties = on_core.iter().filter(|o| o.priority == entry.priority).count() > 1;
    // The equations raise execution times of 0.
    let is_whole = on_core.iter().all(|o| o.execution_ns.worst > 0);
    let is_free = is_whole && on_core.iter().all(|o| is_free(&o));
    match entry.preemption {
        Preemption::Preemptive => {
            let has_instant = is_free || (is_synchronous && is_whole);
            let exact = all(Preemption::Preemptive) && has_instant && !has_ties;
            (Method::Preemptive, exact)
        }
        Preemption::NonPreemptive => {
            (Method::NonPreemptive, all(Preemption::NonPreemptive) && is_free && !has_ties)
        }
        Preemption::Cooperative | Preemption::BetweenRunnables => (Method::Cooperative, false),
    }
}

/// Longest time for which a core spins for each resource: one section on every other core.
fn spin_times(system: &System, core: CoreId) -> Vec<u64> {
    let longest = |resource: usize, other: CoreId| {
        let on_core = system.entries.iter().filter(|e| e.core == other);
        let sections = on_core.flat_map(|e| &e.sections).filter(|s| s.resource == resource);
        sections.map(|s| s.worst_ns).max().unwrap_or(0)
    };
    let others = |r: usize| {
        let cores = (0..system.policies.len()).filter(|&c| c != core);
        cores.map(|c| longest(r, c)).fold(0, u64::saturating_add)
    };
    (0..system.resources.len()).map(others).collect()
}

/// Longest time for which a job of an entry spins.
fn spin(spins: &[u64], entry: &Entry) -> u64 {
    entry.sections.iter().map(|s| spins[s.resource]).fold(0, u64::saturating_add)
}

/// Longest time for which an entry of lower priority delays another. Within a chunk, a cooperative
/// task has the priority `cooperative`, the highest one of the cooperative tasks of its core.
fn blocking(system: &System, spins: &[u64], cooperative: u32, entry: &Entry, lower: &Entry) -> u64 {
    let spin = spin(spins, lower);
    let section = |s: &crate::model::Section| {
        let resource = system.resources[s.resource];
        match resource.is_global {
            true => s.worst_ns.saturating_add(spins[s.resource]),
            false if resource.ceiling >= entry.priority => s.worst_ns,
            false => 0,
        }
    };
    // A section may extend over the end of a chunk, so that the job blocks from one to the next.
    let part = match lower.sections.iter().any(|s| section(s) > 0) {
        true => lower.execution_ns.worst,
        false => lower.chunks_ns.iter().max().copied().unwrap_or(0),
    };
    let whole = match lower.preemption {
        Preemption::NonPreemptive => lower.execution_ns.worst.saturating_add(spin),
        Preemption::BetweenRunnables => part.saturating_add(spin),
        Preemption::Cooperative if entry.priority <= cooperative => part.saturating_add(spin),
        Preemption::Cooperative | Preemption::Preemptive => 0,
    };
    lower.sections.iter().map(section).chain([whole]).max().unwrap_or(0)
}

fn fixed_priority(
    system: &System,
    core: CoreId,
    spins: &[u64],
    jitter: &[Option<u64>],
    bounds: &mut [Bound],
) {
    let order = system.on_core(core);
    let load = |e: usize, blocking_ns: u64| {
        let entry = &system.entries[e];
        let worst_ns = entry.execution_ns.worst.saturating_add(spin(spins, entry));
        if worst_ns.max(blocking_ns) > TIME_MAX_NS {
            return None;
        }
        let (jitter_ns, spans_ns) = match &entry.activation {
            Activation::Periodic { jitter_ns, .. } => (*jitter_ns, vec![]),
            Activation::Sporadic { .. } => (0, vec![]),
            Activation::Curve(spans) => (0, spans.clone()),
            Activation::After(_) => (jitter[e]?, vec![]),
        };
        let is_origin_curve = matches!(entry.activation, Activation::After(_))
            && matches!(origin(system, e), Activation::Curve(_));
        let period_ns = system.rate_ns(entry).filter(|_| !is_origin_curve)?;
        Some(Load {
            jitter_ns,
            spans_ns,
            blocking_ns,
            deadline_ns: u64::MAX,
            is_non_preemptive: entry.preemption == Preemption::NonPreemptive,
            from_release: matches!(entry.activation, Activation::After(_)),
            ..Load::new(period_ns, worst_ns)
        })
    };
    let is_cooperative = |e: &&Entry| e.preemption == Preemption::Cooperative;
    let all = order.iter().map(|&e| &system.entries[e]);
    let cooperative = all.filter(is_cooperative).map(|e| e.priority).max().unwrap_or(0);
    let mut set = CoreSet::default();
    for &e in &order {
        let entry = &system.entries[e];
        let others = order.iter().filter(|&&o| o != e).map(|&o| &system.entries[o]);
        let lower = others.filter(|o| o.priority < entry.priority);
        // The time of a lower task counts from its start, which is before the release.
        let longest =
            lower.map(|l| blocking(system, spins, cooperative, entry, l)).max().unwrap_or(0);
        let above =
            order.iter().filter(|&&o| o != e && system.entries[o].priority >= entry.priority);
        let loads = above.map(|&o| load(o, 0)).chain([load(e, longest.saturating_sub(1))]);
        bounds[e].response_ns = loads.collect::<Option<Vec<Load>>>().and_then(|loads| {
            set.replace(loads);
            set.last_response()
        });
    }
}

/// The activation at the begin of a chain of activations.
fn origin(system: &System, e: usize) -> &Activation {
    let mut activation = &system.entries[e].activation;
    for _ in 0..system.entries.len() {
        match activation {
            Activation::After(other) => activation = &system.entries[*other].activation,
            _ => break,
        }
    }
    activation
}

fn earliest_deadline(system: &System, core: CoreId, bounds: &mut [Bound]) {
    let order = system.on_core(core);
    let load = |&e: &usize| {
        let entry = &system.entries[e];
        let period = match entry.activation {
            Activation::Periodic { period_ns, .. } => period_ns,
            Activation::Sporadic { distance_ns } => distance_ns,
            _ => return None,
        };
        let deadline_ns = entry.deadline_ns?;
        Some(Load { deadline_ns, ..Load::new(period, entry.execution_ns.worst) })
    };
    let loads: Option<Vec<Load>> = order.iter().map(load).collect();
    let demand = loads.map_or(Demand::Undecided, |loads| processor_demand(&loads));
    let is_free = order.iter().all(|&e| {
        !matches!(system.entries[e].activation, Activation::Periodic { offset_ns: Some(_), .. })
    });
    for &e in &order {
        let bound = &mut bounds[e];
        (bound.demand, bound.is_exact) = (Some(demand), is_free);
        // Every job ends by its deadline if the test succeeds.
        let deadline = system.entries[e].deadline_ns;
        bound.response_ns = deadline.filter(|_| demand == Demand::Met);
    }
}

fn task_results(
    model: &Model,
    mode: Option<usize>,
    system: &System,
    bounds: &[Bound],
) -> Vec<TaskResult> {
    let mut results: Vec<TaskResult> = Vec::new();
    for (e, (entry, bound)) in system.entries.iter().zip(bounds).enumerate() {
        let (verdict, why) = judge(system, e, bounds);
        results.push(TaskResult {
            task: entry.task,
            mode,
            core: Some(entry.core),
            worst_ns: Some(entry.execution_ns.worst),
            response_ns: bound.response_ns,
            deadline_ns: entry.deadline_ns,
            method: bound.method,
            is_exact: bound.is_exact && bound.method != Method::Demand,
            is_bound: bound.response_ns.is_some(),
            verdict,
            why,
        });
    }
    for (task, why) in &system.omitted {
        results.push(TaskResult {
            task: *task,
            mode,
            core: model.tasks[*task].core,
            worst_ns: None,
            response_ns: None,
            deadline_ns: model.deadline_ns(*task),
            method: Method::None,
            is_exact: false,
            is_bound: false,
            verdict: Verdict::Unknown,
            why: why.clone(),
        });
    }
    results.sort_by_key(|r| r.task);
    results
}

fn judge(system: &System, e: usize, bounds: &[Bound]) -> (Verdict, String) {
    let (entry, bound) = (&system.entries[e], &bounds[e]);
    let overload = system.utilisation(entry.core) > 1.0 + 1e-9;
    let is_global = system.group(entry.core).len() > 1;
    match (bound.demand, bound.response_ns, entry.deadline_ns) {
        (Some(Demand::Met), ..) => (Verdict::Schedulable, String::new()),
        (Some(Demand::Exceeded(at)), ..) => {
            let what =
                format!("jobs with deadlines up to {} need more time", crate::Time::from(at));
            match bound.is_exact || overload {
                true => (Verdict::Unschedulable, what),
                false => (Verdict::Unknown, what + " if they arrive together"),
            }
        }
        (Some(Demand::Undecided), ..) => {
            (Verdict::Unknown, "the demand test reached its limits".into())
        }
        (None, None, _) if is_starved(system, e, bounds) => {
            let cores = if is_global { "its cores" } else { "the core" };
            let what = "the task and those above it require more than the whole time of";
            (Verdict::Unschedulable, format!("{what} {cores}"))
        }
        (None, None, _) if is_global => {
            (Verdict::Unknown, "the sufficient tests of global scheduling fail".into())
        }
        (None, None, _) => (Verdict::Unknown, "no bound of the response time was found".into()),
        (None, Some(_), None) => (Verdict::Schedulable, String::new()),
        (None, Some(response), Some(deadline)) if response <= deadline => {
            (Verdict::Schedulable, String::new())
        }
        (None, Some(_), Some(_)) if bound.is_exact => {
            (Verdict::Unschedulable, "the response time exceeds the deadline".into())
        }
        _ => (Verdict::Unknown, "the bound exceeds the deadline; it may not be reached".into()),
    }
}

/// Whether an entry without a bound certainly misses deadlines: together with the entries above, it
/// requires more than the whole time of its cores.
///
/// On one core an exact method is necessary. On several cores the entries above may leave a core
/// idle and still have an unbounded backlog. Therefore each of them must have a bound: then the
/// backlog is that of the entry, if no other one has its priority. Under earliest deadline first,
/// some task misses a deadline, which is the answer for all tasks.
fn is_starved(system: &System, e: usize, bounds: &[Bound]) -> bool {
    let entry = &system.entries[e];
    let cores = system.group(entry.core).len();
    let is_global = cores > 1;
    let is_fixed = system.policies[entry.core] == Policy::FixedPriority;
    if !is_fixed {
        return is_global && system.utilisation(entry.core) > 1.0 + 1e-9;
    }
    let (mut load, mut is_proof) = (0.0, is_global || bounds[e].is_exact);
    for (o, other) in system.entries.iter().enumerate() {
        if other.core != entry.core || other.priority < entry.priority {
            continue;
        }
        is_proof &= !is_global
            || o == e
            || (other.priority > entry.priority && bounds[o].response_ns.is_some());
        // The rate of other activations need not be reached.
        if let Activation::Periodic { period_ns: distance_ns, .. }
        | Activation::Sporadic { distance_ns } = other.activation
        {
            load += other.execution_ns.worst as f64 / distance_ns as f64;
        }
    }
    is_proof && load > cores as f64 * (1.0 + 1e-9)
}

/// Turns verdicts into "unknown" where a note or a missing task affects them: for the task itself,
/// for tasks of its core that it may delay, for tasks that follow it, and for users of a spin lock
/// that it uses. Pessimistic notes weaken only the verdict "not schedulable" and exact figures, of
/// the same tasks.
fn taint(model: &Model, system: &System, results: &mut [TaskResult]) {
    let (mut reasons, mut everything) = noted(model, Effect::Optimistic);
    let homes = model.homes();
    for (task, why) in &system.omitted {
        let why = format!("task '{}': {why}", model.tasks[*task].name);
        if model.tasks[*task].core.is_none() {
            everything = everything.or(Some(why.clone()));
        }
        reasons[*task].get_or_insert(why);
    }
    extend(model, &homes, &mut reasons, everything);
    let (mut pessimistic, everything) = noted(model, Effect::Pessimistic);
    extend(model, &homes, &mut pessimistic, everything);
    for result in results {
        if let Some(why) = &reasons[result.task] {
            (result.verdict, result.is_exact) = (Verdict::Unknown, false);
            result.is_bound = false;
            result.why.clone_from(why);
        } else if let Some(why) = &pessimistic[result.task] {
            result.is_exact = false;
            if result.verdict == Verdict::Unschedulable {
                result.verdict = Verdict::Unknown;
                result.why = format!("{}, but {why}", result.why);
            }
        }
    }
}

/// The first note of an effect about each task, and about all tasks.
fn noted(model: &Model, effect: Effect) -> (Vec<Option<String>>, Option<String>) {
    let mut reasons: Vec<Option<String>> = vec![None; model.tasks.len()];
    let mut everything = None;
    for note in model.notes.iter().filter(|n| n.effect == effect) {
        let reason = || format!("{}: {}", note.place, note.what);
        match note.task {
            Some(task) => {
                reasons[task].get_or_insert_with(reason);
            }
            None => everything = everything.or_else(|| Some(reason())),
        }
    }
    (reasons, everything)
}

/// Extends reasons to all tasks that they affect; `everything` is a reason about all tasks.
fn extend(
    model: &Model,
    homes: &[CoreId],
    reasons: &mut [Option<String>],
    everything: Option<String>,
) {
    if let Some(why) = everything {
        reasons.iter_mut().for_each(|r| *r = r.take().or_else(|| Some(why.clone())));
        return;
    }
    let mut pending: Vec<TaskId> = (0..reasons.len()).filter(|&t| reasons[t].is_some()).collect();
    while let Some(task) = pending.pop() {
        let Some(why) = reasons[task].clone() else { continue };
        for (other, reason) in reasons.iter_mut().enumerate() {
            if reason.is_none() && affects(model, homes, task, other) {
                *reason = Some(why.clone());
                pending.push(other);
            }
        }
    }
}

/// Whether an error in the times of one task may change the response time of another.
fn affects(model: &Model, homes: &[CoreId], task: TaskId, other: TaskId) -> bool {
    let (from, to) = (&model.tasks[task], &model.tasks[other]);
    if matches!(to.activation, Some(Activation::After(by)) if by == task) {
        return true;
    }
    let shares = |s: &crate::model::Section| to.sections.iter().any(|o| o.resource == s.resource);
    if from.sections.iter().any(shares) {
        return true;
    }
    let is_below = from.priority.zip(to.priority).is_some_and(|(from, to)| from < to);
    let may_block = from.preemption != Preemption::Preemptive || !from.sections.is_empty();
    let is_fixed = from.core.is_some_and(|c| model.cores[c].policy == Policy::FixedPriority);
    let home = |core: Option<CoreId>| core.map(|c| homes[c]);
    from.core.is_some() && home(from.core) == home(to.core) && !(is_below && is_fixed && !may_block)
}
