//! How much a test does, which long runs state by variables of the environment.

use std::ops::RangeInclusive;

/// The number in a variable.
#[expect(clippy::disallowed_methods, reason = "a test reads how long it shall run")]
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().expect("a number"))
}

/// Number of cases: that in the variable `name`; or, within limits, so many for each minute that
/// `COREBEAT_SOAK` states; or few.
pub(crate) fn cases(name: &str, few: u64, a_minute: u64, limits: RangeInclusive<u64>) -> u64 {
    let of = |n: u64| n.saturating_mul(a_minute).clamp(*limits.start(), *limits.end());
    number(name).or(number("COREBEAT_SOAK").map(of)).unwrap_or(few)
}
