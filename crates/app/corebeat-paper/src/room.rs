//! The papers' machines, and how programs are run on them.

use corebeat_loop::{Loop, Periods};
use corebeat_machine::{Clock, Policy};
use corebeat_sim::{Hardware, Outcome, Program, Scenario, Scheduler, SimMachine, Step};

pub(crate) const MS: u64 = 1_000_000;

/// Four packages in a ring: 0 and 1, and 2 and 3, are the farthest from each other. Pusukuri 2012, Figure 4.2 (a); what moving a
/// thread takes is from section 3.1.1.
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

/// Does this for ever.
pub(crate) fn forever(steps: Vec<Step>) -> Vec<Step> {
    vec![Step::Repeat { times: None, shared: false, steps }]
}

/// A machine at its first moment. `duration_s` ends it where programs do not end.
pub(crate) fn room(machine: &Hardware, programs: Vec<Program>, duration_s: Option<f64>) -> SimMachine {
    seeded(machine, programs, duration_s, 1)
}

/// The same with another seed.
pub(crate) fn seeded(
    machine: &Hardware,
    programs: Vec<Program>,
    duration_s: Option<f64>,
    seed: u64,
) -> SimMachine {
    let scenario = Scenario { duration_s, ..Scenario::new(machine.clone(), programs) };
    SimMachine::new(&scenario, seed).unwrap_or_else(|e| panic!("a scenario that is built in: {e}"))
}

/// Beats a second of the first program, between two moments.
pub(crate) fn rate(machine: &mut SimMachine, from_ns: u64, to_ns: u64) -> f64 {
    machine.clock().wait_until(from_ns);
    let before = machine.outcomes()[0].beats;
    machine.clock().wait_until(to_ns);
    (machine.outcomes()[0].beats - before) as f64 / ((to_ns - from_ns) as f64 / 1e9)
}

/// What became of programs that are let run to their ends, with policies that look so often.
pub(crate) fn ended(machine: SimMachine, policies: Vec<Box<dyn Policy>>, period_ns: u64) -> Vec<Outcome> {
    let clock = machine.clock();
    let mut circle =
        Loop::new(machine, clock, policies, Periods { observe_ns: period_ns, glance_ns: period_ns });
    circle.run(|machine, _| machine.is_over()).unwrap_or_else(|e| panic!("the simulator refuses: {e}"));
    circle.machine().outcomes()
}

/// How long it took, in seconds.
pub(crate) fn wall_s(outcome: &Outcome) -> f64 {
    let end_ns = outcome.end_ns.unwrap_or_else(|| panic!("{} has not ended", outcome.name));
    (end_ns - outcome.start_ns) as f64 / 1e9
}
