//! What a group wants: a band of rates, and the window that its rate is taken over.

use crate::Error;
use corebeat_wire::host;

/// Most samples of a window; a group's history takes 16 bytes for each.
pub const WINDOW_MAX: u32 = 1024;
/// Samples of a window, where nobody has set it: a second, at the default period.
pub const WINDOW: u32 = 10;

/// The heart rate that a group is to have, in beats a second (Sironi et al., *Metronome*, 2012, section 4.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Lower end, in beats a second.
    pub rate_min: Option<f64>,
    /// Upper end, in beats a second.
    pub rate_max: Option<f64>,
    /// Over how many samples the window rate is taken, 1 to [`WINDOW_MAX`].
    pub window: u32,
    /// Keep the group below the maximum, even where nobody else wants the CPUs.
    pub hold: bool,
}

impl Default for Goal {
    /// No rates, and a window of [`WINDOW`] samples.
    fn default() -> Self {
        Goal { rate_min: None, rate_max: None, window: WINDOW, hold: false }
    }
}

impl Goal {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// Rates must be finite and above 0, and the minimum not above the maximum; the window from 1 to [`WINDOW_MAX`]; what is
    /// held has a maximum.
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

/// As the daemon is told.
impl From<Goal> for host::Goal {
    fn from(goal: Goal) -> host::Goal {
        let Goal { rate_min, rate_max, window, hold } = goal;
        host::Goal { rate_min, rate_max, window, hold }
    }
}

/// As somebody tells it: it may make no sense ([`Goal::check`]).
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
    fn goal_that_makes_no_sense_is_refused() {
        let goal = Goal::default();
        assert!(goal.check().is_ok());
        assert!(Goal { rate_min: Some(2.0), rate_max: Some(2.0), hold: true, ..goal }.check().is_ok());
        let rates = [0.0, -1.0, f64::NAN, f64::INFINITY];
        for rate in rates.map(Some) {
            assert!(matches!(Goal { rate_min: rate, ..goal }.check(), Err(Error::BadRate(_))));
            assert!(matches!(Goal { rate_max: rate, ..goal }.check(), Err(Error::BadRate(_))));
        }
        let empty = Goal { rate_min: Some(3.0), rate_max: Some(2.0), ..goal };
        assert!(matches!(empty.check(), Err(Error::EmptyGoal { .. })));
        for window in [0, WINDOW_MAX + 1, u32::MAX] {
            assert!(matches!(Goal { window, ..goal }.check(), Err(Error::BadWindow(_))));
        }
        assert!(matches!(Goal { hold: true, ..goal }.check(), Err(Error::HoldWithoutMax)));
    }
}
