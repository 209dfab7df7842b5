//! Compares two builds of this program: `bench compare OLD NEW NAME...`.
//!
//! The two programs measure the same benches in alternation, so that a change of the machine
//! affects both. Each round yields one ratio of medians for each row. An exact sign-flip test
//! (Fisher, *The Design of Experiments*, 1935, section 21) decides whether the mean logarithm of
//! the ratios differs from 0.

use crate::row::{Better, Row, median};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// With fewer rounds, no difference is significant: the smallest probability is 2 in 2^rounds.
const ROUNDS_MIN: i64 = 6;
/// The test computes 2^16 sums at most.
const ROUNDS_MAX: i64 = 16;
const SIGNIFICANCE: f64 = 0.05;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Program before the change
    old: PathBuf,
    /// Program after the change
    new: PathBuf,
    /// Measure these benches
    #[arg(required = true)]
    name: Vec<String>,
    /// Measure each program this many times, 6 to 16
    #[arg(long, value_name = "NUMBER", default_value_t = ROUNDS_MIN,
        value_parser = clap::value_parser!(i64).range(ROUNDS_MIN..=ROUNDS_MAX))]
    rounds: i64,
    /// Measure only cases whose name contains this text
    #[arg(long, value_name = "SUBSTRING")]
    filter: Option<String>,
    /// Measure only this subject of each case; may be repeated
    #[arg(long, value_name = "SUBJECT", default_value = "corebeat")]
    only: Vec<String>,
}

/// The medians of one row before and after the change, one pair per round.
#[derive(Debug, PartialEq)]
struct Comparison {
    name: String,
    better: Better,
    pairs: Vec<(f64, f64)>,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    let mut comparisons = Vec::new();
    for round in 0..options.rounds {
        eprintln!("bench: round {} of {}", round + 1, options.rounds);
        // The order alternates: the first program of a round may find another state of the caches.
        if round % 2 == 0 {
            let old = measure(options, &options.old)?;
            add(&mut comparisons, &old, measure(options, &options.new)?);
        } else {
            let new = measure(options, &options.new)?;
            add(&mut comparisons, &measure(options, &options.old)?, new);
        }
    }
    if comparisons.is_empty() {
        return Err("the programs have no row in common".into());
    }
    print!("{}", table(&comparisons));
    Ok(ExitCode::SUCCESS)
}

fn measure(options: &Options, program: &Path) -> Result<Vec<Row>, String> {
    let mut command = Command::new(program);
    command.arg("--json").args(&options.name).stderr(Stdio::null());
    command.args(options.only.iter().flat_map(|subject| ["--only", subject]));
    command.args(options.filter.iter().flat_map(|text| ["--filter", text]));
    let shown = program.display();
    let output = command.output().map_err(|e| format!("cannot start '{shown}': {e}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}; run {command:?} to read why", output.status));
    }
    let rows = String::from_utf8_lossy(&output.stdout);
    let rows = rows.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    rows.map_err(|e| format!("{shown} printed a line that is not a row: {e}"))
}

/// Adds the pairs of one round. A row that one program does not have is left out.
fn add(comparisons: &mut Vec<Comparison>, old: &[Row], new: Vec<Row>) {
    let name = |row: &Row| format!("{}  {}  {} [{}]", row.bench, row.case, row.subject, row.unit);
    for row in new {
        let name_of_row = name(&row);
        let Some(before) = old.iter().find(|other| name(other) == name_of_row) else { continue };
        let pair = (before.median, row.median);
        match comparisons.iter_mut().find(|known| known.name == name_of_row) {
            Some(known) => known.pairs.push(pair),
            None => comparisons.push(Comparison {
                name: name_of_row,
                better: row.better,
                pairs: vec![pair],
            }),
        }
    }
}

/// One line per row: the medians before and after, the ratio with its range, and the result.
fn table(comparisons: &[Comparison]) -> String {
    let mut text = format!("{:<64} {:>6} {:>6} {:>6} {:>6}\n", "", "new/old", "min", "max", "p");
    let mut changed = 0;
    for comparison in comparisons {
        let ratios: Vec<f64> = comparison.ratios().collect();
        let of = |f: fn(f64, f64) -> f64| ratios.iter().copied().reduce(f).unwrap_or(f64::NAN);
        let probability = probability(&ratios);
        let result = match probability < SIGNIFICANCE {
            true => comparison.direction(),
            false => "",
        };
        changed += usize::from(!result.is_empty());
        let middle = median(&ratios).unwrap_or(f64::NAN);
        text += &format!(
            "{:<64} {middle:>6.3} {:>6.3} {:>6.3} {probability:>6.3} {result}\n",
            comparison.name,
            of(f64::min),
            of(f64::max)
        );
    }
    let by_chance = SIGNIFICANCE * comparisons.len() as f64;
    text + &format!(
        "{changed} of {} rows changed (p < {SIGNIFICANCE}); without any change, {by_chance:.1} are expected\n",
        comparisons.len()
    )
}

impl Comparison {
    /// New over old, by round. A pair without a positive ratio has no meaning and is left out.
    fn ratios(&self) -> impl Iterator<Item = f64> {
        let ratios = self.pairs.iter().map(|(old, new)| new / old);
        ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    }

    fn direction(&self) -> &'static str {
        let is_higher = self.ratios().map(f64::ln).sum::<f64>() > 0.0;
        match (self.better, is_higher) {
            (Better::Neither, true) => "higher",
            (Better::Neither, false) => "lower",
            (Better::Lower, true) | (Better::Higher, false) => "worse",
            (Better::Lower, false) | (Better::Higher, true) => "better",
        }
    }
}

/// The probability that chance alone moves the mean of the logarithms at least as far from 0: the
/// share of all assignments of signs that move it as far. 1 without ratios.
fn probability(ratios: &[f64]) -> f64 {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let measured = logs.iter().sum::<f64>().abs();
    let assignments = 1_u32 << logs.len();
    let is_as_far = |signs: &u32| {
        let sum: f64 =
            logs.iter().enumerate().map(|(i, x)| if signs >> i & 1 == 1 { -x } else { *x }).sum();
        // Sums of the same numbers differ by rounding.
        sum.abs() >= measured * (1.0 - 1e-9)
    };
    f64::from((0..assignments).filter(is_as_far).count() as u32) / f64::from(assignments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, median: f64) -> Row {
        Row {
            bench: "lpel.spawn".into(),
            case: case.into(),
            subject: "corebeat".into(),
            unit: "ns".into(),
            better: Better::Lower,
            median,
            min: median,
            max: median,
            runs: 5,
            cut_runs: 0,
            line_ns: None,
        }
    }

    #[test]
    fn rows_of_one_program_are_left_out() {
        let mut comparisons = Vec::new();
        for _ in 0..2 {
            let old = [row("1 worker", 60.0), row("gone", 1.0)];
            add(&mut comparisons, &old, vec![row("1 worker", 66.0), row("16 workers", 1.0)]);
        }
        assert_eq!(comparisons.len(), 1);
        assert_eq!(comparisons[0].name, "lpel.spawn  1 worker  corebeat [ns]");
        assert_eq!(comparisons[0].pairs, [(60.0, 66.0); 2]);
    }

    #[test]
    fn probability_is_the_share_of_assignments() {
        assert_eq!(probability(&[]), 1.0);
        // All six rounds agree: the assignment itself and its opposite.
        assert_eq!(probability(&[1.1, 1.2, 1.1, 1.3, 1.2, 1.1]), 2.0 / 64.0);
        assert_eq!(probability(&[1.0; 6]), 1.0);
        // The signs of the small logarithm do not matter much, those of the large one decide.
        assert_eq!(probability(&[2.0, 0.5]), 1.0);
    }

    #[test]
    fn table_names_the_direction_of_significant_changes() {
        let comparison = |name: &str, better, new: [f64; 6]| Comparison {
            name: name.into(),
            better,
            pairs: new.map(|new| (10.0, new)).into(),
        };
        let text = table(&[
            comparison("time", Better::Lower, [11.0, 12.0, 11.0, 13.0, 12.0, 11.0]),
            comparison("rate", Better::Higher, [11.0, 12.0, 11.0, 13.0, 12.0, 11.0]),
            comparison("noise", Better::Lower, [11.0, 9.0, 11.0, 9.0, 11.0, 9.0]),
        ]);
        let line = |name: &str| text.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
        assert!(line("time").ends_with("1.150  1.100  1.300  0.031 worse"), "{text}");
        assert!(line("rate").ends_with("0.031 better"), "{text}");
        assert!(!line("noise").ends_with("worse") && !line("noise").ends_with("better"), "{text}");
        let last = "2 of 3 rows changed (p < 0.05); without any change, 0.2 are expected\n";
        assert!(text.ends_with(last), "{text}");
    }
}
