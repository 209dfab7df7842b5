//! Two programs on a desktop. Christmann, Hebisch, Weisbecker 2012.

use crate::report::{Figure, Report, Row};
use crate::room::{MS, ended, forever, room, wall_s};
use corebeat_sim::{Hardware, Program, Step, Team, Work};

const CORES: u32 = 8;
/// Threads of B.
const OTHERS: u32 = 4;
/// The work of each program: what one core takes, in microseconds.
const WORK_US: f64 = 400_000.0;

/// A program that computes: pieces for whoever comes first, or a part for each thread.
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

/// One that is there all the time.
fn background(threads: u32) -> Program {
    let busy = forever(vec![Work::us(1_000.0).into()]);
    Program { watched: false, ..Program::new("others", vec![Team::new(threads, busy)]) }
}

/// How long a program takes beside others that do not end, in seconds. It begins when they have settled.
fn beside(mut measured: Program, others: u32) -> f64 {
    measured.start_ms = 10.0;
    let mut programs = vec![measured];
    programs.extend((others > 0).then(|| background(others)));
    wall_s(&ended(room(&Hardware::flat(CORES), programs, Some(10.0)), vec![], 10_000 * MS)[0])
}

/// Which part of the cores one with `own` threads gets beside `others`: equation 1, and all it can use where there are enough.
fn cores(own: u32, others: u32) -> f64 {
    let (all, own, others) = (f64::from(CORES), f64::from(own), f64::from(others));
    own.min(all * own / (own + others))
}

pub(crate) fn times() -> Report {
    let alone_s = WORK_US / 1e6;
    let row = |threads: u32| {
        let a = beside(program("A", threads, true), OTHERS);
        let b = beside(program("B", OTHERS, true), threads);
        let figure = |own, others, s: f64| Figure::held(1.0 / cores(own, others), s / alone_s, 0.08);
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
            "Times, of what one core takes. The figure's are not in the text; the paper's here are from its equation 1.",
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
            Figure::held(of_all(threads + OTHERS), both, 0.05),
            Figure::held(of_all(threads), alone, 0.05),
        ];
        Row { name: threads.to_string(), figures }
    };
    Report {
        what: "threads of A",
        columns: vec!["A and B", "A alone"],
        rows: (1..=2 * CORES).map(row).collect(),
        notes: vec![
            "The paper says of its figure: the most where threads are as many as cores, constant or a little less beyond.",
        ],
    }
}

pub(crate) fn peaks() -> Report {
    let row = |threads: u32| {
        let figure = |others: u32| {
            // Equations 2 to 6: no thread has fewer beside it than this, or more.
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
            "Times, of what one core takes. The paper's here are the upper bound of its equations 3 to 6; it saw one peak of them, at 9 and at 5.",
        ],
    }
}
