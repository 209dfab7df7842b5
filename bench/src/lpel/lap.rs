//! Laps repeat the same work. The first lap warms up, and the others run until the measured time
//! suffices.

use super::load::{GROUP, Load, Work, hold};
use crate::memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The result of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Outcome {
    /// Nanoseconds per operation, or bytes per task.
    pub(crate) value: f64,
    pub(crate) checksum: u64,
}

/// The time of laps, and whether their results are right.
pub(crate) struct Laps {
    load: Load,
    /// The expected checksum of each lap.
    expected: u64,
    begin: Instant,
    /// Number of ended laps, including the first.
    ended: u64,
    /// The time of all laps except the first.
    time: Duration,
    wrong: Option<u64>,
}

impl Laps {
    pub(crate) fn new(load: Load) -> Laps {
        let (expected, begin) = (load.checksum(), Instant::now());
        Laps { load, expected, begin, ended: 0, time: Duration::ZERO, wrong: None }
    }

    /// Runs laps, each of which returns its checksum.
    pub(crate) fn run(load: Load, mut lap: impl FnMut() -> u64) -> Outcome {
        let mut laps = Laps::new(load);
        while laps.begin() {
            let checksum = lap();
            laps.end(checksum);
        }
        laps.outcome()
    }

    /// Begins a lap, unless the measured time suffices. Returns whether a lap begins.
    pub(crate) fn begin(&mut self) -> bool {
        let more = self.ended < 2 || self.time < self.load.least();
        self.begin = Instant::now();
        more
    }

    /// Ends a lap with a checksum.
    pub(crate) fn end(&mut self, checksum: u64) {
        let time = self.begin.elapsed();
        if self.ended > 0 {
            self.time += time;
        }
        self.ended += 1;
        if checksum != self.expected {
            self.wrong.get_or_insert(checksum);
        }
    }

    /// The mean time of an operation. The checksum is the first wrong one, if a lap was wrong.
    pub(crate) fn outcome(&self) -> Outcome {
        let operations = self.ended.saturating_sub(1) * self.load.operations();
        Outcome {
            value: self.time.as_nanos() as f64 / operations as f64,
            checksum: self.wrong.unwrap_or(self.expected),
        }
    }
}

/// Runs laps that spawn batches of tasks and join them.
pub(crate) fn crowd<T>(
    load: Load,
    mut spawn: impl FnMut(u64) -> T,
    mut join: impl FnMut(T) -> u64,
) -> Outcome {
    let mut tasks = Vec::with_capacity(GROUP as usize);
    Laps::run(load, || {
        let mut sum = 0;
        for begin in (0..load.count).step_by(GROUP as usize) {
            tasks.extend((begin..load.count.min(begin + GROUP)).map(&mut spawn));
            sum += tasks.drain(..).map(&mut join).sum::<u64>();
        }
        sum
    })
}

/// Measures the memory of tasks, each of which waits for an item. `spawn` returns a task that first
/// increments a number. `release` sends an item to the task, and returns the result of the task.
pub(crate) fn blocked<T>(
    load: Load,
    mut spawn: impl FnMut(Arc<AtomicU64>) -> T,
    pause: fn(),
    release: impl FnMut((u64, T)) -> u64,
) -> Result<Outcome, String> {
    let before = memory::resident_bytes()?;
    let started = Arc::new(AtomicU64::new(0));
    let tasks: Vec<T> = (0..load.count).map(|_| spawn(started.clone())).collect();
    while started.load(Ordering::SeqCst) < load.count {
        pause();
    }
    let after = memory::resident_bytes()?;
    if load.work == Work::Idle {
        hold();
    }
    let checksum = (0..).zip(tasks).map(release).sum();
    Ok(Outcome { value: after.saturating_sub(before) as f64 / load.count as f64, checksum })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load =
        Load { work: Work::Pingpong, workers: 1, count: 7, depth: 0, least_ms: 0, watched: None };

    fn laps(checksums: &[u64]) -> Outcome {
        let mut laps = Laps::new(LOAD);
        for &checksum in checksums {
            laps.begin();
            laps.end(checksum);
        }
        laps.outcome()
    }

    #[test]
    fn laps_are_two_without_a_minimum_time() {
        let mut laps = Laps::new(LOAD);
        let mut count = 0;
        while laps.begin() {
            laps.end(7);
            count += 1;
        }
        assert_eq!((count, laps.outcome().checksum), (2, 7));
    }

    #[test]
    fn outcome_contains_the_checksum_of_a_wrong_lap() {
        assert_eq!(laps(&[7, 7, 7]).checksum, 7);
        assert_eq!(laps(&[7, 8, 7]).checksum, 8);
    }
}
