//! Measures whether `corebeat tune` finds the best thread count, and the cost of the search.

use crate::Bench;
use crate::child::Running;
use crate::program::{Agreement, Program, threads, workloads};
use crate::round::{Measured, Subject, interleave};
use crate::row::{Better, Series, Table, median};
use crate::session::Session;
use crate::tool::{PBZIP2, SEVEN_ZIP, SYSBENCH};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) const BENCH: Bench = Bench {
    name: "tune.count",
    summary: "time at the count that corebeat tune finds, relative to the best of all counts, and the cost of the search",
    peers: &["as many threads as CPUs", "the best of an exhaustive sweep"],
    tools: &[PBZIP2, SEVEN_ZIP, SYSBENCH],
    cases: |_| workloads().chain(["pbzip2", "7z", "sysbench"]).map(str::to_owned).collect(),
    run,
};

/// A run of the sweep on all CPUs.
const RUN_S: f64 = 3.0;
/// The run on all CPUs for which the search must pay.
const LONG_S: f64 = 30.0;
/// The limit of a search.
const SEARCH_MAX: Duration = Duration::from_secs(120);
/// Approximate limit of the counts of a sweep, which applies to machines with many CPUs.
const SWEEP_MAX: usize = 32;

/// The result of a search.
struct Found {
    count: usize,
    search_s: f64,
}

fn run(session: &Session) -> Result<(), String> {
    if !session.selects_all_subjects() {
        return Err(
            "this bench compares the count that it finds with all other counts; leave --only out"
                .into(),
        );
    }
    for name in (BENCH.cases)(session).iter().filter(|case| session.selects(case)) {
        let build = |core_s| -> Result<Option<Program>, String> {
            match workloads().find(|w| w == name) {
                Some(workload) => Program::workload(session, workload, core_s).map(Some),
                None => match BENCH.tools.iter().find(|t| t.program == name) {
                    Some(tool) => Program::debian(session, tool.program, core_s),
                    None => Ok(None),
                },
            }
        };
        let Some(short) = build(session.core_s(RUN_S))? else { continue };
        let Some(long) = build(session.core_s(LONG_S))? else { continue };
        measure(session, &short, &long)?;
    }
    Ok(())
}

/// Returns the counts from 1 to `max`. A large range has steps, but always contains the number of
/// CPUs.
fn counts(max: usize, cpus: usize) -> Vec<usize> {
    let step = max.div_ceil(SWEEP_MAX);
    (1..=max).filter(|n| n % step == 0 || *n == 1 || *n == cpus).collect()
}

/// Maps each result to a value.
fn each(found: &[Found], value: &dyn Fn(&Found) -> f64) -> Vec<f64> {
    found.iter().map(value).collect()
}

/// Runs one search of `corebeat tune` with at most `max` threads.
fn search(
    session: &Session,
    corebeat: &Path,
    max: usize,
    program: &Program,
) -> Result<Found, String> {
    let mut command = Command::new(corebeat);
    command.args(["tune", "--json", "--search-only", &format!("--max={max}")]);
    if session.quick {
        command.args(["--window=30", "--serial=100"]);
    }
    command.arg("--").args(program.template());
    let ended = Running::start(command, false)?.wait(SEARCH_MAX)?;
    ended.check()?;
    let report: serde_json::Value = serde_json::from_str(&ended.stdout)
        .map_err(|e| format!("the JSON of corebeat tune is invalid: {e}"))?;
    let (count, search_s) = report["best"]
        .as_u64()
        .zip(report["search_s"].as_f64())
        .ok_or("the JSON of corebeat tune lacks best or search_s")?;
    Ok(Found { count: count as usize, search_s })
}

fn measure(session: &Session, short: &Program, long: &Program) -> Result<(), String> {
    let max = if session.quick { 2 * session.cpus } else { (4 * session.cpus).max(8) };
    let counts = counts(max, session.cpus);
    let corebeat = session.corebeat()?;
    let (in_short, in_long) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let agreement = Agreement::default();
    let search = |program: &Program| search(session, corebeat, max, program);
    let mut subjects: Vec<Subject> = Vec::new();
    for (name, program, found) in
        [("corebeat", long, &in_long), ("corebeat, short program", short, &in_short)]
    {
        let search = &search;
        subjects.push(Subject::new(name, move || {
            let one = search(program)?;
            let search_s = one.search_s;
            found.borrow_mut().push(one);
            Ok(Measured::Value(search_s))
        }));
    }
    for &count in &counts {
        let agreement = &agreement;
        subjects.push(Subject::new(threads(count), move || {
            short.timed(&[], count, session.run_max(), agreement)
        }));
    }
    let rounds = interleave(session, short.name, "s", subjects);
    let (line_ns, mut series) = (rounds.line_ns, rounds.series);
    let sweep = series.split_off(2);

    let times: BTreeMap<usize, f64> =
        counts.iter().zip(&sweep).filter_map(|(&n, s)| Some((n, median(&s.values)?))).collect();
    let Some(best) = times.values().copied().reduce(f64::min) else { return Ok(()) };
    // On a machine with many CPUs, the sweep may not contain the count that the search found.
    let time_at =
        |n: usize| times.iter().min_by_key(|(m, _)| m.abs_diff(n)).map_or(f64::NAN, |(_, &t)| t);
    let (in_long, in_short) = (in_long.take(), in_short.take());
    let of =
        |subject: &str, values: Vec<f64>| Series { subject: subject.into(), values, cut_runs: 0 };
    let table = |what: &str, unit, better, series| {
        session.emit(&Table {
            bench: BENCH.name,
            case: format!("{}: {what}", short.name),
            unit,
            better,
            series,
            line_ns: line_ns.clone(),
        });
    };

    table("time by count", "s", Better::Neither, sweep);
    let best_counts = times.iter().filter(|(_, t)| **t == best).map(|(&n, _)| n as f64).collect();
    let count = |f: &Found| f.count as f64;
    table(
        "count found",
        "threads",
        Better::Neither,
        vec![
            of("corebeat", each(&in_long, &count)),
            of("corebeat, short program", each(&in_short, &count)),
            of("the best of the sweep", best_counts),
        ],
    );
    let ratio = |f: &Found| time_at(f.count) / best;
    table(
        "time at the count found",
        "x of best",
        Better::Lower,
        vec![
            of("corebeat", each(&in_long, &ratio)),
            of("corebeat, short program", each(&in_short, &ratio)),
            of("as many as CPUs", vec![time_at(session.cpus) / best]),
            of("the best of the sweep", vec![1.0]),
        ],
    );
    table("search", "s", Better::Lower, series);
    let share = |f: &Found| f.search_s / (f.search_s + LONG_S) * 100.0;
    table(
        "search before a run of 30 s",
        "% of both",
        Better::Lower,
        vec![of("corebeat", each(&in_long, &share))],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_all_on_small_machines_and_some_on_large_ones() {
        assert_eq!(counts(8, 2), (1..=8).collect::<Vec<_>>());
        let many = counts(4 * 64, 64);
        assert!(many.len() <= SWEEP_MAX + 2 && many.contains(&1) && many.contains(&64), "{many:?}");
    }
}
