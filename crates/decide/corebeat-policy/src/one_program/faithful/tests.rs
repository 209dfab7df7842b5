use super::*;
use crate::ratio::sample;
use corebeat_machine::{Action, Class, Target};
use proptest::prelude::*;

/// Behaviour of a program in one second.
#[derive(Debug, Clone, Copy)]
struct Second {
    lock: f64,
    wait: f64,
    spin: f64,
    instructions: u64,
    others_busy: f64,
}

const BUSY: Second =
    Second { lock: 0.3, wait: 0.4, spin: 0.0, instructions: 4_000_000_000, others_busy: 0.0 };

fn snapshot(at_s: u64, threads: u32, second: Second) -> Snapshot {
    let mut p = sample::program();
    for _ in 0..threads {
        let t = sample::thread(&mut p, 1.0 - second.lock - second.wait, second.lock, second.wait);
        t.shares.spin = Some(second.spin);
        t.counters.voluntary_switches = Some(100);
        t.counters.involuntary_switches = Some(200);
        t.counters.instructions = Some(second.instructions / u64::from(threads));
    }
    let mut sample = Snapshot {
        at_ns: at_s * 1_000_000_000,
        span_ns: 1_000_000_000,
        programs: vec![p],
        ..Snapshot::default()
    };
    sample.host.others_busy = Some(second.others_busy);
    sample
}

/// Settings of a program: its slice, and whether it is in the batch class.
type Set = (Option<u32>, bool);

const NOTHING: Set = (None, false);

/// Runs the policy on a program whose behaviour depends on its settings; returns each change and
/// its time.
fn run(
    policy: &mut FaithFul,
    seconds: u64,
    program: impl Fn(u64, Set) -> Second,
) -> Vec<(u64, Set)> {
    let mut changes = Vec::new();
    let mut set = NOTHING;
    for at in 1..=seconds {
        let before = set;
        for decision in policy.decide(&snapshot(at, 8, program(at, set))) {
            assert!(!decision.why.is_empty());
            match decision.action {
                Action::SetSlice { target: Target::Program(_), slice_us } => set.0 = slice_us,
                Action::SetClass { target: Target::Program(_), class } => {
                    set.1 = class == Some(Class::Batch)
                }
                other => panic!("{other:?}"),
            }
        }
        if set != before {
            changes.push((at, set));
        }
    }
    changes
}

/// Returns a program that is faster by this share with any setting.
fn gains(gain: f64) -> impl Fn(u64, Set) -> Second {
    move |_, set| {
        let faster = if set == NOTHING { 1.0 } else { 1.0 + gain };
        Second { instructions: (BUSY.instructions as f64 * faster) as u64, ..BUSY }
    }
}

const HELD: Set = (Some(100_000), true);

#[test]
fn slice_is_five_times_the_table_up_to_100_ms() {
    for (factor, ms) in [(0.0, 100), (0.05, 100), (0.5, 100), (0.88, 100), (0.95, 50), (1.0, 50)] {
        assert_eq!(slice_us(factor), ms * 1000, "{factor}");
    }
}

#[test]
fn decide_where_it_helps_sets_at_once_and_checks_ever_more_rarely() {
    for gain in [0.0, 0.08, -0.015] {
        let changes = run(&mut FaithFul::new(8), 100, gains(gain));
        assert_eq!(changes[0], (1, HELD));
        // 8 windows with, one without, one with; then 16, 32, ...
        assert_eq!(changes[1..3], [(9, NOTHING), (10, HELD)]);
        assert_eq!(changes.len(), 1 + 2 * 3, "{gain}: {changes:?}");
        assert_eq!(changes.last().unwrap().1, HELD);
    }
}

#[test]
fn program_that_its_quota_stops_gets_no_slice() {
    // Eight threads that each run for 0.3 of the time use 2.4 CPUs.
    for (quota, is_stopped) in [(2.4, true), (2.6, true), (3.0, false), (8.0, false)] {
        let mut policy = FaithFul::new(8).under_quota(Some(quota));
        let changes = run(&mut policy, 3, |_, _| BUSY);
        assert_eq!(changes.is_empty(), is_stopped, "{quota}: {changes:?}");
        let why = policy.inactions(sample::program().id);
        assert_eq!(is_stopped, why.iter().any(|i| i.why.contains("its quota")), "{why:?}");
    }
}

#[test]
fn decide_where_it_hurts_undoes_and_rests() {
    let much = run(&mut FaithFul::new(8), 13, gains(-0.3));
    assert_eq!(much, [(1, HELD), (2, NOTHING), (3, HELD), (4, NOTHING)]);
    let little = run(&mut FaithFul::new(8), 13, gains(-0.03));
    assert_eq!(little, [(1, HELD), (2, NOTHING), (3, HELD), (4, NOTHING)]);
    // The effect starts in the fifth second.
    let late = |gain| move |at, set| gains(if at < 5 { 0.0 } else { gain })(at, set);
    let much = run(&mut FaithFul::new(8), 20, late(-0.3));
    assert_eq!(much, [(1, HELD), (9, NOTHING), (10, HELD), (11, NOTHING)]);
    let some = run(&mut FaithFul::new(8), 20, late(-0.1));
    assert_eq!(
        some[..4],
        [(1, HELD), (9, NOTHING), (10, HELD), (12, NOTHING)],
        "a small loss is checked again"
    );
    assert_eq!(some[4..], [(13, HELD), (14, NOTHING)]);
    let long = run(&mut FaithFul::new(8), 1000, gains(-0.3));
    assert!(long.len() <= 4 * 7, "10, 20, 40, ... seconds between tries: {}", long.len());
}

#[test]
fn decide_without_possible_gain_does_nothing() {
    let no_wait = Second { wait: 0.0, ..BUSY };
    let spins = Second { spin: 0.2, ..BUSY };
    for second in [no_wait, spins] {
        assert_eq!(run(&mut FaithFul::new(8), 20, |_, _| second), []);
    }
    let voluntary = FaithFul { involuntary_rate_min: 1e4, ..FaithFul::new(8) };
    assert_eq!(run(&mut voluntary.clone(), 20, gains(0.1)), []);
    assert_eq!(FaithFul::new(8).decide(&snapshot(1, 1, BUSY)), [], "a single thread");
}

#[test]
fn obstacles_are_stated_with_the_limit() {
    for (second, why) in [
        (
            Second { wait: 0.01, ..BUSY },
            "threads wait for a CPU for 1.0% of their time; faithful needs 5%",
        ),
        (
            Second { spin: 0.2, ..BUSY },
            "threads spin for 20% of their time; faithful needs less than 5%",
        ),
        (
            Second { others_busy: 1.3, ..BUSY },
            "other programs keep 1.3 CPUs busy; faithful needs less than 0.25, or threads that \
             block for at most 15% of their time (these: 30%)",
        ),
    ] {
        let mut policy = FaithFul::new(2);
        assert_eq!(run(&mut policy, 1, |_, _| second), []);
        let expected = [Inaction { policy: "faithful", why: why.into() }];
        assert_eq!(policy.inactions(ProgramId(1)), expected);
    }
    let mut policy = FaithFul::new(8);
    policy.decide(&snapshot(1, 1, BUSY));
    assert_eq!(policy.inactions(ProgramId(1))[0].why, ONE_THREAD);
    let mut policy = FaithFul { involuntary_rate_min: 1e4, ..FaithFul::new(8) };
    policy.decide(&snapshot(1, 8, BUSY));
    assert!(policy.inactions(ProgramId(1))[0].why.ends_with("faithful needs 10000"));
}

#[test]
fn decide_under_load_of_others_does_nothing() {
    let loaded = |_, _| Second { others_busy: 4.0, ..BUSY };
    assert_eq!(run(&mut FaithFul::new(8), 5, loaded), []);
    let a_while =
        |at, _| Second { others_busy: if (4..6).contains(&at) { 4.0 } else { 0.1 }, ..BUSY };
    assert_eq!(run(&mut FaithFul::new(8), 20, a_while), [(1, HELD), (4, NOTHING), (14, HELD)]);
    // Another observed program counts as load, too.
    let mut both = snapshot(1, 8, BUSY);
    assert!(!FaithFul::new(8).decide(&both).is_empty());
    both.programs.push(ProgramSample { id: ProgramId(9), ..both.programs[0].clone() });
    assert_eq!(FaithFul::new(8).decide(&both), []);
}

#[test]
fn decide_beside_busy_programs_sets_slices_of_programs_that_compute() {
    let computes = Second { lock: 0.05, wait: 0.5, others_busy: 4.0, ..BUSY };
    assert_eq!(run(&mut FaithFul::new(8), 5, |_, _| computes), [(1, (Some(50_000), false))]);
    // The other programs start later: the class is removed, and stays so.
    let later = |at, _| match at {
        3..6 => computes,
        _ => Second { others_busy: 0.0, ..computes },
    };
    let changes = run(&mut FaithFul::new(8), 8, later);
    assert_eq!(changes, [(1, (Some(50_000), true)), (3, (Some(50_000), false))]);
    // The program starts to block.
    let blocks = |at, _| Second { lock: if at < 3 { 0.05 } else { 0.4 }, ..computes };
    let changes = run(&mut FaithFul::new(8), 8, blocks);
    assert_eq!(changes, [(1, (Some(50_000), false)), (3, NOTHING)]);
    let loses = |_, set: Set| Second {
        instructions: if set == NOTHING { BUSY.instructions } else { BUSY.instructions / 2 },
        ..computes
    };
    let changes = run(&mut FaithFul::new(8), 9, loses);
    assert_eq!(changes.last(), Some(&(4, NOTHING)), "{changes:?}");
    // The program takes CPU time from the others. Progress per free CPU is the same.
    let takes = |_, set: Set| match set {
        NOTHING => computes,
        _ => Second { instructions: BUSY.instructions / 4 * 5, others_busy: 3.0, ..computes },
    };
    let changes = run(&mut FaithFul::new(8), 9, takes);
    assert_eq!(changes.last(), Some(&(4, NOTHING)), "{changes:?}");
}

#[test]
fn decide_load_of_others_is_not_a_loss() {
    // Other programs use a quarter of the machine whenever a setting is in effect, and progress
    // falls by as much. The settings are not the cause.
    let program = |_, set: Set| match set {
        NOTHING => BUSY,
        _ => Second { instructions: BUSY.instructions / 4 * 3, others_busy: 0.5, ..BUSY },
    };
    let changes = run(&mut FaithFul::new(2), 40, program);
    assert!(changes.last().unwrap().1.0.is_some(), "{changes:?}");
}

#[test]
fn decide_when_the_factor_leaves_its_band_changes_only_the_slice() {
    // The two phases of ammp (section 5.3.3): 84% lock time, then 2%, slightly below the paper's.
    let phases = |at: u64, _| Second { lock: if at <= 4 { 0.84 } else { 0.02 }, wait: 0.1, ..BUSY };
    let changes = run(&mut FaithFul::new(8), 7, phases);
    assert_eq!(changes, [(1, HELD), (5, (Some(50_000), true))]);
}

#[test]
fn decide_when_the_program_starts_to_spin_undoes() {
    let program = |at: u64, _| Second { spin: if at < 3 { 0.0 } else { 0.3 }, ..BUSY };
    assert_eq!(run(&mut FaithFul::new(8), 9, program), [(1, HELD), (3, NOTHING)]);
}

#[test]
fn decide_combines_short_snapshots() {
    let mut policy = FaithFul::new(8);
    let first = (1..=60u64).find(|tenth| {
        let mut sample = snapshot(0, 8, BUSY);
        sample.at_ns = tenth * 100_000_000;
        sample.span_ns = 100_000_000;
        for t in &mut sample.programs[0].threads {
            t.span_ns = sample.span_ns;
            t.counters.involuntary_switches = Some(20);
        }
        !policy.decide(&sample).is_empty()
    });
    assert_eq!(first, Some(5));
}

#[test]
fn decide_forgets_programs_that_ended() {
    let mut policy = FaithFul::new(8);
    run(&mut policy, 20, gains(0.1));
    policy.decide(&Snapshot::default());
    assert!(policy.programs.is_empty());
}

fn any_second() -> impl Strategy<Value = Second> {
    (0.0f64..0.5, 0.0f64..0.5, 0.0f64..0.06, 0u64..10_000_000_000, 0.0f64..9.0).prop_map(
        |(lock, wait, spin, instructions, others_busy)| Second {
            lock,
            wait,
            spin,
            instructions,
            others_busy,
        },
    )
}

proptest! {
    #[test]
    fn decide_repeats_itself(seconds in proptest::collection::vec(any_second(), 60)) {
        let program = |at: u64, _| seconds[at as usize - 1];
        prop_assert_eq!(
            run(&mut FaithFul::new(8), 60, program),
            run(&mut FaithFul::new(8), 60, program)
        );
    }

    #[test]
    fn decide_changes_are_bounded(
        factors in proptest::collection::vec(0.0f64..0.5, 7),
        noise in proptest::collection::vec(0.95f64..1.05, 997),
    ) {
        // A program of changing phases that loses a third. Rests last 10, 20, 40, ... s.
        let program = |at: u64, set: Set| {
            let slower = if set == NOTHING { 1.0 } else { 0.66 };
            let instructions = (4e9 * slower * noise[at as usize % 997]) as u64;
            Second { lock: factors[at as usize / 20 % 7], instructions, ..BUSY }
        };
        let changes = run(&mut FaithFul::new(8), 400, program);
        prop_assert!(changes.len() <= 6 * 6, "{} changes", changes.len());
    }
}

/// Runs the policy on a machine that refuses some actions; returns the requests that were refused.
fn refused(policy: &mut FaithFul, refuses: impl Fn(&Action) -> bool) -> (Vec<Action>, Set) {
    let (mut requests, mut set) = (Vec::new(), NOTHING);
    for at in 1..=100 {
        for decision in policy.decide(&snapshot(at, 8, gains(0.1)(at, set))) {
            let is_refused = refuses(&decision.action);
            match decision.action {
                _ if is_refused => requests.push(decision.action.clone()),
                Action::SetSlice { slice_us, .. } => set.0 = slice_us,
                Action::SetClass { class, .. } => set.1 = class.is_some(),
                ref other => panic!("{other:?}"),
            }
            let outcome = match is_refused {
                true => Err("not supported".into()),
                false => Ok(corebeat_machine::Effect { changed: 8 }),
            };
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
        }
    }
    (requests, set)
}

#[test]
fn settings_that_change_nothing_are_requested_once() {
    let mut policy = FaithFul::new(8);
    let mut requests = 0;
    for at in 1..=100 {
        for decision in policy.decide(&snapshot(at, 8, gains(0.1)(at, NOTHING))) {
            requests += 1;
            let outcome = Ok(corebeat_machine::Effect::default());
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
        }
    }
    assert_eq!(requests, 2, "class and slice, once");
}

#[test]
fn refused_slice_is_reported_once_and_not_requested_again() {
    let is_slice = |action: &Action| matches!(action, Action::SetSlice { .. });
    let (requests, set) = refused(&mut FaithFul::new(8), is_slice);
    let target = Target::Program(ProgramId(1));
    assert_eq!(requests, [Action::SetSlice { target, slice_us: Some(100_000) }]);
    assert_eq!(set, (None, true), "the class stays set");
    let mut policy = FaithFul::new(8);
    let (requests, set) = refused(&mut policy, |_| true);
    assert_eq!((requests.len(), set), (2, NOTHING), "one request for each setting");
    assert!(policy.programs.values().all(|state| state.hold.is_none()));
    // Beside busy programs there is no other setting.
    let mut policy = FaithFul::new(8);
    let computes = Second { lock: 0.05, wait: 0.5, others_busy: 4.0, ..BUSY };
    let decisions = policy.decide(&snapshot(1, 8, computes));
    let [decision] = &decisions[..] else { panic!("{decisions:?}") };
    let outcome = Err("not supported".into());
    policy.outcome(&AppliedAction { at_ns: 0, decision: decision.clone(), outcome });
    assert!(policy.programs.values().all(|state| state.hold.is_none()));
    assert_eq!(run(&mut policy, 9, |_, _| computes), []);
}
