//! The papers' machines, and runs of programs on them.

use corebeat_host::{Loop, Periods};
use corebeat_machine::{Clock, Policy};
use corebeat_sim::{Hardware, Outcome, Program, Scenario, Scheduler, SimClock, SimMachine, Step};

pub(crate) const MS: u64 = 1_000_000;

/// Four packages in a ring; packages 0 and 1, and 2 and 3, are the farthest from each other.
/// Pusukuri 2012, Figure 4.2 (a); the cost of a migration is from section 3.1.1.
pub(crate) fn ring(cores: u32) -> Hardware {
    let distance = |a: u32, b: u32| match (a == b, a / 2 == b / 2) {
        (true, _) => 10,
        (_, true) => 22,
        _ => 16,
    };
    let distances = (0..4).map(|a| (0..4).map(|b| distance(a, b)).collect()).collect();
    Hardware { packages: 4, cores, distances, migrate_ns: 100_000, ..Hardware::default() }
}

/// The thesis' machine of 24 cores (section 3.1), under Solaris' time sharing.
pub(crate) fn solaris_24() -> Hardware {
    Hardware { scheduler: Scheduler::TimeShare, ..ring(6) }
}

/// Repeats steps without end.
pub(crate) fn forever(steps: Vec<Step>) -> Vec<Step> {
    vec![Step::Repeat { times: None, shared: false, steps }]
}

/// Creates a machine with these programs, at time 0. `duration_s` is required for programs that do
/// not end.
pub(crate) fn simulate(
    machine: &Hardware,
    programs: Vec<Program>,
    duration_s: Option<f64>,
) -> SimMachine {
    simulate_with_seed(machine, programs, duration_s, 1)
}

/// Creates the same with another seed.
pub(crate) fn simulate_with_seed(
    machine: &Hardware,
    programs: Vec<Program>,
    duration_s: Option<f64>,
    seed: u64,
) -> SimMachine {
    let scenario = Scenario { duration_s, ..Scenario::new(machine.clone(), programs) };
    SimMachine::new(&scenario, seed).unwrap_or_else(|e| panic!("a built-in scenario: {e}"))
}

/// Returns the heartbeats per second of the first program between two times.
pub(crate) fn rate(machine: &mut SimMachine, from_ns: u64, to_ns: u64) -> f64 {
    machine.clock().wait_until(from_ns);
    let before = machine.outcomes()[0].beats;
    machine.clock().wait_until(to_ns);
    (machine.outcomes()[0].beats - before) as f64 / ((to_ns - from_ns) as f64 / 1e9)
}

/// Returns a control loop with these policies and this period.
pub(crate) fn control(
    machine: SimMachine,
    policies: Vec<Box<dyn Policy>>,
    period_ns: u64,
) -> Loop<SimMachine, SimClock> {
    let clock = machine.clock();
    let periods = Periods { observe_ns: period_ns, sample_ns: period_ns };
    Loop::new(machine, clock, policies, periods)
}

/// Returns a control loop that has run up to a time, with a period of 20 ms.
pub(crate) fn controlled_until(
    machine: SimMachine,
    policy: Option<Box<dyn Policy>>,
    until_ns: u64,
) -> Loop<SimMachine, SimClock> {
    let mut control = control(machine, policy.into_iter().collect(), 20 * MS);
    control
        .run(|_, clock| clock.now_ns() >= until_ns)
        .unwrap_or_else(|e| panic!("the simulator rejects an action: {e}"));
    control
}

/// Runs programs to their ends under a control loop, and returns their results.
pub(crate) fn ended(
    machine: SimMachine,
    policies: Vec<Box<dyn Policy>>,
    period_ns: u64,
) -> Vec<Outcome> {
    let mut control = control(machine, policies, period_ns);
    control
        .run(|machine, _| machine.is_over())
        .unwrap_or_else(|e| panic!("the simulator rejects an action: {e}"));
    control.machine().outcomes()
}

/// Returns the run time of a program in seconds.
pub(crate) fn wall_s(outcome: &Outcome) -> f64 {
    let end_ns = outcome.end_ns.unwrap_or_else(|| panic!("{} has not ended", outcome.name));
    (end_ns - outcome.start_ns) as f64 / 1e9
}
