//! The results of a case: one row per subject, as JSON or as a table.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether lower or higher values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    Lower,
    Higher,
    /// The value is descriptive.
    Neither,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Series {
    pub(crate) subject: String,
    pub(crate) values: Vec<f64>,
    /// Number of runs that were ended at their limit. Their true values are larger.
    pub(crate) cut_runs: usize,
}

/// One line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) bench: String,
    pub(crate) case: String,
    pub(crate) subject: String,
    pub(crate) unit: String,
    pub(crate) better: Better,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) runs: usize,
    /// Absent if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) cut_runs: usize,
    /// The cost of moving a cache line between two cores. Absent on one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) line_ns: Option<f64>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// All rows of a case.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    pub(crate) bench: &'static str,
    pub(crate) case: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// Corebeat is the first entry.
    pub(crate) series: Vec<Series>,
    /// The cost of moving a cache line, measured before each round.
    pub(crate) line_ns: Vec<f64>,
}

/// Returns the middle value, or the mean of the two middle values. `None` without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

impl Row {
    /// Whether the median is only a lower bound. A run that was ended takes at least as long as
    /// every other run, so the median is exact if more than half of the runs were not ended.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut_runs * 2 >= self.runs && self.cut_runs > 0
    }

    /// The median, the smallest and the largest value as text; lower bounds as "over 20.0".
    pub(crate) fn texts(&self, text: impl Fn(f64) -> String) -> [String; 3] {
        let over =
            |x: f64, is_cut: bool| format!("{}{}", if is_cut { "over " } else { "" }, text(x));
        [
            over(self.median, self.is_cut()),
            over(self.min, self.cut_runs == self.runs),
            over(self.max, self.cut_runs > 0),
        ]
    }
}

impl Table {
    fn row(&self, series: &Series) -> Option<Row> {
        Some(Row {
            bench: self.bench.to_owned(),
            case: self.case.clone(),
            subject: series.subject.clone(),
            unit: self.unit.to_owned(),
            better: self.better,
            median: median(&series.values)?,
            min: series.values.iter().copied().reduce(f64::min)?,
            max: series.values.iter().copied().reduce(f64::max)?,
            runs: series.values.len(),
            cut_runs: series.cut_runs,
            line_ns: median(&self.line_ns),
        })
    }

    /// A subject without a value has no row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.series.iter().filter_map(|series| self.row(series))
    }

    /// Prints one object per line.
    pub(crate) fn json(&self) -> String {
        self.rows().map(|row| line(&row)).collect()
    }
}

/// A line of JSON.
pub(crate) fn line(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("a row contains only strings and numbers") + "\n"
}

/// Formats a value with three significant digits.
pub(crate) fn figure(x: f64) -> String {
    figure_within(x, 4)
}

/// Formats a value with three significant digits, and at most so many decimals.
pub(crate) fn figure_within(x: f64, decimals_max: usize) -> String {
    let decimals = match x.abs() {
        a if a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 1.0 || a == 0.0 => 2,
        a if a >= 0.1 => 3,
        _ => 4,
    };
    format!("{x:.*}", decimals_max.min(decimals))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}  [{}]", self.bench, self.case, self.unit)?;
        if let Some(middle) = median(&self.line_ns) {
            let least = self.line_ns.iter().copied().fold(middle, f64::min);
            let most = self.line_ns.iter().copied().fold(middle, f64::max);
            write!(f, "  a cache line moves in {middle:.0} ns ({least:.0} to {most:.0})")?;
        }
        writeln!(f)?;
        let rows: Vec<(&Series, Option<Row>)> =
            self.series.iter().map(|series| (series, self.row(series))).collect();
        let first = rows.first().and_then(|(_, row)| row.as_ref()).filter(|row| row.median > 0.0);
        let better = if self.better == Better::Higher { f64::max } else { f64::min };
        let exact = rows.iter().filter_map(|(_, row)| row.as_ref()).filter(|row| !row.is_cut());
        let best = exact.map(|row| row.median).reduce(better);
        writeln!(f, "  {:<28} {:>9} {:>9} {:>9} {:>5}", "", "median", "min", "max", "runs")?;
        for (series, row) in &rows {
            let Some(row) = row else {
                writeln!(f, "  {:<28} {:>9}", series.subject, "failed")?;
                continue;
            };
            let [median, min, max] = row.texts(figure);
            write!(f, "  {:<28} {median:>9} {min:>9} {max:>9} {:>5}", row.subject, row.runs)?;
            if let Some(first) = first.filter(|_| self.better != Better::Neither) {
                let ratio = format!("{:.3}", row.median / first.median);
                match (std::ptr::eq(first, row), first.is_cut(), row.is_cut()) {
                    (true, ..) => {}
                    (_, true, true) => write!(f, "   neither ended")?,
                    (_, true, false) => write!(f, "   less than {ratio} of {}", first.subject)?,
                    (_, false, true) => write!(f, "   over {ratio} of {}", first.subject)?,
                    (_, false, false) => write!(f, "   {ratio} of {}", first.subject)?,
                }
                if best == Some(row.median) && !row.is_cut() {
                    write!(f, "   best")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(subject: &str, values: &[f64], cut_runs: usize) -> Series {
        Series { subject: subject.into(), values: values.into(), cut_runs }
    }

    fn table(series: Vec<Series>) -> Table {
        Table {
            bench: "run.auto",
            case: "lu 2x".into(),
            unit: "s",
            better: Better::Lower,
            series,
            line_ns: vec![50.0, 215.0],
        }
    }

    #[test]
    fn median_of_none_one_and_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
    }

    #[test]
    fn row_json_has_the_documented_fields() {
        let table =
            table(vec![series("corebeat", &[1.0, 3.0, 2.0], 0), series("plain", &[20.0], 1)]);
        let rows: Vec<serde_json::Value> =
            table.json().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = serde_json::json!({
            "bench": "run.auto", "case": "lu 2x", "subject": "corebeat", "unit": "s", "better": "lower",
            "median": 2.0, "min": 1.0, "max": 3.0, "runs": 3, "line_ns": 132.5
        });
        assert_eq!(rows[0], expected);
        assert_eq!(rows[1]["cut_runs"], 1);
    }

    #[test]
    fn table_shows_a_peer_that_wins_and_one_that_never_ended() {
        let text = table(vec![
            series("corebeat", &[2.0], 0),
            series("plain", &[20.0, 20.0], 2),
            series("by hand", &[1.5], 0),
            series("gone", &[], 0),
        ])
        .to_string();
        let line = |name: &str| text.lines().find(|l| l.contains(name)).unwrap().to_owned();
        assert!(line("by hand").ends_with("0.750 of corebeat   best"), "{text}");
        assert!(
            line("plain").contains("over 20.0")
                && line("plain").ends_with("over 10.000 of corebeat"),
            "{text}"
        );
        assert!(line("gone").ends_with("failed"), "{text}");
    }

    #[test]
    fn table_of_rates_shows_the_highest_as_best() {
        let rates = vec![series("corebeat", &[2.0], 0), series("by hand", &[3.0], 0)];
        let text = Table { unit: "MB/s", better: Better::Higher, ..table(rates) }.to_string();
        assert!(text.trim_end().ends_with("1.500 of corebeat   best"), "{text}");
        assert_eq!(text.matches("best").count(), 1);
    }
}
