//! A portfolio of European options, valued under many market scenarios by the closed form of Black
//! and Scholes.
//!
//! One thread reads the portfolio from text, as PARSEC's blackscholes reads its file; then all
//! threads value it. Reading takes about a sixth of a single-threaded run. With this share,
//! Amdahl's law predicts the 4.9-fold speedup of Pusukuri, *Runtime Support for Maximizing
//! Performance on Multicore Systems* (2012), table 2.1.

use crate::math::{exp, ln};
use crate::random::{below, fraction, mix};
use crate::{Size, Tally, WorkloadError, heartbeat, team};
use std::fmt::Write;
use std::sync::Mutex;

/// Number of options in the portfolio at full size.
const OPTIONS: usize = 4_500_000;
const SCENARIOS: usize = 96;
/// Number of options that are valued together under all scenarios: they fit into the first-level
/// cache.
const BLOCK: usize = 256;
const SEED: u64 = 0x0b71_0175;

/// A market scenario.
struct Scenario {
    /// Factor on every spot price.
    spot: f64,
    /// Factor on every volatility.
    volatility: f64,
    /// The riskless rate per year.
    rate: f64,
}

fn scenarios() -> Vec<Scenario> {
    let between = |i: usize, draw: u64, low: f64, high: f64| {
        low + (high - low) * fraction(SEED ^ 1, 4 * i as u64 + draw)
    };
    (0..SCENARIOS)
        .map(|i| Scenario {
            spot: between(i, 0, 0.8, 1.25),
            volatility: between(i, 1, 0.7, 1.5),
            rate: between(i, 2, 0.01, 0.08),
        })
        .collect()
}

/// An option as read from the text.
#[derive(Clone, Copy)]
struct Quote {
    spot: f32,
    strike: f32,
    volatility: f32,
    years: f32,
    call: bool,
}

/// Writes the `index`th line of the portfolio's text, which replaces a file.
fn write_line(line: &mut String, index: u64) {
    let draw = |i, low, high| low + below(SEED, 5 * index + i, high - low);
    let (spot, strike) = (draw(0, 2_000, 20_000), draw(1, 2_000, 20_000));
    let (volatility, days, kind) = (draw(2, 100, 600), draw(3, 20, 1_000), draw(4, 0, 2));
    line.clear();
    let _ = write!(
        line,
        "{}.{:02} {}.{:02} 0.{volatility:03} {}.{:03} {}",
        spot / 100,
        spot % 100,
        strike / 100,
        strike % 100,
        days / 365,
        days % 365 * 1000 / 365,
        ["C", "P"][kind as usize],
    );
}

fn read_line(line: &str) -> Option<Quote> {
    let mut fields = line.split_ascii_whitespace();
    let mut number = || fields.next()?.parse().ok();
    let (spot, strike, volatility, years) = (number()?, number()?, number()?, number()?);
    Some(Quote { spot, strike, volatility, years, call: fields.next()? == "C" })
}

fn read_portfolio(count: usize) -> Vec<Quote> {
    let mut line = String::new();
    (0..count as u64)
        .map(|i| {
            write_line(&mut line, i);
            read_line(&line).expect("a line that write_line wrote")
        })
        .collect()
}

/// Quantities of a block of options that do not depend on the scenario, as one array each.
struct Block {
    len: usize,
    spot: [f64; BLOCK],
    strike: [f64; BLOCK],
    years: [f64; BLOCK],
    /// ln(spot / strike)
    moneyness: [f64; BLOCK],
    /// volatility √years
    deviation: [f64; BLOCK],
    /// 1 for a call, -1 for a put
    sign: [f64; BLOCK],
}

impl Block {
    fn new(quotes: &[Quote]) -> Self {
        let mut block = Block {
            len: quotes.len(),
            spot: [1.0; BLOCK],
            strike: [1.0; BLOCK],
            years: [1.0; BLOCK],
            moneyness: [0.0; BLOCK],
            deviation: [1.0; BLOCK],
            sign: [1.0; BLOCK],
        };
        for (i, q) in quotes.iter().enumerate() {
            block.spot[i] = q.spot.into();
            block.strike[i] = q.strike.into();
            block.years[i] = q.years.into();
            block.moneyness[i] = ln(block.spot[i] / block.strike[i]);
            block.deviation[i] = f64::from(q.volatility) * block.years[i].sqrt();
            block.sign[i] = if q.call { 1.0 } else { -1.0 };
        }
        block
    }

    /// Returns the value of each option in a scenario: Black and Scholes, *The Pricing of Options
    /// and Corporate Liabilities* (1973).
    ///
    /// The density at d2 follows from the density at d1, which saves an exponential: spot φ(d1) =
    /// strike e^(-rate years) φ(d2).
    fn values(&self, scenario: &Scenario) -> [f64; BLOCK] {
        let spot_ln = ln(scenario.spot);
        let mut values = [0.0; BLOCK];
        for (i, value) in values.iter_mut().enumerate() {
            let spot = self.spot[i] * scenario.spot;
            let deviation = self.deviation[i] * scenario.volatility;
            let growth = scenario.rate * self.years[i];
            let strike = self.strike[i] * exp(-growth);
            let d1 = (self.moneyness[i] + spot_ln + growth) / deviation + 0.5 * deviation;
            let d2 = d1 - deviation;
            let density1 = exp(-0.5 * d1 * d1) * FRAC_1_SQRT_2_PI;
            let density2 = density1 * spot / strike;
            let sign = self.sign[i];
            *value =
                sign * (spot * normal(sign * d1, density1) - strike * normal(sign * d2, density2));
        }
        values
    }

    /// Returns the sum of the values in units of 2^-40: an integer, so that the order of additions
    /// does not matter.
    fn value_fixed(&self, scenario: &Scenario) -> i128 {
        let sum: f64 = self.values(scenario)[..self.len].iter().sum();
        (sum * UNIT) as i128
    }
}

const UNIT: f64 = (1u64 << 40) as f64;
const FRAC_1_SQRT_2_PI: f64 = 0.398_942_280_401_432_7;

/// The normal distribution function at `x`, given the density at `x`: Abramowitz and
/// Stegun, *Handbook of Mathematical Functions* (1964), 26.2.17. The error is at most 7.5e-8.
#[inline(always)]
fn normal(x: f64, density: f64) -> f64 {
    let k = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let tail = density
        * k
        * (0.319_381_530
            + k * (-0.356_563_782
                + k * (1.781_477_937 + k * (-1.821_255_978 + k * 1.330_274_429))));
    if x > 0.0 { 1.0 - tail } else { tail }
}

pub(crate) fn run(threads: usize, size: Size) -> Result<Tally, WorkloadError> {
    let portfolio = read_portfolio(size.count(OPTIONS));
    let scenarios = scenarios();
    let blocks = portfolio.len().div_ceil(BLOCK);
    let totals = Mutex::new(vec![0i128; SCENARIOS]);
    team::run_ranks("option", threads, |rank| {
        let mut mine = vec![0i128; SCENARIOS];
        for index in team::share(rank, threads, blocks) {
            let block =
                Block::new(&portfolio[index * BLOCK..portfolio.len().min((index + 1) * BLOCK)]);
            for (total, scenario) in mine.iter_mut().zip(&scenarios) {
                *total += block.value_fixed(scenario);
            }
            heartbeat::beat(1);
        }
        totals.lock().unwrap().iter_mut().zip(mine).for_each(|(total, part)| *total += part);
    })?;
    let totals = totals.into_inner().unwrap().into_iter().map(|t| t as f64 / UNIT);
    Ok(tally(portfolio.len(), totals))
}

/// Rounds the value of each scenario to the nearest 1, so that the result does not depend on the
/// order of additions and on the mathematical library.
fn tally(options: usize, totals: impl Iterator<Item = f64>) -> Tally {
    let checksum = totals.fold(0, |sum, total| mix(sum ^ total.round() as i64 as u64));
    Tally { checksum, work: (options * SCENARIOS) as u64 }
}

/// The naive version: one scenario after the other over the whole portfolio, by the textbook.
pub(crate) fn naive(size: Size) -> Tally {
    let portfolio = read_portfolio(size.count(OPTIONS));
    let totals = scenarios()
        .iter()
        .map(|scenario| portfolio.iter().map(|quote| naive_value(quote, scenario)).sum())
        .collect::<Vec<f64>>();
    tally(portfolio.len(), totals.into_iter())
}

fn naive_value(quote: &Quote, scenario: &Scenario) -> f64 {
    let spot = f64::from(quote.spot) * scenario.spot;
    let strike = f64::from(quote.strike);
    let years = f64::from(quote.years);
    let volatility = f64::from(quote.volatility) * scenario.volatility;
    let d1 = ((spot / strike).ln() + (scenario.rate + 0.5 * volatility * volatility) * years)
        / (volatility * years.sqrt());
    let d2 = d1 - volatility * years.sqrt();
    let cumulative = |x: f64| normal(x, (-0.5 * x * x).exp() * FRAC_1_SQRT_2_PI);
    let call = spot * cumulative(d1) - strike * (-scenario.rate * years).exp() * cumulative(d2);
    if quote.call { call } else { call - spot + strike * (-scenario.rate * years).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNCHANGED: Scenario = Scenario { spot: 1.0, volatility: 1.0, rate: 0.1 };

    fn values(call: bool) -> f64 {
        let quote = Quote { spot: 42.0, strike: 40.0, volatility: 0.2, years: 0.5, call };
        Block::new(&[quote]).values(&UNCHANGED)[0]
    }

    #[test]
    fn values_are_those_of_the_textbook() {
        // Hull, Options, Futures, and Other Derivatives: the first worked example of the chapter
        // on Black-Scholes-Merton.
        assert!((values(true) - 4.76).abs() < 0.005, "{}", values(true));
        assert!((values(false) - 0.81).abs() < 0.005, "{}", values(false));
    }

    #[test]
    fn values_of_call_and_put_have_parity() {
        let forward = 42.0 - 40.0 * (-0.1f64 * 0.5).exp();
        assert!((values(true) - values(false) - forward).abs() < 1e-12);
    }

    #[test]
    fn values_agree_with_the_naive_ones() {
        let portfolio = read_portfolio(BLOCK);
        for scenario in scenarios() {
            let values = Block::new(&portfolio).values(&scenario);
            for (value, quote) in values.iter().zip(&portfolio) {
                let naive = naive_value(quote, &scenario);
                assert!((value - naive).abs() < 1e-10 * naive.abs().max(1.0), "{value} {naive}");
            }
        }
    }

    #[test]
    fn read_line_rejects_other_text() {
        for bad in ["", "1 2 3", "1 2 x 4 C", "1 2 3 4"] {
            assert!(read_line(bad).is_none(), "{bad}");
        }
    }
}
