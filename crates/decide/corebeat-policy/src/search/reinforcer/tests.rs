use super::*;
use crate::ratio::sample;
use proptest::prelude::*;

/// Runs a search on a model of a program. Returns the best number of threads and all reasons.
fn search(
    limits: Limits,
    mut trial: impl FnMut(u32) -> Trial,
) -> (Option<u32>, Vec<(u32, Reason)>) {
    let mut search = Reinforcer::new(limits, Thresholds::default());
    let mut reasons = Vec::new();
    loop {
        match search.next() {
            Step::Try(n) => reasons.push((n, search.record(n, trial(n)))),
            Step::Done { best, .. } => return (best, reasons),
        }
    }
}

/// A program with its speed-up curve and its overheads, which determine the four indicators.
#[derive(Debug, Clone, Copy)]
struct Model {
    cpus: u32,
    /// Serial share of the work (Amdahl).
    serial: f64,
    /// CPUs that a single thread uses; below 1 for threads that wait for input.
    busy: f64,
    /// Number of threads from which the threads wait for locks.
    lock_from: f64,
    /// Loss of speed by each further thread, as a share.
    lock_cost: f64,
    /// Whether waiting threads spin.
    spins: bool,
    /// Loss of speed by migrations for each thread beyond the CPUs, as a share.
    migration_cost: f64,
}

impl Model {
    const PLAIN: Model = Model {
        cpus: 24,
        serial: 0.0,
        busy: 1.0,
        lock_from: f64::INFINITY,
        lock_cost: 0.0,
        spins: false,
        migration_cost: 0.0,
    };

    fn threads_useful(&self, n: u32) -> f64 {
        (f64::from(n) * self.busy).min(f64::from(self.cpus))
    }

    /// Share of the threads' time lost to locks.
    fn lock(&self, n: u32) -> f64 {
        let over = (f64::from(n) - self.lock_from).max(0.0);
        1.0 - 1.0 / (1.0 + over * self.lock_cost)
    }

    fn speedup(&self, n: u32) -> f64 {
        let parallel = self.threads_useful(n) * (1.0 - self.lock(n));
        let over = f64::from(n.saturating_sub(self.cpus));
        1.0 / (self.serial + (1.0 - self.serial) / parallel) / (1.0 + over * self.migration_cost)
    }

    fn best(&self, max: u32) -> u32 {
        (1..=max)
            .fold(1, |best, n| if self.speedup(n) > self.speedup(best) * 1.001 { n } else { best })
    }

    fn profile(&self, n: u32, measured: bool) -> Profile {
        // A serial part uses one CPU while the other threads wait.
        let amdahl = 1.0 / (self.serial * self.threads_useful(n) + 1.0 - self.serial);
        let over = f64::from(n.saturating_sub(self.cpus));
        let wait = self.lock(n);
        Profile {
            cpu_util: self.threads_useful(n) * amdahl * (1.0 - wait) / f64::from(self.cpus),
            lock: Some(if self.spins { 0.0 } else { wait }),
            spin: Some(if self.spins { wait } else { 0.0 }),
            voluntary_rate: Some(if self.spins { 0.0 } else { 20_000.0 * wait }),
            migration_rate: Some(50_000.0 * over * self.migration_cost * wait.max(0.02)),
            progress: measured.then(|| self.speedup(n)),
        }
    }
}

/// Programs after Tables 2.1 and 2.4: name, model, and the best number of threads in the thesis.
fn parsec() -> Vec<(&'static str, Model, u32)> {
    let plain = Model::PLAIN;
    vec![
        ("swaptions", Model { busy: 0.8, ..plain }, 33),
        ("ferret", Model { busy: 0.38, ..plain }, 63),
        (
            "bodytrack",
            Model { serial: 0.05, lock_from: 20.0, lock_cost: 0.03, migration_cost: 0.01, ..plain },
            25,
        ),
        ("blackscholes", Model { serial: 0.18, ..plain }, 9),
        ("canneal", Model { serial: 0.25, ..plain }, 9),
        ("fluidanimate", Model { serial: 0.02, lock_from: 20.0, lock_cost: 0.12, ..plain }, 25),
        ("facesim", Model { serial: 0.13, lock_from: 15.0, lock_cost: 0.2, ..plain }, 16),
        ("streamcluster", Model { serial: 0.15, lock_from: 16.0, lock_cost: 0.1, ..plain }, 17),
    ]
}

#[test]
fn search_on_the_parsec_shapes_is_within_a_step_of_the_thesis() {
    for (name, model, thesis) in parsec() {
        let limits = Limits { max: 64, ..Limits::of(24) };
        let (best, reasons) = search(limits, |n| Trial::Ran(model.profile(n, false)));
        let best = best.unwrap();
        assert!(
            best.abs_diff(thesis) <= limits.step,
            "{name}: {best}, thesis {thesis}; {reasons:#?}"
        );
    }
}

#[test]
fn search_with_measured_progress_is_near_the_best_speedup() {
    for (name, model, _) in parsec() {
        let limits = Limits { max: 64, ..Limits::of(24) };
        let (best, _) = search(limits, |n| Trial::Ran(model.profile(n, true)));
        let (best, optimum) = (best.unwrap(), model.best(64));
        let lost = 1.0 - model.speedup(best) / model.speedup(optimum);
        assert!(
            best.abs_diff(optimum) <= limits.step || lost <= 0.05,
            "{name}: {best}, best {optimum}, {lost:.3} lost"
        );
    }
}

#[test]
fn search_on_two_cpus_has_a_step_of_one() {
    let model = Model { cpus: 2, ..Model::PLAIN };
    let (best, reasons) = search(Limits::of(2), |n| Trial::Ran(model.profile(n, false)));
    assert_eq!(reasons.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(best, Some(2));
    assert_eq!(
        reasons.last().unwrap().1.to_string(),
        "CPU utilisation did not change from 2 to 3 threads: the added threads found no more \
         parallelism"
    );
}

#[test]
fn search_ignores_the_utilisation_of_spinning_threads() {
    // The program spins from the second thread on, so all CPUs are busy.
    let model = Model { cpus: 2, lock_from: 1.0, lock_cost: 2.0, spins: true, ..Model::PLAIN };
    for measured in [false, true] {
        let (best, reasons) = search(Limits::of(2), |n| Trial::Ran(model.profile(n, measured)));
        assert_eq!(best, Some(1), "{reasons:#?}");
    }
}

#[test]
fn search_with_measured_progress_continues_at_constant_utilisation() {
    let (best, _) = search(Limits { max: 4, ..Limits::of(2) }, |n| {
        Trial::Ran(Profile { cpu_util: 0.5, progress: Some(f64::from(n)), ..Profile::default() })
    });
    assert_eq!(best, Some(4));
}

#[test]
fn search_skips_thread_counts_that_fail() {
    // A program that accepts only powers of two.
    let (best, reasons) =
        search(Limits { max: 8, ..Limits::of(4) }, |n| match n.is_power_of_two() {
            true => {
                Trial::Ran(Profile { cpu_util: f64::from(n.min(4)) / 4.0, ..Profile::default() })
            }
            false => Trial::Failed("exit status 1".into()),
        });
    assert_eq!(best, Some(4));
    assert_eq!(reasons.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        reasons[2].1.to_string(),
        "the program failed with 3 threads; the search skips this number"
    );
}

#[test]
fn search_without_successful_trials_has_no_best() {
    let (best, reasons) = search(Limits::of(1), |_| Trial::Failed("signal 11".into()));
    assert_eq!((best, reasons.last().unwrap().1), (None, Reason::AllFailed { threads: 4 }));
}

#[test]
fn search_of_one_thread_count_has_one_trial() {
    let limits = Limits { min: 3, max: 3, cpus: 2, step: 1 };
    let (best, reasons) = search(limits, |_| Trial::Ran(Profile::default()));
    assert_eq!((best, reasons.len()), (Some(3), 1));
}

#[test]
fn search_halves_the_step_if_overheads_and_progress_rise() {
    let profile = |n: u32| Profile {
        cpu_util: 0.5,
        lock: Some(0.02 * f64::from(n)),
        voluntary_rate: Some(500.0 * f64::from(n)),
        progress: Some(f64::from(n)),
        ..Profile::default()
    };
    let (_, reasons) = search(Limits { max: 21, ..Limits::of(24) }, |n| Trial::Ran(profile(n)));
    assert_eq!(reasons.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 9, 13, 17, 21]);
    assert_eq!(
        reasons[1].1.to_string(),
        "progress rose by 800% from 1 to 9 threads: this is an improvement, but lock time went \
         from 2% to 18%; the next step is only 4"
    );
}

#[test]
fn terminate_reads_switches_up_to_the_cpus_and_migrations_above() {
    let before = Profile {
        lock: Some(0.2),
        voluntary_rate: Some(0.0),
        migration_rate: Some(0.0),
        ..Profile::default()
    };
    let after =
        Profile { cpu_util: 0.4, voluntary_rate: Some(9e4), migration_rate: Some(9e3), ..before };
    for (cpus, stopped_by_switches) in [(24, true), (6, false)] {
        let limits = Limits { min: 1, max: 64, cpus, step: 8 };
        let (best, reasons) = search(limits, |n| Trial::Ran(if n == 1 { before } else { after }));
        assert_eq!(best, Some(1));
        let Reason::Overhead { kind, is_ahead: false, .. } = reasons[1].1 else {
            panic!("{:?}", reasons[1].1);
        };
        let expected = if stopped_by_switches { Overhead::Switches } else { Overhead::Migrations };
        assert_eq!(kind, expected);
    }
}

#[test]
fn search_ends_with_the_trial_that_did_more_work_in_spite_of_its_overhead() {
    // One thread uses one of two CPUs. With two threads, which block each other `switches` times
    // per second of CPU time, 75% of the CPUs are in use.
    for (switches, best_count) in [(10_000.0, 2), (60_000.0, 1)] {
        let one = Profile {
            cpu_util: 0.5,
            lock: Some(0.0),
            voluntary_rate: Some(0.0),
            ..Profile::default()
        };
        let two = Profile {
            cpu_util: 0.75,
            lock: Some(0.25),
            voluntary_rate: Some(switches),
            ..Profile::default()
        };
        let (best, reasons) = search(Limits::of(2), |n| Trial::Ran(if n == 1 { one } else { two }));
        assert_eq!(best, Some(best_count), "{reasons:#?}");
        assert_eq!(reasons.len(), 2);
        let text = reasons[1].1.to_string();
        assert!(text.contains("threads wait for each other"), "{text}");
        assert_eq!(text.contains("2 threads still did more work"), best_count == 2, "{text}");
    }
}

#[test]
fn median_profile_ignores_one_outlier() {
    let of = |spin, progress| Profile { cpu_util: 0.5, spin, progress, ..Profile::default() };
    let profiles = [of(Some(0.0), Some(1.0)), of(Some(0.4), Some(3.0)), of(Some(0.01), Some(2.0))];
    assert_eq!(Profile::median(&profiles), Some(of(Some(0.01), Some(2.0))));
    assert_eq!(Profile::median(&profiles[..2]), Some(of(Some(0.2), Some(2.0))));
    assert_eq!(Profile::median(&[profiles[0], of(None, None)]), Some(of(None, None)));
    assert_eq!(Profile::median(&[]), None);
}

#[test]
fn profile_of_a_sample_has_all_indicators() {
    let mut p = sample::program();
    sample::thread(&mut p, 0.0, 1.0, 0.0);
    for _ in 0..2 {
        let t = sample::thread(&mut p, 0.5, 0.25, 0.25);
        t.shares.spin = Some(0.25);
        (t.shares.lock, t.shares.park) = (Some(0.125), Some(0.125));
        t.counters.voluntary_switches = Some(50);
        t.counters.migrations = Some(5);
        t.counters.instructions = Some(1000);
    }
    p.threads[0].shares.spin = Some(0.0);
    let snapshot = Snapshot { span_ns: 1_000_000_000, ..Snapshot::default() };
    let profile = Profile::of(&p, &snapshot, 2).unwrap();
    assert_eq!(
        profile,
        Profile {
            cpu_util: 0.25,
            lock: Some(0.25),
            spin: Some(0.25),
            voluntary_rate: Some(100.0),
            migration_rate: Some(10.0),
            progress: Some(1000.0),
        }
    );
    p.threads[1].shares.user = None;
    assert_eq!(Profile::of(&p, &snapshot, 2), None);
}

prop_compose! {
    fn any_profile()(
        cpu_util in 0.0f64..=1.0,
        signs in proptest::array::uniform4(proptest::option::of(0.0f64..1.0)),
        progress in proptest::option::of(0.0f64..10.0),
    ) -> Profile {
        Profile {
            cpu_util,
            lock: signs[0],
            spin: signs[1],
            voluntary_rate: signs[2].map(|r| r * 1e4),
            migration_rate: signs[3].map(|r| r * 1e3),
            progress,
        }
    }
}

proptest! {
    #[test]
    fn search_ends_within_bounds_and_repeats_itself(
        (min, max, cpus, step) in (0u32..40, 0u32..200, 0u32..70, 0u32..30),
        profiles in proptest::collection::vec(proptest::option::of(any_profile()), 200),
    ) {
        let limits = Limits { min, max, cpus, step };
        let trial = |n: u32| match profiles[n as usize % 200] {
            Some(profile) => Trial::Ran(profile),
            None => Trial::Failed("x".into()),
        };
        let (best, reasons) = search(limits, trial);
        let (least, most) = (min.max(1), max.max(min).max(1));
        prop_assert!(reasons.iter().all(|&(n, _)| (least..=most).contains(&n)));
        prop_assert!(reasons.windows(2).all(|w| w[0].0 < w[1].0));
        prop_assert!(reasons.iter().all(|(_, reason)| !reason.to_string().is_empty()));
        prop_assert!(best.is_none_or(|b| profiles[b as usize % 200].is_some()));
        let have_failed = reasons.iter().all(|&(n, _)| profiles[n as usize % 200].is_none());
        prop_assert_eq!(best.is_none(), have_failed);
        prop_assert_eq!(search(limits, trial), (best, reasons));
    }

    #[test]
    fn search_with_progress_never_passes_the_peak_by_more_than_a_step(
        serial in 0.0f64..0.3,
        lock_from in 1.0f64..60.0,
        lock_cost in 0.0f64..0.5,
        cpus in 1u32..64,
    ) {
        let plain = Model { migration_cost: 0.01, ..Model::PLAIN };
        let model = Model { cpus, serial, lock_from, lock_cost, ..plain };
        let limits = Limits::of(cpus);
        let (best, reasons) = search(limits, |n| Trial::Ran(model.profile(n, true)));
        let (best, peak) = (best.unwrap(), model.best(limits.max));
        prop_assert!(best <= peak + limits.step);
        let last = reasons.last().unwrap().0;
        prop_assert!(last == best || model.speedup(last) <= model.speedup(best) * 1.03);
    }
}
