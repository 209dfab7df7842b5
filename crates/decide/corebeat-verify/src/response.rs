//! Response times of one core under fixed priorities.
//!
//! [`CoreSet`] is the inner loop of searches: [`CoreSet::analyse`] allocates nothing.

use crate::time::TIME_MAX_NS;

/// Largest number of jobs of a task that a busy period may contain.
const JOBS_MAX: u64 = 100_000;
/// Largest number of iterations of an equation: a limit on the time, never on correctness.
const STEPS_MAX: u64 = 1_000_000;

/// A task of a [`CoreSet`]. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Smallest distance of arrivals without jitter, at least 1.
    pub period_ns: u64,
    /// Longest delay from an arrival to the release.
    pub jitter_ns: u64,
    /// Smallest spans of 2, 3, ... arrivals, which replace the period and the jitter if there are
    /// any.
    pub spans_ns: Vec<u64>,
    /// Worst-case execution time. A [`CoreSet`] raises 0 to 1: a job without an execution time
    /// waits for the core, too.
    pub worst_ns: u64,
    /// Longest time for which tasks of lower priority delay a job.
    pub blocking_ns: u64,
    /// Longest permitted response time; `u64::MAX` if there is none.
    pub deadline_ns: u64,
    /// A job that has started is not preempted.
    pub is_non_preemptive: bool,
    /// The response time begins at the release, not at the arrival.
    pub from_release: bool,
}

impl Load {
    /// A preemptive task without jitter and blocking, whose deadline is its period.
    pub fn new(period_ns: u64, worst_ns: u64) -> Load {
        Load {
            period_ns,
            jitter_ns: 0,
            spans_ns: vec![],
            worst_ns,
            blocking_ns: 0,
            deadline_ns: period_ns,
            is_non_preemptive: false,
            from_release: false,
        }
    }

    /// Largest number of releases in a span of this length, without its end.
    fn count(&self, span: u64) -> u64 {
        match self.spans_ns.is_empty() {
            true => (span + self.jitter_ns).div_ceil(self.period_ns),
            false if span == 0 => 0,
            false => self.gaps(span - 1) + 1,
        }
    }

    /// Largest number of releases in a span of this length, with its end.
    fn count_closed(&self, span: u64) -> u64 {
        match self.spans_ns.is_empty() {
            true => (span + self.jitter_ns) / self.period_ns + 1,
            false => self.gaps(span) + 1,
        }
    }

    /// Largest number of distances of a curve that fit in a span.
    fn gaps(&self, span: u64) -> u64 {
        let Some(last) = self.spans_ns.last() else { return 0 };
        let rest = span % last;
        let within = self.spans_ns.partition_point(|s| *s <= rest);
        span / last * self.spans_ns.len() as u64 + within as u64
    }

    /// Earliest release of job `q` after that of job 0.
    fn earliest(&self, q: u64) -> u64 {
        let count = self.spans_ns.len() as u64;
        match self.spans_ns.last() {
            None => (q * self.period_ns).saturating_sub(self.jitter_ns),
            Some(last) => {
                let rest = (q % count) as usize;
                q / count * last + if rest == 0 { 0 } else { self.spans_ns[rest - 1] }
            }
        }
    }

    /// Response time of job `q`, which ends at a time after the release of job 0.
    fn response(&self, q: u64, end: u64) -> u64 {
        match self.from_release || !self.spans_ns.is_empty() {
            true => end - self.earliest(q).min(end),
            // The arrival of job 0 is as long as the jitter before its release.
            false => (end + self.jitter_ns).saturating_sub(q * self.period_ns),
        }
    }
}

/// The tasks of one core, the most urgent first, with the memory that an analysis requires.
#[derive(Debug, Clone, Default)]
pub struct CoreSet {
    loads: Vec<Load>,
    /// The short equation applies: no jitter, no curve, no blocking, all tasks preemptive.
    is_plain: bool,
    /// Of each task: its next release in the present window.
    next: Vec<u64>,
    responses: Vec<u64>,
}

impl CoreSet {
    /// A set of tasks in order of decreasing priority.
    pub fn new(loads: Vec<Load>) -> CoreSet {
        let mut set = CoreSet::default();
        set.replace(loads);
        set
    }

    /// Replaces the tasks.
    pub fn replace(&mut self, loads: Vec<Load>) {
        self.next = vec![0; loads.len()];
        self.responses = vec![u64::MAX; loads.len()];
        self.loads = loads;
        self.update();
    }

    /// The tasks, in order of decreasing priority.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// Changes the tasks in place.
    pub fn modify(&mut self, change: impl FnOnce(&mut [Load])) {
        change(&mut self.loads);
        self.update();
    }

    fn update(&mut self) {
        for load in &mut self.loads {
            load.worst_ns = load.worst_ns.max(1);
        }
        self.is_plain = self.loads.iter().all(|l| {
            l.jitter_ns == 0 && l.spans_ns.is_empty() && l.blocking_ns == 0 && !l.is_non_preemptive
        });
    }

    /// Response times of the last analysis in nanoseconds; `u64::MAX` where no bound was found.
    pub fn responses(&self) -> &[u64] {
        &self.responses
    }

    /// Whether the last analysis found a response time above its deadline. If not, and a deadline
    /// was not met, the analysis has reached its limits.
    pub(crate) fn has_late(&self) -> bool {
        let mut all = self.responses.iter().zip(&self.loads);
        all.any(|(response, load)| *response != u64::MAX && *response > load.deadline_ns)
    }

    /// Computes all response times, and returns whether every task meets its deadline.
    ///
    /// Preemptive tasks: Joseph and Pandya, *Finding Response Times in a Real-Time System*, 1986,
    /// and Lehoczky, *Fixed Priority Scheduling of Periodic Task Sets with Arbitrary Deadlines*,
    /// 1990; jitter and blocking: Audsley, Burns, Richardson, Tindell, Wellings, *Applying New
    /// Scheduling Theory to Static Priority Preemptive Scheduling*, 1993. Tasks that are not
    /// preempted: Davis, Burns, Bril, Lukkien, *Controller Area Network (CAN) Schedulability
    /// Analysis: Refuted, Revisited and Revised*, 2007.
    pub fn analyse(&mut self) -> bool {
        match self.is_plain {
            true => self.analyse_plain(),
            false => {
                let mut holds = true;
                for i in 0..self.loads.len() {
                    let load = &self.loads[i];
                    let response = match load.is_non_preemptive {
                        true => self.non_preemptive(i),
                        false => self.preemptive(i),
                    };
                    self.responses[i] = response.unwrap_or(u64::MAX);
                    holds &= self.responses[i] <= load.deadline_ns && response.is_some();
                }
                holds
            }
        }
    }

    /// Response time of the least urgent task, or `None` without a bound.
    pub(crate) fn last_response(&self) -> Option<u64> {
        let last = self.loads.len().checked_sub(1)?;
        match self.loads[last].is_non_preemptive {
            true => self.non_preemptive(last),
            false => self.preemptive(last),
        }
    }

    /// The first job of each task after a common release. The window of a task contains that of the
    /// task above and one own job, so that the releases counted so far remain counted.
    fn analyse_plain(&mut self) -> bool {
        let (mut window, mut holds) = (0u64, true);
        for i in 0..self.loads.len() {
            let load = &self.loads[i];
            window += load.worst_ns;
            let mut steps = 0u64;
            // `next[j]` is the end of the counted jobs of j: they arrive before the window's end.
            loop {
                let mut more = 0;
                for (next, other) in self.next[..i].iter_mut().zip(&self.loads) {
                    if *next < window {
                        let jobs = (window - *next).div_ceil(other.period_ns);
                        *next += jobs * other.period_ns;
                        // Only an overloaded core reaches the end of the numbers.
                        more = jobs.saturating_mul(other.worst_ns).saturating_add(more);
                    }
                }
                window = window.saturating_add(more);
                steps += 1;
                if more == 0 || window > TIME_MAX_NS || steps > STEPS_MAX {
                    break;
                }
            }
            self.next[i] = load.period_ns;
            let is_first = window <= load.period_ns && window <= TIME_MAX_NS && steps <= STEPS_MAX;
            if is_first {
                self.responses[i] = window;
                holds &= window <= load.deadline_ns;
                continue;
            }
            // A later job of the busy period may have a longer response time. The tasks below
            // require the general equation, too.
            for rest in i..self.loads.len() {
                let response = self.preemptive(rest);
                self.responses[rest] = response.unwrap_or(u64::MAX);
                holds &= response.is_some_and(|r| r <= self.loads[rest].deadline_ns);
            }
            break;
        }
        holds
    }

    /// Utilisation of the tasks down to `i`.
    fn utilisation(&self, i: usize) -> f64 {
        let rate = |l: &Load| match l.spans_ns.last() {
            None => l.worst_ns as f64 / l.period_ns as f64,
            Some(last) => (l.worst_ns * l.spans_ns.len() as u64) as f64 / *last as f64,
        };
        self.loads[..=i].iter().map(rate).sum()
    }

    fn preemptive(&self, i: usize) -> Option<u64> {
        let (above, load) = (&self.loads[..i], &self.loads[i]);
        if self.utilisation(i) > 1.0 + 1e-9 {
            return None;
        }
        let (mut window, mut response) = (0, 0);
        for q in 0..JOBS_MAX {
            let own = load.blocking_ns + (q + 1) * load.worst_ns;
            window = fixpoint(window.max(own), |w| {
                own + above.iter().map(|l| l.count(w) * l.worst_ns).sum::<u64>()
            })?;
            response = response.max(load.response(q, window));
            if window <= load.earliest(q + 1) {
                return Some(response);
            }
        }
        None
    }

    fn non_preemptive(&self, i: usize) -> Option<u64> {
        let (above, load) = (&self.loads[..i], &self.loads[i]);
        if self.utilisation(i) > 1.0 + 1e-9 {
            return None;
        }
        let busy = fixpoint(load.blocking_ns + load.worst_ns, |w| {
            load.blocking_ns + self.loads[..=i].iter().map(|l| l.count(w) * l.worst_ns).sum::<u64>()
        })?;
        let jobs = load.count(busy).max(1);
        if jobs > JOBS_MAX {
            return None;
        }
        let (mut start, mut response) = (0, 0);
        for q in 0..jobs {
            let own = load.blocking_ns + q * load.worst_ns;
            start = fixpoint(start.max(own), |w| {
                own + above.iter().map(|l| l.count_closed(w) * l.worst_ns).sum::<u64>()
            })?;
            response = response.max(load.response(q, start + load.worst_ns));
        }
        Some(response)
    }
}

/// The smallest solution of `w = f(w)` that is not below `from`, or `None` beyond the limits.
fn fixpoint(from: u64, f: impl Fn(u64) -> u64) -> Option<u64> {
    let mut window = from;
    for _ in 0..STEPS_MAX {
        let next = f(window).max(window);
        if next == window {
            return Some(window);
        }
        if next > TIME_MAX_NS {
            return None;
        }
        window = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responses(loads: Vec<Load>) -> Vec<u64> {
        let mut set = CoreSet::new(loads);
        set.analyse();
        set.responses().to_vec()
    }

    #[test]
    fn textbook_examples() {
        // Burns and Wellings, Real-Time Systems and Programming Languages, section 11.5.
        let loads = [(7, 3), (12, 3), (20, 5)].map(|(t, c)| Load::new(t, c));
        assert_eq!(responses(loads.to_vec()), [3, 6, 20]);
        // Lehoczky 1990, table 2: the fifth job of the second task has the longest response.
        let loads = [(70, 26), (100, 62)].map(|(t, c)| Load::new(t, c));
        assert_eq!(responses(loads.to_vec()), [26, 118]);
        // Davis et al. 2007, section 3.1: the second job of C has a response of 3.5; tenths.
        let mut loads = [(25, 10), (35, 10), (35, 10)].map(|(t, c)| Load::new(t, c));
        for (load, blocking) in loads.iter_mut().zip([10, 10, 0]) {
            (load.is_non_preemptive, load.blocking_ns) = (true, blocking);
        }
        assert_eq!(responses(loads.to_vec()), [20, 30, 35]);
    }

    #[test]
    fn jitter_and_curves_add_releases() {
        let mut jittery = Load::new(10, 2);
        jittery.jitter_ns = 5;
        let low = Load::new(100, 7);
        // Releases of the upper task at 0, 5 and 15.
        assert_eq!(responses(vec![jittery, low.clone()]), [7, 11]);
        let burst = Load { spans_ns: vec![1, 10], ..Load::new(1, 2) };
        // Releases at 0, 1, 10, 11, ...: the second one waits.
        assert_eq!(responses(vec![burst, low]), [3, 15]);
    }

    #[test]
    fn job_without_execution_time_waits_for_the_core() {
        let loads = [(10, 4), (20, 0)].map(|(t, c)| Load::new(t, c));
        assert_eq!(responses(loads.to_vec()), [4, 5]);
    }

    #[test]
    fn overload_has_no_bound() {
        let loads = [(10, 6), (10, 5)].map(|(t, c)| Load::new(t, c));
        let mut set = CoreSet::new(loads.to_vec());
        assert!(!set.analyse());
        assert_eq!(set.responses(), [6, u64::MAX]);
    }
}
