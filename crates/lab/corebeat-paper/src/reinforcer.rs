//! The search for the number of threads. Pusukuri 2012, chapter 2.

use crate::environment::{MS, rate, simulate, solaris_24};
use crate::program::{Model, OMP, PARSEC};
use crate::report::{Figure, Report, Row};
use corebeat_machine::{Clock, Machine};
use corebeat_policy::reinforcer::{Limits, Profile, Reinforcer, Step, Thresholds, Trial};

/// The thesis' values for a program: threads and speed that the search found, and the best ones.
type Published = (&'static str, u32, f64, u32, f64);

/// Table 2.4.
const TABLE_2_4: [Published; 8] = [
    ("facesim", 16, 4.9, 16, 4.9),
    ("bodytrack", 26, 11.4, 26, 11.4),
    ("swaptions", 33, 21.9, 33, 21.9),
    ("ferret", 63, 14.1, 63, 14.1),
    ("fluidanimate", 25, 12.2, 21, 12.7),
    ("streamcluster", 25, 4.0, 17, 4.2),
    ("canneal", 9, 2.9, 41, 3.6),
    ("blackscholes", 9, 3.7, 33, 4.9),
];

/// Table 2.5.
const TABLE_2_5: [Published; 8] = [
    ("ammp", 24, 11.8, 24, 11.8),
    ("art", 32, 8.8, 32, 8.8),
    ("fma3d", 16, 5.5, 20, 5.7),
    ("gafort", 64, 9.7, 48, 9.8),
    ("mgrid", 16, 5.0, 16, 5.0),
    ("swim", 32, 3.9, 24, 4.0),
    ("wupwise", 24, 8.6, 24, 8.6),
    ("pbzip2", 24, 6.7, 28, 6.9),
];

/// Candidates for the best thread count.
const COUNTS: [u32; 16] = [8, 12, 16, 17, 20, 21, 24, 25, 26, 28, 32, 33, 41, 48, 63, 71];

pub(crate) fn parsec() -> Report {
    report(&PARSEC, &TABLE_2_4)
}

pub(crate) fn omp() -> Report {
    report(&OMP, &TABLE_2_5)
}

fn report(models: &[Model], published: &[Published]) -> Report {
    let row = |(model, paper): (&Model, &Published)| {
        let (_, found_threads, found_speed, best_threads, best_speed) = *paper;
        let found = found(model);
        let speeds = COUNTS.iter().chain([&found]).map(|&count| (count, speed(model, count)));
        let best = speeds.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
        let of_best = speed(model, found) / best.1;
        let figures = vec![
            Figure::shown(f64::from(found_threads), f64::from(found)),
            Figure::shown(f64::from(best_threads), f64::from(best.0)),
            Figure::checked(best_speed, best.1, 0.2),
            Figure::shown(found_speed / best_speed, of_best),
        ];
        Row { name: model.name().into(), figures }
    };
    Report {
        what: "program",
        columns: vec!["threads found", "best threads", "best speed", "found/best"],
        rows: models.iter().zip(published).map(row).collect(),
        notes: vec![
            "Speed is relative to one thread. Models were fitted to the best speed and one or two \
             others; the search results were not.",
            "With far more threads than cores, some models are faster than with one thread per core, \
             unlike the thesis' programs.",
        ],
    }
}

/// Returns the speed with this many threads, relative to one thread.
fn speed(model: &Model, threads: u32) -> f64 {
    let (_, program) = model.program(threads);
    let mut machine = simulate(&solaris_24(), vec![program], Some(100.0));
    let beat_ns = model.alone_ns();
    let settled_ns = (3 * beat_ns).max(100 * MS);
    let span_ns = (beat_ns * 60 / u64::from(threads.clamp(1, 8))).max(300 * MS);
    rate(&mut machine, settled_ns, settled_ns + span_ns) * beat_ns as f64 / 1e9
}

/// Returns the result of the search, with runs of 100 ms as in the thesis (Algorithm 1) after a
/// warm-up of 100 ms.
fn found(model: &Model) -> u32 {
    let hardware = solaris_24();
    let cpus = hardware.cpus();
    let mut search = Reinforcer::new(Limits::of(cpus), Thresholds::default());
    loop {
        match search.next() {
            Step::Try(threads) => {
                let (threads, program) = model.program(threads);
                let mut machine = simulate(&hardware, vec![program], Some(100.0));
                let mut clock = machine.clock();
                let snapshots = [100, 200].map(|at_ms| {
                    clock.wait_until(at_ms * MS);
                    machine
                        .observe()
                        .unwrap_or_else(|e| panic!("the simulator rejects an action: {e}"))
                });
                let profile = Profile::of(&snapshots[1].programs[0], &snapshots[1], cpus);
                search.record(
                    threads,
                    profile.map_or_else(|| Trial::Failed("not observed".into()), Trial::Ran),
                );
            }
            Step::Done { best, .. } => return best.unwrap_or(1),
        }
    }
}
