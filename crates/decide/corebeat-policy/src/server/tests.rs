use super::*;
use proptest::prelude::*;

const PERIOD_NS: u64 = 50_000_000;
const SECOND: usize = 20;

/// A simulated server: requests that arrive at a rate, or as fast as they are answered.
#[derive(Debug, Clone, Copy)]
struct Machine {
    /// Requests per second that arrive; the server answers at most what its threads can.
    arrivals: f64,
    /// CPU time of a request, in nanoseconds.
    request_ns: f64,
    /// CPU time of a wait for events, which the requests of a burst share.
    wait_ns: f64,
    /// Share of the requests that arrive on the connections of the first thread of thread-per-core,
    /// beside an equal share of the rest.
    skew: f64,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine { arrivals: 0.0, request_ns: 10_000.0, wait_ns: 2_000.0, skew: 0.0 }
    }
}

impl Machine {
    /// Returns the activity of a span in this variant.
    fn run(&self, variant: Variant) -> Load {
        let (workers, span) = (variant.workers(), PERIOD_NS as f64);
        let share = |n: usize| match variant.pattern {
            Pattern::ThreadPerCore => {
                self.skew * f64::from(u8::from(n == 0)) + (1.0 - self.skew) / workers as f64
            }
            _ => 1.0 / workers as f64,
        };
        // One event at a time is detected in the serial section.
        let is_serial = variant.pattern == Pattern::LeaderFollowers;
        let serial_max = if is_serial { span / self.wait_ns } else { f64::INFINITY };
        let arrived = self.arrivals * span / 1e9;
        let served = (0..workers).map(|n| {
            let cost = self.request_ns + if is_serial { self.wait_ns } else { 0.0 };
            (arrived * share(n)).min(span / cost).min(serial_max / workers as f64)
        });
        let served: Vec<f64> = served.collect();
        let total: f64 = served.iter().sum();
        let backlog = arrived - total;
        let worker = |served: &f64| ThreadLoad {
            waits: *served as u64,
            events: *served as u64,
            requests: *served as u64,
            serial_ns: if is_serial { (served * self.wait_ns) as u64 } else { 0 },
            ran_ns: Some((served * (self.request_ns + self.wait_ns)).min(span) as u64),
            waited_ns: Some(0),
            queued: 0,
        };
        let mut threads: Vec<_> = served.iter().map(worker).collect();
        if variant.pattern == Pattern::HalfSyncHalfAsync {
            let waits = (total / if backlog > 1.0 { 8.0 } else { 1.0 }) as u64;
            let queued = if backlog > 1.0 { waits * 4 } else { 0 };
            let events = total as u64;
            threads.iter_mut().for_each(|worker| (worker.waits, worker.events) = (0, 0));
            let detector = ThreadLoad { waits, events, queued, ..ThreadLoad::default() };
            threads.insert(0, detector);
        }
        Load { span_ns: PERIOD_NS, variant, threads }
    }

    /// Lets the policy control the server for a number of spans. Returns the last variant, and the
    /// changes.
    fn drive(
        &self,
        policy: &mut ServerPolicy,
        mut variant: Variant,
        spans: usize,
    ) -> (Variant, Vec<Variant>) {
        let mut changes = Vec::new();
        for _ in 0..spans {
            if let Some(choice) = policy.decide(&self.run(variant)) {
                variant = choice.variant;
                changes.push(variant);
            }
        }
        (variant, changes)
    }
}

#[test]
fn threads_follow_steps_of_the_load_within_a_second() {
    for cpus in [1, 2, 8, 64] {
        let low = Machine { arrivals: 500.0 * cpus as f64, ..Machine::default() };
        let high = Machine { arrivals: low.arrivals * 100.0, ..low };
        let mut policy = ServerPolicy::new(cpus);
        let mut variant = policy.initial();
        for _ in 0..6 {
            (variant, _) = low.drive(&mut policy, variant, SECOND);
            let low_demand = low.arrivals * (low.request_ns + low.wait_ns) / 1e9;
            let needed = ((low_demand / policy.comfortable).ceil() as usize).max(1);
            assert_eq!(variant, plain(needed), "{cpus} CPUs, low");
            assert_eq!(low.drive(&mut policy, variant, 9 * SECOND).1, []);
            (variant, _) = high.drive(&mut policy, variant, SECOND);
            assert!(variant.threads >= (cpus * 3).div_ceil(5), "{cpus} CPUs, high: {variant:?}");
            assert_eq!(high.drive(&mut policy, variant, 9 * SECOND).1, []);
        }
    }
}

#[test]
fn connections_are_shared_when_a_thread_is_saturated_beside_an_idle_one() {
    let machine = Machine { arrivals: 110_000.0, skew: 0.7, ..Machine::default() };
    let mut policy = ServerPolicy::new(2);
    let (variant, _) = machine.drive(&mut policy, plain(2), SECOND);
    assert_eq!(variant, shared(Pattern::LeaderFollowers, 2));
    // A constant load keeps the pattern, another load does not.
    assert_eq!(machine.drive(&mut policy, variant, 100 * SECOND).1, []);
    let even = Machine { arrivals: 2_000_000.0, request_ns: 500.0, wait_ns: 10.0, skew: 0.0 };
    let (variant, _) = even.drive(&mut policy, variant, SECOND);
    assert_eq!(variant, plain(2));
}

#[test]
fn long_requests_share_the_connections() {
    let machine = Machine { arrivals: 100.0, request_ns: 2e7, ..Machine::default() };
    let (variant, _) = machine.drive(&mut ServerPolicy::new(8), plain(1), 2 * SECOND);
    assert_eq!(variant.pattern, Pattern::LeaderFollowers);
}

#[test]
fn serial_section_in_use_gives_way_to_bursts() {
    let machine =
        Machine { arrivals: 1_500_000.0, request_ns: 6_000.0, wait_ns: 1_500.0, skew: 0.95 };
    let mut policy = ServerPolicy::new(8);
    let (variant, changes) = machine.drive(&mut policy, plain(1), 4 * SECOND);
    assert_eq!(variant.pattern, Pattern::HalfSyncHalfAsync, "{changes:?}");
    assert!(changes.iter().any(|variant| variant.pattern == Pattern::LeaderFollowers));
}

#[test]
fn growth_that_reduces_the_rate_is_undone() {
    let one = Machine { arrivals: 1e9, ..Machine::default() };
    let two = Machine { request_ns: 30_000.0, ..one };
    let mut policy = ServerPolicy::new(2);
    let (mut variant, mut changes) = (policy.initial(), Vec::new());
    for _ in 0..10 * SECOND {
        let machine = if variant.threads == 1 { one } else { two };
        if let Some(choice) = policy.decide(&machine.run(variant)) {
            variant = choice.variant;
            changes.push((variant, choice.why));
        }
    }
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(changes[1].0, plain(1));
    assert!(changes[1].1.starts_with("the rate of requests fell from "), "{}", changes[1].1);
}

/// Activity of a saturated server whose workers obtain this share of a CPU each.
fn crowded(variant: Variant, share: f64) -> Load {
    let ran = PERIOD_NS as f64 * share;
    let thread = ThreadLoad {
        requests: (ran / 12_000.0) as u64,
        ran_ns: Some(ran as u64),
        waited_ns: Some(PERIOD_NS - ran as u64),
        ..ThreadLoad::default()
    };
    Load { span_ns: PERIOD_NS, variant, threads: vec![thread; variant.threads] }
}

#[test]
fn waits_for_cpus_of_other_programs_prevent_growth() {
    let mut policy = ServerPolicy::new(8);
    assert!((0..SECOND).all(|_| policy.decide(&crowded(plain(1), 0.5)).is_none()));
}

#[test]
fn workers_that_wait_for_cpus_of_other_programs_do_not_end() {
    let mut policy = ServerPolicy::new(8);
    assert!((0..SECOND).all(|_| policy.decide(&crowded(plain(8), 0.2)).is_none()));
}

/// A policy, and a server that the policy has just changed to two workers at this rate.
fn grown(rate: f64) -> (ServerPolicy, Variant) {
    let mut policy = ServerPolicy::new(2);
    let request_ns = 1e9 / rate - Machine::default().wait_ns;
    let one = Machine { arrivals: 1e9, request_ns, ..Machine::default() };
    let (variant, _) = one.drive(&mut policy, plain(1), 3);
    assert_eq!(variant, plain(2), "{rate} requests a second");
    (policy, variant)
}

#[test]
fn falls_of_any_size_are_undone_unless_chance_explains_them() {
    // Rates before and after the change. The workers stay saturated.
    for (before, after, is_undone) in [
        (83_000.0, 75_000.0, true),
        (83_000.0, 20_000.0, true),
        (83_000.0, 0.0, true),
        (800.0, 500.0, true),
        (800.0, 750.0, false),
        (60.0, 20.0, false),
    ] {
        let (mut policy, variant) = grown(before);
        let requests = (after * PERIOD_NS as f64 / 1e9) as u64;
        let mut load = crowded(variant, 1.0);
        load.threads.iter_mut().for_each(|thread| thread.requests = requests / 2);
        let choices: Vec<_> = (0..3).filter_map(|_| policy.decide(&load)).collect();
        let undone = choices.first().is_some_and(|choice| choice.variant == plain(1));
        assert_eq!(undone, is_undone, "from {before} to {after}: {choices:?}");
    }
}

#[test]
fn refused_growth_is_repeated_after_equal_rests() {
    let machine = Machine { arrivals: 1e9, ..Machine::default() };
    let mut policy = ServerPolicy::new(8);
    let mut times = Vec::new();
    for span in 0..50 * SECOND {
        if let Some(choice) = policy.decide(&machine.run(plain(1))) {
            assert_eq!(choice.variant, plain(2));
            policy.refuse(plain(1), choice.variant);
            times.push(span / SECOND);
        }
    }
    assert_eq!(times, [0, 10, 20, 30, 40]);
}

#[test]
fn limit_keeps_patterns_with_several_workers() {
    let half_sync = shared(Pattern::HalfSyncHalfAsync, 4);
    assert_eq!(ServerPolicy::limit(half_sync, 2), shared(Pattern::HalfSyncHalfAsync, 2));
    assert_eq!(ServerPolicy::limit(half_sync, 9), half_sync);
    assert_eq!(ServerPolicy::limit(half_sync, 1), plain(1));
    assert_eq!(ServerPolicy::limit(half_sync, 0), plain(1));
}

#[test]
fn unknown_times_and_missing_threads_change_nothing() {
    let machine = Machine { arrivals: 1e9, ..Machine::default() };
    let mut policy = ServerPolicy::new(8);
    for _ in 0..SECOND {
        let mut load = machine.run(plain(1));
        load.threads[0].waited_ns = None;
        assert_eq!(policy.decide(&load), None);
        let load = Load { threads: vec![], ..machine.run(plain(1)) };
        assert_eq!(policy.decide(&load), None);
        assert_eq!(policy.decide(&Load { span_ns: 0, ..machine.run(plain(1)) }), None);
    }
}

#[test]
fn other_mechanisms_end() {
    let machine = Machine { arrivals: 1000.0, ..Machine::default() };
    let poll = Variant { mechanism: Mechanism::Poll, ..plain(1) };
    let (variant, _) = machine.drive(&mut ServerPolicy::new(2), poll, SECOND);
    assert_eq!(variant, plain(1));
}

/// Figures of a thread as shares and means, which need not be plausible.
fn any_thread() -> impl Strategy<Value = [f64; 6]> {
    proptest::array::uniform6(0.0..1.0_f64)
}

proptest! {
    /// Each variant has constant figures of its own, which no real machine need have.
    #[test]
    fn constant_load_does_not_oscillate_on_any_machine(
        table in proptest::collection::vec(any_thread(), 48),
        cpus in 1..=8_usize,
        noise in 0.0..0.3_f64,
        seed: u64,
    ) {
        const SPANS: u64 = 20_000;
        let mut policy = ServerPolicy::new(cpus);
        let (mut variant, mut random) = (policy.initial(), seed | 1);
        let mut counts = BTreeMap::new();
        for _ in 0..SPANS {
            let row = |n: usize| {
                let pattern = Pattern::ALL.iter().position(|p| *p == variant.pattern).unwrap();
                table[(pattern * 8 + variant.threads * 5 + n) % table.len()]
            };
            let figures: Vec<_> = (0..variant.threads).map(|n| {
                let [ran, waited, requests, events, serial, queued] = row(n);
                // xorshift
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let noise = 1.0 + noise * ((random % 1001) as f64 / 500.0 - 1.0);
                let ns = |share: f64| (share * PERIOD_NS as f64) as u64;
                ThreadLoad {
                    waits: 1000,
                    events: (events * 2000.0) as u64,
                    serial_ns: ns(serial),
                    queued: (queued * 2000.0) as u64,
                    requests: (requests * noise * 5000.0) as u64,
                    ran_ns: Some(ns(ran * noise).min(PERIOD_NS)),
                    waited_ns: Some(ns(waited * 0.2)),
                }
            }).collect();
            let load = Load { span_ns: PERIOD_NS, variant, threads: figures };
            if let Some(choice) = policy.decide(&load) {
                *counts.entry((variant, choice.variant)).or_insert(0_u32) += 1;
                variant = choice.variant;
            }
        }
        let time = (SPANS * PERIOD_NS) as f64 / policy.rest_ns as f64;
        let most = 1 + (1.0 + time).log2() as u32;
        prop_assert!(counts.values().all(|count| *count <= most), "{:?} > {}", counts, most);
    }

    #[test]
    fn decisions_repeat_themselves(
        arrivals in proptest::collection::vec(0.0..1e7_f64, 1..20),
        skew in 0.0..1.0_f64,
        cpus in 1..=8_usize,
    ) {
        let run = || {
            let mut policy = ServerPolicy::new(cpus);
            let mut variant = policy.initial();
            let mut all = Vec::new();
            for &arrivals in &arrivals {
                let machine = Machine { arrivals, skew, ..Machine::default() };
                let (next, changes) = machine.drive(&mut policy, variant, 5);
                variant = next;
                all.extend(changes);
            }
            all
        };
        let changes = run();
        prop_assert!(changes.iter().all(|variant| (1..=cpus).contains(&variant.workers())));
        prop_assert_eq!(changes, run());
    }
}
