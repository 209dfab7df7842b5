//! Shares of CPU time by heart-rate goals. Sironi et al. 2012, section 5.2.

use crate::environment::{MS, control, forever, simulate, wall_s};
use crate::report::{Figure, Report, Row};
use corebeat_machine::{Clock, Machine, Policy};
use corebeat_policy::fair::Fair;
use corebeat_sim::{Goal, Hardware, Outcome, Program, Step, Team, Work};

/// The paper's workstation has two cores.
const CORES: u32 = 2;
/// Number of threads of each program.
const THREADS: u32 = 4;
/// The paper's seconds per simulated second.
const SCALE: f64 = 10.0;
/// Number of heartbeats of a run.
const BEATS: u64 = 400;
/// Distance of a goal's bounds from its middle: the grey band of the paper's Figure 4.
const HALF_BAND: f64 = 0.05;

/// Period of observations.
const PERIOD_NS: u64 = 100 * MS;

/// Window of rates.
const WINDOW_NS: u64 = 1_000 * MS;

/// A mix: two programs, with their end times without and with PAFS in seconds (Table 1).
struct Mix {
    name: &'static str,
    programs: [(&'static str, f64, f64); 2],
    /// The favoured program, and its speedup by the goal: the paper's speedup, or, in mix 3, the
    /// speedup that the other program's loss permits.
    favoured: usize,
    factor: f64,
}

const MIXES: [Mix; 3] = [
    Mix {
        name: "mix 1",
        programs: [("facesim", 250.890, 240.310), ("ferret", 163.337, 131.402)],
        favoured: 1,
        factor: 163.337 / 131.402,
    },
    Mix {
        name: "mix 2",
        programs: [("blackscholes", 92.819, 108.659), ("swaptions", 131.931, 103.431)],
        favoured: 1,
        factor: 131.931 / 103.431,
    },
    Mix {
        name: "mix 3",
        programs: [("facesim", 237.206, 227.559), ("fluidanimate", 184.537, 212.766)],
        favoured: 0,
        factor: 2.0 - 184.537 / 212.766,
    },
];

/// Returns a program whose run time alone is that of Table 3.
fn program(name: &str) -> Program {
    let us = |seconds: f64| seconds / SCALE * 1e6 / BEATS as f64;
    // The work of two cores in this time, in pieces in order of arrival.
    let pieces = |seconds: f64| {
        let piece = Work { jitter: 0.2, ..Work::us(us(seconds * f64::from(CORES))) };
        let steps = vec![piece.into(), Step::Beat];
        vec![Team::new(THREADS, vec![Step::Repeat { times: Some(BEATS), shared: true, steps }])]
    };
    // The same in equal parts with a barrier; one thread emits heartbeats.
    let rounds = |seconds: f64, serial: f64| {
        let part = Work {
            jitter: 0.2,
            ..Work::us(us((seconds - serial) * f64::from(CORES)) / f64::from(THREADS))
        };
        let mut main = vec![];
        if serial > 0.0 {
            main.push(Work::us(us(serial)).into());
        }
        main.extend([
            Step::Barrier("go".into()),
            part.into(),
            Step::Barrier("done".into()),
            Step::Beat,
        ]);
        let other = vec![Step::Barrier("go".into()), part.into(), Step::Barrier("done".into())];
        let times = |steps| vec![Step::Repeat { times: Some(BEATS), shared: false, steps }];
        vec![Team::new(1, times(main)), Team::new(THREADS - 1, times(other))]
    };
    let teams = match name {
        "facesim" => rounds(140.6, 0.0),
        "fluidanimate" => rounds(103.1, 0.0),
        // The mix kept two cores busy until its end (Table 1), which determines the serial part.
        "blackscholes" => rounds(69.7, 43.6),
        "swaptions" => pieces(84.0),
        // ferret has more threads than the others: four for each of four stages.
        _ => {
            let stage = |from: &str, share: f64, to: &str| {
                let work = Work { jitter: 0.3, ..Work::us(us(114.9 * f64::from(CORES)) * share) };
                let steps = vec![Step::Pop(from.into()), work.into(), Step::Push(to.into())];
                Team::new(THREADS, forever(steps))
            };
            let load =
                vec![Work::us(us(114.9 * f64::from(CORES)) * 0.04).into(), Step::Push("a".into())];
            let out = forever(vec![Step::Pop("e".into()), Step::Beat]);
            vec![
                Team::new(1, vec![Step::Repeat { times: Some(BEATS), shared: false, steps: load }]),
                stage("a", 0.04, "b"),
                stage("b", 0.01, "c"),
                stage("c", 0.28, "d"),
                stage("d", 0.63, "e"),
                Team::new(1, out),
            ]
        }
    };
    Program::new(name, teams)
}

/// The results of a mix.
struct Run {
    outcomes: Vec<Outcome>,
    /// Rates and CPU use of both programs while both ran.
    rates: [Vec<f64>; 2],
    cpus: [f64; 2],
}

fn run(mix: &Mix, goals: Option<[f64; 2]>, policies: Vec<Box<dyn Policy>>) -> Run {
    let goal = |middle: f64| {
        let (min, max) = (Some(middle * (1.0 - HALF_BAND)), Some(middle * (1.0 + HALF_BAND)));
        Goal { min, max, window_ms: WINDOW_NS as f64 / 1e6, hold: false }
    };
    let programs = mix.programs.iter().enumerate();
    let programs = programs
        .map(|(i, (name, ..))| Program { goal: goals.map(|g| goal(g[i])), ..program(name) });
    let machine = simulate(&Hardware::flat(CORES), programs.collect(), None);
    let mut control = control(machine, policies, PERIOD_NS);
    let (mut rates, mut cpus) = ([vec![], vec![]], [vec![], vec![]]);
    while !control.machine().is_over() {
        let next_ns = control.clock().now_ns() + PERIOD_NS;
        control.clock().wait_until(next_ns);
        let snapshot = control
            .machine()
            .observe()
            .unwrap_or_else(|e| panic!("the simulator rejects an action: {e}"));
        control.decide(&snapshot);
        if snapshot.programs.len() == mix.programs.len() && snapshot.at_ns >= 2 * WINDOW_NS {
            for (i, program) in snapshot.programs.iter().enumerate() {
                rates[i].push(program.progress.as_ref().map_or(0.0, |progress| progress.rate));
                cpus[i].push(program.cpus(snapshot.span_ns, |s| s.running()).unwrap_or(0.0));
            }
        }
    }
    Run { outcomes: control.machine().outcomes(), rates, cpus: cpus.map(|c| mean(&c)) }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the normalised mean squared error between rates and a goal; rates within the goal have
/// no error.
fn error(rates: &[f64], middle: f64) -> f64 {
    let squares: Vec<f64> = rates
        .iter()
        .map(|rate| (((rate - middle).abs() / middle) - HALF_BAND).max(0.0).powi(2))
        .collect();
    mean(&squares)
}

/// Returns the results of a mix without and with the policy, and the middles of the goals. The
/// favoured program is sped up by its factor; the other has the rest of the CPUs.
fn both(mix: &Mix) -> ([Run; 2], [f64; 2]) {
    let without = run(mix, None, vec![]);
    let (favoured, other) = (mix.favoured, 1 - mix.favoured);
    let left = 1.0 - without.cpus[favoured] * (mix.factor - 1.0) / without.cpus[other];
    let mut goals = [mean(&without.rates[0]), mean(&without.rates[1])];
    goals[favoured] *= mix.factor;
    goals[other] *= left;
    let mut fair = Fair::new(CORES);
    fair.remembers = true;
    let with = run(mix, Some(goals), vec![Box::new(fair)]);
    ([without, with], goals)
}

/// Returns a row for each program of each mix.
fn rows(figures: impl Fn(&[Run; 2], f64, usize, (f64, f64)) -> Vec<Figure>) -> Vec<Row> {
    let of = |mix: &Mix| {
        let (runs, goals) = both(mix);
        let row = |(i, (name, without_s, with_s)): (usize, &(&str, f64, f64))| Row {
            name: format!("{} {name}", mix.name),
            figures: figures(&runs, goals[i], i, (*without_s, *with_s)),
        };
        mix.programs.iter().enumerate().map(row).collect::<Vec<_>>()
    };
    MIXES.iter().flat_map(of).collect()
}

pub(crate) fn ends() -> Report {
    let figures = |runs: &[Run; 2], _, i: usize, (without_s, with_s): (f64, f64)| {
        let ours_s = |run: &Run| wall_s(&run.outcomes[i]) * SCALE;
        vec![Figure::shown(without_s, ours_s(&runs[0])), Figure::shown(with_s, ours_s(&runs[1]))]
    };
    Report {
        what: "mix, program",
        columns: vec!["without", "with fair"],
        rows: rows(figures),
        notes: vec![
            "Seconds. Models were fitted to the programs' times alone (Table 3). Goals favour the \
             same programs as in the paper.",
        ],
    }
}

pub(crate) fn errors() -> Report {
    let figures = |runs: &[Run; 2], goal, i: usize, _: (f64, f64)| {
        let [without, with] = [0, 1].map(|c: usize| error(&runs[c].rates[i], goal));
        vec![Figure::shown(None, with / without.max(f64::MIN_POSITIVE))]
    };
    Report {
        what: "mix, program",
        columns: vec!["error"],
        rows: rows(figures),
        notes: vec![
            "The text lacks the figure's numbers: below 1 for all programs, and very low for mix \
             2, whose programs are regular.",
        ],
    }
}
