//! Measures the abort rates and times of the transactions of four programs, beside TinySTM.
//!
//! Each subject runs in a separate process. C libraries run `programs/stamp.c`, which does the same
//! work as the Rust programs.

use crate::Bench;
use crate::apart::{self, Case};
use crate::program::threads;
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use crate::stm::{Library, TOOLS};
use crate::stm_trace::program::PROGRAMS;
use clap::ValueEnum;
use corebeat_stm::counters;
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "stm.program",
    summary: "abort rates and times of the transactions of four programs",
    peers: &["TinySTM"],
    tools: &TOOLS,
    cases: |session| apart::names(&cases(session)),
    run,
}];

/// Shortest measured time of a run.
const LEAST_MS: u64 = 1_000;
/// The work of a lap, as a multiple of the smallest work, for each thread.
const TIMES: usize = 50;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "corebeat, in C")]
    C,
    #[value(name = "TinySTM")]
    TinyStm,
}

impl Subject {
    /// The C library of the subject.
    fn library(self) -> Option<Library> {
        match self {
            Subject::Corebeat => None,
            Subject::C => Some(Library::Corebeat),
            Subject::TinyStm => Some(Library::TinyStm),
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Figure {
    Time,
    Aborts,
}

/// The load of a subject.
#[derive(Clone, Copy)]
struct Load {
    program: &'static str,
    threads: usize,
    figure: Figure,
}

fn cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let is_available =
        |subject: &Subject| subject.library().is_none_or(|library| library.is_available(session));
    let subjects: Vec<Subject> =
        Subject::value_variants().iter().copied().filter(is_available).collect();
    let mut cases = Vec::new();
    for count in apart::thread_counts(session) {
        for (program, _) in PROGRAMS {
            for &figure in Figure::value_variants() {
                // One thread has no conflicts.
                if figure == Figure::Aborts && count == 1 {
                    continue;
                }
                let name = format!("{program}, {}, {}", threads(count), apart::name(&figure));
                cases.push(Case::new(name, &subjects, Load { program, threads: count, figure }));
            }
        }
    }
    cases
}

fn run(session: &Session) -> Result<(), String> {
    apart::measure_each(
        session,
        BENCHES[0].name,
        |case| match case.subjects[0].2.figure {
            Figure::Time => ("ns/transaction", Better::Lower),
            Figure::Aborts => ("aborts/commit", Better::Lower),
        },
        &cases(session),
        |subject, load| measure(session, subject, load),
    )
}

fn measure(session: &Session, subject: Subject, load: Load) -> Result<Measured, String> {
    let Load { program, threads, figure } = load;
    let (times, least_ms) = if session.quick { (1, 0) } else { (TIMES * threads, LEAST_MS) };
    if let Some(library) = subject.library() {
        let mut command = Command::new(library.compile(session, "stamp", None)?);
        command.arg(program).args([threads as u64, times as u64, least_ms].map(|n| n.to_string()));
        command.arg(apart::name(&figure));
        return apart::value(command);
    }
    let options = Options { program: program.to_owned(), threads, times, least_ms, figure };
    // The subject checks its results itself.
    apart::value(apart::command(session, "stm-program", &options)?)
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    program: String,
    threads: usize,
    times: usize,
    least_ms: u64,
    figure: Figure,
}

/// The main function of the child. The first lap warms up.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let known = PROGRAMS.iter().find(|(name, _)| *name == options.program);
    let (_, run) = known.ok_or_else(|| format!("there is no program {}", options.program))?;
    run(options.threads, options.times);
    let (before, mut time) = (counters(), Duration::ZERO);
    loop {
        time += run(options.threads, options.times);
        if time >= Duration::from_millis(options.least_ms) {
            break;
        }
    }
    let after = counters();
    let (commits, aborts) =
        (after.commits - before.commits, after.aborts.total() - before.aborts.total());
    let value = match options.figure {
        Figure::Time => time.as_nanos() as f64 * options.threads as f64 / commits as f64,
        Figure::Aborts => aborts as f64 / commits as f64,
    };
    Ok((value, commits))
}
