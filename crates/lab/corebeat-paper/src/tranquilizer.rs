//! Interleaved memory and a fixed priority. Pusukuri 2012, chapter 3.

use crate::environment::{MS, controlled_until, forever, rate, simulate_with_seed, solaris_24};
use crate::program::locked_work;
use crate::report::{Figure, Report, Row};
use corebeat_machine::Policy;
use corebeat_policy::tranquilizer::Tranquilizer;
use corebeat_sim::{Program, Step, Team, Work};

/// The limit of a program, by its type in Table 3.1.
#[derive(Debug, Clone, Copy)]
enum Limit {
    /// This share of the time waits for shared memory, which is where it was first touched.
    Memory(f64),
    /// This share of the work is done under one of 16 locks, by twice as many threads as cores.
    Locks(f64),
}

/// A program: mean and standard deviation of ten runs without and with the policy, and the limit of
/// the model. In seconds; for TATP and SPECjbb, the table has the work done in a fixed time.
type Published = (&'static str, [f64; 2], [f64; 2], Limit);

/// Table 3.4. The limits were fitted to the time saved, one number each.
const TABLE_3_4: [Published; 15] = [
    ("swim", [296.6, 25.1], [294.6, 0.6], Limit::Memory(0.22)),
    ("wupwise", [162.5, 17.4], [154.2, 6.5], Limit::Memory(0.255)),
    ("equake", [195.7, 12.8], [112.3, 0.3], Limit::Memory(0.51)),
    ("gafort", [238.9, 12.0], [230.5, 1.8], Limit::Memory(0.245)),
    ("streamcluster", [214.8, 10.2], [127.9, 1.6], Limit::Memory(0.495)),
    ("facesim", [186.3, 7.7], [121.7, 2.4], Limit::Memory(0.45)),
    ("mgrid", [32.1, 3.4], [26.1, 0.6], Limit::Locks(0.35)),
    ("canneal", [97.4, 3.0], [79.2, 0.1], Limit::Memory(0.34)),
    ("x264", [56.2, 1.4], [53.5, 0.5], Limit::Locks(0.08)),
    ("fluidanimate", [65.5, 1.4], [64.1, 0.4], Limit::Memory(0.24)),
    ("bodytrack", [44.0, 0.7], [42.5, 0.2], Limit::Locks(0.075)),
    ("swaptions", [21.7, 0.5], [21.2, 0.4], Limit::Locks(0.065)),
    ("ferret", [42.3, 0.5], [41.8, 0.4], Limit::Locks(0.055)),
    ("TATP", [42_009.0, 3_358.0], [58_110.0, 1_186.0], Limit::Memory(0.40)),
    ("SPECjbb", [115_650.0, 4_741.0], [122_762.0, 1_502.0], Limit::Memory(0.26)),
];
const BY_WORK: [&str; 2] = ["TATP", "SPECjbb"];

/// Number of runs, each with another seed.
const RUNS: u64 = 5;
/// Share of memory accesses to data of all threads.
const SHARED: f64 = 0.8;

fn program(name: &str, limit: Limit) -> Program {
    match limit {
        Limit::Memory(memory) => {
            let work = Work { memory, shared: SHARED, jitter: 0.4, ..Work::us(1_000.0) };
            let steps = vec![work.into(), Step::Beat];
            Program { memory_mib: 16, ..Program::new(name, vec![Team::new(24, forever(steps))]) }
        }
        Limit::Locks(locked) => {
            let mut steps = locked_work(locked, 0.4);
            steps.push(Step::Beat);
            Program::new(name, vec![Team::new(48, forever(steps))])
        }
    }
}

/// Returns the mean of the heartbeats per second, and its standard deviation as a share of the
/// mean.
fn speed(program: &Program, is_controlled: bool) -> (f64, f64) {
    let speeds: Vec<f64> = (1..=RUNS).map(|seed| ran(program, seed, is_controlled)).collect();
    let mean = speeds.iter().sum::<f64>() / RUNS as f64;
    let square = speeds.iter().map(|speed| (speed - mean).powi(2)).sum::<f64>() / (RUNS - 1) as f64;
    (mean, square.sqrt() / mean)
}

/// Returns the heartbeats per second after a pass. The policy is five times as fast as by default:
/// a pass takes a second.
fn ran(program: &Program, seed: u64, is_controlled: bool) -> f64 {
    let machine = simulate_with_seed(&solaris_24(), vec![program.clone()], Some(10.0), seed);
    let mut policy = Tranquilizer::new(24, 4);
    (policy.sample_ns, policy.settle_ns, policy.pass_ns) = (20 * MS, 100 * MS, 1_000 * MS);
    let policy = is_controlled.then(|| Box::new(policy) as Box<dyn Policy>);
    let mut control = controlled_until(machine, policy, 960 * MS);
    rate(control.machine(), 960 * MS, 1_160 * MS)
}

pub(crate) fn gains() -> Report {
    let row = |(name, without, with, limit): Published| {
        let program = program(name, limit);
        let (plain, controlled) = (speed(&program, false), speed(&program, true));
        let by_work = BY_WORK.contains(&name);
        let kept = if by_work { without[0] / with[0] } else { with[0] / without[0] };
        let figures = vec![
            Figure::shown((1.0 - kept) * 100.0, (1.0 - plain.0 / controlled.0) * 100.0),
            Figure::shown(without[1] / without[0] * 100.0, plain.1 * 100.0),
            Figure::shown(with[1] / with[0] * 100.0, controlled.1 * 100.0),
        ];
        Row { name: name.into(), figures }
    };
    let mut rows: Vec<Row> = TABLE_3_4.into_iter().map(row).collect();
    let mut mean = Row::mean(&rows);
    mean.figures[0].within = Some(1.0 / 3.0);
    rows.push(mean);
    Report {
        what: "program",
        columns: vec!["time saved, %", "varies by, %", "with policy, %"],
        rows,
        notes: vec![
            "Variation is the standard deviation relative to the mean. The thesis does not state \
             how much programs wait for shared",
            "memory, nor for locks: one number each was fitted to the time saved. So this shows \
             that the policy finds the right actions",
            "from its counters, and keeps them, and the effect on variation; it does not show how \
             much programs save.",
        ],
    }
}
