//! The report of an experiment.

use serde::Serialize;
use std::fmt;

/// A table of the paper's figures and ours.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Meaning of the rows.
    pub what: &'static str,
    /// Meaning of the figures, from left to right.
    pub columns: Vec<&'static str>,
    /// Rows, with a figure for each column.
    pub rows: Vec<Row>,
    /// Remarks, one per line.
    pub notes: Vec<&'static str>,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the row.
    pub name: String,
    /// Figures of the row.
    pub figures: Vec<Figure>,
}

impl Row {
    /// Returns the means of the rows' figures.
    pub(crate) fn mean(rows: &[Row]) -> Row {
        let count = rows.len() as f64;
        let mean = |column: usize| {
            let figures = rows.iter().map(|row| row.figures[column]);
            let paper: Option<f64> = figures.clone().map(|figure| figure.paper).sum();
            Figure::shown(
                paper.map(|sum| sum / count),
                figures.map(|figure| figure.ours).sum::<f64>() / count,
            )
        };
        let columns = rows.first().map_or(0, |row| row.figures.len());
        Row { name: "mean".into(), figures: (0..columns).map(mean).collect() }
    }
}

/// A figure of the paper and of our run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// The paper's figure, if the paper states it.
    pub paper: Option<f64>,
    /// Our figure.
    pub ours: f64,
    /// Tolerance as a share of the paper's figure, if a test checks the figure.
    pub within: Option<f64>,
}

impl Figure {
    /// Returns a figure without a tolerance.
    pub(crate) fn shown(paper: impl Into<Option<f64>>, ours: f64) -> Figure {
        Figure { paper: paper.into(), ours, within: None }
    }

    /// Returns a figure with a tolerance.
    pub(crate) fn checked(paper: f64, ours: f64, within: f64) -> Figure {
        Figure { paper: Some(paper), ours, within: Some(within) }
    }

    fn deviates(&self) -> bool {
        let near = |paper: f64, within: f64| (self.ours - paper).abs() <= within * paper.abs();
        self.paper.zip(self.within).is_some_and(|(paper, within)| !near(paper, within))
    }
}

impl Report {
    /// Returns the figures outside of their tolerances, one line each.
    pub fn deviations(&self) -> Vec<String> {
        let line = |row: &Row, (figure, column): (&Figure, &&str)| {
            let paper = figure.paper.map_or_else(String::new, number);
            let within = figure.within.unwrap_or_default() * 100.0;
            let ours = number(figure.ours);
            format!("{}, {column}: {ours}, paper {paper}, tolerance {within:.0}%", row.name)
        };
        let of = |row: &Row| -> Vec<String> {
            let figures = row.figures.iter().zip(&self.columns);
            figures.filter(|(figure, _)| figure.deviates()).map(|both| line(row, both)).collect()
        };
        self.rows.iter().flat_map(of).collect()
    }
}

/// Formats a number with three significant digits, and whole numbers without decimals.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == v.trunc() => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Width of a figure: two numbers and a separator.
const PAIR: usize = 15;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.rows.iter().map(|row| row.name.len());
        let first = names.chain([self.what.len()]).max().unwrap_or(0);
        let widths: Vec<usize> = self.columns.iter().map(|c| c.len().max(PAIR)).collect();
        write!(f, "{:first$}", "")?;
        for (column, width) in self.columns.iter().zip(&widths) {
            write!(f, "  {column:>width$}")?;
        }
        write!(f, "\n{:first$}", self.what)?;
        for width in &widths {
            write!(f, "  {:>w$} {:>7}", "paper", "ours", w = width - 8)?;
        }
        writeln!(f)?;
        for row in &self.rows {
            write!(f, "{:first$}", row.name)?;
            for (figure, width) in row.figures.iter().zip(&widths) {
                let paper = figure.paper.map_or_else(|| "-".into(), number);
                write!(f, "  {paper:>w$} {:>7}", number(figure.ours), w = width - 8)?;
            }
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_outside_their_tolerances_are_reported() {
        let figures = vec![
            Figure::checked(10.0, 11.0, 0.1),
            Figure::checked(-2.0, -2.5, 0.1),
            Figure::shown(1.0, 9.0),
        ];
        let rows = vec![Row { name: "p".into(), figures }];
        let report = Report {
            what: "program",
            columns: vec!["a", "b", "c"],
            rows,
            notes: vec!["A remark."],
        };
        assert_eq!(report.deviations(), ["p, b: -2.50, paper -2, tolerance 10%"]);
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[..3].iter().all(|line| line.len() == lines[0].len()), "{text}");
    }
}
