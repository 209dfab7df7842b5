//! The bench `snet.rank`: networks on two ranks of MPI beside programs by hand.
//!
//! Each subject is a run of this program by `mpirun`, or a program in Python ([`PROGRAM`]) whose
//! library starts its own processes. Rank 0 times the work and prints a value and a checksum.
//! Without the feature `mpi` there is nothing to measure.

#[cfg(feature = "mpi")]
mod corebeat;
#[cfg(feature = "mpi")]
mod hand;

use crate::Bench;
use crate::apart::{self, names};
use crate::program::Agreement;
use crate::round::{Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use crate::tool::{self, Tool};
use clap::ValueEnum;
#[cfg(feature = "mpi")]
use corebeat_snet::rank::Window;
use corebeat_test_group::mpirun;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

/// Starts the ranks.
const MPIRUN: Tool = Tool::package("mpirun", "openmpi-bin");
/// The subjects in Python.
const PROGRAM: &str = "peers/rank.py";
/// Size in bytes from which fields move on demand, in the subject whose fields do so.
const LAZY_BYTES: usize = 16;
/// Records that wait between two ranks in the subject with smaller buffers.
#[cfg(feature = "mpi")]
const FEW: u32 = 64;
/// Ranks of each subject.
const RANKS: usize = 2;

pub(crate) const BENCH: Bench = Bench {
    name: "snet.rank",
    summary: "time for a record between two ranks of MPI, and for a network on them",
    peers: &["mpi by hand", "ray", "dask"],
    tools: &[MPIRUN, tool::RAY, tool::DASK],
    cases: |session| names(&cases(session)),
    run,
};

type Case = apart::Case<Subject, Load>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "corebeat, few in flight")]
    Few,
    #[value(name = "corebeat, lazy")]
    Lazy,
    #[value(name = "mpi by hand")]
    Hand,
    Ray,
    Dask,
}

#[cfg(feature = "mpi")]
impl Subject {
    /// Bound of the records of a channel that wait on the other rank.
    fn window(self) -> Window {
        if self == Subject::Few { Window::of(FEW) } else { Window::default() }
    }

    /// Largest field that moves with its record.
    fn eager_bytes(self) -> usize {
        if self == Subject::Lazy { LAZY_BYTES } else { corebeat_snet::rank::EAGER_BYTES }
    }
}

/// The kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Work {
    /// `count` records with a field of `bytes` bytes move from rank 0 to rank 1, which reads them.
    Stream,
    /// `count` records move from rank 0 to rank 1 and back, one after the other.
    Trip,
    /// An image of `bytes` by `bytes` points in `count` strips, of which each rank computes a half.
    Image,
}

/// A work and its size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Load {
    work: Work,
    bytes: usize,
    count: usize,
}

impl Load {
    fn unit(self) -> &'static str {
        match self.work {
            Work::Stream => "ns/record",
            Work::Trip => "us/round trip",
            Work::Image => "s",
        }
    }
}

#[cfg(feature = "mpi")]
impl Load {
    /// The reported value for the time of the work.
    fn value(self, seconds: f64) -> f64 {
        match self.work {
            Work::Stream => seconds * 1e9 / self.count as f64,
            Work::Trip => seconds * 1e6 / self.count as f64,
            Work::Image => seconds,
        }
    }

    /// The content of the field of each record.
    fn content(self) -> Vec<u8> {
        vec![7; self.bytes]
    }

    /// The checksum after a further record with this number and field.
    fn add(sum: u64, number: u64, field: &[u8]) -> u64 {
        let last = field.last().copied().unwrap_or_default();
        sum.wrapping_add((number + 1).wrapping_mul(field.len() as u64 * 8 + u64::from(last)))
    }
}

/// Records with fields of these bytes, and the number of records at full size.
const STREAMS: [(&str, usize, usize); 3] =
    [("8 bytes", 8, 2_000_000), ("1 KiB", 1 << 10, 500_000), ("64 KiB", 64 << 10, 20_000)];

fn cases(session: &Session) -> Vec<Case> {
    use Subject::*;
    let small = |count: usize, quick: usize| if session.quick { quick } else { count };
    let case = |name: String, subjects: &[Subject], load: Load| {
        let mut case = Case::new(name, subjects, load);
        for (_, subject, load) in &mut case.subjects {
            // The programs in Python take a thousand times as long.
            if matches!(subject, Ray | Dask) {
                load.count = load.count.min(small(2000, 20));
            }
        }
        case
    };
    let mut cases = Vec::new();
    for (name, bytes, count) in STREAMS {
        let load = Load { work: Work::Stream, bytes, count: small(count, 200) };
        let lazy = if bytes > LAZY_BYTES { &[Lazy][..] } else { &[] };
        let subjects = [&[Corebeat, Few], lazy, &[Hand, Ray, Dask]].concat();
        cases.push(case(format!("stream, {name}"), &subjects, load));
    }
    let trip = Load { work: Work::Trip, bytes: 8, count: small(20_000, 20) };
    cases.push(case("round trip, 8 bytes".into(), &[Corebeat, Hand, Ray, Dask], trip));
    let (side, strips) = if session.quick { (64, 16) } else { (4096, 256) };
    let image = Load { work: Work::Image, bytes: side, count: strips };
    cases.push(case(format!("image, {side} squared, {strips} strips"), &[Corebeat, Hand], image));
    cases
}

fn run(session: &Session) -> Result<(), String> {
    if !cfg!(feature = "mpi") {
        session.skip(
            "snet.rank needs MPI (install openmpi-bin, libopenmpi-dev and libclang-dev, and build \
             the bench with --features mpi)"
                .into(),
        );
        return Ok(());
    }
    if !session.has(MPIRUN) {
        return Ok(());
    }
    let unit =
        |case: &Case| (case.subjects.first().map_or("", |(_, _, load)| load.unit()), Better::Lower);
    apart::measure(session, BENCH.name, unit, &cases(session), |case| {
        let here = |subject: Subject| match subject {
            Subject::Ray => session.has(tool::RAY),
            Subject::Dask => session.has(tool::DASK),
            _ => true,
        };
        // The programs in Python have another number of records, and so another checksum.
        let agreement = Rc::<Agreement>::default();
        let turn = |(name, subject, load): &'_ (String, Subject, Load)| {
            let (subject, load, agreement) = (*subject, *load, agreement.clone());
            Turn::new(name, move || {
                let printed = apart::run(command(session, subject, load)?)?;
                agreement.admit(load.count, printed.checksum.clone())?;
                Ok(Measured::Value(printed.value))
            })
        };
        Ok(case.subjects.iter().filter(|(_, subject, _)| here(*subject)).map(turn).collect())
    })
}

fn command(session: &Session, subject: Subject, load: Load) -> Result<Command, String> {
    let of_python = |library: &str| {
        let work = if load.work == Work::Trip { "trip" } else { "stream" };
        let mut command = Command::new("python3");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAM)).arg(library).arg(work);
        command.args([load.bytes.to_string(), load.count.to_string()]);
        command.env("TMPDIR", session.folder());
        command
    };
    match subject {
        Subject::Ray => Ok(of_python("ray")),
        Subject::Dask => Ok(of_python("dask")),
        _ => {
            let own = apart::command(session, "snet-rank", &Options { subject, load })?;
            let mut command = mpirun(RANKS)?;
            command.arg(own.get_program()).args(own.get_args());
            command.env("TMPDIR", session.folder());
            Ok(command)
        }
    }
}

/// One subject with one work.
#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    load: Load,
}

/// The main function of each rank. Only rank 0 returns.
#[cfg(feature = "mpi")]
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let Options { subject, load } = *options;
    let outcome = match subject {
        Subject::Hand => hand::run(load)?,
        _ => corebeat::run(load, subject)?,
    };
    match outcome {
        Some((seconds, checksum)) => Ok((load.value(seconds), checksum)),
        None => std::process::exit(0),
    }
}

#[cfg(not(feature = "mpi"))]
pub(crate) fn main(_: &Options) -> Result<(f64, u64), String> {
    Err("this program was built without the feature mpi".into())
}
