//! End-to-end latencies of chains.
//!
//! *Reaction*: the longest time from a cause to the end of the last job that reacts to it. *Age*:
//! the longest time from the read of data at the start of the chain to the end of the last job
//! that uses them. Both are bounds that hold for any phases of the tasks:
//!
//! - implicit communication: each step to a task that is activated by time adds a period and a
//!   response time (Davare, Zhu, Di Natale, Pinello, Kanajan, Sangiovanni-Vincentelli, *Period
//!   Optimization for Hard Real-time Distributed Automotive Systems*, 2007); a step to a task that
//!   its predecessor activates adds its response time;
//! - Logical Execution Time: each task adds two periods (Hamann, Dasari, Kramer, Pressler, Wurst,
//!   *Communication Centric Design in Complex Automotive Embedded Systems*, 2017).

use crate::analysis::{TaskResult, Verdict};
use crate::model::{Activation, Chain, Communication, Model};

/// The result for a chain in a mode in which all of its tasks are active; a chain without such a
/// mode has one result without bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainResult {
    /// Index of the chain.
    pub chain: usize,
    /// The mode.
    pub mode: Option<usize>,
    /// Bound of the reaction in nanoseconds.
    pub reaction_ns: Option<u64>,
    /// Bound of the age in nanoseconds.
    pub age_ns: Option<u64>,
    /// The answer: schedulable if the chain meets its limits.
    pub verdict: Verdict,
    /// The ground of another verdict.
    pub why: String,
}

fn is_active(model: &Model, chain: &Chain, mode: Option<usize>) -> bool {
    chain.tasks.iter().all(|&t| model.tasks[t].is_active(mode))
}

/// Results of the chains whose tasks are active together in no mode.
pub(crate) fn inactive(model: &Model) -> impl Iterator<Item = ChainResult> {
    let modes = model.all_modes();
    let is_inactive =
        move |c: &usize| !modes.iter().any(|&mode| is_active(model, &model.chains[*c], mode));
    (0..model.chains.len()).filter(is_inactive).map(|chain| ChainResult {
        chain,
        mode: None,
        reaction_ns: None,
        age_ns: None,
        verdict: Verdict::Unknown,
        why: "its tasks are active together in no mode".into(),
    })
}

/// Bounds of all chains whose tasks are active in a mode.
pub(crate) fn chains(
    model: &Model,
    mode: Option<usize>,
    results: &[TaskResult],
) -> Vec<ChainResult> {
    let active = (0..model.chains.len()).filter(|&c| is_active(model, &model.chains[c], mode));
    active.map(|c| result(model, mode, c, results)).collect()
}

fn result(model: &Model, mode: Option<usize>, chain: usize, results: &[TaskResult]) -> ChainResult {
    let limits = (model.chains[chain].reaction_max_ns, model.chains[chain].age_max_ns);
    let bounds = latency(model, &model.chains[chain], results);
    let (reaction_ns, age_ns) = bounds.as_ref().map_or((None, None), |b| (Some(b.0), Some(b.1)));
    let exceeds = |bound: Option<u64>, limit: Option<u64>| match (bound, limit) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(bound), Some(limit)) => bound > limit,
    };
    let (verdict, why) = match bounds {
        Err(why) => (Verdict::Unknown, why),
        Ok(_) if exceeds(reaction_ns, limits.0) || exceeds(age_ns, limits.1) => {
            (Verdict::Unknown, "the bound exceeds the limit; it may not be reached".into())
        }
        Ok(_) => (Verdict::Schedulable, String::new()),
    };
    ChainResult { chain, mode, reaction_ns, age_ns, verdict, why }
}

/// Bounds of the reaction and of the age.
fn latency(model: &Model, chain: &Chain, results: &[TaskResult]) -> Result<(u64, u64), String> {
    let (mut reaction, mut age) = (0u64, 0u64);
    for (at, &task) in chain.tasks.iter().enumerate() {
        let name = &model.tasks[task].name;
        let result = results.iter().find(|r| r.task == task);
        let response = result.and_then(|r| r.response_ns);
        let response = response.ok_or_else(|| format!("task '{name}' has no bound"))?;
        if result.is_some_and(|r| r.verdict == Verdict::Unknown) {
            return Err(format!("the response time of task '{name}' is not certain"));
        }
        let period = match model.tasks[task].activation {
            Some(Activation::Periodic { period_ns, .. }) => Some(period_ns),
            _ => None,
        };
        let follows =
            at > 0 && model.tasks[task].activation == Some(Activation::After(chain.tasks[at - 1]));
        let no_period = || format!("task '{name}' has no longest distance of its arrivals");
        let is_last = at + 1 == chain.tasks.len();
        if chain.communication == Communication::Let {
            let period = period.ok_or_else(no_period)?;
            if response > period {
                return Err(format!(
                    "task '{name}' does not end within its period, as LET requires"
                ));
            }
            reaction = reaction.saturating_add(2 * period);
            age = age.saturating_add(if is_last { period } else { 2 * period });
            continue;
        }
        // An event activates the first task, or the task samples the cause.
        let wait = match (at, period) {
            (0, None) => 0,
            _ if follows => 0,
            (_, period) => period.ok_or_else(no_period)?,
        };
        reaction = reaction.saturating_add(wait).saturating_add(response);
        let next = chain.tasks.get(at + 1).map(|&next| &model.tasks[next].activation);
        let hold = match next {
            None => 0,
            Some(Some(Activation::After(by))) if *by == task => 0,
            Some(_) => period
                .or(model.period_ns(task))
                .filter(|_| is_timed(model, task))
                .ok_or_else(no_period)?,
        };
        age = age.saturating_add(hold).saturating_add(response);
    }
    Ok((reaction, age))
}

/// Whether the arrivals of a task, or of the origin of its activations, are periodic.
fn is_timed(model: &Model, task: usize) -> bool {
    let mut task = task;
    for _ in 0..=model.tasks.len() {
        match model.tasks[task].activation {
            Some(Activation::After(other)) => task = other,
            Some(Activation::Periodic { .. }) => return true,
            _ => return false,
        }
    }
    false
}
