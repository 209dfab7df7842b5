//! Measures two to four programs side by side. Each program runs under its own `corebeat run
//! --policy auto`, or unsteered.

use crate::Bench;
use crate::program::{Agreement, Program, workloads};
use crate::round::{Measured, Rounds, Subject, interleave};
use crate::row::{Better, Series, Table};
use crate::session::Session;
use crate::tool::{PBZIP2, SEVEN_ZIP};
use std::cell::RefCell;
use std::thread;

pub(crate) const BENCH: Bench = Bench {
    name: "run.side",
    summary: "two to four programs at once, each with a thread a CPU, each steered by corebeat run --policy auto",
    peers: &["plain"],
    tools: &[PBZIP2, SEVEN_ZIP],
    cases: |session| groups(session).iter().map(|names| names.join(" + ")).collect(),
    run,
};

/// The time of a program alone on all CPUs.
const RUN_S: f64 = 2.0;

fn names() -> Vec<&'static str> {
    workloads().chain([PBZIP2, SEVEN_ZIP].map(|tool| tool.program)).collect()
}

/// Neighbours in the list of programs, which forms a ring. Each program is in one pair, one group
/// of three and one group of four, and some programs are in two. The groups are not selected by
/// result.
fn groups(session: &Session) -> Vec<Vec<&'static str>> {
    let names = names();
    let sizes = if session.quick { 2..=2 } else { 2..=4 };
    let groups = sizes.flat_map(|size| {
        let names = &names;
        (0..names.len())
            .step_by(size)
            .map(move |at| (at..at + size).map(|i| names[i % names.len()]).collect())
    });
    groups.collect()
}

fn run(session: &Session) -> Result<(), String> {
    let corebeat = session.corebeat()?.to_string_lossy().into_owned();
    let corebeat =
        [&corebeat, "run", "--policy", "auto", "--report", "none", "--"].map(str::to_owned);
    for names in groups(session) {
        let case = names.join(" + ");
        if !session.selects(&case) {
            continue;
        }
        let programs: Option<Vec<Program>> =
            names.iter().map(|name| program(session, name)).collect::<Result<_, _>>()?;
        let Some(programs) = programs else { continue };
        let agreements: Vec<Agreement> = programs.iter().map(|_| Agreement::default()).collect();
        // If programs that would end together end one after the other, the mean falls without a
        // gain. Therefore the bench reports both values.
        let means = [RefCell::default(), RefCell::default()];
        let all = |launcher: &[String], means: &RefCell<Vec<f64>>| {
            let (mean_s, last) = together(session, &programs, launcher, &agreements)?;
            means.borrow_mut().push(mean_s);
            Ok(last)
        };
        let subjects = vec![
            Subject::new("corebeat", || all(&corebeat, &means[0])),
            Subject::new("plain", || all(&[], &means[1])),
        ];
        let Rounds { series, line_ns } =
            interleave(session, &format!("{case}: until all end"), "s", subjects);
        let mean = |of: &Series| {
            let values = means[usize::from(of.subject == "plain")].borrow().clone();
            Series { subject: of.subject.clone(), values, cut_runs: of.cut_runs }
        };
        let mean: Vec<Series> = series.iter().map(mean).collect();
        for (what, series) in [("until all end", series), ("mean of their times", mean)] {
            let (bench, case, line_ns) = (BENCH.name, format!("{case}: {what}"), line_ns.clone());
            session.emit(&Table { bench, case, unit: "s", better: Better::Lower, series, line_ns });
        }
    }
    Ok(())
}

fn program(session: &Session, name: &'static str) -> Result<Option<Program>, String> {
    let core_s = session.core_s(RUN_S);
    if workloads().any(|w| w == name) {
        return Program::workload(session, name, core_s).map(Some);
    }
    Program::debian(session, name, core_s)
}

/// Starts all programs. Returns the mean of their times, and the time until the last program ends.
fn together(
    session: &Session,
    programs: &[Program],
    launcher: &[String],
    agreements: &[Agreement],
) -> Result<(f64, Measured), String> {
    let all: Vec<Result<Measured, String>> = thread::scope(|scope| {
        let (threads, limit) = (session.cpus, session.run_max());
        let started: Vec<_> = programs
            .iter()
            .zip(agreements)
            .map(|(program, agreement)| {
                scope.spawn(move || program.timed(launcher, threads, limit, agreement))
            })
            .collect();
        started
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("a measuring thread panicked".into())))
            .collect()
    });
    let (mut sum_s, mut last_s, mut is_cut) = (0.0, 0.0_f64, false);
    for measured in all {
        let measured = measured?;
        let (Measured::Value(s) | Measured::Over(s)) = measured;
        is_cut |= matches!(measured, Measured::Over(_));
        sum_s += s;
        last_s = last_s.max(s);
    }
    let last = if is_cut { Measured::Over(last_s) } else { Measured::Value(last_s) };
    Ok((sum_s / programs.len() as f64, last))
}
