use super::choice::divisions;
use super::*;
use crate::ratio::sample;
use corebeat_machine::{Effect, Target};
use proptest::prelude::*;
use std::collections::BTreeSet;

const TENTH_NS: u64 = 100_000_000;

/// Returns a model of a machine with 8 cores: beside another program A keeps `beside` of its
/// user-mode share, and with its own cores `apart` of the cores per thread.
fn model(beside: f64, apart: f64) -> Model {
    let fitted = |predictors: &[Predictor], formula| Fitted {
        samples: 0,
        folds: 0,
        predictors: predictors.to_vec(),
        inflation: vec![],
        scores: vec![],
        formula,
    };
    let linear = |coefficients| Formula::Linear { intercept: 0.0, coefficients };
    Model {
        version: MODEL_VERSION,
        machine: Identity::new("test", &Topology::flat(8)),
        programs: vec![],
        paap: fitted(&[Predictor::UsrA], linear(vec![1.0 - beside])),
        pacc: fitted(&[Predictor::RctA], linear(vec![apart])),
    }
}

fn policy(beside: f64, apart: f64) -> Adapt {
    Adapt::new(&Topology::flat(8), "test", model(beside, apart)).unwrap()
}

const LOCKED: Usage = Usage {
    usr: Some(0.6),
    sys: Some(0.0),
    lat: Some(0.0),
    lock: Some(0.4),
    mpa: None,
    threads: 8,
};
const FREE: Usage = Usage { usr: Some(1.0), lock: Some(0.0), ..LOCKED };

/// Settings in effect.
#[derive(Debug, Clone, Default, PartialEq)]
struct Set {
    cpus: BTreeMap<u32, String>,
    fixed: BTreeSet<u32>,
    frozen: BTreeSet<u32>,
}

fn snapshot(at_ns: u64, programs: &[(u32, Usage)]) -> Snapshot {
    let of = |&(id, usage): &(u32, Usage)| {
        let mut p = sample::program();
        (p.id, p.name) = (ProgramId(id), format!("p{id}"));
        for _ in 0..usage.threads {
            let t = sample::thread(
                &mut p,
                usage.usr.unwrap_or(0.0),
                usage.lock.unwrap_or(0.0),
                usage.lat.unwrap_or(0.0),
            );
            t.span_ns = TENTH_NS;
        }
        p
    };
    let programs = programs.iter().map(of).collect();
    Snapshot { at_ns, span_ns: TENTH_NS, programs, ..Snapshot::default() }
}

/// Runs the policy on programs whose behaviour depends on the settings. Returns the settings after
/// each change, except for freezing.
fn run(
    policy: &mut Adapt,
    tenths: u64,
    world: impl Fn(u64, &Set) -> Vec<(u32, Usage)>,
) -> Vec<(u64, Set)> {
    let (mut set, mut changes) = (Set::default(), Vec::<(u64, Set)>::new());
    for at in 1..=tenths {
        let programs = world(at, &set);
        for decision in policy.decide(&snapshot(at * TENTH_NS, &programs)) {
            assert!(!decision.why.is_empty());
            match decision.action {
                Action::SetCpus { target: Target::Program(ProgramId(id)), cpus: Some(cpus) } => {
                    drop(set.cpus.insert(id, cpus.to_string()))
                }
                Action::SetCpus { target: Target::Program(ProgramId(id)), cpus: None } => {
                    drop(set.cpus.remove(&id))
                }
                Action::SetClass { target: Target::Program(ProgramId(id)), class } => {
                    let _ =
                        if class.is_some() { set.fixed.insert(id) } else { set.fixed.remove(&id) };
                }
                Action::SetFrozen { program: ProgramId(id), frozen } => {
                    let _ = if frozen { set.frozen.insert(id) } else { set.frozen.remove(&id) };
                }
                Action::SetSlice { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        set.cpus.retain(|id, _| programs.iter().any(|p| p.0 == *id));
        let all: BTreeSet<u32> = programs.iter().map(|p| p.0).collect();
        assert!(set.frozen.len() < all.len().max(1) || set.frozen.is_empty(), "a program runs");
        if set.frozen.is_empty() && changes.last().is_none_or(|last| last.1 != set) {
            changes.push((at, set.clone()));
        }
    }
    changes
}

fn sets(changes: &[(u64, Set)]) -> Vec<Vec<&str>> {
    changes.iter().map(|(_, set)| set.cpus.values().map(String::as_str).collect()).collect()
}

#[test]
fn core_sets_are_those_of_the_figure() {
    assert_eq!(reduced(64), [56, 48, 40, 32, 24, 16]);
    let of_64 = |division: &Vec<u32>| division.iter().map(|n| n * 8).collect::<Vec<u32>>();
    let two: Vec<Vec<u32>> = divisions(8, 2, 2).iter().map(of_64).collect();
    assert_eq!(two, [[32, 32], [24, 40], [40, 24], [16, 48], [48, 16]]);
    assert_eq!(divisions(8, 4, 2), [[2, 2, 2, 2]]);
    assert_eq!(divisions(8, 3, 2).len(), 6);
    assert_eq!((reduced(2), divisions(2, 2, 1)), (vec![1], vec![vec![1, 1]]));
}

#[test]
fn programs_get_the_configuration_with_the_better_prediction() {
    let both = |_, _: &Set| vec![(1, LOCKED), (2, LOCKED)];
    // Together 0.6 * 0.4, on half of the cores 0.5 * 0.9; and vice versa.
    let apart = run(&mut policy(0.6, 0.9), 15, both);
    assert_eq!(sets(&apart), [vec![], vec!["0-3", "4-7"], vec!["0-3", "4-7"]], "{apart:?}");
    assert_eq!(apart[2].1.fixed, BTreeSet::from([1, 2]));
    // A program starts, runs beside the other for 100 ms, and then each has a solo run.
    assert_eq!((apart[1].0, apart[2].0), (4, 14));
    let beside = run(&mut policy(0.1, 0.9), 15, both);
    assert_eq!(sets(&beside), [Vec::<&str>::new(), vec![]], "{beside:?}");
    assert_eq!(beside[1].1.fixed, BTreeSet::from([1, 2]), "the programs wait for locks");
}

#[test]
fn cpu_intensive_programs_are_left_alone() {
    let easy = run(&mut policy(0.9, 0.9), 200, |at, _| {
        let usr = if at % 40 < 20 { 1.0 } else { 0.8 };
        let few = Usage { threads: 4, ..FREE };
        vec![(1, Usage { usr: Some(usr), ..few }), (2, few)]
    });
    assert_eq!(easy, [(1, Set::default())]);
}

#[test]
fn programs_that_compute_with_more_threads_than_cores_get_sets_if_these_are_better() {
    for (apart, has_sets) in [(0.6, true), (0.4, false)] {
        let world = |_, set: &Set| {
            let usr = if set.cpus.is_empty() { 0.5 } else { apart };
            vec![(1, Usage { usr: Some(usr), ..FREE }), (2, Usage { usr: Some(usr), ..FREE })]
        };
        let changes = run(&mut policy(0.5, 0.9), 200, world);
        assert_eq!(!changes.last().unwrap().1.cpus.is_empty(), has_sets, "{changes:?}");
        assert!(changes.iter().any(|(_, set)| !set.cpus.is_empty()), "{changes:?}");
    }
}

#[test]
fn new_program_shares_all_cores_if_easy_and_gets_a_set_otherwise() {
    let come = |third: Usage| {
        run(&mut policy(0.6, 0.9), 40, move |at, _| match at {
            0..20 => vec![(1, LOCKED), (2, LOCKED)],
            _ => vec![(1, LOCKED), (2, LOCKED), (3, third)],
        })
    };
    let easy = come(FREE);
    assert_eq!(sets(&easy).last().unwrap(), &["0-3", "4-7"], "{easy:?}");
    assert!(!easy.last().unwrap().1.fixed.contains(&3), "{easy:?}");
    let hard = come(LOCKED);
    assert_eq!(hard.last().unwrap().1.cpus.len(), 3, "{hard:?}");
}

#[test]
fn cores_of_an_ended_program_go_to_the_others() {
    let mut p = policy(0.6, 0.9);
    let changes = run(&mut p, 60, |at, _| match at {
        0..5 => vec![(1, LOCKED)],
        5..25 => vec![(1, LOCKED), (2, LOCKED), (3, LOCKED)],
        25..45 => vec![(1, LOCKED), (3, LOCKED)],
        _ => vec![(3, LOCKED)],
    });
    let sets = sets(&changes);
    assert_eq!((sets.first().unwrap().len(), sets.last().unwrap().len()), (0, 0), "{changes:?}");
    assert!(sets.iter().any(|s| s.len() == 3), "{changes:?}");
    // Three programs had all 8 cores, and the remaining two have all of them.
    let two = sets.iter().find(|s| s.len() == 2).unwrap();
    assert!(two[0].starts_with("0-") && two[1].ends_with("-7"), "{changes:?}");
    assert_eq!(
        changes.last().unwrap().1,
        Set { fixed: [1, 2].into(), ..Set::default() },
        "{changes:?}"
    );
}

#[test]
fn program_that_ends_while_the_others_are_frozen_leaves_none_frozen() {
    for end in 3..9 {
        let mut p = policy(0.6, 0.9);
        let mut frozen = BTreeSet::new();
        for at in 1..=12 {
            let here: &[u32] = if at < end { &[1, 2, 3] } else { &[1, 3] };
            let programs: Vec<_> = here.iter().map(|id| (*id, LOCKED)).collect();
            for decision in p.decide(&snapshot(at * TENTH_NS, &programs)) {
                if let Action::SetFrozen { program, frozen: is } = decision.action {
                    let _ = if is { frozen.insert(program) } else { frozen.remove(&program) };
                }
            }
        }
        assert!(
            p.solo_run.is_none() && frozen.iter().all(|id| *id == ProgramId(2)),
            "{end}: {frozen:?}"
        );
    }
}

#[test]
fn trial_of_the_other_kind_ends_when_programs_change() {
    let both = vec![(1, LOCKED), (2, LOCKED)];
    let changes = run(&mut policy(0.6, 0.9), 60, |_, _| both.clone());
    let trial =
        changes.windows(2).find(|two| !two[0].1.cpus.is_empty() && two[1].1.cpus.is_empty());
    let [(_, before), (start, _)] = trial.expect("all programs share all cores, as a trial") else {
        panic!("windows have two elements")
    };
    for tenths in 1..9 {
        let changes = run(&mut policy(0.6, 0.9), 60, |at, _| match at < start + tenths {
            true => both.clone(),
            false => [&both[..], &[(3, FREE)]].concat(),
        });
        let after = changes.iter().find(|(at, _)| *at > *start).unwrap();
        assert_eq!(after.1.cpus, before.cpus, "{tenths}: {changes:?}");
        assert!(after.0 <= start + tenths + 2, "{tenths}: {changes:?}");
    }
}

#[test]
fn configuration_below_its_prediction_is_replaced() {
    // With core sets the prediction is 0.45 and the result 0.1; together the prediction is 0.24.
    let mut p = policy(0.6, 0.9);
    let changes = run(&mut p, 200, |_, set| {
        let usr = match (set.frozen.is_empty(), set.cpus.is_empty()) {
            (false, _) => 0.6,
            (true, true) => 0.24,
            (true, false) => 0.1,
        };
        vec![(1, Usage { usr: Some(usr), ..LOCKED }), (2, Usage { usr: Some(usr), ..LOCKED })]
    });
    assert!(changes.last().unwrap().1.cpus.is_empty(), "{changes:?}");
    assert!(changes.len() <= 5, "each configuration was tried once: {changes:?}");
}

#[test]
fn fixed_slices_that_do_not_help_are_undone_until_programs_change() {
    // In core sets; the programs share all cores for a while, as a trial.
    let fixed = |changes: &[(u64, Set)]| {
        let in_sets = changes.iter().filter(|(_, set)| !set.cpus.is_empty());
        let mut counts: Vec<usize> = in_sets.map(|(_, set)| set.fixed.len()).collect();
        counts.dedup();
        counts
    };
    for (with, expected) in [(0.5, vec![0, 2]), (0.4, vec![0, 2, 0])] {
        let world = |_, set: &Set| {
            let usr = if set.fixed.is_empty() { 0.45 } else { with };
            [1, 2].map(|id| (id, Usage { usr: Some(usr), ..LOCKED })).to_vec()
        };
        let changes = run(&mut policy(0.6, 0.9), 200, world);
        assert_eq!(fixed(&changes), expected, "{changes:?}");
    }
    // One program ends and another starts; then the settings are tried again.
    let changes = run(&mut policy(0.6, 0.9), 200, |at, set| {
        let usr = if set.fixed.is_empty() { 0.45 } else { 0.4 };
        [1, if at < 100 { 2 } else { 3 }]
            .map(|id| (id, Usage { usr: Some(usr), ..LOCKED }))
            .to_vec()
    });
    assert_eq!(fixed(&changes).iter().filter(|n| **n == 2).count(), 2, "{changes:?}");
}

#[test]
fn decreasing_share_causes_solo_runs_and_increasing_share_does_not() {
    for (then, has_solo_runs) in [(0.40, true), (0.54, false), (0.68, false)] {
        let (mut p, mut frozen) = (policy(0.1, 0.9), 0);
        for at in 1..=300 {
            let usage = |usr| Usage { usr: Some(usr), lock: Some(0.3), ..LOCKED };
            let programs = [(1, usage(if at < 150 { 0.54 } else { then })), (2, usage(0.54))];
            let decisions = p.decide(&snapshot(at * TENTH_NS, &programs));
            let is_look = |d: &Decision| matches!(d.action, Action::SetFrozen { frozen: true, .. });
            frozen += decisions.iter().filter(|d| at >= 100 && is_look(d)).count();
        }
        assert_eq!(frozen > 0, has_solo_runs, "to {then}: {frozen}");
    }
}

#[test]
fn phase_change_causes_solo_runs_and_a_new_configuration() {
    // The programs wait for locks for 10 s and then compute, as fma3d does (Figure 6.4).
    let mut p = policy(0.3, 0.9);
    let lock = |at: u64| if at < 100 { 0.6 } else { 0.0 };
    let changes = run(&mut p, 400, |at, set| {
        let together = if at < 100 { 0.7 } else { 1.0 };
        let apart = if set.cpus.contains_key(&1) { 0.9 } else { together };
        let first = Usage { usr: Some((1.0 - lock(at)) * apart), lock: Some(lock(at)), ..LOCKED };
        vec![(1, first), (2, LOCKED)]
    });
    let before = changes.iter().rfind(|(at, _)| *at < 100).unwrap();
    let after = changes.last().unwrap();
    assert!(!before.1.cpus.is_empty() && after.1.cpus.is_empty(), "{changes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn adapt_repeats_itself_and_its_changes_are_bounded(
        locks in proptest::collection::vec(0.0f64..0.5, 7),
        noise in proptest::collection::vec(-0.04f64..0.04, 97),
        beside in 0.0f64..1.0,
    ) {
        // Constant programs with noise are reconsidered after 1, 2, 4, ... intervals.
        let world = |at: u64, set: &Set| {
            let of = |id: u32| {
                let lock = locks[id as usize];
                let share = if set.cpus.contains_key(&id) { 0.6 } else { 0.8 };
                let noise = noise[(at + u64::from(id)) as usize % 97];
                let usr = ((1.0 - lock) * share + noise).clamp(0.0, 1.0);
                (id, Usage { usr: Some(usr.min(1.0 - lock)), lock: Some(lock), ..LOCKED })
            };
            (0..3).map(of).collect()
        };
        let changes = run(&mut policy(beside, 0.9), 2_000, world);
        prop_assert_eq!(&changes, &run(&mut policy(beside, 0.9), 2_000, world));
        prop_assert!(changes.len() <= 16, "{} changes", changes.len());
    }
}

/// Runs the policy on a machine that refuses some actions. Returns the requests of those actions.
fn run_refusing(refuses: impl Fn(&Action) -> bool) -> (Adapt, usize) {
    let mut policy = policy(0.6, 0.9);
    let mut requests = 0;
    for at in 1..=600 {
        for decision in policy.decide(&snapshot(at * TENTH_NS, &[(1, LOCKED), (2, LOCKED)])) {
            let is_refused = refuses(&decision.action);
            requests += usize::from(is_refused);
            let outcome =
                if is_refused { Err("not permitted".into()) } else { Ok(Effect { changed: 8 }) };
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
        }
    }
    (policy, requests)
}

#[test]
fn refused_settings_are_not_requested_again() {
    let (policy, requests) =
        run_refusing(|action| matches!(action, Action::SetCpus { cpus: Some(_), .. }));
    assert_eq!(requests, 2, "one request for each program");
    assert!(policy.sets.is_empty() && policy.programs.values().all(|p| p.cpus.is_none()));
    let (policy, requests) =
        run_refusing(|action| matches!(action, Action::SetFrozen { frozen: true, .. }));
    assert_eq!(requests, 1, "solo runs end");
    assert!(policy.solo_run.is_none() && policy.programs.values().all(|p| !p.frozen));
    let (_, requests) =
        run_refusing(|action| matches!(action, Action::SetSlice { slice_us: Some(_), .. }));
    assert_eq!(requests, 2, "one request for each program");
}

#[test]
fn slices_that_change_nothing_are_requested_once() {
    let mut policy = policy(0.6, 0.9);
    let mut requests = Vec::new();
    for at in 1..=1200 {
        // Without locks, a program needs no slices. Each change of the programs starts a new trial.
        let (usage, third) = if at / 200 % 2 == 0 { (LOCKED, 3) } else { (FREE, 4) };
        let programs = [(1, LOCKED), (2, usage), (third, FREE)];
        for decision in policy.decide(&snapshot(at * TENTH_NS, &programs)) {
            if let Action::SetSlice { slice_us: Some(_), .. } = decision.action {
                requests.extend(decision.action.program());
            }
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome: Ok(Effect::default()) });
        }
    }
    // The other programs end.
    requests.retain(|id| [1, 2].contains(&id.0));
    assert_eq!(requests, [ProgramId(1), ProgramId(2)]);
}
