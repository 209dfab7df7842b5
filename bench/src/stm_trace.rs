//! The cost of tracing transactions: time, aborts, lost events, and bytes.
//!
//! The bench follows Schindewolf, Karl, *Capturing Transactional Memory Application's Behavior*,
//! 2012, sections 3.3 and 3.4: a bank with traced transactions runs beside the same untraced bank.
//! As in section 4, whole programs are also measured. Each subject runs in a separate process.

#[path = "../../crates/parallel/corebeat-stm/examples/workload/program/mod.rs"]
pub(crate) mod program;

use crate::Bench;
use crate::apart::{self, Case};
use crate::lap::{self, xorshift};
use crate::program::threads;
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_stm::trace::{self, Detail};
use corebeat_stm::{TCell, atomically, counters, snapshot};
use corebeat_trace::{Compression, Options as Recorded, Reader, Value};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::ptr;
use std::time::Duration;

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "stm.trace",
    summary: "effect of tracing on transactions: their time, their aborts, and the size of the trace",
    peers: &["not traced", "limit"],
    tools: &[],
    cases: |session| apart::names(&cases(session)),
    run,
}];

const ACCOUNTS: usize = 1 << 10;
const BALANCE: i64 = 1_000;
/// The contended work: number of accounts, and of accounts that a transaction changes.
const CONTENDED: usize = 64;
const CHANGED: usize = 8;
/// Operations of a thread in a lap.
const OPERATIONS: u64 = 20_000;
/// In the bank of the paper, one of this many transactions sums all accounts. The others move
/// money.
const SUM_EVERY: u64 = 5;
/// Bytes of an event in the paper: section 3.1, table 1.
const EVENT_BYTES: u64 = 17;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    #[value(name = "corebeat")]
    Full,
    #[value(name = "corebeat, reduced")]
    Reduced,
    #[value(name = "corebeat, zstd")]
    Zstd,
    #[value(name = "not traced")]
    Untraced,
    /// Not traced, but the bytes of the events of commits are stored.
    Limit,
}

/// The work of the threads.
#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Work {
    /// Move money between two accounts.
    Transfer,
    /// Move money, and sum all accounts at intervals.
    Bank,
    /// Move money between a few accounts, for which many transactions compete.
    Contended,
    /// Small programs of the example `workload` of `corebeat-stm`.
    Kmeans,
    Vacation,
    Intruder,
    Labyrinth,
}

impl Work {
    /// The work of a lap, as a multiple of the smallest work, for each thread. A lap takes some 100
    /// ms.
    fn times(self) -> Option<usize> {
        match self {
            Work::Transfer | Work::Bank | Work::Contended => None,
            Work::Kmeans | Work::Vacation | Work::Intruder | Work::Labyrinth => Some(50),
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
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

    /// Whether the figure applies to this subject and work.
    fn is_of(self, subject: Subject, work: Work) -> bool {
        match subject {
            Subject::Untraced => matches!(self, Figure::Time | Figure::Aborts),
            Subject::Limit => self == Figure::Time && work.times().is_none(),
            _ => true,
        }
    }
}

/// The load of a subject.
#[derive(Clone, Copy)]
struct Load {
    work: Work,
    threads: usize,
    figure: Figure,
}

fn cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let counts = apart::thread_counts(session);
    let mut cases = Vec::new();
    for (count, work) in
        counts.flat_map(|count| Work::value_variants().iter().map(move |work| (count, *work)))
    {
        for figure in Figure::value_variants() {
            // One thread has no conflicts.
            if *figure == Figure::Aborts && count == 1 {
                continue;
            }
            let name = [apart::name(&work), threads(count), apart::name(figure)].join(", ");
            let subjects = Subject::value_variants().iter().filter(|s| figure.is_of(**s, work));
            cases.push(Case::new(name, subjects, Load { work, threads: count, figure: *figure }));
        }
    }
    cases
}

fn run(session: &Session) -> Result<(), String> {
    apart::measure_each(
        session,
        BENCHES[0].name,
        |case| case.subjects[0].2.figure.unit(),
        &cases(session),
        |subject, load| measure(session, subject, load),
    )
}

fn measure(session: &Session, subject: Subject, load: Load) -> Result<Measured, String> {
    let Load { work, threads, figure } = load;
    let operations = if session.quick { 100 } else { OPERATIONS };
    let laps = lap::LapOptions::new(session, threads, operations);
    // The subject checks the sum of the accounts itself.
    apart::value(apart::command(session, "stm-trace", &Options { subject, work, figure, laps })?)
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    work: Work,
    figure: Figure,
    laps: lap::LapOptions,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("trace");
    let compression =
        if options.subject == Subject::Zstd { Compression::Zstd } else { Compression::Lz4 };
    let recorded =
        Recorded { compression, ..Recorded::default() }.create(&path).map_err(|e| e.to_string())?;
    recorded.install().map_err(|e| e.to_string())?;
    trace::set(match options.subject {
        Subject::Full | Subject::Zstd => Detail::Full,
        Subject::Reduced => Detail::Reduced,
        Subject::Untraced | Subject::Limit => Detail::Off,
    });
    let accounts: Vec<TCell<i64>> = (0..ACCOUNTS).map(|_| TCell::new(BALANCE)).collect();
    let before = counters();
    let (operations, time) = work(options, &accounts);
    let after = counters();
    trace::set(Detail::Off);
    let summary = recorded.finish().map_err(|e| e.to_string())?;
    let sum = sum(&accounts);
    if sum != ACCOUNTS as i64 * BALANCE {
        return Err(format!("the accounts contain {sum} instead of {}", ACCOUNTS as i64 * BALANCE));
    }
    let (commits, aborts) =
        (after.commits - before.commits, after.aborts.total() - before.aborts.total());
    let (events, all) = count(&path)?;
    let ends = commits + aborts;
    let is_traced = !matches!(options.subject, Subject::Untraced | Subject::Limit);
    let is_complete = all.ends == ends || summary.lost > 0 || !is_traced;
    if !is_complete {
        return Err(format!("the trace contains {} attempts instead of {ends}", all.ends));
    }
    let value = match options.figure {
        Figure::Time => time.as_nanos() as f64 / operations as f64,
        Figure::Aborts => aborts as f64 / commits as f64,
        Figure::Lost => 100.0 * summary.lost as f64 / (summary.lost + events) as f64,
        Figure::Smaller => {
            // In the paper, each attempt has a start event and an end event.
            let events = 2 * all.ends + all.accesses;
            (events * EVENT_BYTES) as f64 / summary.file_bytes as f64
        }
    };
    Ok((value, sum as u64))
}

/// The bytes of the events of commits, in memory that is overwritten.
struct Bare {
    memory: Vec<u32>,
    /// In bytes.
    at: usize,
}

impl Bare {
    /// Size of the buffers that a thread fills in turn, as in a trace.
    const BYTES: usize = 1 << 20;
    /// One of this many transactions has two time stamps.
    const TIMED_EVERY: u64 = trace::TIMED_EVERY as u64;

    fn new() -> Bare {
        Bare { memory: vec![0; Bare::BYTES / size_of::<u32>()], at: 0 }
    }

    /// Stores the events of a transaction: its places, and its end.
    #[inline(always)]
    fn put<const N: usize>(&mut self, number: u64, places: [&TCell<i64>; N]) {
        // With the end and two time stamps.
        if self.at + (N + 3) * size_of::<u32>() > Bare::BYTES {
            self.at = 0;
        }
        for place in places {
            // SAFETY: the memory has room for N + 3 words, as checked above.
            unsafe { self.store((ptr::from_ref(place).addr() / size_of::<TCell<i64>>()) as u32) };
        }
        // SAFETY: as above.
        unsafe { self.store(1) };
        if number.is_multiple_of(Bare::TIMED_EVERY) {
            for _ in 0..2 {
                // SAFETY: as above.
                unsafe { self.store(corebeat_trace::ticks() as u32) };
            }
        }
    }

    /// # Safety
    ///
    /// The memory has room for a word.
    #[inline(always)]
    unsafe fn store(&mut self, word: u32) {
        // SAFETY: guaranteed by the caller; the position is a multiple of the size of words.
        // Volatile, because no code reads the word.
        unsafe { self.memory.as_mut_ptr().byte_add(self.at).write_volatile(word) };
        self.at += size_of::<u32>();
    }
}

/// Returns the number of transactions of a thread, and their time.
fn work(options: &Options, accounts: &[TCell<i64>]) -> (u64, Duration) {
    if let Some(times) = options.work.times() {
        return run_program(options, times);
    }
    let (laps, time) = options.laps.run(|number, lap| {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1);
        let mut bare = (options.subject == Subject::Limit).then(Bare::new);
        while lap.begins() {
            for operation in 0..options.laps.operations {
                if options.work == Work::Bank && operation.is_multiple_of(SUM_EVERY) {
                    assert_eq!(sum(accounts), ACCOUNTS as i64 * BALANCE, "money is missing");
                    if let Some(bare) = &mut bare {
                        // The first and the last cell of a row.
                        bare.put(operation, [&accounts[0], &accounts[ACCOUNTS - 1]]);
                    }
                    continue;
                }
                xorshift(&mut state);
                if options.work == Work::Contended {
                    let account = |at: usize| &accounts[(state >> (at * 6)) as usize % CONTENDED];
                    atomically(|tx| {
                        (0..CHANGED).try_for_each(|at| {
                            let change = if at.is_multiple_of(2) { 1 } else { -1 };
                            tx.update(account(at), |balance| balance + change)
                        })
                    });
                    if let Some(bare) = &mut bare {
                        bare.put(operation, std::array::from_fn::<_, CHANGED, _>(account));
                    }
                    continue;
                }
                let [from, to] = [state >> 32, state & 0xffff_ffff].map(|n| n as usize % ACCOUNTS);
                atomically(|tx| {
                    tx.update(&accounts[from], |balance| balance - 1)?;
                    tx.update(&accounts[to], |balance| balance + 1)
                });
                if let Some(bare) = &mut bare {
                    bare.put(operation, [&accounts[from], &accounts[to]]);
                }
            }
            lap.ends();
        }
    });
    ((laps - 1) * options.laps.operations, time)
}

/// Runs a program repeatedly. The first run warms up.
fn run_program(options: &Options, times: usize) -> (u64, Duration) {
    let name = apart::name(&options.work);
    let known = program::PROGRAMS.iter().find(|(known, _)| *known == name);
    let (_, run) = known.expect("each of these works is a program");
    let times = if options.laps.least_ms == 0 { 1 } else { times * options.laps.threads };
    run(options.laps.threads, times);
    let (mut time, before) = (Duration::ZERO, counters().commits);
    loop {
        time += run(options.laps.threads, times);
        if time >= Duration::from_millis(options.laps.least_ms) {
            return ((counters().commits - before) / options.laps.threads as u64, time);
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

/// The counts of a trace.
#[derive(Default)]
struct Counts {
    ends: u64,
    accesses: u64,
}

/// Counts all events of the file, and those of each kind.
fn count(path: &Path) -> Result<(u64, Counts), String> {
    let file = BufReader::new(File::open(path).map_err(|e| e.to_string())?);
    let mut reader = Reader::new(file).map_err(|e| e.to_string())?;
    let (mut events, mut counts) = (0, Counts::default());
    while let Some(packet) = reader.next_packet().map_err(|e| e.to_string())? {
        events += packet.events().len() as u64;
        for event in packet.events() {
            match event.kind().name() {
                "stm.commit" | "stm.done" | "stm.abort" => counts.ends += 1,
                "stm.read" | "stm.write" => counts.accesses += 1,
                "stm.reads" => match event.value("count") {
                    Some(Value::U64(count)) => counts.accesses += count,
                    _ => return Err("an event stm.reads has no count".into()),
                },
                _ => {}
            }
        }
    }
    Ok((events, counts))
}
