//! Threads of one program that take CPUs from each other. Pusukuri 2012, section 5.1.

use crate::report::{Figure, Report, Row};
use crate::room::{MS, forever, room, solaris_24};
use corebeat_machine::Clock;
use corebeat_sim::{Hardware, Outcome, Program, Scheduler, Step, Team, Work};

/// What the figure's programs do, as models.
#[derive(Debug, Clone, Copy)]
enum Model {
    /// This share of a millisecond's work is done with one of 16 locks held.
    Locks(f64),
    /// All meet each time that they have done so many microseconds of work together.
    Wavefront(f64),
}

/// By Figure 5.3: nearly no contention, some, much. applu's one number, and that the system has two
/// threads, were fitted to its share at 24 threads; the others' shares of work in locks are those of our Figure 5.8.
const PROGRAMS: [(&str, Model); 3] = [
    ("swaptions", Model::Locks(0.01)),
    ("fluidanimate", Model::Locks(0.2)),
    ("applu", Model::Wavefront(1_250.0)),
];

/// Threads on 24 cores.
const THREADS: [u32; 5] = [12, 20, 24, 36, 48];
/// How long each is looked at.
const SPAN_NS: u64 = 5_000 * MS;

impl Model {
    fn program(self, name: &str, threads: u32) -> Program {
        const LOCKS: u32 = 16;
        let work = |us| Work { jitter: 0.5, ..Work::us(us) };
        let steps = match self {
            Model::Locks(locked) => {
                let us = 1_000.0 / f64::from(LOCKS);
                let lock = |lock: u32| {
                    let steps = vec![work(us * locked).into()];
                    [work(us * (1.0 - locked)).into(), Step::Lock { name: format!("lock {lock}"), steps }]
                };
                (0..LOCKS).flat_map(lock).collect()
            }
            Model::Wavefront(us) => {
                vec![Work { split: true, ..work(us) }.into(), Step::Barrier("front".into())]
            }
        };
        Program { spin_us: 20.0, ..Program::new(name, vec![Team::new(threads, forever(steps))]) }
    }

    fn ran(self, name: &str, threads: u32) -> Outcome {
        let machine = Hardware { scheduler: Scheduler::Solaris, ..solaris_24() };
        let mut machine = room(&machine, vec![self.program(name, threads), system()], Some(10.0));
        machine.clock().wait_until(SPAN_NS);
        machine.outcomes().swap_remove(0)
    }
}

/// What else runs on such a machine: two threads that wake up a hundred times a second.
fn system() -> Program {
    let steps = vec![
        Step::Io { us: 10_000.0, jitter: 0.9, bytes: 0 },
        Work { jitter: 0.9, ..Work::us(200.0) }.into(),
    ];
    Program { watched: false, ..Program::new("system", vec![Team::new(2, forever(steps))]) }
}

/// The share of involuntary switches that are one thread's doing to another of the program, in percent. Solaris counts a switch for each
/// quantum that is used up, also if the thread goes on.
fn backstabbing(outcome: &Outcome) -> f64 {
    let all = outcome.involuntary_switches + outcome.renewed_slices;
    outcome.backstabs as f64 / all.max(1) as f64 * 100.0
}

fn lock_time(outcome: &Outcome) -> f64 {
    let own = outcome.user_ns + outcome.system_ns + outcome.lock_ns + outcome.latency_ns + outcome.sleep_ns;
    (outcome.lock_ns + outcome.spin_ns) as f64 / own.max(1) as f64 * 100.0
}

pub(crate) fn shares() -> Report {
    let row = |(name, model): (&str, Model)| {
        let outcomes = THREADS.map(|threads| model.ran(name, threads));
        let mut figures: Vec<Figure> =
            outcomes.iter().map(|o| Figure::shown(None, backstabbing(o))).collect();
        if name == "applu" {
            figures[2] = Figure::held(55.0, figures[2].ours, 0.2);
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
            "Of the figure the text has one number: applu loses a CPU to another of its threads in 55% of its involuntary switches at 100% load. The rest",
            "is told in words: swaptions almost never below 100% load and seldom above, fluidanimate and applu often, ever more beyond 100%, and applu",
            "a good deal below it too, where our model has nothing.",
        ],
    }
}
