//! Random task sets for tests and benches.

use crate::model::{Activation, CoreId};
use crate::model::{Preemption, Range};
use crate::system::Entry;
use fastrand::Rng;

/// Utilisations of `count` tasks with a given sum, uniformly distributed (Bini, Buttazzo,
/// *Measuring the Performance of Schedulability Tests*, 2005: UUniFast).
pub fn utilisations(random: &mut Rng, count: usize, sum: f64) -> Vec<f64> {
    let mut left = sum;
    let mut shares = Vec::with_capacity(count);
    for i in 1..count {
        let next = left * random.f64().powf(1.0 / (count - i) as f64);
        shares.push(left - next);
        left = next;
    }
    shares.push(left);
    shares
}

/// A period with a uniformly distributed logarithm (Emberson, Stafford, Davis, *Techniques for the
/// Synthesis of Multiprocessor Tasksets*, 2010), rounded to a multiple of `step_ns`.
pub fn period(random: &mut Rng, min_ns: u64, max_ns: u64, step_ns: u64) -> u64 {
    let ratio = max_ns as f64 / min_ns as f64;
    let period = min_ns as f64 * ratio.powf(random.f64());
    ((period / step_ns as f64).round() as u64).max(1) * step_ns
}

/// A task of a generated set, with an arbitrary phase, and its period as its deadline.
pub fn entry(task: usize, core: CoreId, period_ns: u64, execution_ns: u64, priority: u32) -> Entry {
    Entry {
        task,
        core,
        activation: Activation::Periodic { period_ns, offset_ns: None, jitter_ns: 0 },
        deadline_ns: Some(period_ns),
        execution_ns: Range::exactly(execution_ns),
        priority,
        preemption: Preemption::Preemptive,
        chunks_ns: vec![execution_ns],
        sections: vec![],
    }
}

/// A set of tasks on one core with rate-monotonic, distinct priorities.
pub fn task_set(
    random: &mut Rng,
    count: usize,
    sum: f64,
    periods_ns: (u64, u64),
    step_ns: u64,
) -> Vec<Entry> {
    let mut tasks: Vec<(u64, u64)> = utilisations(random, count, sum)
        .into_iter()
        .map(|share| {
            let period = period(random, periods_ns.0, periods_ns.1, step_ns);
            (period, ((period as f64 * share) as u64).max(1))
        })
        .collect();
    tasks.sort_unstable();
    let numbered = (0..).zip(tasks);
    numbered.map(|(n, (t, c))| entry(n, 0, t, c, (count - n) as u32)).collect()
}
