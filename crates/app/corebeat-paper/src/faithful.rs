//! One priority and long slices. Pusukuri 2012, chapter 5.

use crate::report::{Figure, Report, Row};
use crate::room::{MS, ended, room, solaris_24, wall_s};
use corebeat_machine::Policy;
use corebeat_policy::faithful::FaithFul;
use corebeat_sim::{Program, Step, Team, Work};

/// A program by the share of its work that is done with a lock held.
fn program(name: &str, threads: u32, locked: f64) -> Program {
    const LOCKS: u32 = 16;
    let work = |us| Step::from(Work { jitter: 0.5, ..Work::us(us) });
    let us = 1_000.0 / f64::from(LOCKS);
    let mut steps = vec![];
    for lock in 0..LOCKS {
        steps.push(work(us * (1.0 - locked)));
        if locked > 0.0 {
            steps.push(Step::Lock { name: format!("lock {lock}"), steps: vec![work(us * locked)] });
        }
    }
    let steps = vec![Step::Repeat { times: Some(80_000), shared: true, steps }];
    Program { spin_us: 20.0, ..Program::new(name, vec![Team::new(threads, steps)]) }
}

pub(crate) fn gains() -> Report {
    let gain = |locked: f64, threads: u32| {
        let wall = |policies: Vec<Box<dyn Policy>>| {
            let machine = room(&solaris_24(), vec![program("p", threads, locked)], None);
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
            "The figure's bars are not in the text. At 100% load it has more than 10% for five programs, 35% at most, and less than 4% for",
            "nine; at 200% more than 10% for eight, 107% at most, and less than 4% for seven; programs with more locks gain more.",
        ],
    }
}
