//! Published case studies: response times and verdicts of others.

use corebeat_verify::{CoreSet, Load, Verdict, analyse, read_toml};

const HERSCHEL: &str = include_str!("../examples/herschel.toml");

/// The longest response times of the model checker UPPAAL, in microseconds, for the tasks of
/// `herschel.toml` with execution times that do not vary: Mikucionis et al., *Schedulability
/// Analysis Using UPPAAL: Herschel-Planck Case Study*, 2010. The figures of the tasks 13 to 16 are
/// those of the released model, in which no task is sporadic (github.com/DEIS-Tools/uppaal-models,
/// `herschel.txt`); the others are in table 3, too.
const UPPAAL_US: [u64; 32] = [
    13, 83, 70, 103, 113, 173, 243, 313, 383, 533, 933, 1_103, 5_153, 5_873, 6_273, 5_380, 11_615,
    6_473, 9_473, 54_115, 53_994, 2_503, 4_953, 17_863, 9_813, 14_796, 11_896, 94_346, 65_177,
    110_666, 154_556, 15_046,
];
/// The tasks with locks or without own execution of their whole time, and the tasks that they
/// delay: their model has more than `herschel.toml`. Counted from 0, as all tasks here.
const LOCKED: [usize; 13] = [15, 16, 19, 20, 21, 23, 25, 26, 27, 28, 29, 30, 31];

#[test]
fn herschel_has_the_response_times_of_a_model_checker() {
    let report = analyse(&read_toml(HERSCHEL).unwrap());
    assert_eq!(report.verdict, Verdict::Schedulable);
    assert_eq!(report.tasks.len(), UPPAAL_US.len());
    for (n, (task, expected)) in report.tasks.iter().zip(UPPAAL_US).enumerate() {
        assert!(task.is_exact, "task {n}");
        let is_equal = task.response_ns == Some(expected * 1_000);
        assert_eq!(is_equal, !LOCKED.contains(&n), "task {n}: {:?}, {expected}", task.response_ns);
    }
}

/// Period, worst execution time, deadline, blocking, and response time by Terma (the table 3 of the
/// same paper, and the sheet of results of its authors for the blocking), in microseconds.
const TERMA_US: [(u64, u64, u64, u64, u64); 32] = [
    (10_000, 13, 1_000, 35, 50),
    (250_000, 70, 1_000, 35, 120),
    (125_000, 70, 1_000, 35, 120),
    (250_000, 200, 1_000, 35, 320),
    (250_000, 100, 1_000, 35, 220),
    (15_625, 70, 1_000, 35, 290),
    (20_000, 70, 1_000, 35, 360),
    (39_000, 70, 2_000, 35, 430),
    (250_000, 70, 2_000, 35, 500),
    (15_625, 150, 15_625, 3_650, 4_330),
    (125_000, 400, 15_625, 3_650, 4_870),
    (250_000, 170, 15_625, 3_650, 5_110),
    (250_000, 5_000, 230_220, 720, 7_180),
    (250_000, 720, 230_220, 720, 7_900),
    (250_000, 400, 230_220, 720, 8_370),
    (125_000, 500, 62_500, 3_650, 11_960),
    (250_000, 6_000, 62_500, 3_650, 18_460),
    (250_000, 6_000, 50_000, 3_650, 24_680),
    (250_000, 3_000, 50_000, 3_650, 27_820),
    (250_000, 34_050, 59_600, 5_770, 65_470),
    (250_000, 4_070, 239_600, 12_120, 76_040),
    (1_000_000, 1_100, 100_000, 9_630, 74_720),
    (250_000, 2_750, 250_000, 1_035, 6_800),
    (250_000, 3_300, 125_000, 16_070, 85_050),
    (250_000, 4_860, 250_000, 4_260, 77_650),
    (250_000, 4_020, 250_000, 1_040, 18_680),
    (250_000, 500, 250_000, 1_035, 19_310),
    (250_000, 14_000, 250_000, 26_110, 114_920),
    (250_000, 1_780, 230_220, 12_480, 102_760),
    (250_000, 20_960, 189_600, 27_650, 141_550),
    (250_000, 39_690, 230_220, 48_450, 204_050),
    (250_000, 200, 250_000, 0, 154_090),
];
/// Interrupts, which Terma places apart, and tasks for which Terma considers only the first 20 ms
/// of a period: the analysis of all phases has longer times.
const APART: [usize; 12] = [2, 3, 4, 5, 6, 7, 8, 9, 10, 22, 25, 26];

/// One task may miss its deadline, as in the response-time analysis of its developers. The model
/// checker, whose model has the offsets, excludes that.
#[test]
fn herschel_has_the_verdicts_of_its_developers() {
    let load = |&(period, worst, deadline, blocking, _): &(u64, u64, u64, u64, u64)| Load {
        blocking_ns: blocking,
        deadline_ns: deadline,
        ..Load::new(period, worst)
    };
    let mut set = CoreSet::new(TERMA_US.iter().map(load).collect());
    assert!(!set.analyse());
    for (n, (ours, (_, _, deadline, _, terma))) in set.responses().iter().zip(TERMA_US).enumerate()
    {
        assert_eq!(ours > &deadline, n == 19, "task {n}: {ours}");
        assert_eq!(terma > deadline, n == 19, "task {n}: {terma}");
        let error = ours.abs_diff(terma) as f64 / terma as f64;
        if APART.contains(&n) {
            assert!(*ours > terma, "task {n}: {ours}, {terma}");
        } else {
            assert!(error < 0.06, "task {n}: {ours}, {terma}");
        }
    }
}
