//! Exact response times of tasks with given offsets: the schedule of the worst-case execution
//! times, followed until it repeats.
//!
//! ```text
//!   0 ... latest offset | hyper-period | hyper-period | ...   until two states are equal
//! ```
//!
//! Under preemptive fixed priorities on one core, a shorter execution time lengthens no response
//! time (Baruah, Burns, *Sustainable Scheduling Analysis*, 2006), so the schedule of the worst
//! cases has the longest response times. From the latest offset on, equal states at two multiples
//! of the hyper-period have equal futures (Leung, Merrill, *A Note on Preemptive Scheduling of
//! Periodic, Real-Time Tasks*, 1980; Goossens, Devillers, *The Non-Optimality of the Monotonic
//! Priority Assignments for Hard Real-Time Offset Free Systems*, 1997).

use crate::time::TIME_MAX_NS;

/// Largest number of jobs that are followed: a limit on the time, never on correctness.
const JOBS_MAX: u64 = 200_000;

/// A periodic task with a given first arrival. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) offset_ns: u64,
    pub(crate) period_ns: u64,
    pub(crate) worst_ns: u64,
}

/// State of a task in the schedule.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    arrived: u64,
    ended: u64,
    /// Executed time of the oldest job that has not ended.
    done_ns: u64,
}

/// Longest response times of tasks with decreasing priorities, down to the first that overloads the
/// core, or `None` where the schedule does not repeat within the limits.
pub(crate) fn longest_responses(tasks: &[Timed]) -> Option<Vec<u64>> {
    let shares = tasks.iter().scan(0.0, |sum, t| {
        *sum += t.worst_ns as f64 / t.period_ns as f64;
        Some(*sum)
    });
    let tasks = &tasks[..shares.take_while(|sum| *sum <= 1.0 + 1e-9).count()];
    let latest = tasks.iter().map(|t| t.offset_ns).max()?;
    let cycle = tasks.iter().try_fold(1, |all, t| multiple(all, t.period_ns))?;
    let jobs: u64 = tasks.iter().map(|t| (latest + 2 * cycle) / t.period_ns + 1).sum();
    if jobs > JOBS_MAX {
        return None;
    }
    let mut schedule = Schedule {
        tasks,
        states: vec![State::default(); tasks.len()],
        responses: vec![0; tasks.len()],
        now: 0,
        jobs: 0,
    };
    schedule.follow(latest)?;
    loop {
        let before = schedule.backlog();
        schedule.follow(schedule.now + cycle)?;
        if schedule.backlog() == before {
            return Some(schedule.responses);
        }
    }
}

/// The least common multiple, as far as it is a time.
fn multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b).filter(|m| *m <= TIME_MAX_NS)
}

struct Schedule<'a> {
    tasks: &'a [Timed],
    states: Vec<State>,
    responses: Vec<u64>,
    now: u64,
    jobs: u64,
}

impl Schedule<'_> {
    /// Of each task, the number of jobs that have not ended, and the time that the oldest has.
    fn backlog(&self) -> Vec<(u64, u64)> {
        self.states.iter().map(|s| (s.arrived - s.ended, s.done_ns)).collect()
    }

    /// Runs the jobs up to a time, without the arrivals at that time.
    fn follow(&mut self, until: u64) -> Option<()> {
        while self.now < until {
            let mut next = until;
            let mut ready = None;
            for (i, (task, state)) in self.tasks.iter().zip(&mut self.states).enumerate() {
                let arrival = |n: u64| task.offset_ns + n * task.period_ns;
                if arrival(state.arrived) <= self.now {
                    state.arrived += 1;
                    self.jobs += 1;
                }
                next = next.min(arrival(state.arrived));
                if ready.is_none() && state.arrived > state.ended {
                    ready = Some(i);
                }
            }
            if self.jobs > JOBS_MAX {
                return None;
            }
            if let Some(i) = ready {
                let (task, state) = (&self.tasks[i], &mut self.states[i]);
                let end = self.now + task.worst_ns - state.done_ns;
                if end <= next {
                    let arrival = task.offset_ns + state.ended * task.period_ns;
                    self.responses[i] = self.responses[i].max(end - arrival);
                    (state.ended, state.done_ns) = (state.ended + 1, 0);
                    next = end;
                } else {
                    state.done_ns += next - self.now;
                }
            }
            self.now = next;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed((offset_ns, period_ns, worst_ns): (u64, u64, u64)) -> Timed {
        Timed { offset_ns, period_ns, worst_ns }
    }

    #[test]
    fn offsets_separate_jobs() {
        let of = |tasks: &[(u64, u64, u64)]| {
            longest_responses(&tasks.iter().copied().map(timed).collect::<Vec<_>>())
        };
        // At 0, 10, ... and at 5, 15, ...: the tasks never meet.
        assert_eq!(of(&[(0, 10, 4), (5, 10, 4)]), Some(vec![4, 4]));
        assert_eq!(of(&[(0, 10, 4), (0, 10, 4)]), Some(vec![4, 8]));
        // The whole core is busy: the job that arrives at 1 runs from 2 to 4 and from 6 to 7.
        assert_eq!(of(&[(0, 4, 2), (1, 6, 3)]), Some(vec![2, 6]));
        // The second task overloads the core.
        assert_eq!(of(&[(0, 4, 3), (0, 6, 3)]), Some(vec![3]));
        // The hyper-period has too many jobs.
        assert_eq!(of(&[(0, 1_000_003, 1), (0, 999_983, 1)]), None);
    }
}
