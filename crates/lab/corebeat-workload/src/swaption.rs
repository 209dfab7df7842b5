//! Swaptions by Monte Carlo simulation in the framework of Heath, Jarrow and Morton, *Bond Pricing
//! and the Term Structure of Interest Rates* (1992), after the discrete scheme in Glasserman,
//! *Monte Carlo Methods in Financial Engineering* (2003), section 3.6.2. There are forward rates on
//! a grid of dates, several factors, and the drift that makes every discounted bond a martingale on
//! that grid. So the only error is the statistical one.
//!
//! Each swaption belongs to one thread, and the parts are fixed in advance, as in PARSEC's
//! swaptions. With 128 swaptions, a thread count that does not divide 128 loads threads unevenly.

use crate::math::{exp, normal_pair};
use crate::random::{fraction, mix};
use crate::{Size, Tally, WorkloadError, heartbeat, team};
use std::sync::Mutex;

const SWAPTIONS: usize = 128;
/// Number of paths of a swaption at full size.
const PATHS: usize = 190_000;
/// Maximum number of dates on the grid.
const STEPS_MAX: usize = 20;
const FACTORS: usize = 3;
/// Number of paths that are simulated together.
const LANES: usize = 8;
const SEED: u64 = 0x5a_4710;

/// The right to enter, at step `expiry`, a swap that pays the fixed rate `strike` after each step
/// up to `maturity` and receives the floating one.
#[derive(Clone)]
struct Swaption {
    expiry: usize,
    /// At most [`STEPS_MAX`].
    maturity: usize,
    /// Simply compounded, per year.
    strike: f64,
    /// Length of a step.
    years: f64,
    /// Today's forward rates, continuously compounded per year, one per step.
    forward: [f64; STEPS_MAX],
    /// Volatility of a forward rate by factor and by the number of steps before the rate begins.
    volatility: [[f64; STEPS_MAX]; FACTORS],
    seed: u64,
}

/// Quantities that do not depend on the path: drift and factors, by the steps left.
struct Scheme {
    drift: [f64; STEPS_MAX],
    /// volatility √years
    deviation: [[f64; STEPS_MAX]; FACTORS],
}

/// A Monte Carlo estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    value: f64,
    error: f64,
}

impl Swaption {
    /// Returns the `index`th swaption: a rising curve, and a parallel, a tilting and a bending
    /// factor.
    fn portfolio(index: usize) -> Swaption {
        let draw = |i: u64| fraction(SEED, 4 * index as u64 + i);
        let level = 0.02 + 0.04 * draw(0);
        let slope = 0.02 * draw(1);
        let part = |step: usize| step as f64 / STEPS_MAX as f64;
        Swaption {
            expiry: 8,
            maturity: STEPS_MAX,
            strike: level + slope / 2.0 + 0.01 * (draw(2) - 0.5),
            years: 0.25,
            forward: std::array::from_fn(|step| level + slope * part(step)),
            volatility: [
                [0.01; STEPS_MAX],
                std::array::from_fn(|left| 0.006 * (1.0 - 2.0 * part(left))),
                std::array::from_fn(|left| 0.004 * (1.0 - 8.0 * part(left) * (1.0 - part(left)))),
            ],
            seed: mix(SEED ^ index as u64),
        }
    }

    /// Returns the scheme. The drift of the rate with `left` steps left is half of the growth of
    /// the square of the factors' sum over the shorter rates. With this drift, the mean of every
    /// discounted bond is its price, step by step.
    fn scheme(&self) -> Scheme {
        let root = self.years.sqrt();
        let deviation = self.volatility.map(|factor| factor.map(|v| v * root));
        let mut drift = [0.0; STEPS_MAX];
        for factor in &deviation {
            let mut sum = 0.0;
            for left in 0..STEPS_MAX {
                let before = sum * sum;
                sum += factor[left];
                drift[left] += 0.5 * self.years * (sum * sum - before);
            }
        }
        Scheme { drift, deviation }
    }

    /// Returns the `pair`th pair of normal numbers of a path.
    #[inline(always)]
    fn draw(&self, path: u64, pair: usize) -> (f64, f64) {
        let at = (path * (STEPS_MAX * FACTORS) as u64 + pair as u64) * 2;
        normal_pair(fraction(self.seed, at), fraction(self.seed, at + 1))
    }

    /// Returns the discounted payoffs of [`LANES`] paths from `path` on, simulated in place, with
    /// lanes innermost.
    fn payoffs(&self, scheme: &Scheme, path: u64) -> [f64; LANES] {
        let normals = self.expiry * FACTORS;
        let mut normal = [[0.0; LANES]; STEPS_MAX * FACTORS + 1];
        for pair in 0..normals.div_ceil(2) {
            for lane in 0..LANES {
                let (x, y) = self.draw(path + lane as u64, pair);
                normal[2 * pair][lane] = x;
                normal[2 * pair + 1][lane] = y;
            }
        }
        let mut rate = self.forward.map(|f| [f; LANES]);
        let mut discount = [0.0; LANES];
        for step in 0..self.expiry {
            for lane in 0..LANES {
                discount[lane] += rate[step][lane];
            }
            let z: &[[f64; LANES]; FACTORS] =
                normal[step * FACTORS..].first_chunk().expect("a row of normals for each step");
            for (left, rate) in rate[step + 1..self.maturity].iter_mut().enumerate() {
                for lane in 0..LANES {
                    let mut change = scheme.drift[left];
                    for factor in 0..FACTORS {
                        change += scheme.deviation[factor][left] * z[factor][lane];
                    }
                    rate[lane] += change;
                }
            }
        }
        let coupon = self.strike * self.years;
        let (mut to_date, mut fixed, mut bond) = ([0.0; LANES], [0.0; LANES], [1.0; LANES]);
        for rate in &rate[self.expiry..self.maturity] {
            for lane in 0..LANES {
                to_date[lane] += rate[lane];
                bond[lane] = exp(-self.years * to_date[lane]);
                fixed[lane] += coupon * bond[lane];
            }
        }
        std::array::from_fn(|lane| {
            (1.0 - bond[lane] - fixed[lane]).max(0.0) * exp(-self.years * discount[lane])
        })
    }

    fn estimate(&self, paths: u64) -> Estimate {
        let scheme = self.scheme();
        let mut moments = Moments::default();
        for path in (0..paths).step_by(LANES) {
            self.payoffs(&scheme, path).into_iter().for_each(|payoff| moments.add(payoff));
            heartbeat::beat(1);
        }
        moments.estimate()
    }

    /// Simulates a single path: the whole table of rates, one row per step, and each bond from its
    /// own sum.
    fn naive_payoff(&self, scheme: &Scheme, path: u64) -> f64 {
        let mut normals = Vec::new();
        for pair in 0..(self.expiry * FACTORS).div_ceil(2) {
            let (x, y) = self.draw(path, pair);
            normals.extend([x, y]);
        }
        let mut table = vec![self.forward.to_vec()];
        for step in 0..self.expiry {
            let mut row = vec![0.0; STEPS_MAX];
            for date in step + 1..self.maturity {
                let left = date - step - 1;
                let mut change = scheme.drift[left];
                for factor in 0..FACTORS {
                    change += scheme.deviation[factor][left] * normals[step * FACTORS + factor];
                }
                row[date] = table[step][date] + change;
            }
            table.push(row);
        }
        let discount: f64 = (0..self.expiry).map(|step| table[step][step]).sum();
        let bond = |date: usize| {
            exp(-self.years * table[self.expiry][self.expiry..date].iter().sum::<f64>())
        };
        let mut fixed = 0.0;
        for date in self.expiry + 1..=self.maturity {
            fixed += self.strike * self.years * bond(date);
        }
        (1.0 - bond(self.maturity) - fixed).max(0.0) * exp(-self.years * discount)
    }
}

/// Sums for the mean and its standard error, in the order of the paths.
#[derive(Default)]
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, x: f64) {
        self.count += 1.0;
        self.sum += x;
        self.squares += x * x;
    }

    fn estimate(&self) -> Estimate {
        let value = self.sum / self.count;
        let variance = (self.squares / self.count - value * value).max(0.0);
        Estimate { value, error: (variance / self.count).sqrt() }
    }
}

/// Number of paths: a multiple of [`LANES`].
fn paths(size: Size) -> u64 {
    size.count(PATHS).next_multiple_of(LANES) as u64
}

fn tally(paths: u64, estimates: impl Iterator<Item = Estimate>) -> Tally {
    let checksum =
        estimates.fold(0, |sum, e| mix(mix(sum ^ e.value.to_bits()) ^ e.error.to_bits()));
    Tally { checksum, work: SWAPTIONS as u64 * paths }
}

pub(crate) fn run(threads: usize, size: Size) -> Result<Tally, WorkloadError> {
    let paths = paths(size);
    let estimates: Vec<_> = (0..SWAPTIONS).map(|_| Mutex::new(None)).collect();
    team::run_ranks("swaption", threads, |rank| {
        for index in team::share(rank, threads, SWAPTIONS) {
            let estimate = Swaption::portfolio(index).estimate(paths);
            *estimates[index].lock().unwrap() = Some(estimate);
        }
    })?;
    Ok(tally(paths, estimates.into_iter().filter_map(|e| e.into_inner().unwrap())))
}

pub(crate) fn naive(size: Size) -> Tally {
    let paths = paths(size);
    let estimate = |index| {
        let swaption = Swaption::portfolio(index);
        let scheme = swaption.scheme();
        let mut moments = Moments::default();
        (0..paths).for_each(|path| moments.add(swaption.naive_payoff(&scheme, path)));
        moments.estimate()
    };
    tally(paths, (0..SWAPTIONS).map(estimate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Discount factor from today to the start of `step`.
    fn bond(swaption: &Swaption, step: usize) -> f64 {
        (-swaption.years * swaption.forward[..step].iter().sum::<f64>()).exp()
    }

    #[test]
    fn estimate_without_volatility_is_the_discounted_swap() {
        for index in 0..SWAPTIONS {
            let swaption =
                Swaption { volatility: [[0.0; STEPS_MAX]; FACTORS], ..Swaption::portfolio(index) };
            let fixed: f64 = (swaption.expiry + 1..=swaption.maturity)
                .map(|date| swaption.strike * swaption.years * bond(&swaption, date))
                .sum();
            let swap =
                bond(&swaption, swaption.expiry) - bond(&swaption, swaption.maturity) - fixed;
            assert!((swaption.estimate(16).value - swap.max(0.0)).abs() < 1e-14);
        }
    }

    #[test]
    fn estimate_of_a_deep_swaption_is_the_discounted_swap() {
        // The exercise is certain: a martingale test of the drift with all factors.
        let swaption = Swaption { strike: -1.0, ..Swaption::portfolio(3) };
        let fixed: f64 = (swaption.expiry + 1..=swaption.maturity)
            .map(|date| swaption.strike * swaption.years * bond(&swaption, date))
            .sum();
        let swap = bond(&swaption, swaption.expiry) - bond(&swaption, swaption.maturity) - fixed;
        let estimate = swaption.estimate(20_000);
        assert!((estimate.value - swap).abs() < 4.0 * estimate.error, "{estimate:?} {swap}");
    }

    #[test]
    fn estimate_with_one_flat_factor_is_the_closed_form_of_ho_and_lee() {
        // One payment: a put on a bond that is lognormal at expiry. Black's formula is exact.
        let mut swaption = Swaption { maturity: 9, strike: 0.05, ..Swaption::portfolio(5) };
        swaption.volatility = [[0.02; STEPS_MAX], [0.0; STEPS_MAX], [0.0; STEPS_MAX]];
        let coupon = 1.0 + swaption.strike * swaption.years;
        let (near, far) = (bond(&swaption, 8), bond(&swaption, 9));
        let deviation = swaption.years * 0.02 * (8.0 * swaption.years).sqrt();
        let d1 = (coupon * far / near).ln() / deviation + deviation / 2.0;
        let d2 = d1 - deviation;
        let closed = near * distribution(-d2) - coupon * far * distribution(-d1);
        let estimate = swaption.estimate(40_000);
        assert!((estimate.value - closed).abs() < 4.0 * estimate.error, "{estimate:?} {closed}");
        assert!(estimate.error < 0.01 * closed, "the test has no power: {estimate:?} {closed}");
    }

    /// The normal distribution function by Simpson's rule.
    fn distribution(x: f64) -> f64 {
        let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (n, h) = (1_000, x / 1_000.0);
        let inner: f64 =
            (1..n).map(|i| density(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        0.5 + h / 3.0 * (density(0.0) + density(x) + inner)
    }

    #[test]
    fn payoffs_equal_the_naive_simulation() {
        let swaption = Swaption::portfolio(17);
        let scheme = swaption.scheme();
        let naive: [f64; LANES] =
            std::array::from_fn(|lane| swaption.naive_payoff(&scheme, 40 + lane as u64));
        assert_eq!(swaption.payoffs(&scheme, 40), naive);
    }
}
