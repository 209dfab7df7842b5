//! Rates: numbers of beats per time.

use std::collections::VecDeque;

/// Nanoseconds per second.
const SECOND_NS: f64 = 1e9;

/// The total number of beats at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    at_ns: u64,
    beats: u64,
}

/// The samples within a group's window.
#[derive(Debug)]
pub(crate) struct History {
    born: Sample,
    /// In order of time; the oldest one is the begin of the window. Never empty.
    samples: VecDeque<Sample>,
    /// Number of samples since the group was created.
    count: u64,
}

impl History {
    /// The history of a group that is created at this time, without beats.
    pub(crate) fn new(now_ns: u64) -> History {
        let born = Sample { at_ns: now_ns, beats: 0 };
        History { born, samples: VecDeque::from([born]), count: 0 }
    }

    /// Adds a sample, and removes the samples before a window of this length. A sample at the time
    /// of the last one is ignored.
    pub(crate) fn add(&mut self, now_ns: u64, beats: u64, window: u32) {
        if self.samples.back().is_some_and(|last| last.at_ns >= now_ns) {
            return;
        }
        self.count += 1;
        self.samples.push_back(Sample { at_ns: now_ns, beats });
        // The begin of the window is one more sample. No window begins before the first beats: a
        // program is not slow while it reads its input.
        while self.samples.len() > window as usize + 1
            || self.samples.get(1).is_some_and(|next| next.beats == 0)
        {
            self.samples.pop_front();
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Beats per second since the group was created: equation 6.
    pub(crate) fn global_rate(&self) -> f64 {
        self.rate_since(self.born)
    }

    /// Beats per second over the window: equation 7.
    pub(crate) fn window_rate(&self) -> f64 {
        self.samples.front().map_or(0.0, |&first| self.rate_since(first))
    }

    fn rate_since(&self, first: Sample) -> f64 {
        let Some(last) = self.samples.back().filter(|last| last.at_ns > first.at_ns) else {
            return 0.0;
        };
        let beats = last.beats.saturating_sub(first.beats);
        beats as f64 / ((last.at_ns - first.at_ns) as f64 / SECOND_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn rates(history: &History) -> (f64, f64) {
        (history.global_rate(), history.window_rate())
    }

    #[test]
    fn history_computes_equations_6_and_7() {
        let mut history = History::new(500 * MS);
        assert_eq!(rates(&history), (0.0, 0.0));
        for (at_ms, beats, expected) in [
            (600, 10, (100.0, 100.0)),
            (700, 10, (50.0, 50.0)),
            (900, 40, (100.0, 100.0)),
            (1000, 40, (80.0, 75.0)), // the window of 3 samples begins at 600
            (1500, 100, (100.0, 112.5)), // and at 700
        ] {
            history.add(at_ms * MS, beats, 3);
            assert_eq!(rates(&history), expected, "{at_ms} ms");
        }
        assert_eq!(history.count(), 5);
    }

    #[test]
    fn window_begins_at_the_first_beats() {
        let mut history = History::new(0);
        for (at_ms, beats, expected) in [
            (100, 0, (0.0, 0.0)),
            (200, 0, (0.0, 0.0)),
            (300, 30, (100.0, 300.0)),
            (400, 60, (150.0, 300.0)),
            (500, 60, (120.0, 200.0)),
        ] {
            history.add(at_ms * MS, beats, 10);
            assert_eq!(rates(&history), expected, "{at_ms} ms");
        }
    }

    #[test]
    fn sample_without_elapsed_time_is_ignored() {
        let mut history = History::new(7);
        for now_ns in [7, 0, 7] {
            history.add(now_ns, 100, 3);
        }
        assert_eq!((history.count(), rates(&history)), (0, (0.0, 0.0)));
        history.add(8, u64::MAX, 3);
        assert!(rates(&history).0.is_finite() && rates(&history).0 > 1e27);
    }

    #[test]
    fn history_keeps_only_its_window() {
        let mut history = History::new(0);
        for n in 1..=100 {
            history.add(n, n, 10);
            assert!(history.samples.len() <= 11);
        }
        history.add(101, 101, 1);
        assert_eq!(history.samples.len(), 2);
    }
}
