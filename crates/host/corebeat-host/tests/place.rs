//! Tranquilizer and Shuffler, unchanged, on the thesis' machines of 24 and 64 cores: they gain
//! there, and where they are shown the opposite of what happens they lose. Pusukuri, *Runtime
//! Support for Maximizing Performance on Multicore Systems* (2012), chapters 3 and 4.

use corebeat_host::{Loop, Periods, Tally};
use corebeat_machine::{Action, Clock, Effect, Machine, Policy, Restored, Snapshot, Topology};
use corebeat_policy::shuffler::Shuffler;
use corebeat_policy::tranquilizer::Tranquilizer;
use corebeat_sim::{Hardware, Program, Scenario, Scheduler, SimMachine, Step, Team, Work};

const MS: u64 = 1_000_000;

/// Four packages in a ring: 0 and 1, and 2 and 3, are the farthest from each other (Figure 4.2
/// (a)).
fn ring(cores: u32) -> Hardware {
    let far = |a: u32, b: u32| match (a == b, a / 2 == b / 2) {
        (true, _) => 10,
        (false, true) => 22,
        (false, false) => 16,
    };
    let distances = (0..4).map(|a| (0..4).map(|b| far(a, b)).collect()).collect();
    Hardware { packages: 4, cores, distances, ..Hardware::default() }
}

fn forever(steps: Vec<Step>) -> Step {
    Step::Repeat { times: None, shared: false, steps }
}

/// Changes a snapshot before the policy receives it.
type Shown = fn(&mut Snapshot);

/// A machine that shows something else.
struct Showing(SimMachine, Shown);

impl Machine for Showing {
    type Error = corebeat_sim::Error;

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    fn observe(&mut self) -> Result<Snapshot, Self::Error> {
        let mut seen = self.0.observe()?;
        self.1(&mut seen);
        Ok(seen)
    }

    fn act(&mut self, action: &Action) -> Result<Effect, Self::Error> {
        self.0.act(action)
    }

    fn restore(&mut self) -> Restored {
        self.0.restore()
    }
}

/// The truth.
fn truth(_: &mut Snapshot) {}

/// The more a program does the less is shown, and the fewer CPUs it loses the more. Cache misses in
/// an instruction stay.
fn upside_down(seen: &mut Snapshot) {
    for p in &mut seen.programs {
        let all = p.counters().instructions.unwrap_or(0) as f64;
        let times = if all > 0.0 { 1e17 / all / all } else { 1.0 };
        let turn =
            |count: &mut Option<u64>| *count = count.map(|count| (count as f64 * times) as u64);
        for t in &mut p.threads {
            turn(&mut t.counters.instructions);
            turn(&mut t.counters.cache_misses);
            t.counters.involuntary_switches =
                t.counters.involuntary_switches.map(|n| 1_000 / (1 + n));
        }
    }
}

/// Threads that use different locks are shown to be alike, and [`upside_down`].
fn mixed_up(seen: &mut Snapshot) {
    for p in &mut seen.programs {
        let shares: Vec<_> = p.threads.iter().map(|t| t.shares).collect();
        let each = shares.len() / 4;
        p.threads.iter_mut().enumerate().for_each(|(i, t)| t.shares = shares[i / each]);
    }
    upside_down(seen);
}

/// The outcome of a run.
struct Ran {
    /// Beats in the time after the policy's.
    beats: f64,
    /// The share of the threads' time spent on locks then, and CPUs lost.
    lock: f64,
    lost: u64,
    tally: Tally,
}

/// Lets a policy steer for some milliseconds, and looks at what happens in some more.
fn ran(
    hardware: &Hardware,
    program: &Program,
    policy: Option<Box<dyn Policy>>,
    shown: Shown,
    (every_ms, steer_ms, look_ms): (u64, u64, u64),
) -> Ran {
    let (machine, programs) = (hardware.clone(), vec![program.clone()]);
    let scenario = Scenario { duration_s: Some(1_000.0), ..Scenario::new(machine, programs) };
    let machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{e}"));
    let clock = machine.clock();
    let periods = Periods { observe_ns: every_ms * MS, sample_ns: every_ms * MS };
    let mut control =
        Loop::new(Showing(machine, shown), clock, policy.into_iter().collect(), periods);
    let run = control.run(|_, clock| clock.now_ns() >= steer_ms * MS);
    let tally = run.unwrap_or_else(|e| panic!("{e}"));
    let beats = |control: &mut Loop<_, _>| {
        let machine: &mut Showing = control.machine();
        machine.0.outcomes()[0].beats
    };
    let before = beats(&mut control);
    control.machine().0.observe().unwrap_or_else(|e| panic!("{e}"));
    control.clock().wait_until((steer_ms + look_ms) * MS);
    let seen = control.machine().0.observe().unwrap_or_else(|e| panic!("{e}"));
    let p = &seen.programs[0];
    Ran {
        beats: (beats(&mut control) - before) as f64,
        lock: p.mean(|s| Some(s.lock_or_park()? + s.spin?)).unwrap(),
        lost: p.counters().involuntary_switches.unwrap(),
        tally,
    }
}

/// The thesis' machine of chapter 3, and a program on it: this part of its time is memory, and this
/// part of that is shared by all threads.
fn hungry(memory: f64, shared: f64) -> (Hardware, Program) {
    let hardware = Hardware { scheduler: Scheduler::TimeShare, migrate_ns: 100_000, ..ring(6) };
    let work = Work { jitter: 0.4, memory, shared, ..Work::us(1_000.0) };
    let mut program =
        Program::new("p", vec![Team::new(24, vec![forever(vec![work.into(), Step::Beat])])]);
    program.memory_mib = 16;
    (hardware, program)
}

/// Threads of one program that push each other off the CPUs: 48 on 24.
fn restless() -> (Hardware, Program) {
    let work = |us| Step::from(Work { jitter: 0.5, ..Work::us(us) });
    let mut body = vec![];
    for l in 0..16 {
        body.extend([work(40.0), Step::Lock { name: format!("l{l}"), steps: vec![work(25.0)] }]);
    }
    body.push(Step::Beat);
    let program = Program::new("p", vec![Team::new(48, vec![forever(body)])]);
    (hungry(0.0, 0.0).0, program)
}

/// The policy, five times as fast: a second has a whole pass.
fn tranquilizer() -> Option<Box<dyn Policy>> {
    let mut policy = Tranquilizer::new(24, 4);
    (policy.sample_ns, policy.settle_ns, policy.pass_ns) = (20 * MS, 100 * MS, 1_000 * MS);
    Some(Box::new(policy))
}

const PASS_MS: (u64, u64, u64) = (20, 960, 200);

#[test]
fn tranquilizer_spreads_memory_that_all_share_and_is_faster() {
    let (hardware, program) = hungry(0.5, 0.8);
    let plain = ran(&hardware, &program, None, truth, PASS_MS);
    let with = ran(&hardware, &program, tranquilizer(), truth, PASS_MS);
    assert!(with.beats > 1.3 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    assert_eq!(with.tally.applied.len(), 3, "set once, and kept");
    let inverted = ran(&hardware, &program, tranquilizer(), upside_down, PASS_MS);
    assert!(inverted.beats < 1.05 * plain.beats, "{} and {} beats", plain.beats, inverted.beats);
}

#[test]
fn tranquilizer_leaves_memory_that_each_has_for_itself_and_loses_if_it_does_not() {
    let (hardware, program) = hungry(0.5, 0.0);
    let plain = ran(&hardware, &program, None, truth, PASS_MS);
    let with = ran(&hardware, &program, tranquilizer(), truth, PASS_MS);
    assert!(with.beats > 0.98 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    assert!(with.tally.applied.len() > 3, "it was tried, and taken back");
    let inverted = ran(&hardware, &program, tranquilizer(), upside_down, PASS_MS);
    assert!(inverted.beats < 0.9 * plain.beats, "{} and {} beats", plain.beats, inverted.beats);
}

#[test]
fn tranquilizer_ends_switches_that_nobody_asked_for() {
    let (hardware, program) = restless();
    let plain = ran(&hardware, &program, None, truth, PASS_MS);
    let with = ran(&hardware, &program, tranquilizer(), truth, PASS_MS);
    assert!(10 * with.lost < plain.lost, "{} and {} lost", plain.lost, with.lost);
    assert!(with.beats > 1.02 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    let inverted = ran(&hardware, &program, tranquilizer(), upside_down, PASS_MS);
    assert!(2 * inverted.lost > plain.lost, "{} and {} lost", plain.lost, inverted.lost);
}

/// A program of 64 threads on the machine of chapter 4, ten times as slow as it would be: four
/// groups, each with a lock of its own, that meet it more or less often. `is_apart`: each group
/// starts on a socket of its own.
fn four_locks(work_us: f64, is_apart: bool) -> (Hardware, Program) {
    // A lock's line, and the few that it protects.
    let hardware = Hardware { line_ns: 10_000, ..ring(16) };
    let body = |lock: u32| {
        let work = |us| Step::from(Work { jitter: 0.3, ..Work::us(us) });
        let locked = Step::Lock { name: format!("l{lock}"), steps: vec![work(30.0)] };
        vec![forever(vec![work(work_us * (1.0 + 0.25 * f64::from(lock))), locked, Step::Beat])]
    };
    // Threads start where least is to do, one after the other: the first on the first socket, the
    // second on the second, ...
    let teams = match is_apart {
        true => (0..64).map(|i| Team::new(1, body(i % 4))).collect(),
        false => (0..4).map(|lock| Team::new(16, body(lock))).collect(),
    };
    let mut program = Program::new("p", teams);
    program.spin_us = 5_000.0;
    (hardware, program)
}

/// The policy with windows of a fifth of a second, in which as many locks are taken as in two
/// seconds of a program ten times as fast.
fn shuffler(hardware: &Hardware) -> Option<Box<dyn Policy>> {
    let mut policy = Shuffler::new(&hardware.topology().unwrap());
    policy.window_ns = 200 * MS;
    Some(Box::new(policy))
}

const WINDOWS_MS: (u64, u64, u64) = (20, 810, 400);

#[test]
fn shuffler_brings_threads_of_one_lock_together_and_loses_if_it_mixes_them() {
    let (hardware, scattered) = four_locks(300.0, false);
    let plain = ran(&hardware, &scattered, None, truth, WINDOWS_MS);
    let with = ran(&hardware, &scattered, shuffler(&hardware), truth, WINDOWS_MS);
    assert!(with.beats > 1.08 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    assert!(with.lock < plain.lock, "{} and {} of the time on locks", plain.lock, with.lock);
    let is_release = |action: &Action| matches!(action, Action::SetCpus { cpus: None, .. });
    assert!(
        !with.tally.applied.iter().any(|d| is_release(&d.decision.action)),
        "what helps is kept"
    );

    let (hardware, apart) = four_locks(300.0, true);
    let plain = ran(&hardware, &apart, None, truth, WINDOWS_MS);
    let with = ran(&hardware, &apart, shuffler(&hardware), truth, WINDOWS_MS);
    assert!(with.beats > 0.99 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    let inverted = ran(&hardware, &apart, shuffler(&hardware), mixed_up, WINDOWS_MS);
    assert!(inverted.beats < 0.95 * plain.beats, "{} and {} beats", plain.beats, inverted.beats);
}
