//! Laps: the same work over and over, the first time to warm up, then until enough time was measured.

use super::load::Load;
use std::time::{Duration, Instant};

/// What a child gives.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Outcome {
    /// Nanoseconds for an operation, or bytes for a task.
    pub(crate) value: f64,
    pub(crate) checksum: u64,
}

/// The time that laps took, and whether their results were right.
pub(crate) struct Laps {
    load: Load,
    /// What each lap's checksum should be.
    expected: u64,
    begin: Instant,
    /// Laps that have ended, the first one included.
    ended: u64,
    /// What they took, without the first one.
    time: Duration,
    wrong: Option<u64>,
}

impl Laps {
    pub(crate) fn new(load: Load) -> Laps {
        let (expected, begin) = (load.checksum(), Instant::now());
        Laps { load, expected, begin, ended: 0, time: Duration::ZERO, wrong: None }
    }

    /// Whether there is to be another lap; it begins now.
    pub(crate) fn begin(&mut self) -> bool {
        let more = self.ended < 2 || self.time < self.load.least();
        self.begin = Instant::now();
        more
    }

    /// A lap has ended, with this checksum.
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

    /// The mean time of an operation. The checksum is that of a lap that was wrong, if one was.
    pub(crate) fn outcome(&self) -> Outcome {
        let operations = self.ended.saturating_sub(1) * self.load.operations();
        Outcome {
            value: self.time.as_nanos() as f64 / operations as f64,
            checksum: self.wrong.unwrap_or(self.expected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::Work;
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
    fn laps_are_two_where_no_time_is_asked_for() {
        let mut laps = Laps::new(LOAD);
        let mut count = 0;
        while laps.begin() {
            laps.end(7);
            count += 1;
        }
        assert_eq!((count, laps.outcome().checksum), (2, 7));
    }

    #[test]
    fn outcome_tells_a_lap_that_was_wrong() {
        assert_eq!(laps(&[7, 7, 7]).checksum, 7);
        assert_eq!(laps(&[7, 8, 7]).checksum, 8);
    }
}
