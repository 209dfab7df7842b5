//! Earliest deadline first: the processor demand of a core.

use crate::response::Load;
use crate::time::TIME_MAX_NS;

/// Largest number of points of time that are examined.
const STEPS_MAX: usize = 10_000_000;

/// Result of the demand test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Every deadline is met.
    Met,
    /// The jobs with deadlines up to this time require more time, in nanoseconds.
    Exceeded(u64),
    /// The limits of the computation were reached.
    Undecided,
}

/// Execution time of the jobs that arrive from 0 on and have their deadline up to `time`.
fn demand(loads: &[Load], time: u64) -> u64 {
    let of = |l: &Load| {
        let jobs = time.checked_sub(l.deadline_ns).map_or(0, |rest| rest / l.period_ns + 1);
        jobs.saturating_mul(l.worst_ns)
    };
    loads.iter().map(of).fold(0, u64::saturating_add)
}

/// Latest deadline before `time`.
fn deadline_before(loads: &[Load], time: u64) -> Option<u64> {
    let of = |l: &Load| {
        let rest = time.checked_sub(l.deadline_ns)?.checked_sub(1)?;
        Some(rest / l.period_ns * l.period_ns + l.deadline_ns)
    };
    loads.iter().filter_map(of).max()
}

/// Tests sporadic tasks (Baruah, Mok, Rosier, *Preemptively Scheduling Hard-Real-Time Sporadic
/// Tasks on One Processor*, 1990) by quick processor-demand analysis (Zhang, Burns,
/// *Schedulability Analysis for Real-Time Systems with EDF Scheduling*, 2009). Exact for arbitrary
/// deadlines. Only the period, the deadline and the worst case of each load count.
pub fn processor_demand(loads: &[Load]) -> Demand {
    let utilisation: f64 = loads.iter().map(|l| l.worst_ns as f64 / l.period_ns as f64).sum();
    let min = loads.iter().map(|l| l.deadline_ns).min().unwrap_or(0);
    if utilisation > 1.0 + 1e-9 {
        // Some deadline within the doubling times is exceeded; it serves as the witness.
        let mut time = min.max(1);
        while time < TIME_MAX_NS {
            if demand(loads, time) > time {
                return Demand::Exceeded(time);
            }
            time *= 2;
        }
        return Demand::Undecided;
    }
    // The synchronous busy period contains the first missed deadline.
    let mut busy: u64 = loads.iter().map(|l| l.worst_ns).sum();
    let mut steps = 0;
    loop {
        let next = loads.iter().map(|l| busy.div_ceil(l.period_ns) * l.worst_ns).sum();
        if next == busy {
            break;
        }
        steps += 1;
        if next > TIME_MAX_NS || steps > STEPS_MAX {
            return Demand::Undecided;
        }
        busy = next;
    }
    let Some(mut time) = deadline_before(loads, busy + 1) else { return Demand::Met };
    for _ in 0..STEPS_MAX {
        let needed = demand(loads, time);
        if needed > time {
            return Demand::Exceeded(time);
        }
        if needed <= min {
            return Demand::Met;
        }
        time = match needed < time {
            true => needed,
            false => match deadline_before(loads, time) {
                Some(before) => before,
                None => return Demand::Met,
            },
        };
    }
    Demand::Undecided
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: demand at every time.
    fn exhaustive(loads: &[Load], until: u64) -> bool {
        (1..=until).all(|t| demand(loads, t) <= t)
    }

    #[test]
    fn demand_test_equals_its_definition() {
        let seed = 3;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut decided = [0; 2];
        for round in 0..2_000 {
            let loads: Vec<Load> = (0..random.usize(1..5))
                .map(|_| {
                    let period = random.u64(2..30);
                    let deadline_ns = random.u64(1..40);
                    Load { deadline_ns, ..Load::new(period, random.u64(1..=period / 2)) }
                })
                .collect();
            let utilisation: f64 =
                loads.iter().map(|l| l.worst_ns as f64 / l.period_ns as f64).sum();
            if utilisation > 0.98 {
                continue;
            }
            let holds = processor_demand(&loads) == Demand::Met;
            decided[usize::from(holds)] += 1;
            assert_eq!(holds, exhaustive(&loads, 3_000), "seed {seed}, round {round}: {loads:?}");
        }
        assert!(decided[0] > 200 && decided[1] > 200, "{decided:?}");
    }
}
