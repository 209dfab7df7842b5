//! Adapt, unchanged, on the thesis' machine of 64 cores. The policy gains with a model that was
//! trained on the machine. It gains less if the model predicts the opposite, or if the machine does
//! the opposite of an action. Pusukuri, *Runtime Support for Maximizing Performance on Multicore
//! Systems* (2012), chapter 6.

use corebeat_host::{Loop, Periods, Tally};
use corebeat_machine::{Action, Effect, Machine, NodeId, Policy, Restored, Snapshot, Topology};
use corebeat_policy::adapt::{Adapt, Formula, Model, Step as Node};
use corebeat_sim::{Hardware, Program, Scenario, Scheduler, SimMachine, Step, Team, Work};
use corebeat_train::{Simulated, identity};

const MS: u64 = 1_000_000;

fn hardware() -> Hardware {
    let far = |a: u32, b: u32| match (a == b, a / 2 == b / 2) {
        (true, _) => 10,
        (false, true) => 22,
        (false, false) => 16,
    };
    let distances = (0..4).map(|a| (0..4).map(|b| far(a, b)).collect()).collect();
    Hardware {
        packages: 4,
        cores: 16,
        distances,
        migrate_ns: 100_000,
        scheduler: Scheduler::TimeShare,
        ..Hardware::default()
    }
}

/// A program whose threads compute in rounds. `memory` is the share of accesses to shared memory.
/// With `unlocked_us`, each round also holds a lock after this much computation.
fn program(
    name: &str,
    threads: u32,
    memory: f64,
    unlocked_us: Option<f64>,
    rounds: Option<u64>,
) -> Program {
    let work = |us| Step::from(Work { jitter: 0.3, memory, shared: 0.8, ..Work::us(us) });
    let mut steps = vec![work(unlocked_us.unwrap_or(2_000.0)), Step::Beat];
    if unlocked_us.is_some() {
        steps.push(Step::Lock { name: "l".into(), steps: vec![work(20.0)] });
    }
    let steps = vec![Step::Repeat { times: rounds, shared: rounds.is_some(), steps }];
    let program = Program::new(name, vec![Team::new(threads, steps)]);
    Program { spin_us: 200.0, memory_mib: 16, ..program }
}

/// A program whose threads compute in rounds; half of the time are accesses to private memory of
/// each thread.
fn private_memory(name: &str, threads: u32) -> Program {
    let work = Work { jitter: 0.3, memory: 0.5, ..Work::us(2_000.0) };
    let steps = vec![Step::Repeat {
        times: Some(40_000),
        shared: true,
        steps: vec![work.into(), Step::Beat],
    }];
    Program { memory_mib: 16, ..Program::new(name, vec![Team::new(threads, steps)]) }
}

fn fluid(rounds: Option<u64>) -> Program {
    program("fluid", 49, 0.27, None, rounds)
}

fn swim(rounds: Option<u64>) -> Program {
    program("swim", 32, 0.22, None, rounds)
}

fn model() -> Model {
    let programs = vec![
        fluid(None),
        swim(None),
        program("cluster", 17, 0.8, Some(500.0), None),
        program("face", 32, 0.6, Some(600.0), None),
        program("locks", 24, 0.01, Some(300.0), None),
        program("search", 56, 0.01, None, None),
    ];
    let (machine, warm_ns, window_ns) = (hardware(), 30 * MS, 60 * MS);
    Simulated { machine, programs, warm_ns, window_ns, seed: 1 }
        .train()
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A model that predicts low shares where the given model predicts high ones.
fn invert(mut model: Model) -> Model {
    for fitted in [&mut model.paap, &mut model.pacc] {
        match &mut fitted.formula {
            Formula::Linear { intercept, coefficients } => {
                *intercept = 1.0 - *intercept;
                coefficients.iter_mut().for_each(|c| *c = -*c);
            }
            Formula::Tree { steps } => {
                for step in steps {
                    if let Node::Answer { value } = step {
                        *value = 1.0 - *value;
                    }
                }
            }
            Formula::Neighbours { samples, .. } => {
                for observed in samples.iter_mut().filter_map(|sample| sample.last_mut()) {
                    *observed = 1.0 - *observed;
                }
            }
        }
    }
    model
}

/// A machine that moves memory to one node when an action requests to spread the memory.
struct Contrary(SimMachine, bool);

impl Machine for Contrary {
    type Error = corebeat_sim::Error;

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    fn observe(&mut self) -> Result<Snapshot, Self::Error> {
        self.0.observe()
    }

    fn act(&mut self, action: &Action) -> Result<Effect, Self::Error> {
        let (Action::MovePages { program, .. } | Action::SpreadPages { program, .. }) = *action
        else {
            return self.0.act(action);
        };
        match self.1 {
            true => {
                let (from, to) = ((0..4).map(NodeId).collect(), vec![NodeId(0)]);
                self.0.act(&Action::MovePages { program, from, to })
            }
            false => self.0.act(action),
        }
    }

    fn restore(&mut self) -> Restored {
        self.0.restore()
    }
}

/// The mean turnaround time in seconds, and the applied actions.
fn ran(programs: &[Program], model: Option<Model>, is_contrary: bool) -> (f64, Tally) {
    let scenario = Scenario::new(hardware(), programs.to_vec());
    let machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{e}"));
    let policy = |model| -> Box<dyn Policy> {
        let name = identity(&hardware()).unwrap_or_else(|e| panic!("{e}")).name;
        let mut policy =
            Adapt::new(machine.topology(), &name, model).unwrap_or_else(|e| panic!("{e}"));
        // Five times as fast, because the programs are five times as short.
        (policy.solo_ns, policy.interval_ns, policy.trial_ns) = (20 * MS, 400 * MS, 200 * MS);
        Box::new(policy)
    };
    let policies = model.into_iter().map(policy).collect();
    let clock = machine.clock();
    let periods = Periods { observe_ns: 20 * MS, sample_ns: 20 * MS };
    let mut control = Loop::new(Contrary(machine, is_contrary), clock, policies, periods);
    let ended = control.run(|machine, _| machine.0.is_over());
    let tally = ended.unwrap_or_else(|e| panic!("{e}"));
    let took = |o: &corebeat_sim::Outcome| (o.end_ns.unwrap() - o.start_ns) as f64 / 1e9;
    let outcomes = control.machine().0.outcomes();
    (outcomes.iter().map(took).sum::<f64>() / outcomes.len() as f64, tally)
}

#[test]
fn adapt_gains_with_two_programs_and_less_with_inverted_models_or_actions() {
    let programs = [fluid(Some(40_000)), swim(Some(40_000))];
    let model = model();
    let plain = ran(&programs, None, false).0;
    let with = ran(&programs, Some(model.clone()), false).0;
    let inverted = ran(&programs, Some(invert(model.clone())), false).0;
    let contrary = ran(&programs, Some(model), true).0;
    println!(
        "plain {plain:.2} s, with {with:.2} s, inverted model {inverted:.2} s, inverted actions {contrary:.2} s"
    );
    assert!(with < 0.85 * plain, "{plain} and {with} s");
    assert!(inverted > 1.05 * with, "{with} and {inverted} s");
    assert!(contrary > 1.1 * with, "{with} and {contrary} s");
}

#[test]
fn adapt_follows_programs_that_start_and_end_with_few_changes() {
    let late = |program: Program, start_ms| Program { start_ms, ..program };
    let programs = [
        fluid(Some(60_000)),
        late(program("locks", 24, 0.01, Some(300.0), Some(60_000)), 300.0),
        late(swim(Some(20_000)), 600.0),
        late(program("search", 56, 0.01, None, Some(20_000)), 900.0),
    ];
    let (_, tally) = ran(&programs, Some(model()), false);
    // All programs have ended, so no program stayed frozen.
    assert!(tally.applied.iter().all(|action| action.outcome.is_ok()), "{:?}", tally.applied);
    let freezes = tally
        .applied
        .iter()
        .filter(|d| matches!(d.decision.action, Action::SetFrozen { .. }))
        .count();
    let others = tally.applied.len() - freezes;
    println!("{freezes} freezes and thaws, {others} other changes");
    // Three programs start and three end before the last one ends; each event changes at most five
    // settings of at most four programs.
    assert!(others <= 6 * 4 * 5 && freezes <= 6 * 8, "{freezes} and {others}");
}

#[test]
fn adapt_undoes_the_spreading_of_private_memory() {
    let programs = [private_memory("a", 32), private_memory("b", 32)];
    let plain = ran(&programs, None, false).0;
    let (with, tally) = ran(&programs, Some(model()), false);
    println!("plain {plain:.2} s, with {with:.2} s");
    assert!(with < 1.05 * plain, "{plain} and {with} s: {:?}", tally.applied);
    let spreads = |spread: bool| {
        let is_so = |action: &Action| match action {
            Action::SpreadPages { spread: is, .. } => *is == spread,
            Action::MovePages { .. } => spread,
            _ => false,
        };
        tally.applied.iter().filter(|d| is_so(&d.decision.action)).count()
    };
    assert!(
        spreads(true) >= 2 && spreads(false) >= 2,
        "spreading was tried and undone: {:?}",
        tally.applied
    );
}
