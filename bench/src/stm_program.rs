//! Four programs in transactions: how often these fail, and how long they take, beside TinySTM.
//!
//! Each subject runs in a process of its own. Libraries for C run `programs/stamp.c`, which does what the programs in Rust do.

use crate::Bench;
use crate::apart::{self, Case};
use crate::program::threads;
use crate::round::{Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use crate::stm::{Library, TOOLS};
use crate::stm_trace::program::PROGRAMS;
use clap::ValueEnum;
use corebeat_stm::counters;
use std::process::{Command, ExitCode};
use std::time::Duration;

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "stm.program",
    summary: "how often transactions of four programs fail, and how long they take",
    peers: &["TinySTM"],
    tools: &TOOLS,
    cases: |session| apart::names(&cases(session)),
    run,
}];

/// A run is ended after this.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Of a run so much is measured.
const LEAST_MS: u64 = 1_000;
/// How many times as much a program does in a lap as it does at least, and again for each thread.
const TIMES: usize = 50;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Subject {
    Corebeat,
    C,
    TinyStm,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Corebeat => "corebeat",
            Subject::C => "corebeat, in C",
            Subject::TinyStm => "TinySTM",
        }
    }

    /// The library for C that it is.
    fn library(self) -> Option<Library> {
        match self {
            Subject::Corebeat => None,
            Subject::C => Some(Library::Corebeat),
            Subject::TinyStm => Some(Library::TinyStm),
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Figure {
    Time,
    Aborts,
}

/// What a subject is given.
#[derive(Clone, Copy)]
struct Load {
    program: &'static str,
    threads: usize,
    figure: Figure,
}

fn cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let is_here = |subject: &Subject| subject.library().is_none_or(|library| library.is_here(session));
    let subjects: Vec<Subject> = Subject::value_variants().iter().copied().filter(is_here).collect();
    let mut cases = Vec::new();
    for count in [1, 2].into_iter().filter(|&count| count <= session.cpus) {
        for (program, _) in PROGRAMS {
            for &figure in Figure::value_variants() {
                // One thread meets nobody.
                if figure == Figure::Aborts && count == 1 {
                    continue;
                }
                let load = Load { program, threads: count, figure };
                cases.push(Case {
                    name: format!("{program}, {}, {}", threads(count), apart::word(figure)),
                    subjects: subjects.iter().map(|s| (s.name().to_owned(), *s, load)).collect(),
                });
            }
        }
    }
    cases
}

fn run(session: &Session) -> Result<(), String> {
    apart::measure(
        session,
        BENCHES[0].name,
        |case| match case.subjects[0].2.figure {
            Figure::Time => ("ns/transaction", Better::Lower),
            Figure::Aborts => ("aborts/commit", Better::Lower),
        },
        &cases(session),
        |case| {
            let turn = |(name, subject, load): &'_ (String, Subject, Load)| {
                let (subject, load) = (*subject, *load);
                Turn::new(name, move || measure(session, subject, load))
            };
            Ok(case.subjects.iter().map(turn).collect())
        },
    )
}

fn measure(session: &Session, subject: Subject, load: Load) -> Result<Measured, String> {
    let (times, least_ms) = if session.quick { (1, 0) } else { (TIMES * load.threads, LEAST_MS) };
    let [threads, times, least_ms] = [load.threads as u64, times as u64, least_ms].map(|n| n.to_string());
    let figure = apart::word(load.figure);
    if let Some(library) = subject.library() {
        let mut command = Command::new(library.compile(session, "stamp")?);
        command.args([load.program, &threads, &times, &least_ms, &figure]);
        return apart::value(command, RUN_MAX);
    }
    let mut command = apart::command(session, "stm-program", subject)?;
    command.arg(format!("--program={}", load.program)).arg(format!("--threads={threads}"));
    command.arg(format!("--times={times}")).arg(format!("--least-ms={least_ms}"));
    command.arg(format!("--figure={figure}"));
    // It has checked its results itself.
    apart::value(command, RUN_MAX)
}

/// One subject.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    subject: Subject,
    #[arg(long)]
    program: String,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    times: usize,
    #[arg(long)]
    least_ms: u64,
    #[arg(long)]
    figure: Figure,
}

/// The child's side. The first lap warms up.
pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    if options.subject != Subject::Corebeat {
        return Err("this one is a program in C".into());
    }
    let known = PROGRAMS.iter().find(|(name, _)| *name == options.program);
    let (name, run) = known.ok_or_else(|| format!("there is no program {}", options.program))?;
    run(options.threads, options.times);
    let (before, mut time) = (counters(), Duration::ZERO);
    loop {
        time += run(options.threads, options.times);
        if time >= Duration::from_millis(options.least_ms) {
            break;
        }
    }
    let after = counters();
    let (commits, aborts) = (after.commits - before.commits, after.aborted() - before.aborted());
    let value = match options.figure {
        Figure::Time => time.as_nanos() as f64 * options.threads as f64 / commits as f64,
        Figure::Aborts => aborts as f64 / commits as f64,
    };
    println!("value {value}\nchecksum {name}");
    Ok(ExitCode::SUCCESS)
}
