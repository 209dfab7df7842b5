//! Reproductions of the papers' experiments on simulated machines or on this host, beside the
//! papers' figures.
//!
//! Place in the loop: lab; uses the control loop, the policies, the simulator, graph transformation
//! and servers.
//!
//! # Example
//!
//! ```
//! let experiment = corebeat_paper::find("pusukuri-figure-4.3").unwrap();
//! let report = experiment.run();
//! println!("{}, {}\n{report}", experiment.source, experiment.title);
//! assert!(report.deviations().is_empty());
//! ```
//!
//! # Model
//!
//! ```text
//!   Experiment: a table or figure        machines and programs of the papers, as models
//!        |                                        |
//!        v                                        v
//!      run() -----> simulated machines, with and without policies -----> Report: rows of figures,
//!                                                                        the paper's and ours
//! ```
//!
//! [`EXPERIMENTS`] lists all experiments; each file contains those of one chapter or paper.
//! Programs are models (`program.rs`): the share of serial work, of work under locks, and of time
//! that waits for memory. These shares were fitted to the speeds that the papers state. The effects
//! of policies are not fitted.
//!
//! The experiments on graph transformation and on servers measure this host
//! ([`Experiment::measures_host`]). The model and the patterns of the former ([`videos`]) are also
//! those of a benchmark.
//!
//! # Invariants
//!
//! 1. An experiment on simulated machines returns the same report each time
//!    (`experiments_are_deterministic`).
//! 2. Every figure with a tolerance is within it: the tests run all experiments on simulated
//!    machines, except long ones (`figures_are_within_their_tolerances`).
//! 3. The patterns of videos have the paper's sizes and diameters, and as many matches as loops by
//!    hand find (`patterns_have_the_papers_sizes_and_diameters`,
//!    `counts_equal_those_of_loops_by_hand`).
//! 4. A parallel transformation of videos equals its repetition on one thread, and leaves no match
//!    (`parallel_runs_equal_their_replay_and_leave_no_match`).
//!
//! # Failure
//!
//! No function returns an error. Scenarios are built in; a scenario that the simulator rejects is a
//! panic, which the tests detect.
//!
//! # Limits
//!
//! For a figure without numbers in the paper's text, the report compares with the statements or
//! equations of the paper.
#![forbid(unsafe_code)]

mod adapt;
mod backstabbing;
mod barrier;
mod coscheduling;
mod environment;
mod faithful;
mod hindsight;
mod imre;
mod metronome;
mod oversubscription;
mod program;
mod reinforcer;
mod report;
mod shuffler;
mod strebelow;
mod tranquilizer;
pub mod videos;

pub use report::{Figure, Report, Row};

/// A reproduction of a table or a figure of a paper.
pub struct Experiment {
    /// Name on the command line: paper, kind, number.
    pub name: &'static str,
    /// Paper, and table or figure.
    pub source: &'static str,
    /// Content of the table or figure.
    pub title: &'static str,
    /// Whether the experiment measures this host, so that its figures differ from run to run.
    pub measures_host: bool,
    /// Whether the experiment takes minutes, so that the tests leave it out.
    pub is_long: bool,
    report: fn() -> Report,
}

impl Experiment {
    /// Runs the experiment, which takes seconds, or minutes if it is long.
    pub fn run(&self) -> Report {
        (self.report)()
    }
}

/// All experiments.
pub const EXPERIMENTS: [Experiment; 26] = [
    Experiment {
        name: "pusukuri-table-2.4",
        source: "Pusukuri 2012, Table 2.4",
        title: "thread counts that Thread Reinforcer finds, on 24 cores: PARSEC",
        measures_host: false,
        is_long: false,
        report: reinforcer::parsec,
    },
    Experiment {
        name: "pusukuri-table-2.5",
        source: "Pusukuri 2012, Table 2.5",
        title: "thread counts that Thread Reinforcer finds, on 24 cores: SPEC OMP and pbzip2",
        measures_host: false,
        is_long: false,
        report: reinforcer::omp,
    },
    Experiment {
        name: "pusukuri-table-3.4",
        source: "Pusukuri 2012, Table 3.4",
        title: "effect of interleaved memory and a fixed priority, on 24 cores",
        measures_host: false,
        is_long: false,
        report: tranquilizer::gains,
    },
    Experiment {
        name: "pusukuri-figure-4.2",
        source: "Pusukuri 2012, Figure 4.2",
        title: "time of a barrier relative to one package, on 64 cores",
        measures_host: false,
        is_long: false,
        report: barrier::times,
    },
    Experiment {
        name: "pusukuri-figure-4.3",
        source: "Pusukuri 2012, Figure 4.3",
        title: "distances between transfers of a barrier's lock, on 64 cores",
        measures_host: false,
        is_long: false,
        report: barrier::transfers,
    },
    Experiment {
        name: "pusukuri-figure-4.5",
        source: "Pusukuri 2012, Figure 4.5",
        title: "effect of shuffling threads by their lock times, on 64 cores",
        measures_host: false,
        is_long: false,
        report: shuffler::gains,
    },
    Experiment {
        name: "pusukuri-figure-5.3",
        source: "Pusukuri 2012, Figure 5.3",
        title: "share of involuntary switches to the same program's threads, on 24 cores, by load",
        measures_host: false,
        is_long: false,
        report: backstabbing::shares,
    },
    Experiment {
        name: "pusukuri-figure-5.8",
        source: "Pusukuri 2012, Figure 5.8",
        title: "effect of FaithFul relative to time sharing, on 24 cores, by load",
        measures_host: false,
        is_long: false,
        report: faithful::gains,
    },
    Experiment {
        name: "pusukuri-table-6.6",
        source: "Pusukuri 2012, Table 6.6",
        title: "predictions of ADAPT for fluidanimate and swim, on 64 cores: time in user mode",
        measures_host: false,
        is_long: false,
        report: adapt::predictions,
    },
    Experiment {
        name: "pusukuri-figure-6.9",
        source: "Pusukuri 2012, Figure 6.9",
        title: "effect of ADAPT relative to time sharing on mixes of programs, on 64 cores",
        measures_host: false,
        is_long: false,
        report: adapt::gains,
    },
    Experiment {
        name: "pusukuri-figure-6.9-others",
        source: "Pusukuri 2012, Figure 6.9",
        title: "the same on 25 other mixes of the same programs, drawn at random",
        measures_host: false,
        is_long: true,
        report: adapt::gains_on_others,
    },
    Experiment {
        name: "pusukuri-figure-6.9-fixed",
        source: "Pusukuri 2012, Figure 6.9",
        title: "the best fixed configuration of each mix, known in advance",
        measures_host: false,
        is_long: true,
        report: hindsight::gains,
    },
    Experiment {
        name: "metronome-table-1",
        source: "Sironi et al. 2012, Table 1",
        title: "end times of the programs of a mix, on two cores, in the paper's seconds",
        measures_host: false,
        is_long: false,
        report: metronome::ends,
    },
    Experiment {
        name: "metronome-figure-3",
        source: "Sironi et al. 2012, Figure 3",
        title: "error between rates and goals, relative to the error without fair",
        measures_host: false,
        is_long: false,
        report: metronome::errors,
    },
    Experiment {
        name: "coscheduling-table-1",
        source: "Schönherr, Lutz, Richling 2012, Table 1",
        title: "virtual machines that compile a kernel, on 4 cores",
        measures_host: false,
        is_long: false,
        report: coscheduling::relatives,
    },
    Experiment {
        name: "oversubscription-figure-1",
        source: "Christmann et al. 2012, Figure 1",
        title: "run times of two programs on 8 cores, by the threads of A; B has four",
        measures_host: false,
        is_long: false,
        report: oversubscription::times,
    },
    Experiment {
        name: "oversubscription-figure-2",
        source: "Christmann et al. 2012, Figure 2",
        title: "throughput of 8 cores relative to the maximum, by the threads of A; B has four",
        measures_host: false,
        is_long: false,
        report: oversubscription::throughput,
    },
    Experiment {
        name: "oversubscription-figure-3",
        source: "Christmann et al. 2012, Figure 3",
        title: "run time of equal parts on 8 cores, by threads: alone, and beside four others",
        measures_host: false,
        is_long: false,
        report: oversubscription::peaks,
    },
    Experiment {
        name: "imre-table-1",
        source: "Imre, Mezei 2012, Table 1",
        title: "times of exhaustive graph transformations, on this host",
        measures_host: true,
        is_long: false,
        report: imre::times,
    },
    Experiment {
        name: "strebelow-figure-3",
        source: "Strebelow, Prehofer 2012, Figure 3",
        title: "throughput of servers by pattern, mechanism and threads, on this host",
        measures_host: true,
        is_long: false,
        report: strebelow::throughput,
    },
    Experiment {
        name: "strebelow-figure-4",
        source: "Strebelow, Prehofer 2012, Figure 4",
        title: "scaling of servers with edge-triggered epoll, on this host",
        measures_host: true,
        is_long: false,
        report: strebelow::scaling,
    },
    Experiment {
        name: "strebelow-figure-5",
        source: "Strebelow, Prehofer 2012, Figure 5",
        title: "throughput of Half-Sync/Half-Async by mechanism, on this host",
        measures_host: true,
        is_long: false,
        report: strebelow::half_sync,
    },
    Experiment {
        name: "strebelow-figure-6",
        source: "Strebelow, Prehofer 2012, Figure 6",
        title: "Half-Sync/Half-Async, edge-triggered epoll: time to obtain and to queue an event, on \
                this host",
        measures_host: true,
        is_long: false,
        report: strebelow::breakdown::half_sync_edge,
    },
    Experiment {
        name: "strebelow-figure-7",
        source: "Strebelow, Prehofer 2012, Figure 7",
        title: "Half-Sync/Half-Async, level-triggered epoll: time of the steps of an event, on this \
                host",
        measures_host: true,
        is_long: false,
        report: strebelow::breakdown::half_sync_level,
    },
    Experiment {
        name: "strebelow-figure-9",
        source: "Strebelow, Prehofer 2012, Figure 9",
        title: "Leader/Followers: time to obtain an event, on this host",
        measures_host: true,
        is_long: false,
        report: strebelow::breakdown::leader_sense,
    },
    Experiment {
        name: "strebelow-figure-10",
        source: "Strebelow, Prehofer 2012, Figure 10",
        title: "Leader/Followers, level-triggered epoll: time of the steps of an event, on this host",
        measures_host: true,
        is_long: false,
        report: strebelow::breakdown::leader_level,
    },
];

/// Returns the experiment with this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}
