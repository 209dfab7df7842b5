//! Sufficient tests for cores with one queue (global scheduling). None of them is exact, so a
//! failed test decides nothing.

use crate::analysis::{Bound, Method};
use crate::demand::Demand;
use crate::model::{Activation, CoreId, Policy, Preemption};
use crate::system::{Entry, System};

/// Largest number of iterations of an equation.
const STEPS_MAX: usize = 100_000;

/// A sporadic task whose deadline is not after its period. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sporadic {
    pub(crate) period_ns: u64,
    pub(crate) worst_ns: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) priority: u32,
}

impl Sporadic {
    /// Largest time for which the jobs of this task execute in a window, if the response time of
    /// each is at most `response` (Bertogna, Cirinei, *Response-Time Analysis for Globally
    /// Scheduled Symmetric Multiprocessor Platforms*, 2007, equation 8).
    fn work(&self, window: u64, response: u64) -> u64 {
        let span = window + (response - self.worst_ns);
        let jobs = span / self.period_ns;
        jobs.saturating_mul(self.worst_ns)
            .saturating_add(self.worst_ns.min(span - jobs * self.period_ns))
    }

    /// Largest time for which the jobs of this task with deadlines in a window that ends with one
    /// execute in it (Bertogna, Cirinei, Lipari, *Improved Schedulability Analysis of EDF on
    /// Multiprocessor Platforms*, 2005, section 4).
    fn work_to_deadline(&self, window: u64) -> u64 {
        let jobs = window.checked_sub(self.deadline_ns).map_or(0, |rest| rest / self.period_ns + 1);
        let rest = window.saturating_sub(jobs * self.period_ns);
        jobs.saturating_mul(self.worst_ns).saturating_add(self.worst_ns.min(rest))
    }
}

/// The method of a group of cores with a policy.
pub(crate) fn method(policy: Policy) -> Method {
    match policy {
        Policy::FixedPriority => Method::GlobalPriority,
        Policy::EarliestDeadline => Method::GlobalDeadline,
    }
}

/// Bounds of the tasks of the group that begins with this core.
pub(crate) fn bounds(system: &System, core: CoreId, bounds: &mut [Bound]) {
    let order = system.on_core(core);
    let cores = system.group(core).len() as u64;
    let mut tasks: Vec<Sporadic> =
        order.iter().map_while(|&e| sporadic(&system.entries[e])).collect();
    let uncovered = order.get(tasks.len()).map(|&e| system.entries[e].priority);
    match (uncovered, system.policies[core]) {
        (_, Policy::FixedPriority) => {
            // Tasks below do not delay those above; tasks of the same priority do.
            tasks.retain(|task| Some(task.priority) != uncovered);
            let responses = fixed_priority(&tasks, cores);
            for (&e, response) in order.iter().zip(responses) {
                bounds[e].response_ns = response;
            }
        }
        (Some(_), Policy::EarliestDeadline) => {
            order.iter().for_each(|&e| bounds[e].demand = None);
        }
        (None, Policy::EarliestDeadline) => {
            let is_met = density(&tasks, cores) || earliest_deadline(&tasks, cores);
            for &e in order.iter().filter(|_| is_met) {
                bounds[e].demand = Some(Demand::Met);
                bounds[e].response_ns = system.entries[e].deadline_ns;
            }
        }
    }
}

/// The task of an entry, if the tests cover it.
fn sporadic(entry: &Entry) -> Option<Sporadic> {
    let period_ns = match entry.activation {
        Activation::Periodic { period_ns, jitter_ns: 0, .. } => period_ns,
        Activation::Sporadic { distance_ns } => distance_ns,
        _ => return None,
    };
    // A job without an execution time waits for a core, too.
    let (worst_ns, priority) = (entry.execution_ns.worst.max(1), entry.priority);
    let deadline_ns = entry.deadline_ns.filter(|d| *d <= period_ns && worst_ns <= *d)?;
    let is_plain = entry.preemption == Preemption::Preemptive && entry.sections.is_empty();
    is_plain.then_some(Sporadic { period_ns, worst_ns, deadline_ns, priority })
}

/// Bounds of the response times of tasks in order of decreasing priority. A bound requires that all
/// tasks above, and those of the same priority, meet their deadlines.
pub(crate) fn fixed_priority(tasks: &[Sporadic], cores: u64) -> Vec<Option<u64>> {
    let mut responses: Vec<Option<u64>> = vec![None; tasks.len()];
    let mut from = 0;
    while let Some(first) = tasks.get(from) {
        let count = tasks[from..].iter().take_while(|t| t.priority == first.priority).count();
        let class = from..from + count;
        let found: Option<Vec<u64>> = class
            .clone()
            .map(|k| {
                // Of a task with the same priority, only the deadline is known.
                let others = (0..class.end).filter(|&i| i != k);
                let bound = |i: usize| responses[i].unwrap_or(tasks[i].deadline_ns);
                response(
                    &tasks[k],
                    &others.map(|i| (tasks[i], bound(i))).collect::<Vec<_>>(),
                    cores,
                )
            })
            .collect();
        let Some(found) = found else { break };
        for (k, response) in class.clone().zip(found) {
            responses[k] = Some(response);
        }
        from = class.end;
    }
    responses
}

/// Bound of the response time of a task below others with their bounds (Bertogna, Cirinei 2007,
/// theorem 6), if it is within the deadline.
fn response(task: &Sporadic, others: &[(Sporadic, u64)], cores: u64) -> Option<u64> {
    let mut window = task.worst_ns;
    for _ in 0..STEPS_MAX {
        let limit = window - task.worst_ns + 1;
        let delay: u64 = others
            .iter()
            .map(|(other, bound)| other.work(window, *bound).min(limit))
            .fold(0, u64::saturating_add);
        let next = task.worst_ns.saturating_add(delay / cores);
        if next > task.deadline_ns {
            return None;
        }
        if next <= window {
            return Some(window);
        }
        window = next;
    }
    None
}

/// Goossens, Funk, Baruah, *Priority-Driven Scheduling of Periodic Task Systems on
/// Multiprocessors*, 2003, with densities for deadlines before the period.
pub(crate) fn density(tasks: &[Sporadic], cores: u64) -> bool {
    let of = |t: &Sporadic| t.worst_ns as f64 / t.deadline_ns as f64;
    let (sum, most) = tasks.iter().map(of).fold((0.0, 0.0f64), |(s, m), d| (s + d, m.max(d)));
    sum + 1e-9 <= cores as f64 - (cores - 1) as f64 * most
}

/// Bertogna, Cirinei, Lipari 2005, theorem 7, in whole nanoseconds.
pub(crate) fn earliest_deadline(tasks: &[Sporadic], cores: u64) -> bool {
    let holds = |k: usize| {
        let task = &tasks[k];
        let slack = task.deadline_ns - task.worst_ns;
        let others = (0..tasks.len()).filter(|&i| i != k);
        let works = others.map(|i| tasks[i].work_to_deadline(task.deadline_ns).min(slack + 1));
        u128::from(cores) * u128::from(slack + 1) > works.map(u128::from).sum()
    };
    (0..tasks.len()).all(holds)
}
