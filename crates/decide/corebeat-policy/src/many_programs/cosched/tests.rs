use super::*;
use corebeat_machine::{
    Action, AppliedAction, Counters, Cpu, Node, NodeId, Policy, ProgramId, ProgramSample, Snapshot,
    ThreadId, ThreadSample, TimeShares,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn set(cpus: u32) -> CoscheduledSet {
    CoscheduledSet { cpus, within: None }
}

fn within(outer: usize, cpus: u32) -> CoscheduledSet {
    CoscheduledSet { cpus, within: Some(outer) }
}

fn cosched(cpus: u32, sets: &[CoscheduledSet], fragments: Fragments) -> Cosched {
    Cosched::new(&Topology::flat(cpus), sets, MS, fragments).unwrap_or_else(|e| panic!("{e}"))
}

fn count(plan: &Plan, set: Option<usize>) -> u32 {
    plan.cpus.iter().filter(|&&c| c == set).count() as u32
}

/// The paper's setup 3: eight sets of four CPUs, each with two runnable tasks, on four CPUs.
#[test]
fn plan_fills_fragments_where_the_prototype_leaves_them_idle() {
    let sets = vec![set(4); 8];
    let mut filling = cosched(4, &sets, Fragments::Fill);
    let mut idling = cosched(4, &sets, Fragments::Idle);
    let (mut ran, mut ran_idling) = ([0; 8], [0; 8]);
    for turn in 0..80 {
        let plan = filling.plan(turn * MS, &[2; 8], 0);
        let on: Vec<usize> = (0..8).filter(|&s| count(&plan, Some(s)) == 2).collect();
        assert_eq!(on.len(), 2, "{plan:?}");
        on.iter().for_each(|&s| ran[s] += 1);
        let plan = idling.plan(turn * MS, &[2; 8], 0);
        let on: Vec<usize> = (0..8).filter(|&s| count(&plan, Some(s)) > 0).collect();
        assert_eq!((on.len(), count(&plan, Some(on[0]))), (1, 4), "{plan:?}");
        ran_idling[on[0]] += 1;
    }
    assert_eq!((ran, ran_idling), ([20; 8], [10; 8]));
}

#[test]
fn plan_leaves_the_fewest_cpus_empty() {
    // Three CPUs are left beside the first set. The set of three fills them, although the set of
    // one had less time.
    let mut core = cosched(4, &[set(1), set(1), set(3)], Fragments::Fill);
    core.plan(0, &[0, 0, 0], 0);
    core.queues[2].had_ns = MS / 2;
    let plan = core.plan(MS, &[1, 1, 3], 0);
    assert_eq!(
        (count(&plan, Some(0)), count(&plan, Some(1)), count(&plan, Some(2))),
        (1, 0, 3),
        "{plan:?}"
    );
}

#[test]
fn set_with_more_runnable_tasks_takes_its_cpus_back() {
    let mut core = cosched(4, &[set(4), set(2)], Fragments::Fill);
    let plan = core.plan(0, &[2, 2], 0);
    assert_eq!((count(&plan, Some(0)), count(&plan, Some(1))), (2, 2));
    let more = core.plan(MS / 4, &[3, 2], 0);
    assert_eq!(
        (count(&more, Some(0)), count(&more, Some(1))),
        (3, 0),
        "a set that does not fit stops as a whole"
    );
    assert_eq!(
        plan.cpus.iter().zip(&more.cpus).filter(|(a, b)| **a == Some(0) && a != b).count(),
        0
    );
    assert_eq!(core.plan(MS / 2, &[2, 2], 0), Plan { until_ns: u64::MAX, ..plan });
}

#[test]
fn set_in_a_fragment_may_lack_cpus_for_a_short_time() {
    let mut core = cosched(4, &[set(4), set(4)], Fragments::Fill);
    let plan = core.plan(0, &[2, 2], 0);
    let short = core.plan(MS / 4, &[2, 3], 0);
    assert_eq!(short.cpus, plan.cpus);
    assert_eq!(short.until_ns, MS / 4 + PATIENCE_NS);
    assert_eq!(core.plan(MS / 4 + 1, &[2, 2], 0).cpus, plan.cpus, "the shortage was short");
    core.plan(MS / 2, &[2, 3], 0);
    let after = core.plan(MS / 2 + PATIENCE_NS, &[2, 3], 0);
    assert_eq!((count(&after, Some(0)), count(&after, Some(1))), (2, 0), "the shortage was long");
    let grown = core.plan(3 * MS / 4, &[1, 3], 0);
    assert_eq!((count(&grown, Some(0)), count(&grown, Some(1))), (1, 3));
}

#[test]
fn nested_sets_share_the_turn_of_the_outer_one() {
    // An outer set of four with two sets of two and an own task, beside another set of four.
    let sets = [set(4), within(0, 2), within(0, 2), set(4)];
    let mut core = cosched(4, &sets, Fragments::Fill);
    let mut ran = [0; 4];
    for turn in 0..120 {
        let plan = core.plan(turn * MS, &[1, 2, 2, 4], 0);
        let on = [0, 1, 2, 3].map(|s| count(&plan, Some(s)));
        let outer = on[0] + on[1] + on[2];
        assert!(outer == 0 && on[3] == 4 || outer == 4 && on[3] == 0, "{plan:?}");
        assert!(on[1] % 2 == 0 && on[2] % 2 == 0, "{plan:?}");
        (0..4).for_each(|s| ran[s] += u32::from(on[s] > 0));
    }
    assert_eq!(ran[3], 60);
    // Of the inner sets and the task, any two run at a time.
    assert!(ran[..3].iter().all(|r| (20..=60).contains(r)), "{ran:?}");
}

#[test]
fn tasks_without_a_set_have_turns_and_remaining_cpus() {
    let mut core = cosched(2, &[set(2)], Fragments::Fill);
    let plans: Vec<Plan> = (0..10).map(|turn| core.plan(turn * MS, &[2], 1)).collect();
    assert_eq!(plans.iter().filter(|p| count(p, Some(0)) == 2).count(), 5);
    let plan = core.plan(10 * MS, &[1], 1);
    assert_eq!((count(&plan, Some(0)), count(&plan, None)), (1, 1));
}

#[test]
fn plan_keeps_a_set_together_and_in_its_place() {
    let cpu = |c: u32| Cpu {
        id: corebeat_machine::CpuId(c),
        package: c / 4,
        core: c,
        node: NodeId(c / 4),
        cache: c / 4,
    };
    let node = |n: u32| Node {
        id: NodeId(n),
        cpus: (4 * n..4 * n + 4).map(corebeat_machine::CpuId).collect(),
        distances: vec![10 + 10 * (n % 2), 20 - 10 * (n % 2)],
    };
    let topology = Topology::new((0..8).map(cpu).collect(), vec![node(0), node(1)]).unwrap();
    let mut core = Cosched::new(&topology, &[set(3), set(4), set(8)], MS, Fragments::Fill).unwrap();
    let mut places = [vec![], vec![]];
    for turn in 0..20 {
        let plan = core.plan(turn * MS, &[3, 4, if turn % 3 == 0 { 8 } else { 0 }], 0);
        for (s, place) in places.iter_mut().enumerate() {
            let now: Vec<usize> = (0..8).filter(|&c| plan.cpus[c] == Some(s)).collect();
            if now.is_empty() {
                continue;
            }
            assert!(now.iter().all(|c| c / 4 == now[0] / 4), "{plan:?}");
            assert!(place.is_empty() || *place == now, "{place:?} {now:?}");
            *place = now;
        }
    }
    assert!(places.iter().all(|p| !p.is_empty()));
}

#[test]
fn invalid_sets_are_refused() {
    let error = |sets: &[CoscheduledSet]| {
        Cosched::new(&Topology::flat(4), sets, MS, Fragments::Fill).unwrap_err().to_string()
    };
    assert_eq!(error(&[set(5)]), "set 1 requires 5 CPUs; specify 1 to 4");
    assert_eq!(error(&[set(2), within(0, 3)]), "set 2 requires 3 CPUs; specify 1 to 2");
    assert!(error(&[within(0, 2)]).contains("set 1 is within a set that does not precede"));
    assert!(error(&vec![set(1); SETS_MAX + 1]).contains("at most 4096"));
}

/// Sets with up to three levels of nesting, and their runnable tasks.
fn sets() -> impl Strategy<Value = (u32, Vec<CoscheduledSet>, Vec<u32>, u32)> {
    (1..10u32, proptest::collection::vec((0..10u32, 0..9usize, 0..6u32), 1..8), 0..5u32).prop_map(
        |(all, raw, loose)| {
            let mut sets: Vec<CoscheduledSet> = vec![];
            for (at, &(cpus, outer, _)) in raw.iter().enumerate() {
                let within = (outer < at).then_some(outer);
                let most = within.map_or(all, |o| sets[o].cpus);
                sets.push(CoscheduledSet { cpus: 1 + cpus % most, within });
            }
            let tasks = raw.iter().map(|r| r.2).collect();
            (all, sets, tasks, loose)
        },
    )
}

/// Returns whether a set equals another set or is within it.
fn is_part(sets: &[CoscheduledSet], s: usize, of: usize) -> bool {
    s == of || sets[s].within.is_some_and(|outer| is_part(sets, outer, of))
}

/// Returns the number of CPUs that a set can use.
fn need(sets: &[CoscheduledSet], tasks: &[u32], s: usize) -> u32 {
    let inner =
        (0..sets.len()).filter(|&i| sets[i].within == Some(s)).map(|i| need(sets, tasks, i));
    (tasks[s] + inner.sum::<u32>()).min(sets[s].cpus)
}

proptest! {
    #[test]
    fn plan_keeps_the_rule_and_starves_no_set(
        (all, sets, tasks, loose) in sets(),
        idle in any::<bool>(),
    ) {
        let fragments = if idle { Fragments::Idle } else { Fragments::Fill };
        let mut core = cosched(all, &sets, fragments);
        let mut ran = vec![0u64; sets.len()];
        let mut ran_loose = 0;
        const TURNS: u64 = 200;
        for turn in 0..TURNS {
            let plan = core.plan(turn * MS, &tasks, loose);
            let has = |s: usize| {
                plan.cpus.iter().flatten().filter(|&&i| is_part(&sets, i, s)).count() as u32
            };
            for s in 0..sets.len() {
                let need = need(&sets, &tasks, s);
                prop_assert!(has(s) == 0 || has(s) >= need, "set {} has {} of {}", s, has(s), need);
                prop_assert!(idle || has(s) <= sets[s].cpus);
                prop_assert!(need > 0 || has(s) == 0);
                ran[s] += u64::from(has(s) > 0);
            }
            ran_loose += u64::from(plan.cpus.contains(&None));
            let busy = loose > 0 || tasks.iter().any(|&t| t > 0);
            prop_assert!(!busy || plan.cpus.iter().any(Option::is_some) || loose > 0);
            // No set that fits waits: with filling, no set of the machine's queue fits on the empty
            // CPUs.
            let empty = plan.cpus.iter().filter(|c| c.is_none()).count() as u32;
            let empty = empty.saturating_sub(loose);
            for s in (0..sets.len()).filter(|&s| !idle && sets[s].within.is_none() && has(s) == 0) {
                let need = need(&sets, &tasks, s);
                prop_assert!(need == 0 || need > empty, "{} fits into {}", need, empty);
            }
        }
        // In the machine's queue each entry has its share, except for three slices.
        let is_rival = |&s: &usize| sets[s].within.is_none() && need(&sets, &tasks, s) > 0;
        let rivals = (0..sets.len()).filter(is_rival);
        let count = rivals.clone().count() as u64 + u64::from(loose > 0);
        for s in rivals {
            let share = TURNS / count;
            prop_assert!(ran[s] + 3 >= share, "set {} has {} turns of {}", s, ran[s], share);
        }
        prop_assert!(loose == 0 || ran_loose + 3 >= TURNS / count);
        // Within each set the same holds for the turns of that set.
        for outer in 0..sets.len() {
            let inner: Vec<usize> = (0..sets.len())
                .filter(|&s| sets[s].within == Some(outer) && need(&sets, &tasks, s) > 0)
                .collect();
            let count = inner.len() as u64 + u64::from(tasks[outer] > 0);
            for s in inner {
                let (own, all) = (ran[s], ran[outer]);
                prop_assert!(own + 3 >= all / count, "set {} in {}: {} of {}", s, outer, own, all);
            }
        }
    }

    #[test]
    fn plan_of_any_input_is_finite_and_deterministic(
        (all, sets, _, _) in sets(),
        calls in proptest::collection::vec(
            (0..3 * MS, proptest::collection::vec(0..7u32, 8), 0..4u32),
            1..40,
        ),
    ) {
        let run = || {
            let (mut core, mut now_ns) = (cosched(all, &sets, Fragments::Fill), 0);
            let mut short_ns = vec![None; sets.len()];
            calls.iter().map(|(pass_ns, tasks, loose)| {
                now_ns += pass_ns;
                let plan = core.plan(now_ns, tasks, *loose);
                assert!(plan.until_ns > now_ns);
                for (s, short_ns) in short_ns.iter_mut().enumerate() {
                    let parts = plan.cpus.iter().flatten().filter(|&&i| is_part(&sets, i, s));
                    let has = parts.count() as u32;
                    // Except for the patience.
                    match has == 0 || has >= need(&sets, tasks, s) {
                        true => *short_ns = None,
                        false => {
                            let until_ns = *short_ns.get_or_insert(now_ns) + PATIENCE_NS;
                            assert!(now_ns < until_ns && plan.until_ns <= until_ns);
                        }
                    }
                }
                plan
            }).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }
}

fn program(id: u32, running: f64, wait: f64) -> ProgramSample {
    let thread = |tid| ThreadSample {
        id: ThreadId { tid, start_ticks: 1 },
        pid: 1,
        name: "t".into(),
        cpu: None,
        span_ns: MS,
        shares: TimeShares {
            user: Some(running / 2.0),
            system: Some(0.0),
            wait: Some(wait / 2.0),
            ..TimeShares::default()
        },
        counters: Counters::ZERO,
    };
    let threads = vec![thread(1), thread(2)];
    ProgramSample {
        id: ProgramId(id),
        name: "p".into(),
        threads,
        io_bytes: None,
        team: None,
        progress: None,
    }
}

#[test]
fn decide_freezes_before_thawing_and_leaves_idle_programs_alone() {
    let ids = [(ProgramId(0), 2), (ProgramId(1), 2), (ProgramId(2), 2)];
    let mut policy = Coscheduling::new(&Topology::flat(2), &ids, MS).unwrap();
    let mut frozen = [false; 3];
    for turn in 1..20 {
        // Two programs need both CPUs; the third sleeps.
        let share = |p: usize| if frozen[p] { 0.0 } else { 1.0 };
        let programs = vec![
            program(0, share(0), share(0)),
            program(1, share(1), share(1)),
            program(2, 0.0, 0.0),
        ];
        let sample = Snapshot { at_ns: turn * MS, span_ns: MS, programs, ..Snapshot::default() };
        let mut thawed = false;
        for decision in policy.decide(&sample) {
            let Action::SetFrozen { program, frozen: now } = decision.action else {
                panic!("{decision:?}")
            };
            assert!(now || !frozen.iter().all(|f| !f), "only a frozen program is thawed");
            assert!(!(now && thawed), "programs are frozen before others are thawed");
            thawed |= !now;
            frozen[program.0 as usize] = now;
        }
        assert_eq!(frozen, [turn % 2 == 0, turn % 2 == 1, false]);
    }
    // One program ends; the other is alone.
    let sample = Snapshot {
        at_ns: 30 * MS,
        span_ns: MS,
        programs: vec![program(1, 1.0, 0.0)],
        ..Snapshot::default()
    };
    policy.decide(&sample);
    assert!(!policy.gangs[1].frozen);
}

#[test]
fn coscheduled_share_counts_waiting_beside_missing_cpus() {
    // On two CPUs: two threads run all the time; one of two threads waits half of the time; four
    // threads are runnable.
    assert_eq!(coscheduled(&program(0, 2.0, 0.0), MS, 2), Some(1.0));
    assert_eq!(coscheduled(&program(0, 1.5, 0.5), MS, 2), Some(0.5));
    assert_eq!(coscheduled(&program(0, 2.0, 2.0), MS, 2), Some(1.0));
    assert_eq!(coscheduled(&program(0, 0.0, 0.0), MS, 2), None);
}

#[test]
fn refused_freezing_thaws_all_programs_and_ends_the_turns() {
    let topology = Topology::flat(2);
    let programs = [(ProgramId(0), 2), (ProgramId(1), 2), (ProgramId(2), 2)];
    let mut policy = Coscheduling::new(&topology, &programs, MS).unwrap();
    let mut frozen = [false; 3];
    let mut requests = 0;
    for turn in 1..=20u64 {
        let programs = (0..3).map(|id| program(id, 2.0, 0.0)).collect();
        let snapshot = Snapshot { at_ns: turn * MS, span_ns: MS, programs, ..Snapshot::default() };
        for decision in policy.decide(&snapshot) {
            let Action::SetFrozen { program, frozen: now } = decision.action else {
                panic!("{decision:?}")
            };
            requests += usize::from(now);
            let outcome = match now && requests > 1 {
                true => Err("not permitted".to_owned()),
                false => Ok(corebeat_machine::Effect { changed: 1 }),
            };
            if outcome.is_ok() {
                frozen[program.0 as usize] = now;
            }
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
        }
    }
    assert_eq!((requests, frozen), (2, [false; 3]));
}

#[test]
fn programs_that_never_wait_have_a_reason() {
    let reasons = |cpus: u32, ids: &[(ProgramId, u32)]| {
        let mut policy = Coscheduling::new(&Topology::flat(cpus), ids, MS).unwrap();
        for turn in 1..=3 {
            let programs = ids.iter().map(|(id, _)| program(id.0, 1.0, 1.0)).collect();
            let sample =
                Snapshot { at_ns: turn * MS, span_ns: MS, programs, ..Snapshot::default() };
            policy.decide(&sample);
        }
        let of = |id| policy.inactions(id).into_iter().map(|inaction| inaction.why);
        assert_eq!(of(ProgramId(7)).count(), 0, "not a program of the policy");
        of(ids[0].0).collect::<Vec<_>>().concat()
    };
    let (first, second) = ((ProgramId(0), 2), (ProgramId(1), 2));
    assert!(reasons(2, &[first]).contains("no other program"));
    assert!(reasons(4, &[first, second]).contains("never needed more CPUs"));
    assert_eq!(reasons(2, &[first, second]), "", "the programs took turns");
}
