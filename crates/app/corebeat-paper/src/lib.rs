//! The papers' experiments again, on simulated machines, beside what the papers say.
//!
//! Place in the loop: app; stands on everything.
//!
//! # Example
//!
//! ```
//! let experiment = corebeat_paper::find("pusukuri-figure-4.3").unwrap();
//! let report = experiment.run();
//! println!("{}, {}\n{report}", experiment.source, experiment.title);
//! assert!(report.strays().is_empty());
//! ```
//!
//! # Model
//!
//! ```text
//!   Experiment: a table or figure        machines and programs of the papers, as models
//!        |                                        |
//!        v                                        v
//!      run() -----> simulated machines, with and without policies -----> Report: rows of figures,
//!                                                                        each the paper's and ours
//! ```
//!
//! [`EXPERIMENTS`] are all there are; one file has those of one chapter or paper. Programs are models (`program.rs`): how much
//! of their work one thread does alone, how much is done under locks, how much waits for memory. Those were fitted to the speeds
//! that the papers state; what a policy makes of them is not.
//!
//! # Invariants
//!
//! 1. Each experiment gives the same report each time (`experiments_repeat_themselves`).
//! 2. Where a figure has a tolerance it holds: the tests run all of them (`figures_are_as_near_as_they_say`).
//!
//! # Failure
//!
//! Nothing here fails: scenarios are built in, and one that the simulator does not take is a panic, which the tests would show.
//!
//! # Limits
//!
//! Where a paper has a figure without numbers in its text, what it says in words or in equations is what stands beside ours.
#![forbid(unsafe_code)]

mod adapt;
mod backstabbing;
mod barrier;
mod coscheduling;
mod faithful;
mod metronome;
mod oversubscription;
mod program;
mod reinforcer;
mod report;
mod room;
mod shuffler;
mod tranquilizer;

pub use report::{Figure, Report, Row};

/// A table or a figure of a paper.
pub struct Experiment {
    /// What it is called here: paper, kind, number.
    pub name: &'static str,
    /// Where it is from.
    pub source: &'static str,
    /// What it shows.
    pub title: &'static str,
    report: fn() -> Report,
}

impl Experiment {
    /// Runs it. Takes seconds.
    pub fn run(&self) -> Report {
        (self.report)()
    }
}

/// All of them.
pub const EXPERIMENTS: [Experiment; 16] = [
    Experiment {
        name: "pusukuri-table-2.4",
        source: "Pusukuri 2012, Table 2.4",
        title: "the threads that Thread Reinforcer finds, on 24 cores: PARSEC",
        report: reinforcer::parsec,
    },
    Experiment {
        name: "pusukuri-table-2.5",
        source: "Pusukuri 2012, Table 2.5",
        title: "the threads that Thread Reinforcer finds, on 24 cores: SPEC OMP and pbzip2",
        report: reinforcer::omp,
    },
    Experiment {
        name: "pusukuri-table-3.4",
        source: "Pusukuri 2012, Table 3.4",
        title: "what memory over all nodes and fixed turns bring, on 24 cores",
        report: tranquilizer::gains,
    },
    Experiment {
        name: "pusukuri-figure-4.2",
        source: "Pusukuri 2012, Figure 4.2",
        title: "what a barrier takes, of what it takes in one package, on 64 cores",
        report: barrier::times,
    },
    Experiment {
        name: "pusukuri-figure-4.3",
        source: "Pusukuri 2012, Figure 4.3",
        title: "how far a barrier's lock goes, on 64 cores",
        report: barrier::ways,
    },
    Experiment {
        name: "pusukuri-figure-4.5",
        source: "Pusukuri 2012, Figure 4.5",
        title: "what shuffling threads by their lock times brings, on 64 cores",
        report: shuffler::gains,
    },
    Experiment {
        name: "pusukuri-figure-5.3",
        source: "Pusukuri 2012, Figure 5.3",
        title: "involuntary switches that threads owe to others of their program, on 24 cores, by load",
        report: backstabbing::shares,
    },
    Experiment {
        name: "pusukuri-figure-5.8",
        source: "Pusukuri 2012, Figure 5.8",
        title: "what faithful brings over time sharing, on 24 cores, by load",
        report: faithful::gains,
    },
    Experiment {
        name: "pusukuri-table-6.6",
        source: "Pusukuri 2012, Table 6.6",
        title: "what ADAPT's models foresee of fluidanimate and swim, on 64 cores: time in user mode",
        report: adapt::predictions,
    },
    Experiment {
        name: "pusukuri-figure-6.9",
        source: "Pusukuri 2012, Figure 6.9",
        title: "what ADAPT brings over time sharing to mixes of programs, on 64 cores",
        report: adapt::gains,
    },
    Experiment {
        name: "metronome-table-1",
        source: "Sironi et al. 2012, Table 1",
        title: "when programs of a mix end, on two cores, in seconds of theirs",
        report: metronome::ends,
    },
    Experiment {
        name: "metronome-figure-3",
        source: "Sironi et al. 2012, Figure 3",
        title: "the error between rates and goals, of that without fair",
        report: metronome::errors,
    },
    Experiment {
        name: "coscheduling-table-1",
        source: "Schönherr, Lutz, Richling 2012, Table 1",
        title: "virtual machines that compile a kernel, on 4 cores",
        report: coscheduling::relatives,
    },
    Experiment {
        name: "oversubscription-figure-1",
        source: "Christmann et al. 2012, Figure 1",
        title: "how long two programs take on 8 cores, by the threads of A; B has four",
        report: oversubscription::times,
    },
    Experiment {
        name: "oversubscription-figure-2",
        source: "Christmann et al. 2012, Figure 2",
        title: "what 8 cores get done, of the most, by the threads of A; B has four",
        report: oversubscription::throughput,
    },
    Experiment {
        name: "oversubscription-figure-3",
        source: "Christmann et al. 2012, Figure 3",
        title: "how long equal parts take on 8 cores, by threads: alone, and beside four others",
        report: oversubscription::peaks,
    },
];

/// The one of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}
