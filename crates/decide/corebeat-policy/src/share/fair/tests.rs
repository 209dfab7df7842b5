use super::*;
use corebeat_machine::{
    Counters, Effect, HostSample, ProgramSample, ProgressSample, ThreadId, ThreadSample, TimeShares,
};
use proptest::prelude::*;

const CPUS: u32 = 4;
/// Beats are integers, so many beats give a fine resolution.
const SCALE: f64 = 1e6;

/// A program on a machine that divides CPU time continuously by weights.
#[derive(Debug, Clone)]
struct Fluid {
    threads: u32,
    /// [`SCALE`] beats a second on one CPU.
    speed: f64,
    progress: Option<ProgressSample>,
    /// 100 for each thread by default.
    weight: f64,
    quota: f64,
    /// CPUs in the last cycles, newest last.
    got: Vec<f64>,
}

impl Fluid {
    fn new(threads: u32, speed: f64, goal: Option<(f64, f64)>) -> Fluid {
        let progress = goal.map(|(min, max)| ProgressSample {
            rate_min: Some(min * SCALE),
            rate_max: Some(max * SCALE),
            window_ns: 1_000_000_000,
            ..ProgressSample::default()
        });
        let weight = f64::from(threads) * 100.0;
        Fluid { threads, speed, progress, weight, quota: f64::INFINITY, got: Vec::new() }
    }

    fn held(mut self) -> Fluid {
        self.progress.as_mut().unwrap().hold = true;
        self
    }

    fn cap(&self) -> f64 {
        f64::from(self.threads).min(self.quota)
    }

    fn cpus(&self) -> f64 {
        *self.got.last().unwrap()
    }

    /// Returns the rate over the last `window` cycles.
    fn rate(&self, window: usize) -> f64 {
        let last = &self.got[self.got.len().saturating_sub(window)..];
        SCALE * self.speed * last.iter().sum::<f64>() / last.len() as f64
    }

    fn beats(&self) -> u64 {
        1 + (SCALE * self.speed * self.got.iter().sum::<f64>()) as u64
    }

    fn sample(&self, id: u32, window: usize) -> ProgramSample {
        let running = self.cpus() / f64::from(self.threads);
        let thread = |tid| ThreadSample {
            id: ThreadId { tid, start_ticks: 1 },
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns: 1_000_000_000,
            shares: TimeShares {
                user: Some(running),
                system: Some(0.0),
                lock: Some(0.0),
                park: Some(0.0),
                wait: Some(1.0 - running),
                sleep: Some(0.0),
                spin: None,
            },
            counters: Counters::default(),
        };
        ProgramSample {
            id: ProgramId(id),
            name: "fluid".into(),
            threads: (1..=self.threads as i32).map(thread).collect(),
            io_bytes: None,
            team: None,
            progress: self.progress.map(|p| ProgressSample {
                rate: self.rate(window),
                beats: self.beats(),
                ..p
            }),
        }
    }
}

/// Divides the machine among all programs by weight, up to the CPUs that each can use.
fn flow(programs: &mut [Fluid]) {
    let mut left = f64::from(CPUS);
    let mut open: Vec<&mut Fluid> = programs.iter_mut().collect();
    loop {
        let weights: f64 = open.iter().map(|p| p.weight).sum();
        let (full, rest): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|p| left * p.weight / weights >= p.cap());
        if full.is_empty() {
            rest.into_iter().for_each(|p| p.got.push(left * p.weight / weights));
            return;
        }
        for p in full {
            left -= p.cap();
            p.got.push(p.cap());
        }
        open = rest;
    }
}

/// Returns the snapshot of the last cycle, with rates over the last `window` cycles.
fn snapshot(programs: &[Fluid], window: usize) -> Snapshot {
    Snapshot {
        // The first program runs from the start.
        at_ns: programs.first().map_or(0, |p| p.got.len()) as u64 * 1_000_000_000,
        span_ns: 1_000_000_000,
        host: HostSample::default(),
        programs: programs.iter().enumerate().map(|(i, p)| p.sample(i as u32, window)).collect(),
    }
}

/// Carries out an action on the fluid machine.
fn apply(programs: &mut [Fluid], action: &Action) {
    match *action {
        Action::SetWeight { program, weight } => {
            assert!((1..=10_000).contains(&weight));
            programs[program.0 as usize].weight = f64::from(weight);
        }
        Action::SetQuota { program, cpus } => {
            assert!(cpus.is_none_or(|c| c >= QUOTA_CPUS_MIN && c.is_finite()));
            programs[program.0 as usize].quota = cpus.unwrap_or(f64::INFINITY);
        }
        Action::SetNice { target: Target::Program(program), nice } => {
            let p = &mut programs[program.0 as usize];
            p.weight = f64::from(p.threads) * 100.0 * NICE_STEP.powi(-i32::from(nice));
        }
        ref other => panic!("{other:?}"),
    }
}

/// Runs some cycles, with rates over the last `window` cycles. Returns the number of decisions of
/// each cycle.
fn run(policy: &mut Fair, programs: &mut [Fluid], cycles: u64, window: usize) -> Vec<usize> {
    let cycle = |_| {
        flow(programs);
        let decisions = policy.decide(&snapshot(programs, window));
        for decision in &decisions {
            assert!(!decision.why.is_empty());
            apply(programs, &decision.action);
        }
        decisions.len()
    };
    (1..=cycles).map(cycle).collect()
}

fn remembering() -> Fair {
    Fair { remembers: true, means: Means::Weight, ..Fair::new(CPUS) }
}

fn is_inside(p: &Fluid) -> bool {
    Goal::of(&p.progress.unwrap()).unwrap().place(p.rate(1)) == Ordering::Equal
}

fn band(cpus: f64, speed: f64, width: f64) -> Option<(f64, f64)> {
    Some((cpus * speed * (1.0 - width), cpus * speed * (1.0 + width)))
}

#[test]
fn rates_in_their_windows_are_left_alone() {
    let mut programs =
        [Fluid::new(4, 10.0, band(2.0, 10.0, 0.1)), Fluid::new(4, 3.0, band(2.0, 3.0, 0.1))];
    assert!(run(&mut Fair::new(CPUS), &mut programs, 20, 1).iter().all(|&n| n == 0));
}

#[test]
fn programs_without_a_goal_are_never_touched() {
    let mut programs = [Fluid::new(4, 10.0, None), Fluid::new(4, 10.0, Some((30.0, 40.0)))];
    run(&mut remembering(), &mut programs, 50, 1);
    assert_eq!((programs[0].weight, programs[0].quota), (400.0, f64::INFINITY));
}

#[test]
fn single_program_with_a_goal_is_left_alone_and_the_reason_is_stated() {
    let idle = |policy: &Fair| policy.inactions(ProgramId(1)).pop().map(|inaction| inaction.why);
    let mut programs = [Fluid::new(4, 10.0, None), Fluid::new(4, 10.0, Some((30.0, 40.0)))];
    let mut policy = remembering();
    let decisions = run(&mut policy, &mut programs, 5, 1);
    assert!(decisions.iter().all(|&n| n == 0), "{decisions:?}");
    let why = idle(&policy).unwrap();
    assert!(why.contains("programs without a goal keep their shares"), "{why}");
    // Another program with a goal is too fast, and gives up CPU time.
    programs[0] = Fluid::new(4, 10.0, Some((1.0, 2.0)));
    let decisions = run(&mut policy, &mut programs, 5, 1);
    assert!(decisions.iter().sum::<usize>() > 0);
    assert_eq!(idle(&policy), None);
}

#[test]
fn forgetful_law_settles_at_the_root_of_the_ratio() {
    for (remembers, ratio) in [(false, 3f64.sqrt()), (true, 3.0)] {
        let mut programs =
            [Fluid::new(4, 7.0, band(3.0, 7.0, 0.0)), Fluid::new(4, 2.0, band(1.0, 2.0, 0.0))];
        let mut policy =
            Fair { remembers, means: Means::Weight, change_min: 0.0, ..Fair::new(CPUS) };
        run(&mut policy, &mut programs, 100, 2);
        let found = programs[0].cpus() / programs[1].cpus();
        // Weights are integers.
        assert!((found / ratio - 1.0).abs() < 0.02, "{found} instead of {ratio}");
    }
}

#[test]
fn raise_that_does_not_help_is_undone_and_rests() {
    // The program waits for CPUs, but its rate does not depend on them.
    let mut programs =
        [Fluid::new(4, 0.0, Some((10.0, 20.0))), Fluid::new(4, 1.0, Some((1.0, 1.9)))];
    let mut policy = remembering();
    run(&mut policy, &mut programs, 200, 1);
    let (mut raised, mut inside) = (0, 0);
    for _ in 0..200 {
        run(&mut policy, &mut programs, 1, 1);
        raised += usize::from(programs[0].weight > 420.0);
        inside += usize::from(is_inside(&programs[1]));
    }
    assert!(inside >= 180, "the other program met its goal in {inside} of 200 cycles");
    assert!(raised <= 30, "raised in {raised} of 200 cycles");
}

#[test]
fn program_that_does_not_wait_is_not_raised() {
    let mut programs = [Fluid::new(1, 1.0, Some((10.0, 20.0)))];
    assert!(run(&mut remembering(), &mut programs, 50, 1).iter().all(|&n| n == 0));
}

#[test]
fn hold_keeps_a_rate_below_its_maximum_and_settles() {
    for (mut policy, window) in [(Fair::new(CPUS), 1), (remembering(), 1), (remembering(), 3)] {
        let mut programs = [Fluid::new(2, 10.0, Some((9.0, 11.0))).held()];
        let changes = run(&mut policy, &mut programs, 200, window);
        assert!(is_inside(&programs[0]), "{}", programs[0].rate(1));
        assert_eq!(changes[50..].iter().sum::<usize>(), 0, "{changes:?}");
    }
}

#[test]
fn program_is_not_held_without_its_permission() {
    let mut programs = [Fluid::new(2, 10.0, Some((9.0, 11.0)))];
    run(&mut remembering(), &mut programs, 50, 1);
    assert_eq!((programs[0].quota, programs[0].cpus()), (f64::INFINITY, 2.0));
}

#[test]
fn hold_ends_under_load_and_starts_again_after_it() {
    let mut policy = remembering();
    let mut programs = vec![Fluid::new(4, 10.0, Some((18.0, 22.0))).held()];
    run(&mut policy, &mut programs, 40, 1);
    assert!(programs[0].quota < 2.3 && is_inside(&programs[0]));
    // Twelve threads of another program leave a quarter of the machine, which is too little.
    programs.push(Fluid::new(12, 1.0, None));
    run(&mut policy, &mut programs, 10, 1);
    assert_eq!(programs[0].quota, f64::INFINITY);
    run(&mut policy, &mut programs, 40, 1);
    assert!(
        programs[0].weight >= 380.0,
        "the program has its own share again: {}",
        programs[0].weight
    );
    programs.pop();
    run(&mut policy, &mut programs, 40, 1);
    assert!(programs[0].quota < 2.3 && is_inside(&programs[0]));
}

#[test]
fn bursts_do_not_raise_a_program_that_is_too_fast() {
    // The program works in every other cycle; the rate is the mean of both.
    let mut policy = Fair { means: Means::Weight, ..remembering() };
    let mut program = Fluid::new(2, 3.0, Some((0.9, 1.1)));
    for cycle in 0..40 {
        program.got.push(f64::from(cycle % 2));
        for decision in policy.decide(&snapshot(std::slice::from_ref(&program), 2)) {
            let Action::SetWeight { weight, .. } = decision.action else { panic!("{decision:?}") };
            program.weight = f64::from(weight);
        }
        assert!(program.weight <= 200.0, "{}", program.weight);
    }
    assert!(program.weight < 100.0, "{}", program.weight);
}

#[test]
fn cycles_without_decisions_do_not_lower_the_cost_of_beats() {
    let mut policy = remembering();
    let mut programs = [Fluid::new(4, 10.0, band(2.0, 10.0, 0.1)), Fluid::new(4, 1.0, None)];
    let cpus_of_a_beat =
        |policy: &Fair| policy.programs[&ProgramId(0)].cost.unwrap().cpus(1.0).unwrap();
    let expected = 1.0 / (10.0 * SCALE);
    run(&mut policy, &mut programs, 5, 1);
    assert!((cpus_of_a_beat(&policy) / expected - 1.0).abs() < 1e-3);
    // Cycles in which the policy is not called.
    (0..5).for_each(|_| flow(&mut programs));
    run(&mut policy, &mut programs, 1, 1);
    assert!((cpus_of_a_beat(&policy) / expected - 1.0).abs() < 1e-3, "{}", cpus_of_a_beat(&policy));
    // Cycles in which the rate is unknown.
    let rate = |program: &Fluid| ProgressSample {
        beats: program.beats(),
        rate: f64::NAN,
        ..program.progress.unwrap()
    };
    for _ in 0..5 {
        flow(&mut programs);
        let mut sample = snapshot(&programs, 1);
        sample.programs[0].progress = Some(rate(&programs[0]));
        policy.decide(&sample);
    }
    run(&mut policy, &mut programs, 2, 1);
    assert!((cpus_of_a_beat(&policy) / expected - 1.0).abs() < 1e-3, "{}", cpus_of_a_beat(&policy));
}

/// Runs some cycles on a machine that refuses some actions; recycles the number of refusals.
fn run_refusing(
    policy: &mut Fair,
    programs: &mut [Fluid],
    cycles: u64,
    refuses: impl Fn(&Action) -> bool,
) -> u32 {
    let mut refusals = 0;
    for _ in 0..cycles {
        flow(programs);
        for decision in policy.decide(&snapshot(programs, 1)) {
            let is_refused = refuses(&decision.action);
            refusals += u32::from(is_refused);
            if !is_refused {
                apply(programs, &decision.action);
            }
            let outcome =
                if is_refused { Err("not permitted".into()) } else { Ok(Effect { changed: 1 }) };
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
        }
    }
    refusals
}

#[test]
fn refused_settings_are_requested_ever_more_rarely() {
    let held = || Fluid::new(2, 10.0, Some((9.0, 11.0))).held();
    let is_limit = |action: &Action| matches!(action, Action::SetQuota { cpus: Some(_), .. });
    let limits = run_refusing(&mut remembering(), &mut [held()], 1000, is_limit);
    let mut pair =
        [Fluid::new(4, 1.0, band(3.0, 1.0, 0.1)), Fluid::new(4, 1.0, band(1.0, 1.0, 0.1))];
    let is_weight = |action: &Action| matches!(action, Action::SetWeight { .. });
    let weights = run_refusing(&mut remembering(), &mut pair, 1000, is_weight);
    for refusals in [limits, weights / 2] {
        assert!((1..=8).contains(&refusals), "after 10, 20, 40, ... cycles: {refusals}");
    }
    // A machine that accepts limits again gets a request after the rest.
    let mut policy = remembering();
    let mut programs = [held()];
    assert_eq!(run_refusing(&mut policy, &mut programs, 10, is_limit), 1);
    assert_eq!(run_refusing(&mut policy, &mut programs, 20, |_| false), 0);
    assert!(programs[0].quota.is_finite());
    // A refused change keeps the accepted limit.
    let before = programs[0].quota;
    programs[0].speed = 30.0;
    run_refusing(&mut policy, &mut programs, 5, |_| true);
    assert_eq!(policy.programs[&ProgramId(0)].hold.map(|hold| hold.cpus), Some(before));
    policy.holds = false;
    run(&mut policy, &mut programs, 1, 1);
    assert_eq!(policy.programs[&ProgramId(0)].hold.map(|hold| hold.cpus), None);
}

#[test]
fn removed_goal_undoes_the_changes() {
    let mut policy = remembering();
    let mut programs =
        [Fluid::new(2, 10.0, Some((9.0, 11.0))).held(), Fluid::new(8, 1.0, Some((30.0, 40.0)))];
    run(&mut policy, &mut programs, 40, 1);
    assert!(programs[0].quota.is_finite() || programs[0].weight != 200.0);
    programs.iter_mut().for_each(|p| p.progress = None);
    run(&mut policy, &mut programs, 1, 1);
    for p in &programs {
        let own = f64::from(p.threads) * 100.0;
        assert!(p.quota == f64::INFINITY && (p.weight - own).abs() <= 0.05 * own, "{p:?}");
    }
    assert!(policy.programs.is_empty());
}

#[test]
fn nice_values_replace_weights() {
    let mut programs =
        [Fluid::new(4, 1.0, band(3.0, 1.0, 0.2)), Fluid::new(4, 1.0, band(1.0, 1.0, 0.2))];
    run(&mut Fair { means: Means::Nice, ..remembering() }, &mut programs, 40, 1);
    assert!(programs.iter().all(is_inside), "{programs:?}");
}

#[test]
fn invalid_goals_are_ignored() {
    let goal = |rate_min, rate_max| {
        Goal::of(&ProgressSample { rate_min, rate_max, ..ProgressSample::default() })
    };
    for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        assert_eq!(goal(Some(bad), None), None);
        assert_eq!(goal(Some(bad), Some(bad)), None);
        assert_eq!(goal(Some(bad), Some(5.0)), goal(None, Some(5.0)));
    }
    assert_eq!((goal(None, None), goal(Some(2.0), Some(1.0))), (None, None));
    assert_eq!(goal(Some(2.0), Some(4.0)).unwrap().middle(), 3.0);
    assert_eq!(
        (goal(Some(2.0), None).unwrap().middle(), goal(None, Some(4.0)).unwrap().middle()),
        (2.0, 4.0)
    );
    assert!(goal(Some(f64::MAX), Some(f64::MAX)).unwrap().middle().is_finite());
}

#[test]
fn indicator_is_the_rate_over_the_middle_within_bounds() {
    let goal = Goal { min: Some(20.0), max: Some(30.0) };
    assert_eq!((goal.indicator(25.0), goal.indicator(50.0)), (Some(1.0), Some(2.0)));
    assert_eq!((goal.indicator(0.0), goal.indicator(1e300)), (Some(INDICATOR_MIN), Some(8.0)));
    assert!([f64::NAN, f64::INFINITY, -1.0].iter().all(|&r| goal.indicator(r).is_none()));
    let places = [19.0, 20.0, 30.0, 31.0].map(|r| goal.place(r));
    assert_eq!(places, [Ordering::Less, Ordering::Equal, Ordering::Equal, Ordering::Greater]);
}

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.0f64..50.0, 1 => any::<f64>()]
}

fn any_program() -> impl Strategy<Value = Fluid> {
    let goal = proptest::option::of((any_float(), any_float()));
    (1u32..9, 0.0f64..20.0, goal, any::<bool>()).prop_map(|(threads, speed, goal, hold)| {
        let mut program = Fluid::new(threads, speed, goal);
        program.progress.iter_mut().for_each(|p| p.hold = hold);
        program
    })
}

proptest! {
    /// Goals that can be met together are met for any threads and speeds, and then nothing changes.
    #[test]
    fn feasible_goals_are_met_and_kept(
        wants in proptest::collection::vec((0.3f64..1.0, 0.1f64..100.0), 2..5),
        window in 1usize..4,
    ) {
        let sum: f64 = wants.iter().map(|w| w.0).sum();
        let program = |&(want, speed): &(f64, f64)| {
            Fluid::new(CPUS, speed, band(f64::from(CPUS) * want / sum, speed, 0.1))
        };
        let mut programs: Vec<Fluid> = wants.iter().map(program).collect();
        let changes = run(&mut remembering(), &mut programs, 80, window);
        prop_assert!(programs.iter().all(is_inside), "{programs:?}");
        prop_assert_eq!(changes[60..].iter().sum::<usize>(), 0, "{:?}", changes);
    }

    /// A program that runs alone and is too fast is held, and then nothing changes.
    #[test]
    fn hold_settles(
        threads in 1u32..9,
        part in 0.1f64..0.9,
        speed in 0.1f64..100.0,
        window in 1usize..4,
        remembers: bool,
    ) {
        let cpus = f64::from(threads.min(CPUS)) * part;
        let mut programs = [Fluid::new(threads, speed, band(cpus, speed, 0.05)).held()];
        let changes = run(&mut Fair { remembers, ..Fair::new(CPUS) }, &mut programs, 100, window);
        prop_assert!(is_inside(&programs[0]), "{programs:?}");
        prop_assert_eq!(changes[60..].iter().sum::<usize>(), 0, "{:?}", changes);
    }

    /// With the paper's law two programs may miss their goals, but are never further from them than
    /// without the policy.
    #[test]
    fn forgetful_law_reduces_the_distance_to_goals(share in 0.15f64..0.85, speed in 0.1f64..100.0) {
        let cpus = f64::from(CPUS);
        let mut programs = [
            Fluid::new(CPUS, speed, band(cpus * share, speed, 0.1)),
            Fluid::new(CPUS, 1.0, band(cpus * (1.0 - share), 1.0, 0.1)),
        ];
        run(&mut Fair::new(CPUS), &mut programs, 40, 1);
        let off = |got: f64| (got / cpus - share).abs();
        prop_assert!(off(programs[0].cpus()) <= off(cpus / 2.0) + 0.02, "{:?}", programs[0].got);
    }

    /// For any goals, programs without a goal keep their fair shares, and no program has less than
    /// an eighth of its fair share.
    #[test]
    fn no_program_starves(
        programs in proptest::collection::vec(any_program(), 1..6),
        legacy_threads in 1u32..9,
        remembers: bool,
        nice: bool,
    ) {
        let mut programs = programs;
        programs.push(Fluid::new(legacy_threads, 1.0, None));
        let mut fair = programs.clone();
        flow(&mut fair);
        let means = if nice { Means::Nice } else { Means::Weight };
        run(&mut Fair { remembers, means, ..Fair::new(CPUS) }, &mut programs, 40, 2);
        for (p, fair) in programs.iter().zip(&fair) {
            // Weights are integers and change in steps of a twentieth.
            let least = match p.progress {
                None => fair.cpus() * 0.95,
                // Nice values are integers, too.
                Some(_) => {
                    let rounding = if nice { 1.0 / NICE_STEP } else { 0.9 };
                    (fair.cpus() * INDICATOR_MIN * rounding).min(p.quota)
                }
            };
            prop_assert!(p.cpus() >= least * 0.99, "{} of {} CPUs: {:?}", p.cpus(), fair.cpus(), p);
        }
    }

    #[test]
    fn decide_repeats_itself(
        programs in proptest::collection::vec(any_program(), 0..6),
        remembers: bool,
    ) {
        let run = || {
            let mut programs = programs.clone();
            let changes = run(&mut Fair { remembers, ..Fair::new(CPUS) }, &mut programs, 40, 2);
            (changes, format!("{programs:?}"))
        };
        prop_assert_eq!(run(), run());
    }
}

#[test]
fn unreachable_goal_leaves_others_their_minimum() {
    for remembers in [false, true] {
        let mut programs =
            [Fluid::new(4, 1.0, Some((1e12, 1e13))), Fluid::new(4, 1.0, Some((2.0, 3.0)))];
        let mut policy = Fair { remembers, ..Fair::new(CPUS) };
        for _ in 0..100 {
            run(&mut policy, &mut programs, 1, 1);
            assert!(programs[1].cpus() >= 2.0 * INDICATOR_MIN * 0.95, "{}", programs[1].cpus());
        }
    }
}
