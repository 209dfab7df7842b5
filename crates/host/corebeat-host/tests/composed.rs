//! All policies together on the thesis' machine of 24 cores, with a program that changes its
//! behaviour twice: the number of changes by the policies is bounded, and the changes end.

use corebeat_host::{Loop, Periods};
use corebeat_machine::{
    Action, AppliedAction, Decision, Effect, Machine, Policy, ProgramSample, Restored, Snapshot,
    Topology,
};
use corebeat_policy::auto::{Auto, Knob};
use corebeat_policy::faithful::FaithFul;
use corebeat_policy::tranquilizer::Tranquilizer;
use corebeat_sim::{Hardware, Outcome, Program, Scenario, Scheduler, SimMachine, Step, Team, Work};
use std::collections::BTreeSet;

const SECOND: u64 = 1_000_000_000;
/// Times at which the behaviour of the program changes, in seconds: the program computes, then
/// takes locks, then waits for shared memory.
const CHANGES_S: [u64; 2] = [10, 40];
const END_S: u64 = 100;

fn hardware() -> Hardware {
    Hardware { packages: 4, cores: 6, scheduler: Scheduler::TimeShare, ..Hardware::default() }
}

/// A program of two threads for each core, which changes its phase after about these seconds.
fn program() -> Program {
    let work = |us: f64| Work { jitter: 0.5, ..Work::us(us) };
    let phase = |seconds: u64, step_us: f64, mut steps: Vec<Step>| {
        // Each thread gets half of the time of a CPU.
        let times = (seconds as f64 * 1e6 / 2.0 / step_us) as u64;
        steps.push(Step::Beat);
        Step::Repeat { times: Some(times), shared: false, steps }
    };
    let locked = |lock: u32| {
        [
            work(1_200.0).into(),
            Step::Lock { name: format!("lock {lock}"), steps: vec![work(800.0).into()] },
        ]
    };
    let memory = Work { memory: 0.5, shared: 0.8, ..work(10_000.0) };
    let steps = vec![
        phase(CHANGES_S[0], 10_000.0, vec![work(10_000.0).into()]),
        phase(CHANGES_S[1] - CHANGES_S[0], 12_000.0, (0..4).flat_map(locked).collect()),
        Step::Repeat { times: None, shared: false, steps: vec![memory.into(), Step::Beat] },
    ];
    Program { memory_mib: 16, ..Program::new("p", vec![Team::new(48, steps)]) }
}

/// An OpenMP program: a thread for each core, in regions of the same three kinds.
fn program_of_regions() -> Program {
    let work = |us: f64| Work { jitter: 0.5, ..Work::us(us) };
    let split = |memory| Work { split: true, memory, shared: 0.8, ..Work::us(240_000.0) };
    let region = |name: &str, steps: Vec<Step>| {
        vec![Step::Parallel { name: name.into(), steps }, Step::Beat]
    };
    let phase = |seconds: u64, region_us: f64, steps: Vec<Step>| {
        let times = (seconds as f64 * 1e6 / region_us) as u64;
        Step::Repeat { times: Some(times), shared: false, steps }
    };
    let lock = Step::Lock { name: "lock".into(), steps: vec![work(8.0).into()] };
    let times =
        Step::Repeat { times: Some(480), shared: true, steps: vec![work(80.0).into(), lock] };
    let steps = vec![
        phase(CHANGES_S[0], 10_000.0, region("computes", vec![split(0.0).into()])),
        phase(CHANGES_S[1] - CHANGES_S[0], 4_000.0, region("locks", vec![times])),
        Step::Repeat {
            times: None,
            shared: false,
            steps: region("waits", vec![split(0.5).into()]),
        },
    ];
    Program { memory_mib: 16, spin_us: 20.0, ..Program::new("p", vec![Team::new(24, steps)]) }
}

/// The applied actions, and the outcome of the program.
fn ran(
    program: Program,
    policies: impl FnOnce(&SimMachine) -> Vec<Box<dyn Policy>>,
) -> (Vec<AppliedAction>, Outcome) {
    let scenario =
        Scenario { duration_s: Some(END_S as f64), ..Scenario::new(hardware(), vec![program]) };
    let machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{e}"));
    let (clock, policies) = (machine.clock(), policies(&machine));
    let periods = Periods { observe_ns: SECOND / 2, sample_ns: SECOND / 2 };
    let mut control = Loop::new(machine, clock, policies, periods);
    let tally = control.run(|machine, _| machine.is_over()).unwrap_or_else(|e| panic!("{e}"));
    (tally.applied, control.machine().outcomes().remove(0))
}

/// Changes: all actions of one policy on one knob at one time are one change.
fn changes(applied: &[AppliedAction]) -> BTreeSet<(u64, Knob, &'static str)> {
    applied.iter().map(|d| (d.at_ns, Knob::of(&d.decision.action), d.decision.policy)).collect()
}

/// An error in the applied actions, if any: a knob that two policies change, a knob that is changed
/// too often, or a refused action.
fn conflict(applied: &[AppliedAction]) -> Option<String> {
    /// Within any ten seconds: a trial and its end, a second trial and its end, and the undoing
    /// after a phase change.
    const SOON_MAX: usize = 5;
    /// In all: four for each of three phases.
    const ALL_MAX: usize = 12;
    let changes_made = changes(applied);
    for (at_ns, knob, policy) in &changes_made {
        let same = || changes_made.iter().filter(|p| p.1 == *knob);
        if let Some((_, _, other)) = same().find(|p| p.2 != *policy) {
            return Some(format!("{policy} and {other} both change {knob:?}"));
        }
        let soon = same().filter(|p| (*at_ns..at_ns + 10 * SECOND).contains(&p.0)).count();
        let all = same().count();
        if soon > SOON_MAX || all > ALL_MAX {
            return Some(format!(
                "{policy} changes {knob:?} {soon} times from {at_ns} ns on, {all} in all"
            ));
        }
    }
    if let Some((at_ns, knob, policy)) = changes_made.iter().find(|p| p.0 > (END_S - 20) * SECOND) {
        return Some(format!("{policy} still changes {knob:?} at {at_ns} ns"));
    }
    applied.iter().find_map(|d| d.refusal().map(|why| format!("{}: {why}", d.decision.policy)))
}

/// Runs all policies together on a program, checks that they do not conflict, and returns their
/// actions.
fn together(program: &Program) -> Vec<AppliedAction> {
    let (applied, outcome) =
        ran(program.clone(), |machine| vec![Box::new(Auto::new(machine.topology(), None))]);
    let lines: Vec<String> = applied
        .iter()
        .map(|d| {
            format!(
                "{:.1} s {} {}: {}",
                d.at_ns as f64 / 1e9,
                d.decision.policy,
                d.decision.action,
                d.decision.why
            )
        })
        .collect();
    assert_eq!(conflict(&applied), None, "{lines:#?}");
    let (_, plain) = ran(program.clone(), |_| vec![]);
    println!("{:?}; {} beats, {} without", changes(&applied), outcome.beats, plain.beats);
    assert!(outcome.beats > plain.beats, "{} and {} beats: {lines:#?}", outcome.beats, plain.beats);
    applied
}

#[test]
fn policies_together_follow_phases_with_few_changes_and_then_stop() {
    together(&program());
}

#[test]
fn team_acts_together_with_the_other_policies() {
    let applied = together(&program_of_regions());
    let who = |knob| {
        applied.iter().find(|d| Knob::of(&d.decision.action) == knob).map(|d| d.decision.policy)
    };
    assert_eq!((who(Knob::Size), who(Knob::Memory)), (Some("team"), Some("tranquilizer")));
    assert_eq!(who(Knob::Place), None, "threads of a team of variable size are not pinned");
}

/// A machine that, like Linux, reports a part of a program's properties only after half a second.
struct Slow(SimMachine, fn(&mut ProgramSample));

impl Machine for Slow {
    type Error = corebeat_sim::Error;

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    fn observe(&mut self) -> Result<Snapshot, Self::Error> {
        let mut seen = self.0.observe()?;
        if seen.at_ns <= SECOND / 2 {
            seen.programs.iter_mut().for_each(self.1);
        }
        Ok(seen)
    }

    fn act(&mut self, action: &Action) -> Result<Effect, Self::Error> {
        self.0.act(action)
    }

    fn restore(&mut self) -> Restored {
        self.0.restore()
    }
}

/// The actions of all policies together on a program whose property is hidden at first.
fn together_with_late_values(
    program: Program,
    hides: fn(&mut ProgramSample),
    seconds: f64,
) -> Vec<AppliedAction> {
    let scenario =
        Scenario { duration_s: Some(seconds), ..Scenario::new(hardware(), vec![program]) };
    let machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{e}"));
    let policies: Vec<Box<dyn Policy>> = vec![Box::new(Auto::new(machine.topology(), None))];
    let clock = machine.clock();
    let periods = Periods { observe_ns: SECOND / 2, sample_ns: SECOND / 2 };
    let mut control = Loop::new(Slow(machine, hides), clock, policies, periods);
    control.run(|machine, _| machine.0.is_over()).unwrap_or_else(|e| panic!("{e}")).applied
}

#[test]
fn policy_whose_conditions_are_observed_late_still_gets_its_knob() {
    let memory = Work { memory: 0.5, shared: 0.8, jitter: 0.5, ..Work::us(10_000.0) };
    let steps = vec![Step::Repeat { times: None, shared: false, steps: vec![memory.into()] }];
    let program = Program { memory_mib: 16, ..Program::new("p", vec![Team::new(24, steps)]) };
    // Misses are counted once the switch rate of the threads is known.
    let misses = |p: &mut ProgramSample| {
        p.threads
            .iter_mut()
            .for_each(|t| (t.counters.cache_misses, t.counters.instructions) = (None, None));
    };
    let applied = together_with_late_values(program, misses, 8.0);
    let spreads =
        |d: &AppliedAction| matches!(d.decision.action, Action::SpreadPages { spread: true, .. });
    assert!(
        applied.iter().any(|d| d.decision.policy == "tranquilizer" && spreads(d)),
        "{applied:#?}"
    );
}

#[test]
fn threads_of_a_late_team_are_not_pinned() {
    // Before its first region a program has one thread, and no team.
    let team = |p: &mut ProgramSample| {
        p.team = None;
        p.threads.truncate(1);
    };
    let applied = together_with_late_values(program_of_regions(), team, 30.0);
    let is_pinning = |d: &AppliedAction| Knob::of(&d.decision.action) == Knob::Place;
    assert!(
        applied.iter().any(|d| d.decision.policy == "team") && !applied.iter().any(is_pinning),
        "{applied:#?}"
    );
}

#[test]
fn conflicting_policies_are_reported() {
    let pair = |machine: &SimMachine| -> Vec<Box<dyn Policy>> {
        let nodes = machine.topology().nodes().len() as u32;
        vec![Box::new(Tranquilizer::new(24, nodes)), Box::new(FaithFul::new(24))]
    };
    let (applied, _) = ran(program(), pair);
    assert!(
        conflict(&applied).is_some_and(|why| why.contains("both change Slice")),
        "{applied:#?}"
    );

    /// A policy that changes the slice after each snapshot.
    struct Restless(bool);
    impl Policy for Restless {
        fn name(&self) -> &'static str {
            "restless"
        }
        fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
            self.0 = !self.0;
            let set = |p: &corebeat_machine::ProgramSample| Decision {
                policy: "restless",
                action: corebeat_machine::Action::SetSlice {
                    target: corebeat_machine::Target::Program(p.id),
                    slice_us: self.0.then_some(10_000),
                },
                why: "so".into(),
            };
            seen.programs.iter().map(set).collect()
        }
    }
    let (applied, _) = ran(program(), |_| vec![Box::new(Restless(false))]);
    assert!(conflict(&applied).is_some_and(|why| why.contains("times from")));
}
