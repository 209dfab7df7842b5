//! The comparison of a program as it is with the program under chosen settings, by paired runs.
//!
//! The pairs yield ratios of times. The interval for the median ratio needs no assumption about
//! the distribution of the times: of `n` independent ratios, the number below the true median has
//! the binomial distribution B(n, 1/2). The k-th smallest and the k-th largest ratio therefore
//! enclose the true median with probability 1 - 2 P(B < k) (Nair, "Table of confidence intervals
//! for the median in samples from any continuous population", Sankhya 4, 1940).

use serde::Serialize;

/// Least coverage of an interval that shows a difference.
const COVERAGE_MIN: f64 = 0.95;

/// Largest number of pairs: with more, the probabilities of B(n, 1/2) are below the smallest `f64`.
pub const PAIRS_MAX: u32 = 1_000;

/// One of the two kinds of runs of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The program as it is.
    AsIs,
    /// The program with the chosen settings.
    Chosen,
}

/// A difference that a comparison shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// The chosen settings take less time.
    Shorter,
    /// The chosen settings take more time.
    Longer,
}

/// Times of paired runs, and what they show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// For each pair, the time as it is and the time with the chosen settings, in seconds.
    pub pairs_s: Vec<(f64, f64)>,
    /// Median time as it is, in seconds.
    pub as_is_s: f64,
    /// Median time with the chosen settings, in seconds.
    pub chosen_s: f64,
    /// Median of the ratios of the pairs: time with the chosen settings by time as it is.
    pub ratio: f64,
    /// Confidence interval of the median ratio.
    pub interval: (f64, f64),
    /// Probability with which such an interval contains the true median ratio: the least one of at
    /// least 0.95, or that of the widest interval if it is below 0.95.
    pub coverage: f64,
    /// The difference, if the interval excludes 1 and its coverage is at least 0.95.
    pub difference: Option<Difference>,
}

impl Comparison {
    /// Whether the pairs are too few for an interval that can show a difference.
    pub fn has_too_few_pairs(&self) -> bool {
        self.coverage < COVERAGE_MIN
    }

    /// Compares the times of pairs. `None` without a pair.
    fn of(pairs_s: Vec<(f64, f64)>) -> Option<Comparison> {
        let sorted = |value: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = pairs_s.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let ratios = sorted(|(as_is, chosen)| chosen / as_is);
        let (rank, coverage) = rank(ratios.len());
        let interval = (*ratios.get(rank - 1)?, ratios[ratios.len() - rank]);
        let difference = match interval {
            _ if coverage < COVERAGE_MIN => None,
            (_, high) if high < 1.0 => Some(Difference::Shorter),
            (low, _) if low > 1.0 => Some(Difference::Longer),
            _ => None,
        };
        Some(Comparison {
            as_is_s: median(&sorted(|pair| pair.0)),
            chosen_s: median(&sorted(|pair| pair.1)),
            ratio: median(&ratios),
            pairs_s,
            interval,
            coverage,
            difference,
        })
    }
}

/// Runs pairs and compares their times. `run` makes a run and returns its time in seconds. The
/// order within the pairs alternates, so that a drift of the machine affects both sides equally.
///
/// # Errors
/// The first error of `run`.
///
/// # Panics
/// The number of pairs is not from 1 to [`PAIRS_MAX`].
pub fn compare<E>(
    pairs: u32,
    mut run: impl FnMut(Side) -> Result<f64, E>,
) -> Result<Comparison, E> {
    assert!((1..=PAIRS_MAX).contains(&pairs), "a comparison of {pairs} pairs is not possible");
    let pair = |number| match number % 2 {
        0 => Ok((run(Side::AsIs)?, run(Side::Chosen)?)),
        _ => run(Side::Chosen).and_then(|chosen| Ok((run(Side::AsIs)?, chosen))),
    };
    let pairs_s: Result<Vec<_>, E> = (0..pairs).map(pair).collect();
    Ok(Comparison::of(pairs_s?).expect("there is at least one pair"))
}

/// The largest rank `k` for which the k-th smallest and the k-th largest of `n` values enclose the
/// median with a probability of at least [`COVERAGE_MIN`], and that probability. If there is no
/// such rank, 1: the widest interval.
fn rank(n: usize) -> (usize, f64) {
    let mut probability = 0.5f64.powi(n as i32);
    let (mut rank, mut below) = (1, probability);
    loop {
        // P(B = rank), from P(B = rank - 1).
        probability *= (n as f64 - (rank - 1) as f64) / rank as f64;
        let next = below + probability;
        if 1.0 - 2.0 * next < COVERAGE_MIN {
            return (rank, 1.0 - 2.0 * below);
        }
        (rank, below) = (rank + 1, next);
    }
}

/// The middle of sorted positive values. For an even number, the geometric mean of the two in the
/// middle: the median of inverse ratios is then the inverse of the median.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] * sorted[middle]).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(pairs_s: &[(f64, f64)]) -> Comparison {
        Comparison::of(pairs_s.to_vec()).unwrap()
    }

    /// Rows of the table of Nair 1940: number of values, rank, and coverage in percent.
    const NAIR: [(usize, usize, f64); 24] = [
        (6, 1, 96.9),
        (8, 1, 99.2),
        (9, 2, 96.1),
        (10, 2, 97.9),
        (11, 2, 98.8),
        (12, 3, 96.1),
        (13, 3, 97.8),
        (14, 3, 98.7),
        (15, 4, 96.5),
        (16, 4, 97.9),
        (17, 5, 95.1),
        (18, 5, 96.9),
        (19, 5, 98.1),
        (20, 6, 95.9),
        (21, 6, 97.3),
        (22, 6, 98.3),
        (23, 7, 96.5),
        (24, 7, 97.7),
        (25, 8, 95.7),
        (30, 10, 95.7),
        (40, 14, 96.2),
        (50, 18, 96.7),
        (60, 22, 97.3),
        (65, 25, 95.4),
    ];

    #[test]
    fn ranks_and_coverages_are_those_of_the_table() {
        for (n, expected, percent) in NAIR {
            let (rank, coverage) = rank(n);
            assert_eq!(rank, expected, "{n}");
            assert!((coverage * 100.0 - percent).abs() <= 0.051, "{n}: {coverage}");
        }
    }

    #[test]
    fn coverage_of_few_pairs_is_that_of_the_whole_range() {
        for (n, coverage) in [(1, 0.0), (2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)] {
            assert_eq!(rank(n), (1, coverage), "{n}");
        }
        let many = rank(PAIRS_MAX as usize);
        assert!(many.0 == 469 && (0.95..0.96).contains(&many.1), "{many:?}");
    }

    #[test]
    fn difference_requires_an_interval_without_1_and_enough_pairs() {
        let difference = |pairs_s: &[(f64, f64)]| of(pairs_s).difference;
        assert_eq!(difference(&[(2.0, 1.0); 6]), Some(Difference::Shorter));
        assert_eq!(difference(&[(1.0, 2.0); 6]), Some(Difference::Longer));
        assert_eq!(difference(&[(2.0, 1.0); 5]), None, "the coverage is below 95%");
        assert_eq!(difference(&[(1.0, 1.0); 30]), None);
        let mut one_equal = [(2.0, 1.0); 6];
        one_equal[3] = (1.0, 1.0);
        assert_eq!(difference(&one_equal), None, "the interval ends at 1");
        let mut one_longer = [(2.0, 1.0); 9];
        one_longer[3] = (1.0, 4.0);
        assert_eq!(difference(&one_longer), Some(Difference::Shorter), "an outlier");
    }

    #[test]
    fn medians_are_those_of_the_times_and_of_the_ratios() {
        let pairs_s = [(2.0, 1.0), (4.0, 3.0), (1.0, 2.0)];
        let found = of(&pairs_s);
        assert_eq!((found.as_is_s, found.chosen_s, found.ratio), (2.0, 2.0, 0.75));
        assert_eq!((found.interval, found.coverage), ((0.5, 2.0), 0.75));
        assert_eq!(Comparison::of(vec![]), None);
    }

    #[test]
    fn order_within_the_pairs_alternates() {
        let mut made = vec![];
        let run = |side| {
            made.push(side);
            Ok::<f64, ()>(made.len() as f64)
        };
        let found = compare(3, run).unwrap();
        use Side::{AsIs, Chosen};
        assert_eq!(found.pairs_s, [(1.0, 2.0), (4.0, 3.0), (5.0, 6.0)]);
        assert_eq!(made, [AsIs, Chosen, Chosen, AsIs, AsIs, Chosen]);
    }

    #[test]
    fn first_error_ends_a_comparison() {
        let mut made = 0;
        let run = |_| {
            made += 1;
            if made == 4 { Err("failed") } else { Ok(1.0) }
        };
        assert_eq!((compare(5, run), made), (Err("failed"), 4));
    }

    fn pairs() -> impl Strategy<Value = Vec<(f64, f64)>> {
        proptest::collection::vec((1e-3..1e3f64, 1e-3..1e3f64), 1..40)
    }

    proptest! {
        #[test]
        fn interval_contains_the_ratio_and_is_within_the_ratios(pairs_s in pairs()) {
            let found = of(&pairs_s);
            let (low, high) = found.interval;
            // The root of a square may be off by a rounding error.
            prop_assert!(low <= found.ratio * (1.0 + 1e-12) && found.ratio <= high * (1.0 + 1e-12));
            let ratios: Vec<f64> = pairs_s.iter().map(|(as_is, chosen)| chosen / as_is).collect();
            prop_assert!(ratios.contains(&low) && ratios.contains(&high));
            prop_assert_eq!(found.has_too_few_pairs(), pairs_s.len() < 6);
        }

        #[test]
        fn exchanged_sides_invert_the_result(pairs_s in pairs()) {
            let exchanged: Vec<_> = pairs_s.iter().map(|(as_is, chosen)| (*chosen, *as_is)).collect();
            let (found, inverse) = (of(&pairs_s), of(&exchanged));
            let is_inverse = |a: f64, b: f64| (a * b - 1.0).abs() < 1e-9;
            prop_assert!(is_inverse(found.ratio, inverse.ratio));
            prop_assert!(is_inverse(found.interval.0, inverse.interval.1));
            prop_assert_eq!((found.as_is_s, found.chosen_s), (inverse.chosen_s, inverse.as_is_s));
            prop_assert_eq!(found.difference == Some(Difference::Shorter),
                inverse.difference == Some(Difference::Longer));
        }

        /// Random orders of equal distributions: the interval excludes 1 as often as its coverage
        /// permits.
        #[test]
        fn pairs_without_a_difference_rarely_show_one(seed in 0u64..1_000) {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut coin = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state >> 63 == 0
            };
            let mut shown = 0;
            for _ in 0..2_000 {
                let pair = |_| if coin() { (1.0, 1.1) } else { (1.1, 1.0) };
                let pairs_s: Vec<(f64, f64)> = (0..10).map(pair).collect();
                shown += u32::from(of(&pairs_s).difference.is_some());
            }
            // Expected: 2.1% of 2,000, 43, with a standard deviation of 6.5.
            prop_assert!((5..100).contains(&shown), "{}", shown);
        }
    }
}
