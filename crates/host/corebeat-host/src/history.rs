//! Time shares and thread counts of programs over time, in a bounded number of points.

use crate::{ProgramTally, Tally};
use corebeat_machine::{ProgramId, Snapshot, TimeShares};
use std::collections::BTreeMap;

/// Largest number of points of a [`History`], over all programs. Beyond it, every two consecutive
/// points become one.
const POINTS_MAX: usize = 1024;

/// A program over a span of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// End of the span, in nanoseconds.
    pub at_ns: u64,
    /// Length of the span, in nanoseconds.
    pub span_ns: u64,
    /// Sum of the spans of all threads, in nanoseconds.
    pub thread_ns: u64,
    /// Mean shares of the threads.
    pub shares: TimeShares,
    /// Largest number of threads in one observation.
    pub threads: usize,
}

impl Point {
    fn of(at_ns: u64, span_ns: u64, sums: &ProgramTally) -> Point {
        let (thread_ns, shares, threads) = (sums.thread_ns, sums.shares(), sums.threads_max);
        Point { at_ns, span_ns, thread_ns, shares, threads }
    }

    /// Mean number of busy CPUs; `None` if the shares on a CPU are unknown.
    pub fn cpus(&self) -> Option<f64> {
        let running = self.shares.running().filter(|_| self.span_ns > 0)?;
        Some(running * self.thread_ns as f64 / self.span_ns as f64)
    }

    /// This point and the next one as one. A share that is unknown in one of them is unknown.
    pub fn merged(&self, next: &Point) -> Point {
        let thread_ns = self.thread_ns + next.thread_ns;
        let part = self.thread_ns as f64 / thread_ns.max(1) as f64;
        Point {
            at_ns: next.at_ns,
            span_ns: self.span_ns + next.span_ns,
            thread_ns,
            shares: self.shares.zip_with(&next.shares, |a, b| a * part + b * (1.0 - part)),
            threads: self.threads.max(next.threads),
        }
    }
}

/// The snapshots since the last point.
#[derive(Debug, Clone, Default)]
pub struct Step {
    tally: Tally,
    at_ns: u64,
    span_ns: u64,
}

impl Step {
    /// Adds a snapshot.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.tally.add(snapshot);
        self.at_ns = snapshot.at_ns;
        self.span_ns += snapshot.span_ns;
    }

    /// Ends the step, and returns a point for each program with observed threads.
    pub fn take(&mut self) -> Vec<(ProgramId, Point)> {
        let Step { tally, at_ns, span_ns } = std::mem::take(self);
        let observed = tally.programs.iter().filter(|(_, sums)| sums.thread_ns > 0);
        observed.map(|(&id, sums)| (id, Point::of(at_ns, span_ns, sums))).collect()
    }
}

/// The points of all programs since the start.
#[derive(Debug, Clone, Default)]
pub struct History {
    series: BTreeMap<ProgramId, Vec<Point>>,
    /// Shortest span of a new point, in nanoseconds.
    step_ns: u64,
    step: Step,
}

impl History {
    /// Adds a snapshot.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.step.add(snapshot);
        if self.step.span_ns >= self.step_ns {
            self.end_step();
        }
    }

    /// Ends the history, and returns its points by program.
    pub fn finish(mut self) -> BTreeMap<ProgramId, Vec<Point>> {
        self.end_step();
        self.series
    }

    fn end_step(&mut self) {
        for (id, point) in self.step.take() {
            self.series.entry(id).or_default().push(point);
        }
        if self.series.values().map(Vec::len).sum::<usize>() > POINTS_MAX {
            let merged = |pair: &[Point]| match pair {
                [one, next] => one.merged(next),
                _ => pair[0],
            };
            for series in self.series.values_mut() {
                *series = series.chunks(2).map(merged).collect();
            }
            let spans = self.series.values().flatten().map(|point| point.span_ns);
            self.step_ns = spans.max().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Counters, ProgramSample, ThreadId, ThreadSample};

    /// A snapshot of one program with two threads, which run for this share of the span.
    fn snapshot(at_ns: u64, span_ns: u64, user: f64) -> Snapshot {
        let thread = |tid| ThreadSample {
            id: ThreadId { tid, start_ticks: 1 },
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns,
            shares: TimeShares { user: Some(user), sleep: Some(1.0 - user), ..TimeShares::ZERO },
            counters: Counters::ZERO,
        };
        let program = ProgramSample {
            id: ProgramId(0),
            name: "p".into(),
            threads: vec![thread(1), thread(2)],
            io_bytes: None,
            team: None,
            progress: None,
        };
        Snapshot { at_ns, span_ns, programs: vec![program], ..Snapshot::default() }
    }

    #[test]
    fn history_has_a_point_for_each_observation_until_there_are_too_many() {
        let mut history = History::default();
        (1..=3).for_each(|n| history.add(&snapshot(n * 10, 10, 0.5)));
        let points = history.finish().remove(&ProgramId(0)).unwrap();
        assert_eq!(points.len(), 3);
        let first = points[0];
        assert_eq!((first.at_ns, first.span_ns, first.thread_ns, first.threads), (10, 10, 20, 2));
        assert_eq!((first.shares.user, first.cpus()), (Some(0.5), Some(1.0)));
    }

    #[test]
    fn long_history_keeps_its_sums_in_a_bounded_number_of_points() {
        let (mut history, observations) = (History::default(), 10 * POINTS_MAX as u64 + 7);
        for n in 1..=observations {
            history.add(&snapshot(n * 10, 10, (n % 2) as f64));
        }
        let points = history.finish().remove(&ProgramId(0)).unwrap();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&points.len()), "{}", points.len());
        assert_eq!(points.iter().map(|p| p.span_ns).sum::<u64>(), observations * 10);
        let user_ns: f64 = points.iter().map(|p| p.shares.user.unwrap() * p.thread_ns as f64).sum();
        assert!((user_ns - observations.div_ceil(2) as f64 * 20.0).abs() < 1e-3, "{user_ns}");
        for pair in points.windows(2) {
            assert_eq!(pair[0].at_ns + pair[1].span_ns, pair[1].at_ns, "no gap");
        }
    }

    #[test]
    fn merged_share_that_was_unknown_is_unknown() {
        let [one, mut other] = [1, 2].map(|n| {
            let mut step = Step::default();
            step.add(&snapshot(n * 10, 10, 1.0));
            step.take().remove(0).1
        });
        assert_eq!(one.merged(&other).shares.user, Some(1.0));
        other.shares.user = None;
        assert_eq!(one.merged(&other).shares.user, None);
        assert_eq!(one.merged(&other).cpus(), None);
    }
}
