//! Times of a scenario: their units and their range.

use crate::error::number;

/// The longest time that a scenario may name, in seconds: some eleven days.
const SECONDS_MAX: f64 = 1e6;

/// The lower bound of a time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Least {
    Zero,
    AboveZero,
}

/// Whole nanoseconds of a time in units of `unit` nanoseconds, saturating.
pub(crate) fn ns(value: f64, unit: f64) -> u64 {
    (value * unit).round() as u64
}

/// Checks a time in units of `unit_s` seconds. The error states the valid values.
pub(crate) fn check(name: &str, value: f64, unit_s: f64, least: Least) -> Result<(), String> {
    let (is_least, from) = match least {
        Least::Zero => (value >= 0.0, "from 0"),
        Least::AboveZero => (value > 0.0, "above 0"),
    };
    match is_least && value * unit_s <= SECONDS_MAX {
        true => Ok(()),
        false => {
            Err(format!("{name} is {}: write a time {from}, up to {SECONDS_MAX} s", number(value)))
        }
    }
}
