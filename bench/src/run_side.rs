//! Measures two to four programs side by side: each program under its own `corebeat run --policy
//! auto`, all programs under one `corebeat run`, or unsteered.

use crate::Bench;
use crate::child::Running;
use crate::program::{Agreement, Program, workloads};
use crate::round::{Measured, Rounds, Subject, interleave};
use crate::row::{Better, Series, Table};
use crate::session::Session;
use crate::tool::{PBZIP2, SEVEN_ZIP};
use serde_json::Value;
use std::cell::RefCell;
use std::process::Command;
use std::thread;

pub(crate) const BENCH: Bench = Bench {
    name: "run.side",
    summary: "two to four programs at once, each with a thread a CPU, steered by corebeat run --policy auto",
    peers: &["plain"],
    tools: &[PBZIP2, SEVEN_ZIP],
    cases: |session| groups(session).iter().map(|names| names.join(" + ")).collect(),
    run,
};

/// The subject whose programs have one Corebeat.
const ONE_RUN: &str = "corebeat, one run";

/// The time of a program alone on all CPUs.
const RUN_S: f64 = 2.0;

fn names() -> Vec<&'static str> {
    workloads().chain([PBZIP2, SEVEN_ZIP].map(|tool| tool.program)).collect()
}

/// Neighbours in the list of programs, which forms a ring. Each program is in one pair, one group
/// of three and one group of four, and some programs are in two. The groups are not selected by
/// result. The last group consists of two programs that spin.
fn groups(session: &Session) -> Vec<Vec<&'static str>> {
    let names = names();
    let sizes = if session.quick { 2..=2 } else { 2..=4 };
    let groups = sizes.flat_map(|size| {
        let names = &names;
        (0..names.len())
            .step_by(size)
            .map(move |at| (at..at + size).map(|i| names[i % names.len()]).collect())
    });
    groups.chain([vec!["cluster-spin"; 2]]).collect()
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
        let means = [const { RefCell::new(vec![]) }; 3];
        let all = |launcher: &[String], means: &RefCell<Vec<f64>>| {
            let (mean_s, last) = together(session, &programs, launcher, &agreements)?;
            means.borrow_mut().push(mean_s);
            Ok(last)
        };
        let subjects = vec![
            Subject::new("corebeat", || all(&corebeat, &means[0])),
            Subject::new(ONE_RUN, || {
                let (mean_s, last) = in_one_run(session, &programs, &corebeat, &agreements)?;
                means[1].borrow_mut().push(mean_s);
                Ok(last)
            }),
            Subject::new("plain", || all(&[], &means[2])),
        ];
        let Rounds { series, line_ns } =
            interleave(session, &format!("{case}: until all end"), "s", subjects);
        let mean = |of: &Series| {
            let number = ["corebeat", ONE_RUN, "plain"].iter().position(|name| *name == of.subject);
            let values = means[number.unwrap_or(0)].borrow().clone();
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

/// Runs all programs under one Corebeat. Returns the mean of their times by its report, and the
/// time until the last program ends.
fn in_one_run(
    session: &Session,
    programs: &[Program],
    launcher: &[String],
    agreements: &[Agreement],
) -> Result<(f64, Measured), String> {
    let threads = session.cpus;
    let report = session.folder().join("report.json");
    programs.iter().for_each(Program::prepare);
    let mut command = Command::new(&launcher[0]);
    command.args(["run", "--policy", "auto", "--report", "json", "--report-file"]).arg(&report);
    for program in programs {
        let words = program.command(&[], threads);
        command.arg("--").arg(words.get_program()).args(words.get_args());
    }
    let ended = Running::start(command, false)?.wait(session.run_max())?;
    if ended.status.is_none() {
        return Ok((ended.wall_s, Measured::Over(ended.wall_s)));
    }
    ended.check()?;
    for (program, agreement) in programs.iter().zip(agreements) {
        program.verify(&ended.stdout, threads, agreement)?;
    }
    let text =
        std::fs::read_to_string(&report).map_err(|e| format!("cannot read the report: {e}"))?;
    let report: Value = serde_json::from_str(&text).map_err(|e| format!("invalid report: {e}"))?;
    let times = report["programs"].as_array().into_iter().flatten();
    let sum_s: f64 = times.filter_map(|program| program["wall_s"].as_f64()).sum();
    Ok((sum_s / programs.len() as f64, Measured::Value(ended.wall_s)))
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
