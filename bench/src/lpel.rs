//! Measures tasks and streams beside other libraries: the cost of passing records, waiting,
//! spawning, and of blocked tasks.
//!
//! Each subject does the same work ([`load`](mod@load)) in a separate process. The process times
//! itself in laps ([`lap`]), and prints a value and a checksum. Each subject has a file.

mod corebeat;
mod go;
mod lap;
mod limit;
pub(crate) mod load;
mod may;
mod ring;
mod subject;
mod thread;
pub(crate) mod tokio;

use crate::Bench;
use crate::apart::{self, Printed, RUN_MAX, count_workers, name, names, thread_counts};
use crate::child::Running;
use crate::line::{cpus, pin};
use crate::round::{Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use crate::tool::GO;
use clap::ValueEnum;
use load::{Load, READY, Watched, Work};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use subject::Subject;

/// Shortest measured time of a run. At least one lap is measured.
const LEAST_MS: u64 = 300;
/// Time after which a runtime with only blocked tasks is idle.
const SETTLE: Duration = Duration::from_millis(200);

pub(crate) const BENCHES: [Bench; 7] = [
    Bench {
        name: "lpel.pipeline",
        summary: "time for a hop from stage to stage of a deep pipeline",
        peers: &[
            "tokio",
            "may",
            "may, unbounded",
            "threads + crossbeam (depth 1000)",
            "go",
            "limit (1 worker)",
        ],
        tools: &[GO],
        cases: |session| names(&pipeline(session)),
        run: |session| measure(session, "lpel.pipeline", "ns/hop", &pipeline(session)),
    },
    Bench {
        name: "lpel.pingpong",
        summary: "time for a round trip between two tasks",
        peers: &["tokio", "may", "threads + crossbeam", "go", "limit"],
        tools: &[GO],
        cases: |session| names(&pingpong(session)),
        run: |session| measure(session, "lpel.pingpong", "ns/round trip", &pingpong(session)),
    },
    Bench {
        name: "lpel.stream",
        summary: "time for an item of one stream from core to core, and of the ring alone",
        peers: &[
            "tokio",
            "may",
            "may, unbounded",
            "threads + crossbeam",
            "go",
            "rtrb (ring alone)",
        ],
        tools: &[GO],
        cases: |session| names(&stream(session)),
        run: |session| measure(session, "lpel.stream", "ns/item", &stream(session)),
    },
    Bench {
        name: "lpel.spawn",
        summary: "time to spawn a task, run it to its end, and join it",
        peers: &["tokio", "may", "threads + crossbeam", "go", "limit (1 worker)"],
        tools: &[GO],
        cases: |session| names(&spawn(session)),
        run: |session| measure(session, "lpel.spawn", "ns/task", &spawn(session)),
    },
    Bench {
        name: "lpel.memory",
        summary: "memory that a blocked task and its stream take",
        peers: &["tokio", "may", "threads + crossbeam", "go"],
        tools: &[GO],
        cases: |session| names(&memory(session)),
        run: |session| measure(session, "lpel.memory", "bytes/task", &memory(session)),
    },
    Bench {
        name: "lpel.idle",
        summary: "CPU time used while every task is blocked, in % of one core",
        peers: &["tokio", "may", "go"],
        tools: &[GO],
        cases: |session| names(&idle(session)),
        run: |session| measure(session, "lpel.idle", "% of one core", &idle(session)),
    },
    Bench {
        name: "lpel.monitor",
        summary: "time for a hop while a monitor records the dispatches",
        peers: &["no monitor", "limit (1 worker)"],
        tools: &[],
        cases: |session| names(&monitor(session)),
        run: |session| measure(session, "lpel.monitor", "ns/hop", &monitor(session)),
    },
];

type Case = apart::Case<Subject, Load>;

/// A case with all subjects that support the work.
fn case(name: impl Into<String>, load: Load) -> Case {
    let subjects = Subject::of(&load).into_iter().map(|subject| {
        let (load, name) = limited(subject, &load);
        (name, subject, load)
    });
    Case { name: name.into(), subjects: subjects.collect() }
}

fn pipeline(session: &Session) -> Vec<Case> {
    let (depths, records) = if session.quick { ([200, 20], 20) } else { ([10_000, 1000], 1000) };
    let mut cases = Vec::new();
    for depth in depths {
        for (work, name) in [(Work::Plain, "plain"), (Work::Leave, "leave")] {
            for workers in thread_counts(session) {
                let name = format!("{name}, depth {depth}, {}", count_workers(workers));
                cases.push(case(
                    name,
                    Load { depth, ..load(session, work, workers, records, records) },
                ));
            }
        }
    }
    cases
}

fn pingpong(session: &Session) -> Vec<Case> {
    let of = |n| case(count_workers(n), load(session, Work::Pingpong, n, 20_000, 50));
    thread_counts(session).map(of).collect()
}

fn stream(session: &Session) -> Vec<Case> {
    [
        ("one at a time, 2 workers", Work::Stream),
        ("in batches, 2 workers", Work::Batch),
        ("ring alone, one at a time", Work::Ring),
        ("ring alone, in batches", Work::RingBatch),
    ]
    .map(|(name, work)| case(name, load(session, work, 2, 1_000_000, 2_000)))
    .into()
}

fn spawn(session: &Session) -> Vec<Case> {
    let of = |n| case(count_workers(n), load(session, Work::Spawn, n, 20_000, 200));
    thread_counts(session).map(of).collect()
}

fn memory(session: &Session) -> Vec<Case> {
    let counts: &[u64] = if session.quick { &[500] } else { &[100_000, 1_000_000] };
    let of = |&n: &u64| case(format!("{n} blocked tasks"), load(session, Work::Memory, 1, n, n));
    counts.iter().map(of).collect()
}

fn idle(session: &Session) -> Vec<Case> {
    vec![case("1000 blocked tasks, 2 workers", load(session, Work::Idle, 2, 1000, 1000))]
}

fn monitor(session: &Session) -> Vec<Case> {
    let (depth, records) = if session.quick { (200, 20) } else { (10_000, 1000) };
    let by_workers = |workers| {
        let plain = Load { depth, ..load(session, Work::Plain, workers, records, records) };
        let watched = |watched: &Watched| {
            (
                format!("level {}", name(watched)),
                Subject::Corebeat,
                Load { watched: Some(*watched), ..plain },
            )
        };
        let off = ("corebeat".to_owned(), Subject::Corebeat, plain);
        let levels = Watched::value_variants().iter().map(watched);
        let mut subjects: Vec<_> = std::iter::once(off).chain(levels).collect();
        if workers == 1 {
            let highest = Load { watched: Some(Watched::D), ..plain };
            subjects.push(("limit".to_owned(), Subject::Limit, plain));
            subjects.push(("limit, level d".to_owned(), Subject::Limit, highest));
        }
        Case { name: format!("plain, depth {depth}, {}", count_workers(workers)), subjects }
    };
    thread_counts(session).map(by_workers).collect()
}

fn load(session: &Session, work: Work, workers: usize, count: u64, quick: u64) -> Load {
    let (count, least_ms) = if session.quick { (quick, 0) } else { (count, LEAST_MS) };
    Load { work, workers, count, depth: 0, least_ms, watched: None }
}

fn measure(
    session: &Session,
    bench: &'static str,
    unit: &'static str,
    cases: &[Case],
) -> Result<(), String> {
    let unit = |_: &Case| (unit, Better::Lower);
    apart::measure(session, bench, unit, cases, |case| {
        let mut turns = Vec::new();
        for (name, subject, load) in &case.subjects {
            let is_go = *subject == Subject::Go;
            let program = if is_go { crate::go::program(session, "lpel")? } else { None };
            if !is_go || program.is_some() {
                let options = Options { subject: *subject, program, load: *load };
                turns.push(Turn::new(name, move || run(session, &options)));
            }
        }
        Ok(turns)
    })
}

/// Limits the number of tasks for some subjects, whose name then states this number. Values are per
/// task.
fn limited(subject: Subject, load: &Load) -> (Load, String) {
    let most = subject.tasks_max();
    if load.work == Work::Memory && load.count > most {
        (Load { count: most, ..*load }, format!("{}, {most}", name(&subject)))
    } else {
        (*load, name(&subject))
    }
}

/// Runs a subject once, and checks its result.
fn run(session: &Session, options: &Options) -> Result<Measured, String> {
    let load = &options.load;
    let command = apart::command(session, "lpel", options)?;
    let is_idle = load.work == Work::Idle;
    let mut running = Running::start(command, is_idle)?;
    let mut used = None;
    if is_idle {
        running.wait_for(READY, RUN_MAX)?;
        used = Some(used_while_idle(&running, session.quick)?);
        running.close_input();
    }
    let Printed { value, checksum, .. } = Printed::new(running.wait(RUN_MAX)?)?;
    let expected = format!("{:016x}", load.checksum());
    if checksum != expected {
        return Err(format!("the checksum is {checksum} instead of {expected}"));
    }
    Ok(Measured::Value(used.unwrap_or(value)))
}

/// CPU time of an idle child, in % of one core.
fn used_while_idle(running: &Running, quick: bool) -> Result<f64, String> {
    let span = Duration::from_millis(if quick { 100 } else { 2000 });
    std::thread::sleep(SETTLE);
    let (start, before) = (Instant::now(), running.cpu_s()?);
    std::thread::sleep(span);
    let used = running.cpu_s()? - before;
    Ok(used / start.elapsed().as_secs_f64() * 100.0)
}

/// One subject with one work.
#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    /// The path of a subject that is a separate program.
    program: Option<PathBuf>,
    load: Load,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let Options { subject, program, load } = options;
    // The writer of a log may use the other CPUs.
    if load.workers == 1 && !matches!(load.watched, Some(Watched::Text | Watched::WholeText)) {
        cpus().first().map(|&cpu| pin(cpu));
    }
    if *subject == Subject::Go {
        return Err(go::exec(program.as_deref(), load));
    }
    let outcome = subject.run(load).map_err(|why| format!("{}: {why}", name(subject)))?;
    Ok((outcome.value, outcome.checksum))
}
