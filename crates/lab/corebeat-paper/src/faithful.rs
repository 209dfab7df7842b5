//! A fixed priority and long slices. Pusukuri 2012, chapter 5.

use crate::environment::{MS, ended, simulate, solaris_24, wall_s};
use crate::program::locked_work;
use crate::report::{Figure, Report, Row};
use corebeat_machine::Policy;
use corebeat_policy::faithful::FaithFul;
use corebeat_sim::{Program, Step, Team};

/// Returns a program with this share of work under locks.
fn program(name: &str, threads: u32, locked: f64) -> Program {
    let steps = locked_work(locked, 0.5);
    let steps = vec![Step::Repeat { times: Some(80_000), shared: true, steps }];
    Program { spin_us: 20.0, ..Program::new(name, vec![Team::new(threads, steps)]) }
}

pub(crate) fn gains() -> Report {
    let gain = |locked: f64, threads: u32| {
        let wall = |policies: Vec<Box<dyn Policy>>| {
            let machine = simulate(&solaris_24(), vec![program("p", threads, locked)], None);
            wall_s(&ended(machine, policies, 500 * MS)[0])
        };
        (wall(vec![]) / wall(vec![Box::new(FaithFul::new(24))]) - 1.0) * 100.0
    };
    let row = |(name, locked): (&str, f64)| Row {
        name: name.into(),
        figures: [24, 36, 48].map(|threads| Figure::shown(None, gain(locked, threads))).into(),
    };
    Report {
        what: "locks",
        columns: vec!["100% load, %", "150% load, %", "200% load, %"],
        rows: [("low", 0.01), ("medium", 0.2), ("high", 0.4)].into_iter().map(row).collect(),
        notes: vec![
            "The text lacks the figure's numbers. At 100% load, five programs gain more than \
             10%, 35% at most, and nine less than 4%;",
            "at 200% eight gain more than 10%, 107% at most, and seven less than 4%; programs with \
             more locks gain more.",
        ],
    }
}
