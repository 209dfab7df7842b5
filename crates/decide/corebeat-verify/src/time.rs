//! Times as text: a whole or decimal number with a unit.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest time of a model: 2^52 ns, which is 52 days. Sums of thousands of times stay within
/// 64 bits, and every time is exact as a floating-point number.
pub const TIME_MAX_NS: u64 = 1 << 52;

/// The units with their length in picoseconds, longest first.
const UNITS: [(&str, u128); 6] = [
    ("s", 1_000_000_000_000),
    ("ms", 1_000_000_000),
    ("us", 1_000_000),
    ("µs", 1_000_000),
    ("ns", 1_000),
    ("ps", 1),
];

/// Largest number of digits before and after the point of a number.
const DIGITS_MAX: usize = 40;

/// A time with its text form, such as `1.5 ms`. The unit is one of s, ms, us, ns, ps. The text
/// stands for a whole number of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time {
    /// The time in nanoseconds, at most [`TIME_MAX_NS`].
    pub ns: u64,
}

impl Time {
    /// A time from a number and the name of a unit. Fractions of a nanosecond are rounded up if
    /// `up`, else down.
    pub(crate) fn of(number: &str, unit: &str, up: bool) -> Result<Time, String> {
        let (ns, has_fraction) = Time::parts(number, unit)?;
        Ok(Time { ns: ns + u64::from(up && has_fraction) })
    }

    /// The whole nanoseconds of a time, and whether a fraction is left.
    fn parts(number: &str, unit: &str) -> Result<(u64, bool), String> {
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let (_, unit_ps) = known
            .ok_or_else(|| format!("'{unit}' is no unit of time; write s, ms, us, ns or ps"))?;
        let wrong = || format!("'{number}' is no time; write a number such as 1.5");
        let number = without_exponent(number).ok_or_else(wrong)?;
        let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
        let digits =
            |text: &str| text.len() <= DIGITS_MAX && text.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(part) {
            return Err(wrong());
        }
        let too_long = || format!("'{number} {unit}' is longer than 52 days; write a shorter time");
        let whole: u128 = whole.parse().map_err(|_| wrong())?;
        // Twelve digits after the point of a second are picoseconds.
        let (part, rest) = part.split_at(part.len().min(12));
        let scale = 10u128.pow(part.len() as u32);
        let part: u128 = if part.is_empty() { 0 } else { part.parse().map_err(|_| wrong())? };
        let scaled = (whole.checked_mul(scale).and_then(|w| w.checked_add(part)))
            .and_then(|digits| digits.checked_mul(*unit_ps))
            .ok_or_else(too_long)?;
        let per_ns = scale * 1_000;
        let has_fraction = scaled % per_ns > 0 || rest.bytes().any(|b| b != b'0');
        if scaled / per_ns + u128::from(has_fraction) > u128::from(TIME_MAX_NS) {
            return Err(too_long());
        }
        Ok(((scaled / per_ns) as u64, has_fraction))
    }
}

/// Moves the point of a number by its exponent: tools print large values as 1.0E8.
fn without_exponent(number: &str) -> Option<String> {
    let Some((number, exponent)) = number.split_once(['e', 'E']) else {
        return Some(number.to_owned());
    };
    let exponent: i32 = exponent.parse().ok().filter(|e| (-30..=30).contains(e))?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{part}");
    if whole.is_empty() || !digits.is_ascii() || digits.len() > DIGITS_MAX {
        return None;
    }
    let point = whole.len() as i32 + exponent;
    Some(match usize::try_from(point) {
        Ok(point) if point >= digits.len() => format!("{digits:0<point$}"),
        Ok(point) if point > 0 => format!("{}.{}", &digits[..point], &digits[point..]),
        _ => format!("0.{}{digits}", "0".repeat(point.unsigned_abs() as usize)),
    })
}

impl From<u64> for Time {
    fn from(ns: u64) -> Time {
        Time { ns }
    }
}

impl FromStr for Time {
    type Err = String;
    fn from_str(text: &str) -> Result<Time, String> {
        let text = text.trim();
        let at = text.find(|c: char| c.is_alphabetic() && !matches!(c, 'e' | 'E'));
        match at {
            Some(at) => match Time::parts(text[..at].trim(), text[at..].trim())? {
                (ns, false) => Ok(Time { ns }),
                // Whether up or down is the safe side depends on the use of the time.
                (_, true) => Err(format!("'{text}' has a fraction of a nanosecond; round it")),
            },
            None => Err(format!("'{text}' has no unit; write a time such as '10 ms'")),
        }
    }
}

impl TryFrom<String> for Time {
    type Error = String;
    fn try_from(text: String) -> Result<Time, String> {
        text.parse()
    }
}

impl From<Time> for String {
    fn from(time: Time) -> String {
        time.to_string()
    }
}

/// The longest unit in which the time is a whole number.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ns, unit) = match self.ns {
            0 => (1_000_000, "ms"),
            n if n % 1_000_000_000 == 0 => (1_000_000_000, "s"),
            n if n % 1_000_000 == 0 => (1_000_000, "ms"),
            n if n % 1_000 == 0 => (1_000, "us"),
            _ => (1, "ns"),
        };
        write!(f, "{} {unit}", self.ns / ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_have_units() {
        let ns = |text: &str| text.parse::<Time>().map(|t| t.ns);
        assert_eq!(ns("1.5 ms"), Ok(1_500_000));
        assert_eq!(ns("0.1us"), Ok(100));
        assert_eq!(ns("2000 ps"), Ok(2));
        assert!(ns("1 ps").unwrap_err().contains("fraction"));
        assert_eq!(ns("3µs"), Ok(3_000));
        assert!(ns("10").unwrap_err().contains("no unit"));
        assert!(ns("-1 ms").is_err() && ns("nan s").is_err() && ns("1 day").is_err());
        assert!(ns("99999999999999999999999999 s").unwrap_err().contains("52 days"));
    }

    #[test]
    fn exponents_move_the_point() {
        let ns = |text: &str| text.parse::<Time>().map(|t| t.ns);
        for (text, expected) in [
            ("1e-7 s", 100),
            ("2.5E-9 s", 2),
            ("1.0E8 ns", 100_000_000),
            ("12.5e1 us", 125_000),
            ("12.5e-1 us", 1_250),
            ("5e+0 ns", 5),
        ] {
            let (number, unit) = text.split_once(' ').unwrap();
            assert_eq!(Time::of(number, unit, false).map(|t| t.ns), Ok(expected), "{text}");
        }
        assert_eq!(ns("1e-7 s"), Ok(100));
        assert!(ns("1e99 s").is_err() && ns("e1 s").is_err() && ns("µe1 s").is_err());
        let up = |number, up| Time::of(number, "s", up).map(|t| t.ns);
        assert_eq!((up("1e-13", true), up("1e-13", false)), (Ok(1), Ok(0)));
    }

    proptest! {
        #[test]
        fn times_read_back(ns in 0..=TIME_MAX_NS) {
            prop_assert_eq!(Time::from(ns).to_string().parse::<Time>(), Ok(Time { ns }));
        }

        #[test]
        fn text_of_any_kind_does_not_panic(text in ".{0,40}") {
            let _ = text.parse::<Time>();
        }
    }
}
