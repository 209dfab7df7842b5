//! Two programs on a desktop. Christmann, Hebisch, Weisbecker 2012.

use crate::environment::{MS, ended, forever, simulate, wall_s};
use crate::report::{Figure, Report, Row};
use corebeat_sim::{Hardware, Program, Step, Team, Work};

const CORES: u32 = 8;
/// Number of threads of B.
const OTHERS: u32 = 4;
/// Work of each program on one core, in microseconds.
const WORK_US: f64 = 400_000.0;

/// Returns a program that computes: pieces in order of arrival, or an equal part per thread.
fn program(name: &str, threads: u32, dynamic: bool) -> Program {
    const PIECES: u64 = 4_000;
    let work = match dynamic {
        true => {
            let piece = Work::us(WORK_US / PIECES as f64).into();
            Step::Repeat { times: Some(PIECES), shared: true, steps: vec![piece] }
        }
        false => Work { split: true, ..Work::us(WORK_US) }.into(),
    };
    Program::new(name, vec![Team::new(threads, vec![work])])
}

/// Returns a program that runs without end.
fn background(threads: u32) -> Program {
    let busy = forever(vec![Work::us(1_000.0).into()]);
    Program { watched: false, ..Program::new("others", vec![Team::new(threads, busy)]) }
}

/// Returns the run time of a program beside threads that do not end, in seconds. The program starts
/// after these have settled.
fn beside(mut measured: Program, others: u32) -> f64 {
    measured.start_ms = 10.0;
    let mut programs = vec![measured];
    programs.extend((others > 0).then(|| background(others)));
    wall_s(&ended(simulate(&Hardware::flat(CORES), programs, Some(10.0)), vec![], 10_000 * MS)[0])
}

/// Returns the number of cores that `own` threads receive beside `others`: equation 1, or as many
/// as they can use.
fn cores(own: u32, others: u32) -> f64 {
    let (all, own, others) = (f64::from(CORES), f64::from(own), f64::from(others));
    own.min(all * own / (own + others))
}

pub(crate) fn times() -> Report {
    let alone_s = WORK_US / 1e6;
    let row = |threads: u32| {
        let a = beside(program("A", threads, true), OTHERS);
        let b = beside(program("B", OTHERS, true), threads);
        let figure =
            |own, others, s: f64| Figure::checked(1.0 / cores(own, others), s / alone_s, 0.08);
        Row {
            name: threads.to_string(),
            figures: vec![figure(threads, OTHERS, a), figure(OTHERS, threads, b)],
        }
    };
    Report {
        what: "threads of A",
        columns: vec!["A", "B"],
        rows: (1..=2 * CORES).map(row).collect(),
        notes: vec![
            "Times relative to one core. The text lacks the figure's numbers; those given for the \
             paper are from its equation 1.",
        ],
    }
}

pub(crate) fn throughput() -> Report {
    let row = |threads: u32| {
        let done = |own: u32, others: u32| 1.0 / beside(program("p", own, true), others);
        let most = f64::from(CORES) / (WORK_US / 1e6);
        let both = (done(threads, OTHERS) + done(OTHERS, threads)) / most;
        let alone = done(threads, 0) / most;
        let of_all = |busy: u32| f64::from(busy.min(CORES)) / f64::from(CORES);
        let figures = vec![
            Figure::checked(of_all(threads + OTHERS), both, 0.05),
            Figure::checked(of_all(threads), alone, 0.05),
        ];
        Row { name: threads.to_string(), figures }
    };
    Report {
        what: "threads of A",
        columns: vec!["A and B", "A alone"],
        rows: (1..=2 * CORES).map(row).collect(),
        notes: vec![
            "The paper describes its figure: the maximum with as many threads as cores, constant \
             or slightly less beyond.",
        ],
    }
}

pub(crate) fn peaks() -> Report {
    let row = |threads: u32| {
        let figure = |others: u32| {
            // Equations 2 to 6: the most threads that share a core.
            let most = (others + threads).div_ceil(CORES);
            let paper = f64::from(most) / f64::from(threads);
            let ours = beside(program("A", threads, false), others) / (WORK_US / 1e6);
            Figure::shown(paper.max(1.0 / f64::from(CORES)), ours)
        };
        Row { name: threads.to_string(), figures: vec![figure(0), figure(OTHERS)] }
    };
    Report {
        what: "threads of A",
        columns: vec!["alone", "beside four"],
        rows: (1..=2 * CORES).map(row).collect(),
        notes: vec![
            "Times relative to one core. Those given for the paper are the upper bound of its \
             equations 3 to 6; the paper measured one peak each, at 9 and at 5.",
        ],
    }
}
