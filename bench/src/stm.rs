//! Measures transactions beside other means that keep accounts consistent: other software
//! transactional memory, and locks.
//!
//! Each subject runs in a separate process, and each thread on its own CPU. A lap has a fixed
//! number of operations per thread, and all threads begin a lap together. A subject that loses
//! money fails.
//!
//! C libraries run `programs/bank.c`, which does the same work.

use crate::Bench;
use crate::apart;
use crate::lap::{self, xorshift};
use crate::round::Measured;
use crate::session::Session;
use crate::tool::{GCC, TINYSTM, Tool, make};
use clap::ValueEnum;
use corebeat_stm::TCell;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PEERS: &[&str] = &["TinySTM", "stm", "fast-stm", "mutex", "mutex an account"];
const TRANSFER_PEERS: &[&str] =
    &["TinySTM", "stm", "fast-stm", "mutex", "mutex an account", "limit"];

pub(crate) const BENCHES: [Bench; 3] = [
    Bench {
        name: "stm.transfer",
        summary: "time that a thread takes to move money between two of 1,024 accounts",
        peers: TRANSFER_PEERS,
        tools: &TOOLS,
        cases: apart::thread_cases,
        run: |session| run(session, 0, Work::Transfer),
    },
    Bench {
        name: "stm.read",
        summary: "time that a thread takes to read all of 1,024 accounts at one moment",
        peers: PEERS,
        tools: &TOOLS,
        cases: apart::thread_cases,
        run: |session| run(session, 1, Work::Read),
    },
    Bench {
        name: "stm.bank",
        summary: "time that a thread takes to move money between two of a million accounts",
        peers: PEERS,
        tools: &TOOLS,
        cases: apart::thread_cases,
        run: |session| run(session, 2, Work::Bank),
    },
];

pub(crate) const MAKE: Tool = Tool::package("make", "make");
/// The tools that TinySTM needs.
pub(crate) const TOOLS: [Tool; 3] = [GCC, MAKE, TINYSTM];

const BALANCE: i64 = 1_000;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Work {
    Transfer,
    Read,
    Bank,
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "corebeat, read and write")]
    ReadAndWrite,
    #[value(name = "corebeat, in C")]
    C,
    #[value(name = "TinySTM")]
    TinyStm,
    Stm,
    FastStm,
    Mutex,
    #[value(name = "mutex an account")]
    MutexEach,
    Limit,
}

impl Subject {
    /// Whether the subject differs from others for this work, and its tools are installed.
    fn does(self, session: &Session, work: Work) -> bool {
        match self {
            Subject::ReadAndWrite => work != Work::Read,
            Subject::C => Library::Corebeat.is_available(session),
            Subject::Limit => work == Work::Transfer && Library::Corebeat.is_available(session),
            Subject::TinyStm => Library::TinyStm.is_available(session),
            _ => true,
        }
    }

    /// The compiled program of a C library.
    fn program(self, session: &Session) -> Result<Option<PathBuf>, String> {
        match self {
            Subject::C => Library::Corebeat.compile(session, "bank", None).map(Some),
            Subject::TinyStm => Library::TinyStm.compile(session, "bank", None).map(Some),
            Subject::Limit => Library::Corebeat.compile(session, "bank", Some("LIMIT")).map(Some),
            _ => Ok(None),
        }
    }
}

/// A library with the functions of TinySTM.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Library {
    #[value(name = "corebeat, in C")]
    Corebeat,
    #[value(name = "TinySTM")]
    TinyStm,
}

impl Library {
    /// Whether the tools are installed.
    pub(crate) fn is_available(self, session: &Session) -> bool {
        let tools: &[Tool] = if self == Library::Corebeat { &[GCC] } else { &TOOLS };
        tools.iter().all(|tool| session.has(*tool))
    }

    /// Part of the names of files.
    pub(crate) fn name(self) -> &'static str {
        if self == Library::Corebeat { "corebeat" } else { "tinystm" }
    }

    /// The folder of the headers, and the archive, which the first call builds for TinySTM.
    pub(crate) fn files(self, session: &Session) -> Result<(PathBuf, PathBuf), String> {
        if self == Library::TinyStm {
            let folder = tinystm(session)?;
            return Ok((folder.join("include"), folder.join("lib/libstm.a")));
        }
        let include = "../crates/bind/corebeat-c/include/tinystm";
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join(include);
        Ok((include, session.library()?.join("libcorebeat.a")))
    }

    /// A program of the folder `programs`, with a macro, which the first call compiles.
    pub(crate) fn compile(
        self,
        session: &Session,
        name: &str,
        defined: Option<&str>,
    ) -> Result<PathBuf, String> {
        let program =
            session.folder().join(format!("{name}-{}{}", self.name(), defined.unwrap_or("")));
        if program.exists() {
            return Ok(program);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (include, library) = self.files(session)?;
        let mut gcc = Command::new(GCC.program);
        gcc.arg("-O2")
            .arg("-I")
            .arg(include)
            .arg(root.join(format!("programs/{name}.c")))
            .arg(library);
        gcc.args(defined.map(|name| format!("-D{name}")));
        gcc.args(["-pthread", "-lm", "-o"]).arg(&program);
        make(gcc, &format!("{name}.c"))?;
        Ok(program)
    }
}

/// Builds TinySTM with its own make rules in a copy of the source, and returns the folder.
fn tinystm(session: &Session) -> Result<PathBuf, String> {
    let source = TINYSTM.path().ok_or_else(|| TINYSTM.advice())?;
    let folder = session.folder().join("TinySTM");
    if folder.join("lib/libstm.a").exists() {
        return Ok(folder);
    }
    let (mut copy, mut build) = (Command::new("cp"), Command::new(MAKE.program));
    copy.arg("-R").arg(source).arg(&folder);
    build.arg("-C").arg(&folder).arg("-B");
    make(copy, "a copy of TinySTM")?;
    make(build, "TinySTM")?;
    Ok(folder)
}

fn run(session: &Session, bench: usize, work: Work) -> Result<(), String> {
    let unit = if work == Work::Read { "ns/sum" } else { "ns/transfer" };
    let does = |subject: Subject| subject.does(session, work);
    apart::measure_threads(session, BENCHES[bench].name, unit, does, |subject, count| {
        measure(session, work, subject, count)
    })
}

fn measure(
    session: &Session,
    work: Work,
    subject: Subject,
    count: usize,
) -> Result<Measured, String> {
    let (accounts, operations) = match (work, session.quick) {
        (Work::Transfer, false) => (1 << 10, 100_000),
        (Work::Read, false) => (1 << 10, 300),
        (Work::Bank, false) => (1 << 20, 100_000),
        (_, true) => (1 << 6, 20),
    };
    let laps = lap::LapOptions::new(session, count, operations);
    if let Some(program) = subject.program(session)? {
        let mut command = Command::new(program);
        let work = if work == Work::Read { "read" } else { "transfer" };
        command.args([
            work,
            &count.to_string(),
            &accounts.to_string(),
            &operations.to_string(),
            &laps.least_ms.to_string(),
        ]);
        return apart::value(command);
    }
    // The subject checks the sum of the accounts itself.
    apart::value(apart::command(session, "stm", &Options { subject, work, accounts, laps })?)
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    work: Work,
    accounts: usize,
    laps: lap::LapOptions,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    match options.subject {
        Subject::Corebeat => work::<Cells>(options),
        Subject::ReadAndWrite => work::<ReadAndWrite>(options),
        Subject::Stm => work::<Stm>(options),
        Subject::FastStm => work::<FastStm>(options),
        Subject::C | Subject::TinyStm | Subject::Limit => {
            Err("this subject is a program in C".into())
        }
        Subject::Mutex => work::<One>(options),
        Subject::MutexEach => work::<Each>(options),
    }
}

fn work<B: Bank>(options: &Options) -> Result<(f64, u64), String> {
    let accounts = options.accounts;
    let bank: B = (0..accounts).map(|_| BALANCE).collect();
    let sum = accounts as i64 * BALANCE;
    let (laps, time) = options.laps.run(|number, lap| {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1);
        while lap.begins() {
            for _ in 0..options.laps.operations {
                if options.work == Work::Read {
                    assert_eq!(bank.sum(), sum, "money is missing");
                } else {
                    xorshift(&mut state);
                    let [from, step] = [state >> 32, state & 0xffff_ffff].map(|n| n as usize);
                    let from = (from * accounts) >> 32;
                    let to = from + 1 + ((step * (accounts - 1)) >> 32);
                    bank.transfer(from, if to < accounts { to } else { to - accounts });
                }
            }
            lap.ends();
        }
    });
    if bank.sum() != sum {
        return Err(format!("the accounts contain {} instead of {sum}", bank.sum()));
    }
    Ok((options.laps.ns(laps, time), sum as u64))
}

/// Accounts, built from their balances.
trait Bank: FromIterator<i64> + Sync {
    /// Moves 1 from one account to another one.
    fn transfer(&self, from: usize, to: usize);
    /// The atomic sum of all accounts.
    fn sum(&self) -> i64;
}

struct Cells(Vec<TCell<i64>>);

impl FromIterator<i64> for Cells {
    fn from_iter<I: IntoIterator<Item = i64>>(balances: I) -> Self {
        Cells(balances.into_iter().map(TCell::new).collect())
    }
}

impl Bank for Cells {
    fn transfer(&self, from: usize, to: usize) {
        corebeat_stm::atomically(|tx| {
            tx.update(&self.0[from], |balance| balance - 1)?;
            tx.update(&self.0[to], |balance| balance + 1)
        });
    }

    fn sum(&self) -> i64 {
        corebeat_stm::snapshot(|tx| {
            let mut sum = 0;
            for cell in &self.0 {
                sum += tx.read(cell)?;
            }
            Ok(sum)
        })
    }
}

/// The same accounts without the function `update`, which other libraries lack.
struct ReadAndWrite(Cells);

impl FromIterator<i64> for ReadAndWrite {
    fn from_iter<I: IntoIterator<Item = i64>>(balances: I) -> Self {
        ReadAndWrite(balances.into_iter().collect())
    }
}

impl Bank for ReadAndWrite {
    fn transfer(&self, from: usize, to: usize) {
        let cells = &self.0.0;
        corebeat_stm::atomically(|tx| {
            let (less, more) = (tx.read(&cells[from])?, tx.read(&cells[to])?);
            tx.write(&cells[from], less - 1)?;
            tx.write(&cells[to], more + 1)
        });
    }

    fn sum(&self) -> i64 {
        self.0.sum()
    }
}

/// The two crates have equal names for their types and functions.
macro_rules! peer {
    ($name:ident, $peer:ident) => {
        struct $name(Vec<$peer::TVar<i64>>);

        impl FromIterator<i64> for $name {
            fn from_iter<I: IntoIterator<Item = i64>>(balances: I) -> Self {
                $name(balances.into_iter().map($peer::TVar::new).collect())
            }
        }

        impl Bank for $name {
            fn transfer(&self, from: usize, to: usize) {
                $peer::atomically(|tx| {
                    let (less, more) = (self.0[from].read(tx)?, self.0[to].read(tx)?);
                    self.0[from].write(tx, less - 1)?;
                    self.0[to].write(tx, more + 1)
                });
            }

            fn sum(&self) -> i64 {
                $peer::atomically(|tx| {
                    let mut sum = 0;
                    for account in &self.0 {
                        sum += account.read(tx)?;
                    }
                    Ok(sum)
                })
            }
        }
    };
}

peer!(Stm, stm);
peer!(FastStm, fast_stm);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct One(Mutex<Vec<i64>>);

impl FromIterator<i64> for One {
    fn from_iter<I: IntoIterator<Item = i64>>(balances: I) -> Self {
        One(Mutex::new(balances.into_iter().collect()))
    }
}

impl Bank for One {
    fn transfer(&self, from: usize, to: usize) {
        let mut balances = lock(&self.0);
        balances[from] -= 1;
        balances[to] += 1;
    }

    fn sum(&self) -> i64 {
        lock(&self.0).iter().sum()
    }
}

struct Each(Vec<Mutex<i64>>);

impl FromIterator<i64> for Each {
    fn from_iter<I: IntoIterator<Item = i64>>(balances: I) -> Self {
        Each(balances.into_iter().map(Mutex::new).collect())
    }
}

impl Bank for Each {
    fn transfer(&self, from: usize, to: usize) {
        // The fixed order of the locks prevents a deadlock.
        let mut first = lock(&self.0[from.min(to)]);
        let mut second = lock(&self.0[from.max(to)]);
        let (less, more) =
            if from < to { (&mut first, &mut second) } else { (&mut second, &mut first) };
        **less -= 1;
        **more += 1;
    }

    fn sum(&self) -> i64 {
        let balances: Vec<_> = self.0.iter().map(lock).collect();
        balances.iter().map(|balance| **balance).sum()
    }
}
