//! The heartbeats of a program, and its rate.

use crate::Goal;
use corebeat_machine::ProgressSample;
use std::collections::VecDeque;

/// Maximum number of heartbeats kept to compute a rate. With more in a window, the rate covers a
/// shorter one.
const BEATS_KEPT_MAX: usize = 1 << 20;
/// Rate window of a program without a goal.
const WINDOW_NS: u64 = 1_000_000_000;

/// The heartbeats of a program.
#[derive(Debug)]
pub(crate) struct Progress {
    goal: Option<Goal>,
    window_ns: u64,
    beats: u64,
    times: VecDeque<u64>,
}

impl Progress {
    pub(crate) fn new(goal: Option<Goal>) -> Self {
        let window_ns = goal.map_or(WINDOW_NS, |g| crate::time::ns(g.window_ms, 1e6));
        Progress { goal, window_ns, beats: 0, times: VecDeque::new() }
    }

    /// Number of heartbeats so far.
    pub(crate) fn beats(&self) -> u64 {
        self.beats
    }

    pub(crate) fn beat(&mut self, now: u64) {
        self.beats += 1;
        self.times.push_back(now);
        while self.times.len() > BEATS_KEPT_MAX
            || self.times.front().is_some_and(|&t| t + self.window_ns < now)
        {
            self.times.pop_front();
        }
    }

    /// The rate over the window, or since `start` where that is shorter. `None` for a program
    /// without heartbeats and goal.
    pub(crate) fn sample(&self, start: u64, now: u64) -> Option<ProgressSample> {
        if self.beats == 0 && self.goal.is_none() {
            return None;
        }
        let window_ns = self.window_ns.max(1);
        let covered_ns = window_ns.min(now - start).max(1);
        let begin = now - covered_ns;
        let beats = self.times.len() - self.times.partition_point(|&at| at <= begin);
        Some(ProgressSample {
            rate: beats as f64 / covered_ns as f64 * 1e9,
            window_ns,
            rate_min: self.goal.and_then(|g| g.min),
            rate_max: self.goal.and_then(|g| g.max),
            hold: self.goal.is_some_and(|g| g.hold),
            beats: self.beats,
        })
    }
}
