//! Threads of one program that preempt each other. Pusukuri 2012, section 5.1.

use crate::environment::{MS, forever, simulate, solaris_24};
use crate::program::locked_work;
use crate::report::{Figure, Report, Row};
use corebeat_machine::Clock;
use corebeat_sim::{Hardware, Outcome, Program, Scheduler, Step, Team, Work};

/// A model of a program of the figure.
#[derive(Debug, Clone, Copy)]
enum Model {
    /// This share of the work is done under one of 16 locks.
    Locks(f64),
    /// The threads wait at a barrier after this many microseconds of shared work.
    Wavefront(f64),
}

/// Programs of Figure 5.3 with little, medium and high contention. The number of applu, and the two
/// threads of the system, were fitted to applu's share at 24 threads. The shares of work under
/// locks of the others are those of our Figure 5.8.
const PROGRAMS: [(&str, Model); 3] = [
    ("swaptions", Model::Locks(0.01)),
    ("fluidanimate", Model::Locks(0.2)),
    ("applu", Model::Wavefront(1_250.0)),
];

/// Numbers of threads on 24 cores.
const THREADS: [u32; 5] = [12, 20, 24, 36, 48];
/// Duration of each run.
const SPAN_NS: u64 = 5_000 * MS;

impl Model {
    fn program(self, name: &str, threads: u32) -> Program {
        let steps = match self {
            Model::Locks(locked) => locked_work(locked, 0.5),
            Model::Wavefront(us) => {
                let work = Work { split: true, jitter: 0.5, ..Work::us(us) };
                vec![work.into(), Step::Barrier("front".into())]
            }
        };
        Program { spin_us: 20.0, ..Program::new(name, vec![Team::new(threads, forever(steps))]) }
    }

    fn ran(self, name: &str, threads: u32) -> Outcome {
        let machine = Hardware { scheduler: Scheduler::Solaris, ..solaris_24() };
        let mut machine =
            simulate(&machine, vec![self.program(name, threads), system()], Some(10.0));
        machine.clock().wait_until(SPAN_NS);
        machine.outcomes().swap_remove(0)
    }
}

/// Returns the other load of the machine: two threads that wake up a hundred times per second.
fn system() -> Program {
    let steps = vec![
        Step::Io { us: 10_000.0, jitter: 0.9, bytes: 0 },
        Work { jitter: 0.9, ..Work::us(200.0) }.into(),
    ];
    Program { watched: false, ..Program::new("system", vec![Team::new(2, forever(steps))]) }
}

/// Returns the share of involuntary switches to a thread of the same program, in percent. Solaris
/// counts a switch for each quantum that is used up, even if the thread continues.
fn backstabbing(outcome: &Outcome) -> f64 {
    let all = outcome.involuntary_switches + outcome.renewed_slices;
    outcome.backstabs as f64 / all.max(1) as f64 * 100.0
}

/// Returns the share of time blocked on other threads, in percent: the lock time of Solaris.
fn lock_time(outcome: &Outcome) -> f64 {
    let blocked_ns = outcome.lock_ns + outcome.park_ns;
    let own = outcome.user_ns + outcome.system_ns + blocked_ns + outcome.wait_ns + outcome.sleep_ns;
    (blocked_ns + outcome.spin_ns) as f64 / own.max(1) as f64 * 100.0
}

pub(crate) fn shares() -> Report {
    let row = |(name, model): (&str, Model)| {
        let outcomes = THREADS.map(|threads| model.ran(name, threads));
        let mut figures: Vec<Figure> =
            outcomes.iter().map(|o| Figure::shown(None, backstabbing(o))).collect();
        if name == "applu" {
            figures[2] = Figure::checked(55.0, figures[2].ours, 0.2);
        }
        figures.extend([2, 4].map(|at| Figure::shown(None, lock_time(&outcomes[at]))));
        Row { name: name.into(), figures }
    };
    Report {
        what: "program",
        columns: vec![
            "50% load, %",
            "83% load, %",
            "100% load, %",
            "150% load, %",
            "200% load, %",
            "locks at 100%",
            "locks at 200%",
        ],
        rows: PROGRAMS.into_iter().map(row).collect(),
        notes: vec![
            "The text has one number of the figure: at 100% load, 55% of applu's involuntary \
             switches are to a thread of applu.",
            "It describes the rest in words: swaptions almost none below 100% load and few above; \
             fluidanimate and applu many,",
            "increasingly beyond 100%; applu many below 100%, too, where our model has none.",
        ],
    }
}
