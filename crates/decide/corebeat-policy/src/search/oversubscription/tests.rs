use super::*;
use proptest::prelude::*;

/// The paper's model: threads of equal priority that are always runnable, distributed evenly over
/// the CPUs by a fair scheduler.
#[derive(Debug, Clone, Copy)]
struct Contention {
    /// Number of CPUs of the machine, N; at least 1.
    cpus: u32,
    /// Number of busy threads of other programs, r.
    others: u32,
}

impl Contention {
    /// Returns the share of all CPU time for `x` threads if there are more threads than CPUs
    /// (equation 1).
    fn share(self, x: u32) -> f64 {
        f64::from(x) / f64::from((self.others + x).max(1))
    }

    /// Returns the smallest number of threads on a CPU (equation 2).
    fn turns_min(self, x: u32) -> u32 {
        ((self.others + x) / self.cpus).max(1)
    }

    /// Returns the largest number of threads on a CPU (equation 3). Measured values lie between the
    /// two bounds (equation 4), because the scheduler balances the load while threads run and end.
    fn turns_max(self, x: u32) -> u32 {
        (self.others + x).div_ceil(self.cpus).max(1)
    }

    /// Returns the effective number of CPUs of `x` threads if the slowest of them shares its CPU
    /// with `turns - 1` others (equation 5).
    fn cpus(self, x: u32, turns: f64) -> f64 {
        (f64::from(x) / turns).min(f64::from(self.cpus))
    }

    /// Returns the time of a section with `serial` seconds of work for one thread and `parallel`
    /// seconds of work for all threads (equation 6).
    fn time(self, x: u32, turns: f64, serial: f64, parallel: f64) -> f64 {
        serial + parallel / self.cpus(x, turns)
    }
}

fn times(model: Contention, mix: f64, serial: f64, noise: &[f64]) -> Vec<(u32, f64)> {
    (1..=2 * model.cpus + 2)
        .map(|x| {
            let (least, most) = (f64::from(model.turns_min(x)), f64::from(model.turns_max(x)));
            let t = model.time(x, least + mix * (most - least), serial, 1.0);
            (x, t * noise[x as usize % noise.len()])
        })
        .collect()
}

#[test]
fn contention_matches_the_numbers_of_the_paper() {
    let idle = Contention { cpus: 8, others: 0 };
    assert_eq!((idle.turns_min(3), idle.turns_max(3), idle.turns_max(9)), (1, 1, 2));
    let busy = Contention { cpus: 8, others: 4 };
    assert_eq!((busy.turns_min(5), busy.turns_max(4), busy.turns_max(5)), (1, 1, 2));
    assert_eq!(busy.cpus(5, 2.0), 2.5);
    assert_eq!(busy.cpus(32, 1.0), 8.0);
    assert_eq!(busy.share(8), 8.0 / 12.0);
}

#[test]
fn detect_finds_nine_when_idle_and_five_beside_four() {
    for (others, at) in [(0, 9), (4, 5)] {
        let found = detect(&times(Contention { cpus: 8, others }, 1.0, 0.0, &[1.0]), 8).unwrap();
        assert_eq!((found.at, found.before), (at, at - 1));
        assert_eq!((found.others_min, found.others_max), (others, others));
    }
}

#[test]
fn detect_with_gaps_returns_a_range() {
    let model = Contention { cpus: 8, others: 3 };
    let some: Vec<_> = times(model, 1.0, 0.0, &[1.0])
        .into_iter()
        .filter(|&(x, _)| [1, 2, 4, 6, 10].contains(&x))
        .collect();
    let found = detect(&some, 8).unwrap();
    assert_eq!((found.at, found.others_min, found.others_max), (6, 3, 4));
}

#[test]
fn detect_without_usable_times_finds_nothing() {
    assert_eq!(detect(&[], 8), None);
    assert_eq!(detect(&[(1, 1.0)], 0), None);
    assert_eq!(detect(&[(0, 1.0), (1, f64::NAN), (2, -1.0), (3, f64::INFINITY)], 2), None);
}

#[test]
fn detect_where_threads_hinder_each_other_finds_nothing() {
    let hindered: Vec<_> =
        (1..=24u32).map(|x| (x, 1.0 / f64::from(x) + 0.02 * f64::from(x))).collect();
    assert_eq!(detect(&hindered, 8), None);
}

proptest! {
    // r = N - 1 has no first peak: one thread alone takes as long as two that share a CPU.
    #[test]
    fn detect_on_the_model_finds_other_programs(
        cpus in 2u32..=32,
        others in 0u32..32,
        mix in 0.75f64..=1.0,
        serial in 0.0f64..0.01,
        noise in proptest::collection::vec(0.98f64..=1.02, 67),
    ) {
        let others = others % (cpus - 1);
        let found = detect(&times(Contention { cpus, others }, mix, serial, &noise), cpus);
        prop_assert_eq!(
            found.map(|f| (f.at, f.others_min, f.others_max)),
            Some((cpus - others + 1, others, others))
        );
    }

    #[test]
    fn detect_on_smooth_curves_finds_nothing(
        cpus in 1u32..=32,
        serial in 0.0f64..1.0,
        hindrance in 0.0f64..0.5,
        dynamic in any::<bool>(),
        others in 0u32..32,
        noise in proptest::collection::vec(0.96f64..=1.04, 67),
    ) {
        // Amdahl's law with a cost that grows with the number of threads. Dynamic scheduling has
        // its fair share of the machine (equation 1) without waiting.
        let curve: Vec<_> = (1..=2 * cpus + 2).map(|x| {
            let fair = Contention { cpus, others }.share(x) * f64::from(cpus);
            let n = if dynamic { f64::from(x).min(fair) } else { f64::from(x.min(cpus)) };
            let t = serial + 1.0 / n + hindrance * f64::from(x - 1) / f64::from(cpus);
            (x, t * noise[x as usize])
        }).collect();
        prop_assert_eq!(detect(&curve, cpus), None);
    }

    #[test]
    fn detect_never_panics(
        times in proptest::collection::vec((any::<u32>(), any::<f64>()), 0..20),
        cpus: u32,
    ) {
        let _ = detect(&times, cpus);
    }
}
