use super::*;
use crate::ratio::sample;
use corebeat_machine::{Action, Class, Effect, Target};
use std::sync::{Arc, Mutex};

const SECOND: u64 = 1_000_000_000;

/// Changes a setting on every call, back and forth, and records the outcomes.
struct Restless {
    name: &'static str,
    change: fn(Target, bool) -> Action,
    is_on: bool,
    outcomes: Arc<Mutex<Vec<&'static str>>>,
}

impl Policy for Restless {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        self.decide_for(snapshot, &|_| true)
    }

    fn outcome(&mut self, _: &AppliedAction) {
        self.outcomes.lock().unwrap().push(self.name);
    }
}

impl ProgramPolicy for Restless {
    fn decide_for(
        &mut self,
        snapshot: &Snapshot,
        is_mine: &dyn Fn(ProgramId) -> bool,
    ) -> Vec<Decision> {
        self.is_on = !self.is_on;
        let change = |p: &ProgramSample| Decision {
            policy: self.name,
            action: (self.change)(Target::Program(p.id), self.is_on),
            why: "test".into(),
        };
        snapshot.programs.iter().filter(|p| is_mine(p.id)).map(change).collect()
    }
}

fn slice(target: Target, on: bool) -> Action {
    Action::SetSlice { target, slice_us: on.then_some(1_000) }
}

fn class(target: Target, on: bool) -> Action {
    Action::SetClass { target, class: on.then_some(Class::Batch) }
}

fn cpus(target: Target, on: bool) -> Action {
    Action::SetCpus { target, cpus: on.then(|| "0".parse().unwrap()) }
}

fn member(
    name: &'static str,
    change: fn(Target, bool) -> Action,
    knobs: &'static [Knob],
    quiet_s: u64,
) -> Member {
    let policy = Box::new(Restless { name, change, is_on: false, outcomes: Arc::default() });
    Member { policy, knobs, quiet_ns: quiet_s * SECOND, needs: |_, _| true, lacks: "test" }
}

fn snapshot(at_s: u64) -> Snapshot {
    let mut program = sample::program();
    sample::thread(&mut program, 1.0, 0.0, 0.0);
    Snapshot {
        at_ns: at_s * SECOND,
        span_ns: SECOND,
        programs: vec![program],
        ..Snapshot::default()
    }
}

/// Names of the policies that act in each second.
fn acting(policy: &mut dyn Policy, seconds: std::ops::Range<u64>) -> Vec<Vec<&'static str>> {
    let mut names = |at_s| policy.decide(&snapshot(at_s)).iter().map(|d| d.policy).collect();
    seconds.map(&mut names).collect()
}

#[test]
fn knob_has_one_owner_and_late_members_stay_out() {
    let pair = || {
        vec![member("first", slice, &[Knob::Slice], 0), member("second", class, &[Knob::Slice], 0)]
    };
    assert_eq!(acting(&mut Auto::of(pair()), 1..4), [["first"]; 3]);
    // A member claims all its knobs or none.
    let greedy = member("greedy", cpus, &[Knob::Slice, Knob::Place], 0);
    let mut four = Auto::of(
        pair().into_iter().chain([greedy, member("place", cpus, &[Knob::Place], 0)]).collect(),
    );
    assert_eq!(acting(&mut four, 1..3), [["first", "place"]; 2]);
}

#[test]
fn member_that_acted_is_alone_until_it_has_been_quiet() {
    let mut both = Auto::of(vec![
        member("first", slice, &[Knob::Slice], 0),
        member("second", cpus, &[Knob::Place], 3),
    ]);
    let names = acting(&mut both, 1..6);
    assert_eq!(names[0], ["first", "second"], "the first member needs no quiet time");
    assert_eq!(names[1..], [["second"]; 4], "the second member acts all the time and stays alone");
}

#[test]
fn member_without_its_needs_leaves_its_knob_to_others() {
    let pair = |needs| {
        let needy = Member { needs, ..member("needy", slice, &[Knob::Slice], 0) };
        Auto::of(vec![needy, member("other", slice, &[Knob::Slice], 0)])
    };
    let none: Vec<&str> = vec![];
    let names = acting(&mut pair(counts_misses), 1..7);
    let expected = [&none[..], &[], &[], &["other"], &["other"], &["other"]];
    assert_eq!(names, expected, "cache misses are not counted");
    // A value may be observed late; until then the knob is reserved.
    let names = acting(&mut pair(|_, snapshot| snapshot.at_ns >= 3 * SECOND), 1..7);
    assert_eq!(names, [&none[..], &[], &["needy"], &["needy"], &["needy"], &["needy"]]);
    // A change of a knob that the member does not own is dropped.
    let mut stray = Auto::of(vec![member("stray", slice, &[Knob::Place], 0)]);
    assert!(acting(&mut stray, 1..2)[0].is_empty());
}

#[test]
fn outcome_reaches_the_member_that_decided() {
    let outcomes: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let named = |name, change, knobs| Member {
        policy: Box::new(Restless { name, change, is_on: false, outcomes: Arc::clone(&outcomes) }),
        ..member(name, change, knobs, 0)
    };
    let mut auto = Auto::of(vec![
        named("first", slice, &[Knob::Slice]),
        named("second", cpus, &[Knob::Place]),
    ]);
    let decisions = auto.decide(&snapshot(1));
    for decision in decisions.into_iter().rev() {
        auto.outcome(&AppliedAction { at_ns: 0, decision, outcome: Ok(Effect { changed: 1 }) });
    }
    assert_eq!(*outcomes.lock().unwrap(), ["second", "first"]);
}

#[test]
fn machine_with_one_node_and_cache_excludes_tranquilizer_and_shuffler() {
    let auto = Auto::new(&Topology::flat(2), None);
    assert_eq!(auto.members().collect::<Vec<_>>(), ["team", "faithful"]);
}

#[test]
fn inactions_have_a_reason_for_every_policy_that_does_not_act() {
    let mut auto = Auto::new(&Topology::flat(2), None);
    let program = sample::program().id;
    assert!(auto.inactions(program).iter().take(2).all(|inaction| inaction.why == UNDECIDED));
    for at in 1..=9 {
        auto.decide(&snapshot(at));
    }
    let inactions = auto.inactions(program);
    let policies: Vec<&str> = inactions.iter().map(|inaction| inaction.policy).collect();
    assert_eq!(policies, ["team", "faithful", "tranquilizer", "shuffler"]);
    assert_eq!(inactions[0].why, NO_REGIONS);
    assert_eq!(inactions[1].why, "the program has one thread");
    let mut auto = Auto::of(vec![
        member("first", slice, &[Knob::Slice], 1),
        member("second", class, &[Knob::Slice], 1),
    ]);
    auto.decide(&snapshot(1));
    let expected =
        [Inaction { policy: "second", why: "policy first adjusts the same settings".into() }];
    assert_eq!(auto.inactions(program), expected);
}

#[test]
fn policies_whose_knobs_are_excluded_are_left_out_with_a_reason() {
    let topology = Topology::flat(4);
    let members = |knobs: &[Knob]| Auto::new(&topology, None).only(knobs).members().count();
    assert_eq!((members(&Knob::ALL), members(&[Knob::Slice]), members(&[])), (2, 1, 0));
    let auto = Auto::new(&topology, None).only(&[Knob::Size]);
    let reasons = auto.inactions(ProgramId(0));
    let faithful = reasons.iter().find(|inaction| inaction.policy == "faithful").unwrap();
    assert_eq!(faithful.why, EXCLUDED);
}
