//! Adapt, unchanged, on the thesis' machine of 64 cores: it gains with a model that was trained
//! there, and less where the model says the opposite or the machine does. Pusukuri, *Runtime
//! Support for Maximizing Performance on Multicore Systems* (2012), chapter 6.

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

/// Rounds of computing, of which a part is memory that all share, and of a lock, where it says how
/// much is computed between.
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

/// Rounds of computing, of which half is memory that each thread has for itself.
fn selfish(name: &str, threads: u32) -> Program {
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

/// It foresees little where the other foresees much.
fn upside_down(mut model: Model) -> Model {
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

/// A machine that brings memory together where it is asked to spread it.
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

/// The mean turnaround time in seconds, and what was done.
fn ran(programs: &[Program], model: Option<Model>, is_contrary: bool) -> (f64, Tally) {
    let scenario = Scenario::new(hardware(), programs.to_vec());
    let machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{e}"));
    let policy = |model| -> Box<dyn Policy> {
        let name = identity(&hardware()).unwrap_or_else(|e| panic!("{e}")).name;
        let mut policy =
            Adapt::new(machine.topology(), &name, model).unwrap_or_else(|e| panic!("{e}"));
        // Five times as fast, as the programs are.
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
fn adapt_gains_beside_others_and_loses_if_its_models_or_its_hands_are_turned_round() {
    let programs = [fluid(Some(40_000)), swim(Some(40_000))];
    let model = model();
    let plain = ran(&programs, None, false).0;
    let with = ran(&programs, Some(model.clone()), false).0;
    let inverted = ran(&programs, Some(upside_down(model.clone())), false).0;
    let contrary = ran(&programs, Some(model), true).0;
    println!(
        "plain {plain:.2} s, with {with:.2} s, models turned round {inverted:.2} s, hands {contrary:.2} s"
    );
    assert!(with < 0.85 * plain, "{plain} and {with} s");
    assert!(inverted > 1.05 * with, "{with} and {inverted} s");
    assert!(contrary > 1.1 * with, "{with} and {contrary} s");
}

#[test]
fn adapt_follows_programs_that_come_and_go_with_few_changes() {
    let late = |program: Program, start_ms| Program { start_ms, ..program };
    let programs = [
        fluid(Some(60_000)),
        late(program("locks", 24, 0.01, Some(300.0), Some(60_000)), 300.0),
        late(swim(Some(20_000)), 600.0),
        late(program("search", 56, 0.01, None, Some(20_000)), 900.0),
    ];
    let (_, tally) = ran(&programs, Some(model()), false);
    // All have ended, so none stayed frozen.
    assert!(tally.applied.iter().all(|action| action.outcome.is_ok()), "{:?}", tally.applied);
    let looks = tally
        .applied
        .iter()
        .filter(|d| matches!(d.decision.action, Action::SetFrozen { .. }))
        .count();
    let others = tally.applied.len() - looks;
    println!("{looks} freezes and thaws, {others} other changes");
    // Three programs come and three go before the last; each changes at most five things of at most
    // four programs.
    assert!(others <= 6 * 4 * 5 && looks <= 6 * 8, "{looks} and {others}");
}

#[test]
fn adapt_takes_memory_back_that_each_thread_has_for_itself() {
    let programs = [selfish("a", 32), selfish("b", 32)];
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
        "it was tried, and taken back: {:?}",
        tally.applied
    );
}
