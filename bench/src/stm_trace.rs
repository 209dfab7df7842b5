//! What it costs transactions to tell of themselves: time, aborts, lost events, and bytes.
//!
//! After Schindewolf, Karl, *Capturing Transactional Memory Application's Behavior*, 2012, sections 3.3 and 3.4: a bank whose
//! transactions are traced, beside the same one untraced; and whole programs, as in their section 4. Each subject runs in a process
//! of its own.

#[path = "../../crates/run/corebeat-stm/examples/workload/program/mod.rs"]
pub(crate) mod program;

use crate::Bench;
use crate::apart::{self, Case};
use crate::lap;
use crate::program::threads;
use crate::round::{Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_stm::trace::{self, Detail};
use corebeat_stm::{TCell, atomically, counters, snapshot};
use corebeat_trace::{Compression, Options as Recorded, Reader, Value};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "stm.trace",
    summary: "what tracing does to transactions: their time, their aborts, and how small the trace is",
    peers: &["not traced"],
    tools: &[],
    cases: |session| apart::names(&cases(session)),
    run,
}];

/// A run is ended after this.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Of a run so much is measured, and at least one lap.
const LEAST_MS: u64 = 300;
const ACCOUNTS: usize = 1 << 10;
const BALANCE: i64 = 1_000;
/// Where they contend: accounts, and how many of them a transaction changes.
const CONTENDED: usize = 64;
const CHANGED: usize = 8;
/// Operations of a thread in a lap.
const OPERATIONS: u64 = 20_000;
/// Of the paper's bank, a transaction of so many adds up all accounts; the others move money.
const SUM_EVERY: u64 = 5;
/// Bytes of an event in the paper: section 3.1, table 1.
const EVENT_BYTES: u64 = 17;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Subject {
    Full,
    Reduced,
    Zstd,
    Untraced,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Full => "corebeat",
            Subject::Reduced => "corebeat, reduced",
            Subject::Zstd => "corebeat, zstd",
            Subject::Untraced => "not traced",
        }
    }
}

/// What threads do all the time.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Work {
    /// Move money between two accounts.
    Transfer,
    /// That, and add up all of them now and then.
    Bank,
    /// Move money between a few of very few accounts, which many others want, too.
    Contended,
    /// Programs in miniature, of the example `workload` of `corebeat-stm`.
    Kmeans,
    Vacation,
    Intruder,
    Labyrinth,
}

impl Work {
    /// How many times as much a program does in a lap as it does at least, and again for each thread, so that it takes some 100 ms.
    fn times(self) -> Option<usize> {
        match self {
            Work::Transfer | Work::Bank | Work::Contended => None,
            Work::Kmeans => Some(50),
            Work::Vacation => Some(50),
            Work::Intruder => Some(50),
            Work::Labyrinth => Some(50),
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Figure {
    Time,
    Aborts,
    Lost,
    Smaller,
}

impl Figure {
    fn unit(self) -> (&'static str, Better) {
        match self {
            Figure::Time => ("ns/transaction", Better::Lower),
            Figure::Aborts => ("aborts/commit", Better::Neither),
            Figure::Lost => ("% of events", Better::Lower),
            Figure::Smaller => ("times smaller", Better::Higher),
        }
    }

    /// Whether it says something of this subject.
    fn is_of(self, subject: Subject) -> bool {
        subject != Subject::Untraced || matches!(self, Figure::Time | Figure::Aborts)
    }
}

/// What a subject is given.
#[derive(Clone, Copy)]
struct Load {
    work: Work,
    threads: usize,
    figure: Figure,
}

fn cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let counts = [1, 2].into_iter().filter(|&count| count <= session.cpus);
    let mut cases = Vec::new();
    for (count, work) in
        counts.flat_map(|count| Work::value_variants().iter().map(move |work| (count, *work)))
    {
        for figure in Figure::value_variants() {
            // One thread meets nobody.
            if *figure == Figure::Aborts && count == 1 {
                continue;
            }
            let load = Load { work, threads: count, figure: *figure };
            let subjects = Subject::value_variants().iter().filter(|subject| figure.is_of(**subject));
            cases.push(Case {
                name: format!("{}, {}, {}", apart::word(work), threads(count), apart::word(*figure)),
                subjects: subjects.map(|subject| (subject.name().to_owned(), *subject, load)).collect(),
            });
        }
    }
    cases
}

fn run(session: &Session) -> Result<(), String> {
    apart::measure(
        session,
        BENCHES[0].name,
        |case| case.subjects[0].2.figure.unit(),
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
    let mut command = apart::command(session, "stm-trace", subject)?;
    let (operations, least_ms) = if session.quick { (100, 0) } else { (OPERATIONS, LEAST_MS) };
    command.arg(format!("--work={}", apart::word(load.work))).arg(format!("--threads={}", load.threads));
    command.arg(format!("--figure={}", apart::word(load.figure)));
    command.arg(format!("--operations={operations}")).arg(format!("--least-ms={least_ms}"));
    // It has looked for lost money itself.
    apart::value(command, RUN_MAX)
}

/// One subject.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    subject: Subject,
    #[arg(long)]
    work: Work,
    #[arg(long)]
    figure: Figure,
    #[arg(long)]
    threads: usize,
    /// Operations of a thread in a lap
    #[arg(long)]
    operations: u64,
    #[arg(long)]
    least_ms: u64,
}

/// The child's side.
pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("trace");
    let compression = if options.subject == Subject::Zstd { Compression::Zstd } else { Compression::Lz4 };
    let recorded = Recorded::default().compression(compression).create(&path).map_err(|e| e.to_string())?;
    recorded.install().map_err(|e| e.to_string())?;
    trace::set(match options.subject {
        Subject::Full | Subject::Zstd => Detail::Full,
        Subject::Reduced => Detail::Reduced,
        Subject::Untraced => Detail::Off,
    });
    let accounts: Vec<TCell<i64>> = (0..ACCOUNTS).map(|_| TCell::new(BALANCE)).collect();
    let before = counters();
    let (operations, time) = work(options, &accounts);
    let after = counters();
    trace::set(Detail::Off);
    let summary = recorded.finish().map_err(|e| e.to_string())?;
    let sum = sum(&accounts);
    if sum != ACCOUNTS as i64 * BALANCE {
        return Err(format!("{sum} is there, not {}", ACCOUNTS as i64 * BALANCE));
    }
    let (commits, aborts) = (after.commits - before.commits, after.aborted() - before.aborted());
    let (events, all) = count(&path)?;
    let ends = commits + aborts;
    let is_told = all.ends == ends || summary.lost > 0 || options.subject == Subject::Untraced;
    if !is_told {
        return Err(format!("{} attempts are told, not {ends}", all.ends));
    }
    let value = match options.figure {
        Figure::Time => time.as_nanos() as f64 / operations as f64,
        Figure::Aborts => aborts as f64 / commits as f64,
        Figure::Lost => 100.0 * summary.lost as f64 / (summary.lost + events) as f64,
        Figure::Smaller => {
            // There, each attempt has a start as well as an end.
            let events = 2 * all.ends + all.accesses;
            (events * EVENT_BYTES) as f64 / summary.file_bytes as f64
        }
    };
    println!("value {value}\nchecksum {sum:016x}");
    Ok(ExitCode::SUCCESS)
}

/// How many transactions a thread has done in how long.
fn work(options: &Options, accounts: &[TCell<i64>]) -> (u64, Duration) {
    if let Some(times) = options.work.times() {
        return run_program(options, times);
    }
    let (laps, time) = lap::run(options.threads, Duration::from_millis(options.least_ms), |number, lap| {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1);
        while lap.begins() {
            for operation in 0..options.operations {
                if options.work == Work::Bank && operation.is_multiple_of(SUM_EVERY) {
                    assert_eq!(sum(accounts), ACCOUNTS as i64 * BALANCE, "money is missing");
                    continue;
                }
                // Marsaglia, *Xorshift RNGs*, 2003.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if options.work == Work::Contended {
                    let account = |at: usize| &accounts[(state >> (at * 6)) as usize % CONTENDED];
                    atomically(|tx| {
                        (0..CHANGED).try_for_each(|at| {
                            let change = if at.is_multiple_of(2) { 1 } else { -1 };
                            tx.update(account(at), |balance| balance + change)
                        })
                    });
                    continue;
                }
                let [from, to] = [state >> 32, state & 0xffff_ffff].map(|n| n as usize % ACCOUNTS);
                atomically(|tx| {
                    tx.update(&accounts[from], |balance| balance - 1)?;
                    tx.update(&accounts[to], |balance| balance + 1)
                });
            }
            lap.ends();
        }
    });
    ((laps - 1) * options.operations, time)
}

/// Runs a program again and again. The first time warms up.
fn run_program(options: &Options, times: usize) -> (u64, Duration) {
    let name = apart::word(options.work);
    let known = program::PROGRAMS.iter().find(|(known, _)| *known == name);
    let (_, run) = known.expect("all of them are there");
    let times = if options.least_ms == 0 { 1 } else { times * options.threads };
    run(options.threads, times);
    let (mut time, before) = (Duration::ZERO, counters().commits);
    loop {
        time += run(options.threads, times);
        if time >= Duration::from_millis(options.least_ms) {
            return ((counters().commits - before) / options.threads as u64, time);
        }
    }
}

fn sum(accounts: &[TCell<i64>]) -> i64 {
    snapshot(|tx| {
        let mut sum = 0;
        for account in accounts {
            sum += tx.read(account)?;
        }
        Ok(sum)
    })
}

/// What is in a trace.
#[derive(Default)]
struct Told {
    ends: u64,
    accesses: u64,
}

/// Events of the file, and which they are.
fn count(path: &Path) -> Result<(u64, Told), String> {
    let file = BufReader::new(File::open(path).map_err(|e| e.to_string())?);
    let mut reader = Reader::new(file).map_err(|e| e.to_string())?;
    let (mut events, mut told) = (0, Told::default());
    while let Some(packet) = reader.next_packet().map_err(|e| e.to_string())? {
        events += packet.events().len() as u64;
        for event in packet.events() {
            match event.kind().name() {
                "stm.commit" | "stm.done" | "stm.abort" => told.ends += 1,
                "stm.read" | "stm.write" => told.accesses += 1,
                "stm.reads" => match event.value("count") {
                    Some(Value::U64(count)) => told.accesses += count,
                    _ => return Err("reads without a count".into()),
                },
                _ => {}
            }
        }
    }
    Ok((events, told))
}
