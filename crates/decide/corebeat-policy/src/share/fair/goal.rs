//! Goals of programs that report their heart rate.

use super::INDICATOR_MIN;
use corebeat_machine::ProgressSample;
use std::cmp::Ordering;

/// The goal of a program: a window of rates, in beats per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
}

impl Goal {
    /// Returns the goal in a progress sample, if there is a valid one. See the
    /// [module](super) for invalid goals.
    pub fn of(progress: &ProgressSample) -> Option<Goal> {
        let valid = |bound: Option<f64>| bound.filter(|b| b.is_finite() && *b > 0.0);
        let (min, max) = (valid(progress.rate_min), valid(progress.rate_max));
        let is_goal = match (min, max) {
            (Some(min), Some(max)) => min <= max,
            (min, max) => min.is_some() || max.is_some(),
        };
        is_goal.then_some(Goal { min, max })
    }

    /// Returns the middle of the window (equation 4), in beats per second.
    pub fn middle(&self) -> f64 {
        match (self.min, self.max) {
            // Each bound is halved first, because the sum of two large bounds is infinite.
            (Some(min), Some(max)) => min / 2.0 + max / 2.0,
            (bound, None) | (None, bound) => bound.unwrap_or(1.0),
        }
    }

    /// Returns whether a rate is below, within or above the window.
    pub fn place(&self, rate: f64) -> Ordering {
        match rate {
            r if self.min.is_some_and(|min| r < min) => Ordering::Less,
            r if self.max.is_some_and(|max| r > max) => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }

    /// Returns the indicator (equation 3), between [`INDICATOR_MIN`] and its inverse. `None` for an
    /// invalid rate.
    pub fn indicator(&self, rate: f64) -> Option<f64> {
        let is_rate = rate.is_finite() && rate >= 0.0;
        // Never NaN: the middle is above 0. For a tiny middle the infinite quotient is clamped.
        is_rate.then(|| (rate / self.middle()).clamp(INDICATOR_MIN, 1.0 / INDICATOR_MIN))
    }
}
