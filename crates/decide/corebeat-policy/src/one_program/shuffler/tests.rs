use super::*;
use crate::ratio::sample;
use corebeat_machine::{Cpu, Effect, Node, NodeId};
use proptest::prelude::*;

/// Four sockets in a ring: 0 and 1, and 2 and 3, are the farthest from each other (section 4.1,
/// Figure 4.2 (a)).
fn ring(cores: u32) -> Topology {
    let far = |a: u32, b: u32| match (a == b, a / 2 == b / 2) {
        (true, _) => 10,
        (false, true) => 22,
        (false, false) => 16,
    };
    let node = |n: u32| Node {
        id: NodeId(n),
        cpus: (n * cores..(n + 1) * cores).map(CpuId).collect(),
        distances: (0..4).map(|m| far(n, m)).collect(),
    };
    let cpu = |c: u32| {
        let n = c / cores;
        Cpu { id: CpuId(c), package: n, core: c, node: NodeId(n), cache: n }
    };
    Topology::new((0..4 * cores).map(cpu).collect(), (0..4).map(node).collect()).unwrap()
}

/// A thread: its CPU and its share of time on locks.
type Thread = (u32, f64);

fn snapshot(at_s: u64, threads: &[Thread], instructions: u64) -> Snapshot {
    let mut p = sample::program();
    for (cpu, lock) in threads {
        let t = sample::thread(&mut p, 1.0 - lock, *lock, 0.0);
        t.cpu = Some(CpuId(*cpu));
        t.shares.spin = Some(0.0);
        t.counters.voluntary_switches = Some(10);
        t.counters.instructions = Some(instructions);
    }
    let at_ns = at_s * 1_000_000_000;
    Snapshot { at_ns, span_ns: 1_000_000_000, programs: vec![p], ..Snapshot::default() }
}

/// Runs the policy for a range of seconds; pinned threads move to their places. Returns the numbers
/// of pinned threads and of releases.
fn run(
    policy: &mut Shuffler,
    seconds: std::ops::RangeInclusive<u64>,
    threads: &mut [Thread],
    instructions: impl Fn(bool) -> u64,
) -> (usize, usize) {
    let (mut pins, mut releases, mut is_pinned) = (0, 0, false);
    for at in seconds {
        for decision in policy.decide(&snapshot(at, threads, instructions(is_pinned))) {
            assert!(!decision.why.is_empty());
            match decision.action {
                Action::SetCpus { target: Target::Thread(id), cpus: Some(cpus) } => {
                    threads[id.tid as usize - 1].0 = cpus.iter().next().unwrap().0;
                    pins += 1;
                    is_pinned = true;
                }
                Action::SetCpus { target: Target::Program(_), cpus: None } => {
                    releases += 1;
                    is_pinned = false;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    (pins, releases)
}

/// Returns four groups of four threads with different lock times. Each socket of four cores runs
/// one thread of each group.
fn mixed() -> Vec<Thread> {
    (0..16).map(|i| (4 * (i % 4) + i / 4, 0.1 + 0.2 * f64::from(i / 4))).collect()
}

fn steady(_: bool) -> u64 {
    1_000_000_000
}

#[test]
fn chain_connects_near_places() {
    let places = Shuffler::new(&ring(2)).places;
    let places: Vec<String> = places.iter().map(CpuSet::to_string).collect();
    assert_eq!(
        places,
        ["0-1", "4-5", "2-3", "6-7"],
        "sockets 0 and 1, and 2 and 3, are not adjacent"
    );
}

#[test]
fn machine_with_one_cache_is_reported_as_idle() {
    let mut policy = Shuffler::new(&Topology::flat(8));
    assert!(policy.idle_because().is_some_and(|why| why.contains("share one last-level cache")));
    let mut threads: Vec<Thread> = (0..8).map(|i| (i, 0.1 * f64::from(i))).collect();
    assert_eq!(run(&mut policy, 1..=20, &mut threads, steady), (0, 0));
    assert_eq!(Shuffler::new(&ring(1)).idle_because(), None);
}

#[test]
fn threads_with_similar_lock_times_share_a_place_and_similar_groups_are_adjacent() {
    let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
    assert_eq!(run(&mut policy, 1..=1, &mut threads, steady), (0, 0), "the window is not over");
    assert_eq!(run(&mut policy, 2..=2, &mut threads, steady), (16, 0));
    let socket = |group: usize| {
        let cpus: BTreeSet<u32> = threads[4 * group..][..4].iter().map(|t| t.0 / 4).collect();
        assert_eq!(cpus.len(), 1, "{threads:?}");
        cpus.into_iter().next()
    };
    // The longest lock times first, along the chain of sockets 0, 2, 1, 3.
    assert_eq!([3, 2, 1, 0].map(socket), [Some(0), Some(2), Some(1), Some(3)]);
}

#[test]
fn constant_lock_times_cause_no_changes() {
    let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
    run(&mut policy, 1..=2, &mut threads, steady);
    assert_eq!(run(&mut policy, 3..=100, &mut threads, steady), (0, 0));
    // Noise below the band causes no changes.
    threads.iter_mut().zip(0..).for_each(|(t, i)| t.1 += 0.004 * f64::from(i % 3 - 1));
    assert_eq!(run(&mut policy, 101..=104, &mut threads, steady), (0, 0));
}

#[test]
fn threads_that_exchange_lock_times_are_swapped() {
    let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
    run(&mut policy, 1..=2, &mut threads, steady);
    let before = threads.clone();
    (threads[0].1, threads[15].1) = (threads[15].1, threads[0].1);
    assert_eq!(run(&mut policy, 3..=4, &mut threads, steady), (2, 0));
    assert_eq!((threads[0].0 / 4, threads[15].0 / 4), (before[15].0 / 4, before[0].0 / 4));
}

#[test]
fn program_without_lock_time_or_on_one_socket_is_left_alone() {
    let mut calm: Vec<Thread> = (0..16).map(|i| (i, 0.04)).collect();
    assert_eq!(run(&mut Shuffler::new(&ring(4)), 1..=20, &mut calm, steady), (0, 0));
    let mut pinned: Vec<Thread> = (0..16).map(|i| (i % 4, 0.05 * f64::from(i))).collect();
    assert_eq!(run(&mut Shuffler::new(&ring(4)), 1..=20, &mut pinned, steady), (0, 0));
    // A main thread that joins the others is in a futex call all the time but contends for no
    // lock.
    let mut policy = Shuffler::new(&ring(4));
    for at in 1..=20 {
        let mut threads = calm.clone();
        threads.push((0, 1.0));
        let mut sample = snapshot(at, &threads, 1);
        sample.programs[0].threads[16].counters.voluntary_switches = Some(0);
        assert_eq!(policy.decide(&sample), []);
    }
}

#[test]
fn spin_time_counts_as_lock_time() {
    let mut policy = Shuffler::new(&ring(1));
    let spinning = |at| {
        let mut sample = snapshot(at, &[(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.0)], 1);
        for (t, i) in sample.programs[0].threads.iter_mut().zip(0..) {
            t.shares.spin = Some(0.2 * f64::from(i));
        }
        sample
    };
    assert_eq!((policy.decide(&spinning(1)).len(), policy.decide(&spinning(2)).len()), (0, 4));
}

#[test]
fn shuffling_that_does_not_help_is_undone_for_doubling_times() {
    let slower = |is_pinned| if is_pinned { 900_000_000 } else { 1_000_000_000 };
    assert_eq!(run(&mut Shuffler::new(&ring(4)), 1..=5, &mut mixed(), slower), (16, 0));
    assert_eq!(
        run(&mut Shuffler::new(&ring(4)), 1..=6, &mut mixed(), slower),
        (16, 1),
        "two windows"
    );
    let (pins, releases) = run(&mut Shuffler::new(&ring(4)), 1..=1_000, &mut mixed(), slower);
    assert!((4..=8).contains(&releases), "after 10, 20, 40, ... seconds: {releases}");
    assert!(pins <= 16 * (releases + 1), "{pins}");
}

#[test]
fn low_lock_time_releases_threads() {
    let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
    run(&mut policy, 1..=2, &mut threads, steady);
    threads.iter_mut().for_each(|t| t.1 = 0.01);
    assert_eq!(run(&mut policy, 3..=20, &mut threads, steady), (0, 1));
}

#[test]
fn ended_threads_cause_the_fewest_moves() {
    let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
    run(&mut policy, 1..=2, &mut threads, steady);
    // The last three threads end; all are in one place.
    threads.truncate(13);
    let (pins, _) = run(&mut policy, 3..=4, &mut threads, steady);
    assert!((2..=6).contains(&pins), "two threads move there and swaps make room: {pins}");
    let mut counts = [0; 4];
    threads.iter().for_each(|t| counts[t.0 as usize / 4] += 1);
    counts.sort_unstable();
    assert_eq!(counts, [3, 3, 3, 4]);
    assert_eq!(run(&mut policy, 5..=20, &mut threads, steady), (0, 0));
}

fn members(all: &[(usize, f64)]) -> Vec<Member> {
    let member = |(place, lock): &(usize, f64), i: i32| Member {
        id: ThreadId { tid: i, start_ticks: 0 },
        place: *place,
        lock: *lock,
    };
    all.iter().zip(0..).map(|(m, i)| member(m, i)).collect()
}

fn counts(members: &[Member], places: usize) -> Vec<usize> {
    (0..places).map(|place| members.iter().filter(|m| m.place == place).count()).collect()
}

proptest! {
    #[test]
    fn shuffle_swaps_only_and_sorts_within_the_band(
        all in proptest::collection::vec((0usize..6, 0.0f64..1.0), 0..80),
        band in prop_oneof![Just(0.0), 0.0f64..0.3],
    ) {
        let before = members(&all);
        let mut after = before.clone();
        shuffle(&mut after, 6, band);
        prop_assert_eq!(counts(&before, 6), counts(&after, 6), "each place keeps its number");
        let moved = before.iter().zip(&after).filter(|(b, a)| b.place != a.place).count();
        prop_assert!(moved <= all.len());
        let mut again = after.clone();
        shuffle(&mut again, 6, band);
        prop_assert_eq!(&after, &again, "a second call changes nothing");
        if band == 0.0 {
            for place in 1..6 {
                let members = |place: usize| after.iter().filter(move |m| m.place == place);
                let of = |place: usize| members(place).map(|m| m.lock);
                let least = of(place - 1).fold(f64::INFINITY, f64::min);
                prop_assert!(of(place).all(|lock| lock <= least), "place {place}: {after:?}");
            }
        }
    }

    #[test]
    fn sizes_are_proportional_and_stable(
        counts_now in proptest::collection::vec(0usize..40, 1..8),
        cpus in 1usize..20,
    ) {
        let even = sizes(&counts_now, &vec![cpus; counts_now.len()]);
        prop_assert_eq!(even.iter().sum::<usize>(), counts_now.iter().sum::<usize>());
        prop_assert!(even.iter().max().unwrap() - even.iter().min().unwrap() <= 1);
        prop_assert_eq!(sizes(&even, &vec![cpus; even.len()]), even);
    }

    #[test]
    fn balance_reaches_the_sizes_with_the_fewest_moves(
        all in proptest::collection::vec((0usize..5, 0.0f64..1.0), 0..60),
    ) {
        let before = members(&all);
        let now = counts(&before, 5);
        let wanted = sizes(&now, &[4; 5]);
        let mut after = before.clone();
        balance(&mut after, &wanted);
        prop_assert_eq!(counts(&after, 5), wanted.clone());
        let moved = before.iter().zip(&after).filter(|(b, a)| b.place != a.place).count();
        let too_many: usize = now.iter().zip(&wanted).map(|(n, w)| n.saturating_sub(*w)).sum();
        prop_assert_eq!(moved, too_many);
    }

    // For every input, the policy is deterministic, pins no more than all threads in a window, and
    // keeps them as balanced as they were.
    #[test]
    fn shuffler_repeats_itself_within_bounds(
        locks in proptest::collection::vec(proptest::collection::vec(0.0f64..1.0, 16), 20),
    ) {
        let once = || {
            let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
            let mut results = vec![];
            for (second, locks) in (1..).zip(&locks) {
                threads.iter_mut().zip(locks).for_each(|(t, lock)| t.1 = *lock);
                let counts = run(&mut policy, second..=second, &mut threads, steady);
                results.push((counts, threads.clone()));
            }
            results
        };
        let results = once();
        prop_assert_eq!(&results, &once());
        for ((pins, releases), threads) in results {
            prop_assert!(pins <= 16 && releases <= 1);
            let mut counts = [0; 4];
            threads.iter().for_each(|t| counts[t.0 as usize / 4] += 1);
            prop_assert_eq!(counts, [4; 4]);
        }
    }
}

#[test]
fn refused_affinity_is_requested_once() {
    for accepted in [0, 5] {
        let (mut policy, threads) = (Shuffler::new(&ring(4)), mixed());
        let (mut requests, mut releases) = (0, 0);
        for at in 1..=200 {
            for decision in policy.decide(&snapshot(at, &threads, 1_000_000_000)) {
                let is_pin = matches!(decision.action, Action::SetCpus { cpus: Some(_), .. });
                requests += usize::from(is_pin);
                releases += usize::from(!is_pin);
                let outcome = match is_pin && requests > accepted {
                    true => Err("not permitted".into()),
                    false => Ok(Effect { changed: 1 }),
                };
                policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
            }
        }
        assert_eq!(requests, 16, "one request for each thread");
        assert_eq!(releases, usize::from(accepted > 0), "accepted pins are undone once");
    }
}
