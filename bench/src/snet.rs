//! Measures networks in S-Net beside equivalent code by hand: the cost of replicas, synchrocells,
//! choices, boxes and records as text.
//!
//! Each subject does the same work ([`load`](mod@load)) in a separate process. The process times
//! itself in laps ([`lap`]), and prints a value and a checksum. A lap builds, uses and ends a
//! network. Each subject or work has a file.

mod corebeat;
mod format;
mod lap;
mod load;
mod lpel;
mod mandelbrot;
pub(crate) mod rank;
mod subject;
mod thread;
mod tokio;

use crate::Bench;
use crate::apart::{self, count_workers, names, thread_counts};
use crate::line::{cpus, pin};
use crate::program::Agreement;
use crate::round::{Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use crate::tool::Tool;
use load::{Fields, Form, Load, Work};
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use subject::Subject;

/// Shortest measured time of a run. At least one lap is measured.
const LEAST_MS: u64 = 300;
/// Largest growth of the memory of a process, for any number of pairs of records.
const GROWTH_MAX: u64 = 16 << 20;

/// Compiles boxes in C.
const CC: Tool = Tool::package("cc", "gcc");

pub(crate) const BENCHES: [Bench; 8] = [
    Bench {
        name: "snet.replication",
        summary: "time for 1,000 records of random depths through a star of one box",
        peers: &["lpel by hand", "tokio", "threads + crossbeam (depth 1000)"],
        tools: &[CC],
        cases: |session| names(&replication(session)),
        run: |session| measure(session, "snet.replication", &replication(session)),
    },
    Bench {
        name: "snet.synchronisation",
        summary: "time and memory for the records that a star of synchrocells pairs",
        peers: &["lpel by hand", "tokio"],
        tools: &[],
        cases: |session| names(&synchronisation(session)),
        run: |session| measure(session, "snet.synchronisation", &synchronisation(session)),
    },
    Bench {
        name: "snet.state",
        summary: "time for the primes from 100 to a limit, by filters with state in a star",
        peers: &["corebeat, feedback"],
        tools: &[],
        cases: |session| names(&state(session)),
        run: |session| measure(session, "snet.state", &state(session)),
    },
    Bench {
        name: "snet.mandelbrot",
        summary: "time for an image of 4,096 by 4,096 points in 256 strips",
        peers: &["rayon", "one thread"],
        tools: &[],
        cases: |session| names(&mandelbrot(session)),
        run: |session| measure(session, "snet.mandelbrot", &mandelbrot(session)),
    },
    Bench {
        name: "snet.routing",
        summary: "time for the choice of a record among branches, by the number of its labels",
        peers: &["no choice"],
        tools: &[],
        cases: |session| names(&routing(session)),
        run: |session| measure(session, "snet.routing", &routing(session)),
    },
    Bench {
        name: "snet.format",
        summary: "megabytes a second of records as text",
        peers: &["serde_json, maps", "quick-xml, events"],
        tools: &[],
        cases: |session| names(&format(session)),
        run: |session| measure(session, "snet.format", &format(session)),
    },
    Bench {
        name: "snet.box",
        summary: "time for a record through a network of one box, including its streams",
        peers: &["lpel by hand", "tokio"],
        tools: &[CC],
        cases: |session| names(&call(session)),
        run: |session| measure(session, "snet.box", &call(session)),
    },
    rank::BENCH,
];

type Case = apart::Case<Subject, Load>;

/// A case with all subjects that support the work.
fn case(name: impl Into<String>, load: Load) -> Case {
    Case::new(name, &Subject::of(&load), load)
}

fn replication(session: &Session) -> Vec<Case> {
    let (depths, records) = if session.quick { ([100, 20], 20) } else { ([10_000, 1000], 1000) };
    let by_workers = |depth, workers| {
        let load = Load { depth, ..load(session, Work::Replication, workers, records, records) };
        case(format!("depth {depth}, {}", count_workers(workers)), load)
    };
    depths
        .into_iter()
        .flat_map(|depth| thread_counts(session).map(move |n| by_workers(depth, n)))
        .collect()
}

fn synchronisation(session: &Session) -> Vec<Case> {
    let counts = if session.quick { [10, 100] } else { [1000, 100_000] };
    let of = |work, what: &str, count: u64, workers| {
        let name = format!("{what}{count} times, {}", count_workers(workers));
        case(name, load(session, work, workers, count, count))
    };
    let timed =
        counts.into_iter().flat_map(|n| thread_counts(session).map(move |workers| (n, workers)));
    let timed = timed.map(|(n, workers)| of(Work::Synchronisation, "", n, workers));
    timed.chain(counts.map(|n| of(Work::Memory, "memory, ", n, 2))).collect()
}

fn state(session: &Session) -> Vec<Case> {
    let limits = if session.quick { vec![200] } else { vec![1000, 2000, 4000, 9000] };
    let of = |to| case(format!("primes to {to}, 1 worker"), load(session, Work::State, 1, to, to));
    limits.into_iter().map(of).collect()
}

fn mandelbrot(session: &Session) -> Vec<Case> {
    let (side, strips) = if session.quick { (64, 16) } else { (4096, 256) };
    let two = Load { depth: strips, ..load(session, Work::Mandelbrot, 2, side, side) };
    let mut all = case(format!("{side} squared, {strips} strips, 2 workers"), two);
    let one = Load { workers: 1, ..two };
    for (_, subject, load) in &mut all.subjects {
        if *subject == Subject::Plain {
            *load = one;
        }
    }
    all.subjects.insert(1, ("corebeat, 1 worker".into(), Subject::Corebeat, one));
    vec![all]
}

fn routing(session: &Session) -> Vec<Case> {
    let sizes =
        [2, 16].into_iter().flat_map(|branches| [1, 4, 16].map(|labels| (branches, labels)));
    let of = |(depth, labels)| {
        let name =
            format!("{depth} branches, {labels} label{}", if labels == 1 { "" } else { "s" });
        case(name, Load { depth, labels, ..load(session, Work::Routing, 1, 100_000, 50) })
    };
    sizes.map(of).collect()
}

fn format(session: &Session) -> Vec<Case> {
    let mut cases = Vec::new();
    for (form, form_name) in [(Form::Xml, "XML"), (Form::Json, "JSON lines")] {
        for (work, verb) in [(Work::Read, "read"), (Work::Write, "write")] {
            for (fields, name, count, quick) in [
                (Fields::Small, "small records", 100_000, 20),
                (Fields::Text, "long texts", 200, 1),
                (Fields::Array, "long arrays", 1000, 2),
            ] {
                let load = Load { form, fields, ..load(session, work, 1, count, quick) };
                cases.push(case(format!("{verb} {form_name}, {name}"), load));
            }
        }
    }
    cases
}

fn call(session: &Session) -> Vec<Case> {
    let of = |n| case(count_workers(n), load(session, Work::Box, n, 100_000, 100));
    thread_counts(session).map(of).collect()
}

fn load(session: &Session, work: Work, workers: usize, count: u64, quick: u64) -> Load {
    let (count, least_ms) = if session.quick { (quick, 0) } else { (count, LEAST_MS) };
    Load {
        work,
        workers,
        count,
        depth: 0,
        labels: 1,
        form: Form::Json,
        fields: Fields::Small,
        least_ms,
    }
}

fn measure(session: &Session, bench: &'static str, cases: &[Case]) -> Result<(), String> {
    let unit = |case: &Case| {
        let (unit, more_is_better) =
            case.subjects.first().map_or(("", false), |(_, _, load)| Load::unit(load.work));
        (unit, if more_is_better { Better::Higher } else { Better::Lower })
    };
    apart::measure(session, bench, unit, cases, |case| {
        let agreement = Rc::<Agreement>::default();
        let here = |subject: &Subject| *subject != Subject::CorebeatC || session.has(CC);
        let turn = |(name, subject, load): &'_ (String, Subject, Load)| {
            let (subject, load, agreement) = (*subject, *load, agreement.clone());
            Turn::new(name, move || run(subject, &load, session, &agreement))
        };
        Ok(case.subjects.iter().filter(|(_, subject, _)| here(subject)).map(turn).collect())
    })
}

/// Runs a subject once, and checks its result.
fn run(
    subject: Subject,
    load: &Load,
    session: &Session,
    agreement: &Agreement,
) -> Result<Measured, String> {
    let printed = apart::run(apart::command(session, "snet", &Options { subject, load: *load })?)?;
    let (value, checksum) = (printed.value, printed.checksum);
    match load.checksum().map(|sum| format!("{sum:016x}")) {
        Some(expected) if expected != checksum => {
            return Err(format!("the checksum is {checksum} instead of {expected}"));
        }
        _ => agreement.admit(0, checksum)?,
    }
    Ok(Measured::Value(value))
}

/// One subject with one work.
#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    load: Load,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let Options { subject, load } = options;
    if load.workers == 1 {
        cpus().first().map(|&cpu| pin(cpu));
    }
    let outcome = subject.run(load).map_err(|why| format!("{}: {why}", apart::name(subject)))?;
    if load.work == Work::Memory && outcome.bytes > GROWTH_MAX {
        return Err(format!(
            "{}: the memory of the process grew by {} MiB",
            apart::name(subject),
            outcome.bytes >> 20
        ));
    }
    Ok((load.value(&outcome), outcome.checksum))
}
