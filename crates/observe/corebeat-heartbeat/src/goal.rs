//! Goals: the target range of a group's rate, and the window over which the rate is measured.

use crate::Error;
use corebeat_wire::host;

/// Limit on the samples of a window; the history of a group takes 16 bytes per sample.
pub const WINDOW_MAX: u32 = 1024;
/// Default length of the window in samples: one second, at the default period.
pub const WINDOW: u32 = 10;

/// The target heart rate of a group, in beats per second (Sironi et al., *Metronome*, 2012, section
/// 4.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Minimum in beats per second.
    pub rate_min: Option<f64>,
    /// Maximum in beats per second.
    pub rate_max: Option<f64>,
    /// Number of samples of the window rate, 1 to [`WINDOW_MAX`].
    pub window: u32,
    /// Whether the group is kept below its maximum even if no other program needs the CPUs.
    pub hold: bool,
}

impl Default for Goal {
    /// No rates, and a window of [`WINDOW`] samples.
    fn default() -> Self {
        Goal { rate_min: None, rate_max: None, window: WINDOW, hold: false }
    }
}

impl Goal {
    /// Checks the goal.
    ///
    /// # Errors
    /// Rates must be finite and above 0, and the minimum must not exceed the maximum. The window
    /// must be 1 to [`WINDOW_MAX`] samples. A group that is held must have a maximum.
    pub fn check(&self) -> Result<(), Error> {
        for rate in self.rate_min.iter().chain(&self.rate_max) {
            if !(rate.is_finite() && *rate > 0.0) {
                return Err(Error::BadRate(*rate));
            }
        }
        match (self.rate_min, self.rate_max) {
            (Some(min), Some(max)) if min > max => Err(Error::EmptyGoal { min, max }),
            _ if !(1..=WINDOW_MAX).contains(&self.window) => Err(Error::BadWindow(self.window)),
            (_, None) if self.hold => Err(Error::HoldWithoutMax),
            _ => Ok(()),
        }
    }
}

/// The representation in requests to the daemon.
impl From<Goal> for host::Goal {
    fn from(goal: Goal) -> host::Goal {
        let Goal { rate_min, rate_max, window, hold } = goal;
        host::Goal { rate_min, rate_max, window, hold }
    }
}

/// The representation in requests of clients, which may be invalid ([`Goal::check`]).
impl From<host::Goal> for Goal {
    fn from(goal: host::Goal) -> Goal {
        let host::Goal { rate_min, rate_max, window, hold } = goal;
        Goal { rate_min, rate_max, window, hold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_goals_are_refused() {
        let goal = Goal::default();
        assert!(goal.check().is_ok());
        assert!(
            Goal { rate_min: Some(2.0), rate_max: Some(2.0), hold: true, ..goal }.check().is_ok()
        );
        let rates = [0.0, -1.0, f64::NAN, f64::INFINITY];
        for rate in rates.map(Some) {
            assert!(matches!(Goal { rate_min: rate, ..goal }.check(), Err(Error::BadRate(_))));
            assert!(matches!(Goal { rate_max: rate, ..goal }.check(), Err(Error::BadRate(_))));
        }
        // A large number has few digits.
        let large = Goal { rate_min: Some(1e300), rate_max: Some(2.0), ..goal }.check();
        assert!(large.unwrap_err().to_string().contains("goal of 1e300 to 2.0 beats"));
        let empty = Goal { rate_min: Some(3.0), rate_max: Some(2.0), ..goal };
        assert!(matches!(empty.check(), Err(Error::EmptyGoal { .. })));
        for window in [0, WINDOW_MAX + 1, u32::MAX] {
            assert!(matches!(Goal { window, ..goal }.check(), Err(Error::BadWindow(_))));
        }
        assert!(matches!(Goal { hold: true, ..goal }.check(), Err(Error::HoldWithoutMax)));
    }
}
