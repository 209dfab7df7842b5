//! Models of the thesis' programs, fitted to the speeds that the thesis states.
//!
//! Pusukuri 2012, Tables 2.1, 2.4 and 2.5: the best speed and its thread count, and for most
//! programs another speed. Sections 2.1.1 and 2.1.2 state the limits of each program: serial work
//! (blackscholes, canneal), locks (fluidanimate, facesim, streamcluster), a pipeline (ferret),
//! indivisible parts (swaptions).

use crate::environment::forever;
use corebeat_sim::{Program, Step, Team, Work};

/// A model of a program for any number of threads. A heartbeat is a unit of its work.
pub(crate) enum Model {
    Rounds(Rounds),
    Pipeline,
}

impl Model {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Model::Rounds(rounds) => rounds.name,
            Model::Pipeline => "ferret",
        }
    }

    /// Returns the actual number of threads and the program. The pipeline rounds up, because the
    /// thesis' ferret takes the width of its stages.
    pub(crate) fn program(&self, threads: u32) -> (u32, Program) {
        match self {
            Model::Rounds(rounds) => (threads, rounds.program(threads)),
            Model::Pipeline => {
                let width = threads.saturating_sub(MAIN + 2).div_ceil(4).max(1);
                (4 * width + MAIN + 2, pipeline(width))
            }
        }
    }

    /// Returns the time of a heartbeat with one thread, in nanoseconds.
    pub(crate) fn alone_ns(&self) -> u64 {
        match self {
            Model::Rounds(rounds) => (rounds.round_us * 1e3) as u64,
            // The thesis' speeds are heartbeats per millisecond if rank takes a millisecond.
            Model::Pipeline => 1_000_000,
        }
    }
}

/// A program of rounds: one thread prepares, the others compute and take locks, then all threads
/// wait at a barrier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    name: &'static str,
    /// Time of a round with one thread, in microseconds.
    round_us: f64,
    /// Share of the round that is serial.
    serial: f64,
    /// Share of the parallel time that waits for memory.
    memory: f64,
    /// Share of the parallel work under one of four locks.
    locked: f64,
    /// Deviation of the parts, as a share.
    jitter: f64,
    /// Number of indivisible equal parts; `None` for divisible work.
    parts: Option<u32>,
}

const LOCKS: u32 = 4;
/// The thesis also counts the thread that starts the pipeline.
const MAIN: u32 = 1;

impl Rounds {
    const fn new(
        name: &'static str,
        round_us: f64,
        serial: f64,
        memory: f64,
        locked: f64,
        jitter: f64,
    ) -> Rounds {
        Rounds { name, round_us, serial, memory, locked, jitter, parts: None }
    }

    fn program(&self, threads: u32) -> Program {
        let workers = threads.saturating_sub(1).max(1);
        let main = vec![
            Work::us(self.round_us * self.serial).into(),
            Step::Barrier("go".into()),
            Step::Barrier("done".into()),
            Step::Beat,
        ];
        let mut teams = vec![Team { name: "main".into(), ..Team::new(1, forever(main)) }];
        let parallel_us = self.round_us * (1.0 - self.serial);
        match self.parts {
            None => teams.push(self.team(workers, parallel_us / f64::from(workers))),
            Some(parts) => {
                let long = parts % workers;
                for (count, share) in
                    [(long, parts / workers + 1), (workers - long, parts / workers)]
                {
                    if count > 0 && share > 0 {
                        teams.push(
                            self.team(count, parallel_us / f64::from(parts) * f64::from(share)),
                        );
                    }
                }
            }
        }
        Program { spin_us: 20.0, ..Program::new(self.name, teams) }
    }

    fn team(&self, threads: u32, us: f64) -> Team {
        let work = |us| {
            Step::from(Work {
                memory: self.memory,
                shared: 0.5,
                jitter: self.jitter,
                ..Work::us(us)
            })
        };
        let mut steps = vec![Step::Barrier("go".into())];
        if self.locked == 0.0 {
            steps.push(work(us));
        }
        for lock in (0..LOCKS).filter(|_| self.locked > 0.0) {
            let us = us / f64::from(LOCKS);
            steps.push(work(us * (1.0 - self.locked)));
            steps.push(Step::Lock {
                name: format!("lock {lock}"),
                steps: vec![work(us * self.locked)],
            });
        }
        steps.push(Step::Barrier("done".into()));
        Team { name: "worker".into(), ..Team::new(threads, forever(steps)) }
    }
}

/// Returns the six stages of ferret, four of which have `width` threads. The times per image are
/// from the shares of user time in Table 2.2, with three threads per stage.
pub(crate) fn pipeline(width: u32) -> Program {
    let stage = |name: &str, from: &str, us: f64, to: &str| {
        let work = Work { jitter: 0.3, ..Work::us(us) }.into();
        let steps = vec![Step::Pop(from.into()), work, Step::Push(to.into())];
        Team { name: name.into(), ..Team::new(width, forever(steps)) }
    };
    let load = forever(vec![Work::us(55.0).into(), Step::Push("a".into())]);
    let out = forever(vec![Step::Pop("e".into()), Work::us(0.5).into(), Step::Beat]);
    let teams = vec![
        Team { name: "load".into(), ..Team::new(1, load) },
        stage("segment", "a", 60.0, "b"),
        stage("extract", "b", 12.0, "c"),
        stage("vector", "c", 450.0, "d"),
        stage("rank", "d", 1_000.0, "e"),
        Team { name: "out".into(), ..Team::new(1, out) },
    ];
    Program::new("ferret", teams)
}

/// Returns a millisecond of work in 16 parts, each with this share under a lock of its own.
pub(crate) fn locked_work(locked: f64, jitter: f64) -> Vec<Step> {
    const LOCKS: u32 = 16;
    let us = 1_000.0 / f64::from(LOCKS);
    let work = |us| Step::from(Work { jitter, ..Work::us(us) });
    let part = |lock: u32| {
        let steps = vec![work(us * locked)];
        [work(us * (1.0 - locked)), Step::Lock { name: format!("lock {lock}"), steps }]
    };
    (0..LOCKS).flat_map(part).collect()
}

pub(crate) const PARSEC: [Model; 8] = [
    Model::Rounds(Rounds::new("facesim", 5_400.0, 0.136, 0.005, 0.020, 0.19)),
    Model::Rounds(Rounds::new("bodytrack", 14_000.0, 0.014, 0.083, 0.058, 0.57)),
    Model::Rounds(Rounds {
        parts: Some(128),
        ..Rounds::new("swaptions", 128_000.0, 0.0001, 0.0, 0.0, 0.02)
    }),
    Model::Pipeline,
    Model::Rounds(Rounds::new("fluidanimate", 60_000.0, 0.010, 0.046, 0.077, 0.19)),
    Model::Rounds(Rounds::new("streamcluster", 5_200.0, 0.156, 0.171, 0.018, 0.23)),
    Model::Rounds(Rounds::new("canneal", 60_000.0, 0.194, 0.326, 0.206, 0.07)),
    Model::Rounds(Rounds::new("blackscholes", 60_000.0, 0.148, 0.201, 0.011, 0.12)),
];

pub(crate) const OMP: [Model; 8] = [
    Model::Rounds(Rounds::new("ammp", 57_000.0, 0.008, 0.058, 0.119, 0.25)),
    Model::Rounds(Rounds::new("art", 57_000.0, 0.014, 0.253, 0.179, 0.26)),
    Model::Rounds(Rounds::new("fma3d", 27_000.0, 0.114, 0.008, 0.052, 0.02)),
    Model::Rounds(Rounds::new("gafort", 19_000.0, 0.017, 0.356, 0.111, 0.38)),
    Model::Rounds(Rounds::new("mgrid", 9_700.0, 0.085, 0.041, 0.286, 0.15)),
    Model::Rounds(Rounds::new("swim", 41_000.0, 0.199, 0.078, 0.002, 0.18)),
    Model::Rounds(Rounds::new("wupwise", 52_000.0, 0.030, 0.202, 0.137, 0.12)),
    Model::Rounds(Rounds::new("pbzip2", 57_000.0, 0.048, 0.259, 0.186, 0.26)),
];
