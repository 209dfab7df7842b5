//! Placement of the threads of a lock on one socket. Pusukuri 2012, chapter 4.

use crate::environment::{MS, controlled_until, forever, ring, simulate};
use crate::report::{Figure, Report, Row};
use corebeat_machine::{Clock, Machine, Policy};
use corebeat_policy::shuffler::Shuffler;
use corebeat_sim::{Hardware, Program, Step, Team, Work};

/// Figure 4.5: lock time and run time without shuffling, then with it, in seconds; and the work
/// between two locks in the model, in microseconds, which was fitted to the share of lock time
/// without shuffling.
const FIGURE_4_5: [(&str, [f64; 2], [f64; 2], f64); 13] = [
    ("bodytrack", [77.3, 154.0], [58.9, 137.0], 237.0),
    ("fluidanimate", [8.1, 44.4], [4.96, 40.3], 432.0),
    ("fma3d", [55.1, 166.0], [33.9, 149.0], 328.0),
    ("gafort", [112.5, 240.0], [89.7, 228.0], 253.0),
    ("wupwise", [53.4, 128.0], [43.6, 114.0], 281.0),
    ("ammp", [38.2, 342.0], [30.1, 334.0], 518.0),
    ("galgel", [188.7, 246.0], [165.6, 230.0], 93.0),
    ("apsi", [30.4, 33.1], [24.9, 29.8], 10.0),
    ("applu", [13.5, 19.0], [10.8, 16.4], 123.0),
    ("equake", [59.9, 91.0], [43.1, 78.0], 150.0),
    ("facesim", [168.5, 221.0], [126.5, 192.0], 95.0),
    ("mgrid", [13.5, 28.6], [9.31, 24.2], 253.0),
    ("streamcluster", [130.2, 212.0], [114.0, 202.0], 175.0),
];

/// The machine of chapter 4. All times are ten times as long as real ones, so the time of a
/// transfer is, too.
fn machine() -> Hardware {
    Hardware { line_ns: 10_000, ..ring(16) }
}

/// Returns a program with 64 threads in four groups, each with its own lock and its own rate of
/// acquisitions. The groups start mixed over the packages.
fn program(name: &str, work_us: f64) -> Program {
    let team = |lock: u32| {
        let work = |us| Step::from(Work { jitter: 0.3, ..Work::us(us) });
        let locked = Step::Lock { name: format!("lock {lock}"), steps: vec![work(30.0)] };
        let alone = work(work_us * (1.0 + 0.25 * f64::from(lock)));
        Team::new(16, forever(vec![alone, locked, Step::Beat]))
    };
    Program { spin_us: 5_000.0, ..Program::new(name, (0..4).map(team).collect()) }
}

/// Returns the heartbeats, and the share of time at locks, in 400 ms after 810 ms with the policy.
fn ran(name: &str, work_us: f64, shuffles: bool) -> (f64, f64) {
    let hardware = machine();
    let machine = simulate(&hardware, vec![program(name, work_us)], Some(10.0));
    let topology = machine.topology().clone();
    let mut policy = Shuffler::new(&topology);
    // As many acquisitions as in two seconds of a program ten times as fast.
    policy.window_ns = 200 * MS;
    let policy = shuffles.then(|| Box::new(policy) as Box<dyn Policy>);
    let mut control = controlled_until(machine, policy, 810 * MS);
    let machine = control.machine();
    let before = machine.outcomes()[0].beats;
    let mut observed = |at_ms: u64| {
        machine.clock().wait_until(at_ms * MS);
        machine.observe().unwrap_or_else(|e| panic!("the simulator rejects an action: {e}"))
    };
    observed(810);
    let snapshot = observed(1_210);
    let lock = snapshot.programs[0].mean(|s| Some(s.lock_or_park()? + s.spin?)).unwrap_or_default();
    ((machine.outcomes()[0].beats - before) as f64, lock)
}

pub(crate) fn gains() -> Report {
    let row = |(name, without, with, work_us): (&str, [f64; 2], [f64; 2], f64)| {
        let (plain_beats, plain_lock) = ran(name, work_us, false);
        let (beats, lock) = ran(name, work_us, true);
        let share = |[lock_s, time_s]: [f64; 2]| lock_s / time_s * 100.0;
        let figures = vec![
            Figure::checked(share(without), plain_lock * 100.0, 0.1),
            Figure::shown(share(with), lock * 100.0),
            Figure::shown(
                (1.0 - with[1] / without[1]) * 100.0,
                (1.0 - plain_beats / beats) * 100.0,
            ),
        ];
        Row { name: name.into(), figures }
    };
    let mut rows: Vec<Row> = FIGURE_4_5.into_iter().map(row).collect();
    let mut mean = Row::mean(&rows);
    mean.figures[2].within = Some(1.0 / 3.0);
    rows.push(mean);
    Report {
        what: "program",
        columns: vec!["at locks, %", "with shuffling, %", "time saved, %"],
        rows,
        notes: vec![
            "The work between two locks was fitted to the first column, one number per program; \
             the other columns were not fitted.",
            "The thesis' 9.7% of time saved is the mean of its own column.",
        ],
    }
}
