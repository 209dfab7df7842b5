//! All experiments, run.

use corebeat_paper::{EXPERIMENTS, Report, find};
use std::sync::LazyLock;

/// Each run once for all tests, in the order of [`EXPERIMENTS`].
static REPORTS: LazyLock<Vec<Report>> = LazyLock::new(|| EXPERIMENTS.iter().map(|e| e.run()).collect());

fn report(name: &str) -> &'static Report {
    &REPORTS[EXPERIMENTS.iter().position(|e| e.name == name).unwrap()]
}

#[test]
fn figures_are_as_near_as_they_say() {
    for (experiment, report) in EXPERIMENTS.iter().zip(REPORTS.iter()) {
        assert!(
            report.rows.iter().all(|row| row.figures.len() == report.columns.len()),
            "{}",
            experiment.name
        );
        assert_eq!(report.strays(), Vec::<String>::new(), "{}\n{report}", experiment.name);
    }
}

#[test]
fn experiments_repeat_themselves() {
    for name in ["pusukuri-figure-4.3", "metronome-figure-3", "oversubscription-figure-3"] {
        let experiment = find(name).unwrap();
        assert_eq!(&experiment.run(), report(name), "{name}");
    }
}

/// A figure of ours.
fn ours(report: &Report, row: &str, column: &str) -> f64 {
    let column = report.columns.iter().position(|c| *c == column).unwrap();
    report.rows.iter().find(|r| r.name == row).unwrap().figures[column].ours
}

/// The thesis' search lost 24% of the speed at worst.
#[test]
fn reinforcer_finds_counts_that_are_nearly_the_best() {
    for name in ["pusukuri-table-2.4", "pusukuri-table-2.5"] {
        let report = report(name);
        assert!(report.rows.iter().all(|row| row.figures[3].ours > 0.85), "{report}");
        assert!(
            report.rows.iter().any(|row| row.figures[0].ours < 24.0),
            "all cores is not always the answer"
        );
    }
    let table = report("pusukuri-table-2.4");
    assert!(ours(table, "ferret", "threads found") > 48.0, "a pipeline wants far more threads than cores");
}

#[test]
fn fair_comes_nearer_to_all_goals() {
    let errors = report("metronome-figure-3");
    assert!(errors.rows.iter().all(|row| row.figures[0].ours < 0.2), "{errors}");
}

#[test]
fn faithful_gains_more_with_more_locks_and_load() {
    let gains = report("pusukuri-figure-5.8");
    let (high, low) = (ours(gains, "high", "200% load, %"), ours(gains, "low", "200% load, %"));
    assert!(high > 5.0 && high > ours(gains, "high", "150% load, %"), "{gains}");
    assert!(low.abs() < 2.0, "{gains}");
}

/// Equal parts have a peak at the first count that has no core of its own.
#[test]
fn oversubscription_shows_where_the_paper_saw_it() {
    let peaks = report("oversubscription-figure-3");
    assert!(ours(peaks, "9", "alone") > 1.1 * ours(peaks, "8", "alone"), "{peaks}");
    assert!(ours(peaks, "5", "beside four") > 1.1 * ours(peaks, "4", "beside four"), "{peaks}");
}
