use super::*;
use crate::ratio::sample;
use corebeat_machine::{Action, Class, Target};
use proptest::prelude::*;

/// Behaviour of a program in a tenth of a second.
#[derive(Debug, Clone, Copy)]
struct Tenth {
    /// Cache misses per 1000 instructions.
    misses: u64,
    /// Preemptions of each thread.
    preempted: u64,
    /// Millions of instructions.
    instructions: u64,
    others_busy: f64,
}

const CALM: Tenth = Tenth { misses: 0, preempted: 0, instructions: 400, others_busy: 0.0 };

/// Settings: the slice, whether the batch class is set, whether memory is spread.
type Set = (Option<u32>, bool, bool);

const PLAIN: Set = (None, false, false);
const FIXED: Set = (Some(20_000), true, false);
const FIXED_LONG: Set = (Some(100_000), true, false);
const SPREAD: Set = (Some(100_000), true, true);

fn snapshot(at: u64, tenth: Tenth) -> Snapshot {
    const SPAN_NS: u64 = 100_000_000;
    let mut p = sample::program();
    for _ in 0..4 {
        let t = sample::thread(&mut p, 0.9, 0.05, 0.05);
        t.span_ns = SPAN_NS;
        t.shares.spin = Some(0.0);
        t.counters.involuntary_switches = Some(tenth.preempted);
        t.counters.instructions = Some(tenth.instructions * 1_000_000 / 4);
        t.counters.cache_misses = Some(tenth.misses * tenth.instructions * 1_000 / 4);
    }
    let mut snapshot = Snapshot {
        at_ns: at * SPAN_NS,
        span_ns: SPAN_NS,
        programs: vec![p],
        ..Snapshot::default()
    };
    snapshot.host.others_busy = Some(tenth.others_busy);
    snapshot
}

/// Runs the policy on a program whose behaviour depends on its settings. Returns each change and
/// its time in tenths of a second. `actions` counts the decisions.
fn run_counting(
    policy: &mut Tranquilizer,
    tenths: u64,
    program: impl Fn(u64, Set) -> Tenth,
    actions: &mut usize,
) -> Vec<(u64, Set)> {
    let (mut changes, mut set) = (Vec::new(), PLAIN);
    for at in 1..=tenths {
        let before = set;
        for decision in policy.decide(&snapshot(at, program(at, set))) {
            assert!(!decision.why.is_empty());
            *actions += 1;
            match decision.action {
                Action::SetSlice { target: Target::Program(_), slice_us } => set.0 = slice_us,
                Action::SetClass { target: Target::Program(_), class } => {
                    set.1 = class == Some(Class::Batch);
                }
                Action::SpreadPages { spread, .. } => set.2 = spread,
                other => panic!("{other:?}"),
            }
        }
        if set != before {
            changes.push((at, set));
        }
    }
    changes
}

fn run(
    policy: &mut Tranquilizer,
    tenths: u64,
    program: impl Fn(u64, Set) -> Tenth,
) -> Vec<(u64, Set)> {
    run_counting(policy, tenths, program, &mut 0)
}

fn policy() -> Tranquilizer {
    Tranquilizer::new(4, 2)
}

/// Alternates around a mean.
fn about(at: u64, mean: u64, deviation: u64) -> u64 {
    if at.is_multiple_of(2) { mean + deviation } else { mean - deviation }
}

#[test]
fn rate_is_a_mean_and_a_deviation() {
    let rate = Rate::of([1.0, 3.0, 1.0, 3.0, 2.0].into_iter()).unwrap();
    assert!((rate.mean - 2.0).abs() < 1e-12 && (rate.deviation - 0.8f64.sqrt()).abs() < 1e-12);
    assert_eq!(Rate::of([1.0; KNOWN_MIN - 1].into_iter()), None);
    let calmer = Rate { mean: 1.0, deviation: 1.0 };
    assert!(!calmer.is_calmer_than(&rate), "it varies more");
    assert!(!rate.is_calmer_than(&rate));
}

#[test]
fn preempted_program_gets_fixed_slices_and_keeps_them_where_they_reduce_variation() {
    let program = |at, set: Set| match set.1 {
        true => Tenth { preempted: about(at, 3, 1), ..CALM },
        false => Tenth { preempted: about(at, 20, 8), ..CALM },
    };
    // Kept at 25. Checks at 50, 100 and 200 remove the settings for a profile: half a second and
    // a second.
    let expected = [(10, FIXED), (50, PLAIN), (65, FIXED), (150, PLAIN), (165, FIXED)];
    assert_eq!(run(&mut policy(), 200, program), expected);
}

#[test]
fn fixed_slices_that_do_not_reduce_variation_are_undone() {
    let program = |at, _| Tenth { preempted: about(at, 20, 8), ..CALM };
    assert_eq!(run(&mut policy(), 50, program)[..2], [(10, FIXED), (25, PLAIN)]);
    // A lower mean with the same deviation is not better (Figure 3.7 requires both).
    let program =
        |at, set: Set| Tenth { preempted: about(at, if set.1 { 18 } else { 20 }, 8), ..CALM };
    assert_eq!(run(&mut policy(), 49, program), [(10, FIXED), (25, PLAIN)]);
}

#[test]
fn progress_overrides_variation() {
    let with = |preempted, instructions| {
        move |at, set: Set| match set.1 {
            true => Tenth { preempted: about(at, preempted, 1), instructions, ..CALM },
            false => Tenth { preempted: about(at, 20, 8), ..CALM },
        }
    };
    assert_eq!(run(&mut policy(), 49, with(3, 380)), [(10, FIXED), (25, PLAIN)], "calm and slow");
    assert_eq!(run(&mut policy(), 49, with(30, 420)), [(10, FIXED)], "wild and fast");
}

#[test]
fn memory_of_a_program_with_many_misses_is_spread_and_stays_spread() {
    let program = |at, set: Set| match set.2 {
        true => Tenth { misses: about(at, 3, 1), ..CALM },
        false => Tenth { misses: about(at, 10, 4), ..CALM },
    };
    assert_eq!(run(&mut policy(), 600, program), [(10, SPREAD)]);
    let one_node = run(&mut Tranquilizer::new(4, 1), 600, program);
    assert_eq!(one_node, [], "one node, and no preemptions");
}

#[test]
fn spreading_that_does_not_help_leaves_fixed_slices_if_those_help() {
    let program = |at, set: Set| Tenth {
        misses: about(at, 10, 4),
        preempted: about(at, if set.1 { 3 } else { 20 }, if set.1 { 1 } else { 8 }),
        ..CALM
    };
    assert_eq!(run(&mut policy(), 49, program), [(10, SPREAD), (25, FIXED_LONG)]);
    let neither = |at, _| Tenth { misses: about(at, 10, 4), preempted: about(at, 20, 8), ..CALM };
    let changes = run(&mut policy(), 49, neither);
    assert_eq!(changes, [(10, SPREAD), (25, FIXED_LONG), (40, PLAIN)]);
}

#[test]
fn end_of_a_phase_with_many_misses_undoes_spreading() {
    let program = |at, set: Set| match at {
        0..=200 => Tenth { misses: if set.2 { 3 } else { about(at, 10, 4) }, ..CALM },
        _ => CALM,
    };
    assert_eq!(run(&mut policy(), 400, program), [(10, SPREAD), (250, PLAIN)]);
}

#[test]
fn calm_program_is_left_alone() {
    assert_eq!(run(&mut policy(), 1000, |_, _| CALM), []);
    let crowded = |at, _| Tenth { preempted: about(at, 20, 8), others_busy: 1.0, ..CALM };
    assert_eq!(run(&mut policy(), 1000, crowded), []);
}

#[test]
fn nothing_is_tried_beside_observed_programs() {
    let often = |at| Tenth { preempted: about(at, 20, 8), ..CALM };
    assert_ne!(run(&mut policy(), 100, |at, _| often(at)), []);
    let mut policy = policy();
    for at in 1..=100 {
        let mut sample = snapshot(at, often(at));
        sample.programs.push(ProgramSample { id: ProgramId(9), ..sample.programs[0].clone() });
        assert!(policy.decide(&sample).is_empty(), "{at}");
    }
}

#[test]
fn fixed_slices_end_when_other_programs_start() {
    let program = |at, set: Set| Tenth {
        preempted: if set.1 { 1 } else { about(at, 20, 8) },
        others_busy: if at < 30 { 0.0 } else { 2.0 },
        ..CALM
    };
    assert_eq!(run(&mut policy(), 400, program), [(10, FIXED), (50, PLAIN)]);
}

#[test]
fn unknown_rates_do_not_cause_spreading() {
    let mut policy = policy();
    for at in 1..=100 {
        let mut sample = snapshot(at, CALM);
        for t in &mut sample.programs[0].threads {
            t.counters.cache_misses = None;
        }
        assert_eq!(policy.decide(&sample), []);
    }
    // If the host is counted as a whole, its rate stands for the program.
    for at in 101..=150 {
        let mut sample = snapshot(at, CALM);
        sample.host.counters.cache_misses = Some(5_000);
        sample.host.counters.instructions = Some(1_000_000);
        for t in &mut sample.programs[0].threads {
            t.counters.cache_misses = None;
        }
        let decisions = policy.decide(&sample);
        if !decisions.is_empty() {
            return;
        }
    }
    panic!("memory was never spread");
}

#[test]
fn snapshots_are_combined_and_ended_programs_are_forgotten() {
    let mut policy = policy();
    let first = (1..=200u64).find(|at| {
        let mut sample = snapshot(*at, Tenth { preempted: about(*at / 4, 20, 8), ..CALM });
        sample.span_ns /= 4;
        !policy.decide(&sample).is_empty()
    });
    assert_eq!(first, Some(40));
    policy.decide(&Snapshot::default());
    assert!(policy.programs.is_empty());
}

fn any_tenth() -> impl Strategy<Value = Tenth> {
    (0u64..4, 0u64..40, 1u64..800, 0.0f64..0.3).prop_map(
        |(misses, preempted, instructions, others_busy)| Tenth {
            misses,
            preempted,
            instructions,
            others_busy,
        },
    )
}

proptest! {
    #[test]
    fn tranquilizer_repeats_itself(tenths in proptest::collection::vec(any_tenth(), 300)) {
        let program = |at: u64, _| tenths[at as usize - 1];
        prop_assert_eq!(run(&mut policy(), 300, program), run(&mut policy(), 300, program));
    }

    // A program without phases is checked after 1, 2, 4, ... passes, whatever its reaction.
    #[test]
    fn changes_without_a_phase_change_are_bounded(
        preempted in 10u64..50,
        preempted_fixed in 0u64..50,
        misses in prop_oneof![Just(0u64), 5u64..20],
        misses_spread in 5u64..20,
        speed_fixed in 300u64..500,
        speed_spread in 300u64..500,
    ) {
        let program = |at: u64, set: Set| Tenth {
            preempted: if set.1 { preempted_fixed } else { about(at, preempted, 5) },
            misses: if set.2 && misses > 0 { misses_spread } else { misses },
            instructions: match set {
                (_, _, true) => speed_spread,
                (_, true, _) => speed_fixed,
                _ => 400,
            },
            others_busy: 0.0,
        };
        let mut actions = 0;
        run_counting(&mut policy(), 800, program, &mut actions);
        // Checks at 1, 50, 150, 350 and 750 tenths.
        prop_assert!(actions <= 8 * 5, "{} actions", actions);
    }

    // With any phases there is at most one check in each pass.
    #[test]
    fn changes_are_bounded_by_passes(tenths in proptest::collection::vec(any_tenth(), 997)) {
        let mut actions = 0;
        run_counting(&mut policy(), 600, |at, _| tenths[at as usize % 997], &mut actions);
        prop_assert!(actions <= 8 * 13, "{} actions", actions);
    }
}

#[test]
fn refused_trial_is_abandoned() {
    let hungry = |at| Tenth { misses: about(at, 10, 4), preempted: about(at, 20, 8), ..CALM };
    let requests = |is_refused: fn(&Action) -> bool| {
        let (mut policy, mut requests) = (policy(), Vec::new());
        for at in 1..=600 {
            for decision in policy.decide(&snapshot(at, hungry(at))) {
                let outcome = match is_refused(&decision.action) {
                    true => Err("not permitted".into()),
                    false => Ok(corebeat_machine::Effect { changed: 4 }),
                };
                requests.push(decision.action.clone());
                policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
            }
        }
        requests
    };
    let all = requests(|_| true);
    assert_eq!(all.len(), 3, "one request for each setting: {all:?}");
    let pages = requests(|action| matches!(action, Action::SpreadPages { .. }));
    let is_spread = |action: &&Action| matches!(action, Action::SpreadPages { .. });
    assert_eq!(pages.iter().filter(is_spread).count(), 1, "{pages:?}");
    assert!(matches!(pages.last(), Some(Action::SetSlice { slice_us: None, .. })), "{pages:?}");
}

#[test]
fn settings_that_change_nothing_are_requested_once() {
    let (mut policy, mut requests) = (policy(), Vec::new());
    for at in 1..=1200 {
        let preempted = Tenth { preempted: about(at, 20, 8), ..CALM };
        for decision in policy.decide(&snapshot(at, preempted)) {
            requests.push(decision.action.clone());
            let outcome = Ok(corebeat_machine::Effect::default());
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
        }
    }
    let is_set = |action: &&Action| {
        matches!(
            action,
            Action::SetClass { class: Some(_), .. } | Action::SetSlice { slice_us: Some(_), .. }
        )
    };
    assert_eq!(requests.iter().filter(is_set).count(), 2, "class and slice, once: {requests:?}");
    assert!(requests.len() <= 4, "they are undone once: {requests:?}");
}
