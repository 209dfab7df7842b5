//! Multithreaded kernels with a checked result, for demonstrations and benchmarks of Corebeat.
//!
//! Place in the loop: lab; uses base and corebeat-heartbeat. For the rest of Corebeat the kernels
//! are unmodified programs: plain threads with locks and barriers of the operating system. They
//! emit heartbeats on request.
//!
//! # Example
//!
//! ```
//! use corebeat_workload::{Size, Workload};
//! use std::num::NonZeroUsize;
//!
//! let workload = Workload::by_name("swaption").expect("one of Workload::all()");
//! let outcome = workload.run(NonZeroUsize::MIN, Size::QUICK)?;
//! let with_three = workload.run(NonZeroUsize::new(3).unwrap(), Size::QUICK)?;
//! assert_eq!(outcome.checksum, with_three.checksum);
//! # Ok::<(), corebeat_workload::WorkloadError>(())
//! ```
//!
//! # Model
//!
//! A run of a [`Workload`] takes a thread count and a [`Size`], and returns an [`Outcome`]. Each
//! workload implements published algorithms, which its source cites, and behaves like a program
//! of Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), section
//! 2.1:
//!
//! | name | represents | threads wait for each other | bound by |
//! | --- | --- | --- | --- |
//! | `option` | blackscholes | after the input has been read | the reader, a seventh of the work |
//! | `swaption` | swaptions | at the end | arithmetic; uneven unless threads divide 128 |
//! | `cluster` | streamcluster | about every 150 µs, blocked | barriers |
//! | `cluster-spin` | NAS LU and similar | as often, spinning | barriers, and time spent spinning |
//! | `search` | ferret | in queues | the rank stage |
//! | `fluid` | fluidanimate | at 15 locks per cell and 5 barriers per step | locks |
//! | `triad` | STREAM; memory-bound programs | after each pass | memory |
//!
//! With [`Workload::run_beating`] the threads emit heartbeats: one for each block of options, each
//! batch of a swaption's paths, each finished query, each thread's part between two barriers of
//! `cluster`, and each thread's part of a step of `fluid` or of a pass of `triad`.
//!
//! Each workload also has a naive version, [`Workload::run_naive`]: a straightforward
//! single-threaded implementation of the same computation.
//!
//! # Invariants
//!
//! 1. The checksum does not depend on the thread count, and is the same number on every machine.
//!    Threads add only integers and values rounded to integers, random numbers are functions of
//!    their position, and no function of the system's mathematical library is used
//!    (`checksum_is_known_for_every_thread_count`).
//! 2. The naive version has the same checksum. The checksum of `option` counts values to the
//!    nearest unit of money, within which both versions agree
//!    (`checksum_of_the_naive_version_is_the_same`).
//! 3. Each kernel is correct, not only repeatable. The tests of the modules check put-call parity
//!    and textbook values, and swaptions without volatility, deep in the money, and in the closed
//!    form of Ho and Lee. They check that the k-median cost never rises, and that momentum is
//!    conserved to the last bit. They compare each triad element with its own recurrence, and the
//!    earth mover's distance with all pairings.
//! 4. No thread begins its work before all threads have been started and, on request, can emit
//!    heartbeats. Therefore, no barrier waits for a thread that does not exist
//!    (`run_with_a_refused_thread_runs_no_body`, `run_without_its_heartbeats_runs_no_body`).
//! 5. No thread leaves a barrier before all have arrived, and all threads leave it. A queue
//!    delivers each item to one consumer, and all consumers end. Loom checks small cases
//!    exhaustively, with planted bugs that loom must detect: `RUSTFLAGS="--cfg loom" cargo test -p
//!    corebeat-workload --lib --release loom_`.
//!
//! # Memory ordering
//!
//! Only the spinning barrier has atomics:
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | `arrived` += 1 | AcqRel | the other arrivals | the last arrival observes what all others did |
//! | `arrived` = 0 | Relaxed | the flip after it | no thread arrives again before the flip |
//! | `sense` flips | Release | the waiters' Acquire loads | all observe what the last observed |
//!
//! # Failure
//!
//! [`WorkloadError`] reports that a scale or thread count is out of range, that the system refuses
//! to start threads, or that threads cannot attach to the group of their heartbeats. A run that has
//! begun ends.
//!
//! # Limits
//!
//! At most [`THREADS_MAX`] threads and [`SCALE_MAX`] times the full size. Memory grows with the
//! scale for `option` (90 MB at full size) and hardly for the others (`triad` 100 MB). Below a
//! scale of about 0.03, a workload is still checked, but too small to behave as at full size.
//! `cluster-spin` with more threads than CPUs takes a scheduler slice per barrier, and has 80,000
//! barriers: use a small scale. Times are of one machine. A workload represents a pattern of
//! waiting, not the figures of the program beside which it is listed.

#![forbid(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "kernels walk several arrays side by side")]

mod barrier;
mod cluster;
mod error;
mod fluid;
mod heartbeat;
mod math;
mod option;
mod queue;
mod random;
mod search;
mod swaption;
mod team;
mod triad;

pub use error::WorkloadError;

use corebeat_heartbeat::Group;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Maximum number of threads of a run.
pub const THREADS_MAX: usize = 1024;

/// Maximum scale of a [`Size`].
pub const SCALE_MAX: f64 = 16.0;

/// Amount of work, as a multiple of [`Size::FULL`].
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Size(f64);

impl Size {
    /// A size for tests, which takes milliseconds.
    pub const QUICK: Size = Size(1.0 / 4096.0);

    /// Seven to ten seconds of one core on the development machine (a virtual third-generation
    /// EPYC).
    pub const FULL: Size = Size(1.0);

    /// Returns `scale` times [`Size::FULL`], in time. Below about 0.03 the data shrink as well, and
    /// the behaviour changes: lists become short, arrays fit into a cache.
    ///
    /// # Errors
    /// [`WorkloadError::Scale`] unless `scale` is above 0 and at most [`SCALE_MAX`].
    pub fn scaled(scale: f64) -> Result<Size, WorkloadError> {
        if scale > 0.0 && scale <= SCALE_MAX {
            Ok(Size(scale))
        } else {
            Err(WorkloadError::Scale(scale))
        }
    }

    /// Returns `full` in proportion to the size, at least 1.
    fn count(self, full: usize) -> usize {
        ((full as f64 * self.0).round() as usize).max(1)
    }
}

/// The result of a kernel.
struct Tally {
    checksum: u64,
    work: u64,
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Digest of the result: the same for every thread count, on every machine.
    pub checksum: u64,
    /// Amount of work done, in the workload's [`unit`](Workload::unit).
    pub work: u64,
    /// Time from the call to the return. As for a whole program, this includes the creation of the
    /// input and the start of the threads.
    pub elapsed: Duration,
}

/// A small program with a known behaviour.
#[derive(Debug)]
pub struct Workload {
    /// Name on the command line.
    pub name: &'static str,
    /// The computation of the workload, in one clause.
    pub summary: &'static str,
    /// The program of the papers with the same behaviour, and in what respect.
    pub represents: &'static str,
    /// Unit of [`Outcome::work`].
    pub unit: &'static str,
    run: fn(usize, Size) -> Result<Tally, WorkloadError>,
    naive: fn(Size) -> Tally,
}

impl Workload {
    /// Returns all workloads.
    pub fn all() -> &'static [Workload] {
        &ALL
    }

    /// Returns the workload with this name.
    pub fn by_name(name: &str) -> Option<&'static Workload> {
        ALL.iter().find(|w| w.name == name)
    }

    /// Runs the workload on this many threads. `search` starts this many threads for each of four
    /// stages, and two more.
    ///
    /// # Errors
    /// Fails for more than [`THREADS_MAX`] threads, and if the system does not start the threads.
    pub fn run(&self, threads: NonZeroUsize, size: Size) -> Result<Outcome, WorkloadError> {
        if threads.get() > THREADS_MAX {
            return Err(WorkloadError::Threads(threads.get()));
        }
        let start = Instant::now();
        let Tally { checksum, work } = (self.run)(threads.get(), size)?;
        Ok(Outcome { checksum, work, elapsed: start.elapsed() })
    }

    /// Runs the workload as [`run`](Self::run) does; its threads emit heartbeats for a group.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), and [`WorkloadError::Heartbeat`] before any work if a thread
    /// cannot attach to the group. A daemon that does not answer is an error after two seconds.
    pub fn run_beating(
        &self,
        threads: NonZeroUsize,
        size: Size,
        group: Group,
    ) -> Result<Outcome, WorkloadError> {
        heartbeat::beating(group, || self.run(threads, size))
    }

    /// Runs the naive version on the calling thread: the reference for the speed and the result of
    /// [`run`](Self::run).
    pub fn run_naive(&self, size: Size) -> Outcome {
        let start = Instant::now();
        let Tally { checksum, work } = (self.naive)(size);
        Outcome { checksum, work, elapsed: start.elapsed() }
    }
}

static ALL: [Workload; 7] = [
    Workload {
        name: "option",
        summary: "reads a portfolio of options, then values it under many market scenarios \
                  (Black-Scholes)",
        represents: "blackscholes: scalable, except for one thread that reads first",
        unit: "valuations",
        run: option::run,
        naive: option::naive,
    },
    Workload {
        name: "swaption",
        summary: "values 128 swaptions by Monte Carlo simulation of the forward curve \
                  (Heath-Jarrow-Morton)",
        represents: "swaptions: scalable, uneven if the thread count does not divide 128",
        unit: "paths",
        run: swaption::run,
        naive: swaption::naive,
    },
    Workload {
        name: "cluster",
        summary: "finds the medians of a stream of points by local search, with one blocking \
                  barrier per step",
        represents: "streamcluster: bound by barriers, best with few threads",
        unit: "points",
        run: cluster::run::<std::sync::Barrier>,
        naive: cluster::naive,
    },
    Workload {
        name: "cluster-spin",
        summary: "the same as cluster, with a spinning barrier",
        represents: "programs that spin on flags (NAS LU): very slow with more threads than CPUs",
        unit: "points",
        run: cluster::run::<barrier::SpinBarrier>,
        naive: cluster::naive,
    },
    Workload {
        name: "search",
        summary: "finds the most similar pictures in a six-stage pipeline, with the given \
                  number of threads in each of four stages",
        represents: "ferret: a pipeline whose rank stage does most of the work",
        unit: "queries",
        run: search::run,
        naive: search::naive,
    },
    Workload {
        name: "fluid",
        summary: "simulates a fluid of particles in a grid of cells with a lock each (SPH)",
        represents: "fluidanimate: many fine locks",
        unit: "particle steps",
        run: fluid::run,
        naive: fluid::naive,
    },
    Workload {
        name: "triad",
        summary: "computes a = b + s c over arrays larger than any cache (STREAM)",
        represents: "canneal and other programs that wait for memory",
        unit: "elements",
        run: triad::run,
        naive: triad::naive,
    },
];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Checksums by name, at [`Size::QUICK`].
    const CHECKSUMS: [(&str, u64); 7] = [
        ("option", 0xA508_4FB6_FC4D_B2C7),
        ("swaption", 0xA7C8_AC5E_03CB_E14A),
        ("cluster", 0x4C37_FE58_1123_0FB2),
        ("cluster-spin", 0x4C37_FE58_1123_0FB2),
        ("search", 0xF6D8_99AC_08CD_0421),
        ("fluid", 0x2944_B490_179E_E2B5),
        ("triad", 0x72E0_62A6_BB66_D3AF),
    ];

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[test]
    fn checksum_is_known_for_every_thread_count() {
        for (workload, (name, known)) in Workload::all().iter().zip(CHECKSUMS) {
            assert_eq!(workload.name, name);
            // More spinning threads than CPUs take a slice per barrier: two are enough.
            let counts: &[usize] = if name == "cluster-spin" { &[1, 2] } else { &[1, 2, 7] };
            for &count in counts {
                let outcome = workload.run(threads(count), Size::QUICK).unwrap();
                assert_eq!(
                    outcome.checksum, known,
                    "{name}, {count} threads: {:#018x}",
                    outcome.checksum
                );
                assert!(outcome.work > 0);
            }
        }
    }

    #[test]
    fn checksum_of_the_naive_version_is_the_same() {
        for workload in Workload::all() {
            // The naive clustering takes many seconds without optimisation.
            let size = if workload.name.starts_with("cluster") { Size(1e-6) } else { Size::QUICK };
            let (naive, run) = (workload.run_naive(size), workload.run(threads(2), size).unwrap());
            assert_eq!((naive.checksum, naive.work), (run.checksum, run.work), "{}", workload.name);
        }
    }

    #[test]
    fn size_out_of_range_is_rejected() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, SCALE_MAX * 1.001] {
            assert!(matches!(Size::scaled(bad), Err(WorkloadError::Scale(_))), "{bad}");
        }
        assert_eq!(Size::scaled(1.0).unwrap(), Size::FULL);
        assert!(Size::scaled(f64::MIN_POSITIVE).unwrap() < Size::QUICK);
    }

    #[test]
    fn run_with_too_many_threads_is_rejected() {
        for workload in Workload::all() {
            let error = workload.run(threads(THREADS_MAX + 1), Size::QUICK).unwrap_err();
            assert!(error.to_string().contains("at most"), "{error}");
        }
    }

    #[test]
    fn by_name_finds_exactly_the_workloads() {
        for workload in Workload::all() {
            assert_eq!(Workload::by_name(workload.name).unwrap().summary, workload.summary);
        }
        assert!(Workload::by_name("ferret").is_none());
    }
}
