//! Measures Corebeat beside its peers in one run: `cargo run --release -p bench -- list | NAME...`.
//!
//! Place in the loop: beside the loop. The bench uses Corebeat as users do, through its program and
//! its libraries, and also uses the workloads. Each bench has a file: `linux_watch`, `tune_count`,
//! `run_auto`, `run_side`, `workload_naive`, `claim_phase`, `stm_map`, `stm_program`,
//! `stm_stamp` and `stm_trace`. Benches that share their peers share a file: `lpel`, `reactor`,
//! `snet`, `heartbeat`, `stm`, `scoop`, `clustered`, `rewrite`, `future`, `probe`, `trace`,
//! `sim` and `verify`.
//! `compare` compares two builds of the bench. `stored` keeps the rows of a run in `bench/rows`,
//! and `report` writes them into the book as tables (`marker`) and figures (`figure`). The book's
//! pages `measuring.md` and `measuring-libraries.md` describe each bench.
//!
//! # Model
//!
//! A bench has cases. A case has subjects, which take turns (A B C A B C ...). Each subject of a
//! case yields a [`row::Row`]. Each subject runs as a child process ([`child::Running`]), so that
//! the bench can end the subject and all its processes.
//!
//! # Invariants
//!
//! 1. No child outlives its limit or this program (`running_past_its_limit_is_ended`; each child
//!    requests a signal from the kernel for the end of its parent).
//! 2. Tests assert results and never times. A bench fails if the checksums of two subjects differ,
//!    or if a status is not success (`proof_that_differs_is_refused`).
//! 3. A bench leaves out a tool that this machine lacks and prints how to install the tool. A
//!    missing tool is not a failure.

mod apart;
mod child;
mod claim_phase;
mod clustered;
mod compare;
mod corebeat;
mod figure;
mod future;
mod go;
mod heartbeat;
mod input;
mod kernel;
mod knob;
mod lap;
mod line;
mod linux_watch;
mod list;
mod load;
mod lpel;
mod marker;
mod memory;
mod probe;
mod program;
mod reactor;
mod report;
mod rewrite;
mod round;
mod row;
mod run_auto;
mod run_side;
mod scoop;
mod session;
mod sim;
mod snet;
mod stm;
mod stm_map;
mod stm_program;
mod stm_stamp;
mod stm_trace;
mod stored;
mod tool;
mod trace;
mod tune_count;
mod verify;
mod workload_naive;

use clap::{Parser, Subcommand};
use session::Session;
use std::process::ExitCode;
use stored::Run;
use tool::Tool;

struct Bench {
    /// The name begins with the short name of the crate.
    name: &'static str,
    /// The measured quantity, as a noun phrase.
    summary: &'static str,
    /// The subjects besides Corebeat.
    peers: &'static [&'static str],
    /// Tools of the peers and programs. A bench leaves out the cases that need a missing tool.
    tools: &'static [Tool],
    cases: fn(&Session) -> Vec<String>,
    run: fn(&Session) -> Result<(), String>,
}

fn benches() -> impl Iterator<Item = &'static Bench> {
    const PROGRAMS: [Bench; 6] = [
        linux_watch::BENCH,
        tune_count::BENCH,
        run_auto::BENCH,
        run_side::BENCH,
        workload_naive::BENCH,
        claim_phase::BENCH,
    ];
    PROGRAMS
        .iter()
        .chain(&lpel::BENCHES)
        .chain(&reactor::BENCHES)
        .chain(&snet::BENCHES)
        .chain(&heartbeat::BENCHES)
        .chain(&stm::BENCHES)
        .chain(&stm_map::BENCHES)
        .chain(&stm_program::BENCHES)
        .chain(&stm_stamp::BENCHES)
        .chain(&stm_trace::BENCHES)
        .chain(&scoop::BENCHES)
        .chain(&clustered::BENCHES)
        .chain(&rewrite::BENCHES)
        .chain(&future::BENCHES)
        .chain(&probe::BENCHES)
        .chain(&trace::BENCHES)
        .chain(&sim::BENCHES)
        .chain(&verify::BENCHES)
}

/// Measure Corebeat beside its peers in one run
#[derive(Parser)]
#[command(name = "bench", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(clap::Args)]
struct Options {
    /// Measure these benches; 'list' prints all benches with their cases, peers and missing tools
    #[arg(required = true)]
    name: Vec<String>,
    /// Measure one short round of each case, to check that everything works
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per line instead of tables
    #[arg(long)]
    json: bool,
    /// Measure only cases whose name contains this text
    #[arg(long, value_name = "SUBSTRING")]
    filter: Option<String>,
    /// Measure only this subject of each case; may be repeated
    #[arg(long, value_name = "SUBJECT")]
    only: Vec<String>,
    /// Replace the stored rows of these benches, from which 'report' writes the book
    #[arg(long, conflicts_with_all = ["quick", "filter", "only"])]
    store: bool,
}

/// The hidden parts are the programs that benches start as child processes.
#[derive(Subcommand)]
enum Part {
    /// Compare two builds of this program row by row
    Compare(compare::Options),
    /// Write the stored rows into the tables and figures of the book
    Report,
    #[command(hide = true)]
    Load(load::Options),
    #[command(hide = true)]
    Knob(knob::Options),
    /// Run one subject of a bench
    #[command(hide = true)]
    Subject { part: String, options: String },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.part {
        Some(Part::Compare(options)) => compare::main(&options),
        Some(Part::Report) => report::main(),
        Some(Part::Load(options)) => load::main(&options),
        Some(Part::Knob(options)) => knob::main(&options),
        Some(Part::Subject { part, options }) => run_subject(&part, &options),
        None => measure(cli.options),
    };
    done.unwrap_or_else(|why| {
        eprintln!("bench: {why}");
        ExitCode::FAILURE
    })
}

/// The subjects that run in processes of their own, by the name of their bench.
const PARTS: [(&str, apart::Part); 18] = [
    ("kernel", |options| kernel::main(&apart::options(options)?)),
    ("lpel", |options| lpel::main(&apart::options(options)?)),
    ("reactor", |options| reactor::main(&apart::options(options)?)),
    ("snet", |options| snet::main(&apart::options(options)?)),
    ("snet-rank", |options| snet::rank::main(&apart::options(options)?)),
    ("heartbeat", |options| heartbeat::main(&apart::options(options)?)),
    ("stm", |options| stm::main(&apart::options(options)?)),
    ("stm-map", |options| stm_map::main(&apart::options(options)?)),
    ("stm-program", |options| stm_program::main(&apart::options(options)?)),
    ("stm-trace", |options| stm_trace::main(&apart::options(options)?)),
    ("scoop", |options| scoop::main(&apart::options(options)?)),
    ("clustered", |options| clustered::main(&apart::options(options)?)),
    ("rewrite", |options| rewrite::main(&apart::options(options)?)),
    ("future", |options| future::main(&apart::options(options)?)),
    ("probe", |options| probe::main(&apart::options(options)?)),
    ("trace", |options| trace::main(&apart::options(options)?)),
    ("sim", |options| sim::main(&apart::options(options)?)),
    ("verify", |options| verify::main(&apart::options(options)?)),
];

/// Runs one subject, and prints its value and checksum for the parent process.
fn run_subject(name: &str, options: &str) -> Result<ExitCode, String> {
    let part = PARTS.iter().find(|(known, _)| *known == name);
    let (_, part) = part.ok_or_else(|| format!("there is no part '{name}'"))?;
    let (value, checksum) = part(options)?;
    println!("value {value} checksum {checksum:016x}");
    // Blocked tasks are not joined: the process ends without them.
    std::process::exit(0);
}

fn measure(options: Options) -> Result<ExitCode, String> {
    let session = Session::new(options.quick, options.json, options.filter, options.only)?;
    if options.name == ["list"] {
        list::print(&session, benches());
        return Ok(ExitCode::SUCCESS);
    }
    let mut chosen = Vec::new();
    for name in &options.name {
        match benches().find(|b| b.name == name) {
            Some(bench) => chosen.push(bench),
            None => {
                eprintln!("bench: there is no bench '{name}'; 'bench list' lists all benches");
                return Ok(ExitCode::from(2));
            }
        }
    }
    if cfg!(debug_assertions) && !session.quick {
        return Err(
            "this program is built without optimisation, so its figures are not meaningful; use cargo run --release"
                .into(),
        );
    }
    for bench in &chosen {
        let cases = (bench.cases)(&session);
        if !cases.iter().any(|case| session.selects(case)) {
            eprintln!(
                "bench: no case name of {} contains the text of --filter; there are '{}'",
                bench.name,
                cases.join("', '")
            );
            return Ok(ExitCode::from(2));
        }
    }
    let run = Run::now(session.cpus);
    session.report(&surroundings(&run));
    for bench in chosen {
        let before = session.failures().len();
        if let Err(why) = (bench.run)(&session) {
            session.record_failure(format!("{}: {why}", bench.name));
        }
        let rows = session.take_rows();
        if options.store && session.failures().len() == before {
            let path = stored::write(bench.name, &run, &rows)?;
            session.report(&format!("stored {}; 'bench report' updates the book", path.display()));
        }
    }
    let failures = session.failures();
    for failure in &failures {
        eprintln!("bench: FAILED: {failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Describes the machine, and warns if other programs use it.
fn surroundings(run: &Run) -> String {
    let busy = run.load.parse::<f64>().is_ok_and(|load| load > 0.3);
    let advice =
        if busy { ": other programs are running; wait until the machine is quiet" } else { "" };
    format!("{}, load {}{advice}", run.machine, run.load)
}
