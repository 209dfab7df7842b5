//! Tranquilizer and Shuffler, unchanged, on the thesis' machines of 24 and 64 cores. Both policies
//! gain there, and lose if the machine reports inverted measurements. Pusukuri, *Runtime Support
//! for Maximizing Performance on Multicore Systems* (2012), chapters 3 and 4.

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
type Change = fn(&mut Snapshot);

/// A machine that reports changed snapshots.
struct Changed(SimMachine, Change);

impl Machine for Changed {
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

/// Leaves the snapshot unchanged.
fn unchanged(_: &mut Snapshot) {}

/// Reports less work for more, and more preemptions for fewer. Cache misses per instruction stay
/// the same.
fn invert(seen: &mut Snapshot) {
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

/// Reports similar lock times for threads that use different locks, and inverts as [`invert`].
fn mix_groups(seen: &mut Snapshot) {
    for p in &mut seen.programs {
        let shares: Vec<_> = p.threads.iter().map(|t| t.shares).collect();
        let each = shares.len() / 4;
        p.threads.iter_mut().enumerate().for_each(|(i, t)| t.shares = shares[i / each]);
    }
    invert(seen);
}

/// The outcome of a run.
struct Ran {
    /// Beats after the policy has stopped.
    beats: f64,
    /// The share of the threads' time spent on locks in that time, and the number of preemptions.
    lock: f64,
    lost: u64,
    tally: Tally,
}

/// Runs a policy for `steer_ms`, and then observes the program for `look_ms` without the policy.
fn ran(
    hardware: &Hardware,
    program: &Program,
    policy: Option<Box<dyn Policy>>,
    change: Change,
    (every_ms, steer_ms, look_ms): (u64, u64, u64),
) -> Ran {
    let (machine, programs) = (hardware.clone(), vec![program.clone()]);
    let scenario = Scenario { duration_s: Some(1_000.0), ..Scenario::new(machine, programs) };
    let machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{e}"));
    let clock = machine.clock();
    let periods = Periods { observe_ns: every_ms * MS, sample_ns: every_ms * MS };
    let mut control =
        Loop::new(Changed(machine, change), clock, policy.into_iter().collect(), periods);
    let run = control.run(|_, clock| clock.now_ns() >= steer_ms * MS);
    let tally = run.unwrap_or_else(|e| panic!("{e}"));
    let beats = |control: &mut Loop<_, _>| {
        let machine: &mut Changed = control.machine();
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

/// The thesis' machine of chapter 3, and a program that spends the share `memory` of its time on
/// memory, of which all threads use the share `shared`.
fn memory_bound(memory: f64, shared: f64) -> (Hardware, Program) {
    let hardware = Hardware { scheduler: Scheduler::TimeShare, migrate_ns: 100_000, ..ring(6) };
    let work = Work { jitter: 0.4, memory, shared, ..Work::us(1_000.0) };
    let mut program =
        Program::new("p", vec![Team::new(24, vec![forever(vec![work.into(), Step::Beat])])]);
    program.memory_mib = 16;
    (hardware, program)
}

/// A program whose threads preempt each other: 48 threads on 24 CPUs.
fn preempting() -> (Hardware, Program) {
    let work = |us| Step::from(Work { jitter: 0.5, ..Work::us(us) });
    let mut body = vec![];
    for l in 0..16 {
        body.extend([work(40.0), Step::Lock { name: format!("l{l}"), steps: vec![work(25.0)] }]);
    }
    body.push(Step::Beat);
    let program = Program::new("p", vec![Team::new(48, vec![forever(body)])]);
    (memory_bound(0.0, 0.0).0, program)
}

/// The policy with times that are five times as short: a second contains a whole pass.
fn tranquilizer() -> Option<Box<dyn Policy>> {
    let mut policy = Tranquilizer::new(24, 4);
    (policy.sample_ns, policy.settle_ns, policy.pass_ns) = (20 * MS, 100 * MS, 1_000 * MS);
    Some(Box::new(policy))
}

const PASS_MS: (u64, u64, u64) = (20, 960, 200);

#[test]
fn tranquilizer_spreads_shared_memory_and_is_faster() {
    let (hardware, program) = memory_bound(0.5, 0.8);
    let plain = ran(&hardware, &program, None, unchanged, PASS_MS);
    let with = ran(&hardware, &program, tranquilizer(), unchanged, PASS_MS);
    assert!(with.beats > 1.3 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    assert_eq!(with.tally.applied.len(), 3, "the settings are applied once and kept");
    let inverted = ran(&hardware, &program, tranquilizer(), invert, PASS_MS);
    assert!(inverted.beats < 1.05 * plain.beats, "{} and {} beats", plain.beats, inverted.beats);
}

#[test]
fn tranquilizer_leaves_private_memory_and_loses_with_inverted_measurements() {
    let (hardware, program) = memory_bound(0.5, 0.0);
    let plain = ran(&hardware, &program, None, unchanged, PASS_MS);
    let with = ran(&hardware, &program, tranquilizer(), unchanged, PASS_MS);
    assert!(with.beats > 0.98 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    assert!(with.tally.applied.len() > 3, "the settings were tried and undone");
    let inverted = ran(&hardware, &program, tranquilizer(), invert, PASS_MS);
    assert!(inverted.beats < 0.9 * plain.beats, "{} and {} beats", plain.beats, inverted.beats);
}

#[test]
fn tranquilizer_prevents_preemption_within_a_program() {
    let (hardware, program) = preempting();
    let plain = ran(&hardware, &program, None, unchanged, PASS_MS);
    let with = ran(&hardware, &program, tranquilizer(), unchanged, PASS_MS);
    assert!(10 * with.lost < plain.lost, "{} and {} lost", plain.lost, with.lost);
    assert!(with.beats > 1.02 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    let inverted = ran(&hardware, &program, tranquilizer(), invert, PASS_MS);
    assert!(2 * inverted.lost > plain.lost, "{} and {} lost", plain.lost, inverted.lost);
}

/// A program of 64 threads on the machine of chapter 4, ten times as slow as in the thesis. Each of
/// four groups has its own lock, and takes the lock more or less often. With `is_apart`, each group
/// starts on its own socket.
fn four_locks(work_us: f64, is_apart: bool) -> (Hardware, Program) {
    // The cache line of a lock, and the few lines that the lock protects.
    let hardware = Hardware { line_ns: 10_000, ..ring(16) };
    let body = |lock: u32| {
        let work = |us| Step::from(Work { jitter: 0.3, ..Work::us(us) });
        let locked = Step::Lock { name: format!("l{lock}"), steps: vec![work(30.0)] };
        vec![forever(vec![work(work_us * (1.0 + 0.25 * f64::from(lock))), locked, Step::Beat])]
    };
    // Threads start on the least busy socket, one after the other: the first on the first socket,
    // the second on the second, ...
    let teams = match is_apart {
        true => (0..64).map(|i| Team::new(1, body(i % 4))).collect(),
        false => (0..4).map(|lock| Team::new(16, body(lock))).collect(),
    };
    let mut program = Program::new("p", teams);
    program.spin_us = 5_000.0;
    (hardware, program)
}

/// The policy with windows of a fifth of a second.
fn shuffler(hardware: &Hardware) -> Option<Box<dyn Policy>> {
    let mut policy = Shuffler::new(&hardware.topology().unwrap());
    policy.window_ns = 200 * MS;
    Some(Box::new(policy))
}

const WINDOWS_MS: (u64, u64, u64) = (20, 810, 400);

#[test]
fn shuffler_brings_threads_of_one_lock_together_and_loses_if_it_mixes_them() {
    let (hardware, scattered) = four_locks(300.0, false);
    let plain = ran(&hardware, &scattered, None, unchanged, WINDOWS_MS);
    let with = ran(&hardware, &scattered, shuffler(&hardware), unchanged, WINDOWS_MS);
    assert!(with.beats > 1.08 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    assert!(with.lock < plain.lock, "{} and {} of the time on locks", plain.lock, with.lock);
    let is_release = |action: &Action| matches!(action, Action::SetCpus { cpus: None, .. });
    assert!(
        !with.tally.applied.iter().any(|d| is_release(&d.decision.action)),
        "a change that helps is kept"
    );

    let (hardware, apart) = four_locks(300.0, true);
    let plain = ran(&hardware, &apart, None, unchanged, WINDOWS_MS);
    let with = ran(&hardware, &apart, shuffler(&hardware), unchanged, WINDOWS_MS);
    assert!(with.beats > 0.99 * plain.beats, "{} and {} beats", plain.beats, with.beats);
    let inverted = ran(&hardware, &apart, shuffler(&hardware), mix_groups, WINDOWS_MS);
    assert!(inverted.beats < 0.95 * plain.beats, "{} and {} beats", plain.beats, inverted.beats);
}
