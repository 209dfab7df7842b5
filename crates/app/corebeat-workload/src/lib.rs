//! Multithreaded kernels with a checked result: what Corebeat is shown and measured on.
//!
//! Place in the loop: app; stands on base and corebeat-heartbeat. To the rest of Corebeat these are programs that nobody changes:
//! plain threads, locks and barriers of the operating system, which know nothing of being watched, and tell their pulse if asked to.
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
//! A [`Workload`] is run with a thread count and a [`Size`], and gives an [`Outcome`]. Each is written after
//! published algorithms, which its source names, and behaves as a program of Pusukuri, *Runtime Support for
//! Maximizing Performance on Multicore Systems* (2012), section 2.1, does:
//!
//! | name | stands for | threads wait for each other | bound by |
//! | --- | --- | --- | --- |
//! | `option` | blackscholes | after one has read the input | the reader, a seventh of the work |
//! | `swaption` | swaptions | at the end | arithmetic; uneven unless threads divide 128 |
//! | `cluster` | streamcluster | about every 150 µs, blocked | barriers |
//! | `cluster-spin` | NAS LU and the like | as often, spinning | barriers, and CPU time burnt at them |
//! | `search` | ferret | in queues | the rank stage |
//! | `fluid` | fluidanimate | at 15 locks a cell and 5 barriers a step | locks |
//! | `triad` | STREAM; memory-bound programs | after each pass | memory |
//!
//! [`Workload::run_beating`] has the threads emit heartbeats: one for each block of options, each batch of a swaption's paths,
//! each query that is done, and for each thread's part between two barriers of `cluster`, of a step of `fluid`, and of a pass of
//! `triad`.
//!
//! Each also has a naive version, [`Workload::run_naive`], which computes the same on one thread as one would first
//! write it.
//!
//! # Invariants
//!
//! 1. The checksum does not depend on the thread count, and is the same number on every machine: what threads add up is
//!    integers or rounded to integers first, random numbers are a function of what they are for, and no function of the
//!    system's mathematical library takes part (`checksum_is_known_for_every_thread_count`).
//! 2. The naive version gives the same checksum; that of `option` counts values to the nearest unit of money, within
//!    which the two agree (`checksum_of_the_naive_version_is_the_same`).
//! 3. Each kernel is right, not only repeatable: put-call parity and textbook values; swaptions without volatility,
//!    deep in the money, and in the closed form of Ho and Lee; a k-median cost that never rises; momentum to the last
//!    bit; each triad element by its own recurrence; the earth mover's distance against all pairings (the tests of
//!    each module).
//! 4. No thread works before all have been started, so that no barrier waits for one that never will be
//!    (`run_with_a_refused_thread_runs_no_body`).
//! 5. Nobody leaves a barrier before all have come, nobody is left behind, and a queue hands each item to one
//!    consumer and lets all end: exhaustively for small cases under loom, with planted bugs that loom must find:
//!    `RUSTFLAGS="--cfg loom" cargo test -p corebeat-workload --lib --release loom_`.
//!
//! # Memory ordering
//!
//! Only the spinning barrier has atomics of its own:
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | `arrived` += 1 | AcqRel | the other arrivals | the last to arrive has seen what all did before |
//! | `arrived` = 0 | Relaxed | the flip after it | nobody arrives again before the flip |
//! | `sense` flips | Release | the Acquire load of who waits | all see what the last had seen |
//!
//! # Failure
//!
//! [`WorkloadError`]: a scale or thread count out of range, or threads that the system refuses. A run that has begun
//! ends.
//!
//! # Limits
//!
//! At most [`THREADS_MAX`] threads and [`SCALE_MAX`] times the full size. Memory grows with the scale for `option`
//! (90 MB at full size) and hardly for the others (`triad` 100 MB). Below a scale of about 0.03 a workload is still
//! checked, but too small to behave like the whole. `cluster-spin` with more threads than CPUs takes a scheduler's
//! slice a barrier, and has 80,000 of them: give it a small scale. Times are of one machine; what a workload stands
//! for is a pattern of waiting, not the figures of the program that it is named beside.

#![forbid(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "kernels walk several arrays side by side")]

mod barrier;
mod cluster;
mod error;
mod fluid;
mod math;
mod option;
mod pulse;
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

/// The most threads that may be asked for.
pub const THREADS_MAX: usize = 1024;

/// The largest scale of a [`Size`].
pub const SCALE_MAX: f64 = 16.0;

/// How much work, as a multiple of [`Size::FULL`].
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Size(f64);

impl Size {
    /// Milliseconds: for tests.
    pub const QUICK: Size = Size(1.0 / 4096.0);

    /// Seven to ten seconds of one core on the machine that this was written on (a virtual EPYC of the third
    /// generation).
    pub const FULL: Size = Size(1.0);

    /// `scale` times [`Size::FULL`], in time. Below about 0.03 what is worked on shrinks as well, and no longer
    /// behaves like the whole: a list gets short, arrays fit into a cache.
    ///
    /// # Errors
    /// If `scale` is not above 0 and at most [`SCALE_MAX`].
    pub fn scaled(scale: f64) -> Result<Size, WorkloadError> {
        if scale > 0.0 && scale <= SCALE_MAX { Ok(Size(scale)) } else { Err(WorkloadError::Scale(scale)) }
    }

    /// `full` in proportion, at least 1.
    fn count(self, full: usize) -> usize {
        ((full as f64 * self.0).round() as usize).max(1)
    }
}

/// What a kernel gives back.
struct Tally {
    checksum: u64,
    work: u64,
}

/// What a run gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// A digest of the result: the same for every thread count, on every machine.
    pub checksum: u64,
    /// How much was done, in the workload's [`unit`](Workload::unit).
    pub work: u64,
    /// From the call to the return: making the input and starting the threads included, as for a whole program.
    pub elapsed: Duration,
}

/// A program in miniature.
#[derive(Debug)]
pub struct Workload {
    /// What users call it.
    pub name: &'static str,
    /// What it computes, in a clause.
    pub summary: &'static str,
    /// Which program of the papers behaves so, and in what respect.
    pub stands_for: &'static str,
    /// What [`Outcome::work`] counts.
    pub unit: &'static str,
    run: fn(usize, Size) -> Result<Tally, WorkloadError>,
    naive: fn(Size) -> Tally,
}

impl Workload {
    /// All of them.
    pub fn all() -> &'static [Workload] {
        &ALL
    }

    /// The one with this name.
    pub fn by_name(name: &str) -> Option<&'static Workload> {
        ALL.iter().find(|w| w.name == name)
    }

    /// Runs it with a thread count. `search` starts this many threads for each of four stages, and two more.
    ///
    /// # Errors
    /// If there are more than [`THREADS_MAX`] threads, or the system does not start them.
    pub fn run(&self, threads: NonZeroUsize, size: Size) -> Result<Outcome, WorkloadError> {
        if threads.get() > THREADS_MAX {
            return Err(WorkloadError::Threads(threads.get()));
        }
        let start = Instant::now();
        let Tally { checksum, work } = (self.run)(threads.get(), size)?;
        Ok(Outcome { checksum, work, elapsed: start.elapsed() })
    }

    /// Runs it as [`run`](Self::run) does, with threads that emit heartbeats for a group.
    ///
    /// # Errors
    /// As [`run`](Self::run); and [`WorkloadError::Pulse`], at the end, if a thread could not attach to the group.
    pub fn run_beating(
        &self,
        threads: NonZeroUsize,
        size: Size,
        group: Group,
    ) -> Result<Outcome, WorkloadError> {
        pulse::beating(group, || self.run(threads, size))
    }

    /// Runs the same work as one would first write it, on the calling thread: what [`run`](Self::run) is measured
    /// against, and checked against.
    pub fn run_naive(&self, size: Size) -> Outcome {
        let start = Instant::now();
        let Tally { checksum, work } = (self.naive)(size);
        Outcome { checksum, work, elapsed: start.elapsed() }
    }
}

static ALL: [Workload; 7] = [
    Workload {
        name: "option",
        summary: "reads a portfolio of options, then values it under many market scenarios (Black-Scholes)",
        stands_for: "blackscholes: scalable, but for one thread that reads first",
        unit: "valuations",
        run: option::run,
        naive: option::naive,
    },
    Workload {
        name: "swaption",
        summary: "values 128 swaptions by Monte Carlo simulation of the forward curve (Heath-Jarrow-Morton)",
        stands_for: "swaptions: scalable, erratic where the thread count does not divide 128",
        unit: "paths",
        run: swaption::run,
        naive: swaption::naive,
    },
    Workload {
        name: "cluster",
        summary: "finds the medians of a stream of points by local search, one blocking barrier a step",
        stands_for: "streamcluster: bound by barriers, best with few threads",
        unit: "points",
        run: cluster::run::<std::sync::Barrier>,
        naive: cluster::naive,
    },
    Workload {
        name: "cluster-spin",
        summary: "the same with a barrier that spins",
        stands_for: "programs that spin on flags (NAS LU): ruinous with more threads than CPUs",
        unit: "points",
        run: cluster::run::<barrier::SpinBarrier>,
        naive: cluster::naive,
    },
    Workload {
        name: "search",
        summary: "finds the pictures most like a picture in a six-stage pipeline, the given number of threads in each of four stages",
        stands_for: "ferret: a pipeline whose rank stage does most of the work",
        unit: "queries",
        run: search::run,
        naive: search::naive,
    },
    Workload {
        name: "fluid",
        summary: "moves a fluid of particles in a grid of cells, each cell with a lock (SPH)",
        stands_for: "fluidanimate: many fine locks",
        unit: "particle steps",
        run: fluid::run,
        naive: fluid::naive,
    },
    Workload {
        name: "triad",
        summary: "a = b + s c over arrays that no cache holds (STREAM)",
        stands_for: "canneal and other programs that wait for memory",
        unit: "elements",
        run: triad::run,
        naive: triad::naive,
    },
];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// By name, at [`Size::QUICK`].
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
            // More spinning threads than CPUs take a slice a barrier: two are enough.
            let counts: &[usize] = if name == "cluster-spin" { &[1, 2] } else { &[1, 2, 7] };
            for &count in counts {
                let outcome = workload.run(threads(count), Size::QUICK).unwrap();
                assert_eq!(outcome.checksum, known, "{name}, {count} threads: {:#018x}", outcome.checksum);
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
    fn size_out_of_range_is_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, SCALE_MAX * 1.001] {
            assert!(matches!(Size::scaled(bad), Err(WorkloadError::Scale(_))), "{bad}");
        }
        assert_eq!(Size::scaled(1.0).unwrap(), Size::FULL);
        assert!(Size::scaled(f64::MIN_POSITIVE).unwrap() < Size::QUICK);
    }

    #[test]
    fn run_with_too_many_threads_is_refused() {
        for workload in Workload::all() {
            let error = workload.run(threads(THREADS_MAX + 1), Size::QUICK).unwrap_err();
            assert!(error.to_string().contains("at most"), "{error}");
        }
    }

    #[test]
    fn by_name_finds_each_and_nothing_else() {
        for workload in Workload::all() {
            assert_eq!(Workload::by_name(workload.name).unwrap().summary, workload.summary);
        }
        assert!(Workload::by_name("ferret").is_none());
    }
}
