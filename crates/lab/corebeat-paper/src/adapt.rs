//! Shared and partitioned cores for several programs. Pusukuri 2012, chapter 6.
//!
//! Programs are models of at most two numbers, both fitted to other chapters. One is the work
//! between two locks, by the lock times of chapter 4 with 64 threads on 64 cores. The other one is
//! the share of time that waits for memory, by the gains of Table 3.4 on 24 cores. Programs for
//! which the thesis has neither only compute. The results of mixes are not fitted.

use crate::environment::{MS, ended, rate, ring, simulate, wall_s};
use crate::report::{Figure, Report, Row};
use corebeat_machine::{Machine, Policy, Topology};
use corebeat_policy::adapt::{Adapt, Model, Usage};
use corebeat_sim::{Hardware, Program, Scheduler, Step, Team, Work};
use corebeat_train::{Simulated, Testbed, identity};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The thesis' machine of chapters 4 and 6: 64 cores, under Solaris' time sharing.
pub(crate) fn solaris_64() -> Hardware {
    Hardware { scheduler: Scheduler::TimeShare, ..ring(16) }
}

/// A program.
struct Kind {
    name: &'static str,
    short: &'static str,
    /// The fastest number of threads on 64 cores (Figure 6.9 (a)).
    threads: u32,
    /// Work of a thread between two locks, in microseconds; `None` without locks.
    unlocked_us: Option<f64>,
    /// Share of the work that waits for memory.
    memory: f64,
}

const fn kind(
    name: &'static str,
    short: &'static str,
    threads: u32,
    unlocked_us: Option<f64>,
    memory: f64,
) -> Kind {
    Kind { name, short, threads, unlocked_us, memory }
}

/// Share of programs that only compute: they rarely miss the shared cache.
const CPU: f64 = 0.01;

const KINDS: [Kind; 26] = [
    kind("facesim", "FS", 32, Some(297.0), 0.643),
    kind("equake", "EQ", 32, Some(461.0), 0.882),
    kind("bodytrack", "BT", 50, Some(706.0), CPU),
    kind("applu", "AP", 24, Some(368.0), CPU),
    kind("apsi", "AS", 16, Some(28.0), CPU),
    kind("fma3d", "FMA", 56, Some(981.0), CPU),
    kind("mgrid", "MG", 16, Some(748.0), CPU),
    kind("fluidanimate", "FA", 49, Some(1_249.0), 0.271),
    kind("streamcluster", "SC", 17, Some(539.0), 0.805),
    kind("galgel", "GL", 16, Some(270.0), CPU),
    kind("ammp", "AM", 56, Some(1_417.0), CPU),
    kind("wupwise", "WW", 24, Some(840.0), 0.257),
    kind("gafort", "GA", 64, Some(759.0), 0.257),
    kind("swim", "SM", 32, None, 0.221),
    kind("TATP", "TATP", 54, None, 0.397),
    kind("SPECjbb2005", "JBB", 69, None, 0.257),
    kind("canneal", "CA", 33, None, 0.341),
    kind("swaptions", "SW", 73, None, CPU),
    kind("ferret", "FR", 83, None, CPU),
    kind("x264", "X264", 68, None, CPU),
    kind("art", "ART", 40, None, CPU),
    kind("kmeans", "KM", 24, None, CPU),
    kind("pca", "PCA", 48, None, CPU),
    kind("matrix-multiply", "MM", 64, None, CPU),
    kind("word-count", "WC", 48, None, CPU),
    kind("string-match", "STM", 16, None, CPU),
];

/// Programs that the models are trained with (section 6.2.1).
const TRAINED: [&str; 12] =
    ["BT", "FS", "FR", "FA", "SC", "AP", "ART", "SM", "EQ", "JBB", "KM", "PCA"];

/// Figure 6.9 (a).
pub(crate) const MIXES: [&[&str]; 25] = [
    &["FS", "EQ"],
    &["BT", "AP"],
    &["AS", "FMA"],
    &["SW", "MG"],
    &["FA", "SC"],
    &["GL", "BT"],
    &["FA", "SM"],
    &["ART", "X264"],
    &["AM", "SC"],
    &["TATP", "JBB"],
    &["SM", "EQ"],
    &["PCA", "STM"],
    &["MG", "PCA"],
    &["KM", "ART"],
    &["MM", "SW"],
    &["WC", "MG"],
    &["KM", "CA", "X264"],
    &["AS", "BT", "FR"],
    &["GA", "SM", "FA"],
    &["FS", "AP", "STM"],
    &["AM", "WW", "PCA"],
    &["FS", "SC", "EQ", "WW"],
    &["AS", "AP", "BT", "FMA"],
    &["PCA", "AM", "AS", "ART"],
    &["GA", "FMA", "X264", "FA"],
];

fn find(short: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.short == short).unwrap_or_else(|| panic!("no program {short}"))
}

/// All times are a fifth of the thesis' times, except for the time of a lock's holder, which is ten
/// times as long as in a real program. This reduces the number of events.
pub(crate) const FASTER: u64 = 5;
const LOCKS: u32 = 4;
const HELD_US: f64 = 100.0;
const SPIN_US: f64 = 200.0;
const SHARED: f64 = 0.8;
/// Run time of each program alone, in seconds.
const ALONE_S: f64 = 4.0;
/// Mean time saved in the thesis (section 6.3.1), in percent.
const MEAN_SAVED: f64 = 21.0;
/// Tolerance of our mean.
const SAVED_WITHIN: f64 = 1.0 / 3.0;

impl Kind {
    /// Returns the program with this many rounds, which its threads share, or without end.
    fn program(&self, rounds: Option<u64>) -> Program {
        let work = |us| {
            Step::from(Work { jitter: 0.3, memory: self.memory, shared: SHARED, ..Work::us(us) })
        };
        let mut steps = vec![];
        match self.unlocked_us {
            None => steps.push(work(4_000.0)),
            Some(us) => (0..LOCKS).for_each(|lock| {
                steps.push(work(us));
                steps.push(Step::Lock { name: format!("lock {lock}"), steps: vec![work(HELD_US)] });
            }),
        }
        steps.push(Step::Beat);
        let steps = vec![Step::Repeat { times: rounds, shared: rounds.is_some(), steps }];
        let program = Program::new(self.name, vec![Team::new(self.threads, steps)]);
        Program { spin_us: SPIN_US, memory_mib: 16, ..program }
    }

    /// Returns the program with the work of [`ALONE_S`] alone.
    fn whole(&self) -> Program {
        let mut machine = simulate(&solaris_64(), vec![self.program(None)], Some(10.0));
        let rate = rate(&mut machine, 50 * MS, 350 * MS);
        self.program(Some((rate * ALONE_S) as u64))
    }
}

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let programs = TRAINED.iter().map(|short| find(short).program(None)).collect();
    simulated(programs).train().unwrap_or_else(|e| panic!("built-in programs: {e}"))
});

/// Usage of each program alone, which the thesis assumes to be known.
static SOLO: LazyLock<BTreeMap<String, Usage>> = LazyLock::new(|| {
    let programs: Vec<Program> = KINDS.iter().map(|kind| kind.program(None)).collect();
    let mut testbed = simulated(programs);
    let usage = |at: usize| {
        let usages = testbed
            .run(&[at], testbed.cores())
            .unwrap_or_else(|e| panic!("a built-in program: {e}"));
        (KINDS[at].name.to_owned(), usages[0])
    };
    (0..KINDS.len()).map(usage).collect()
});

fn simulated(programs: Vec<Program>) -> Simulated {
    Simulated { machine: solaris_64(), programs, warm_ns: 50 * MS, window_ns: 100 * MS, seed: 1 }
}

fn adapt(topology: &Topology) -> Adapt {
    let name = identity(&solaris_64()).unwrap_or_else(|e| panic!("a built-in machine: {e}")).name;
    let policy = Adapt::new(topology, &name, MODEL.clone());
    let mut policy = policy.unwrap_or_else(|e| panic!("its own model: {e}"));
    policy.solo.clone_from(&SOLO);
    policy.solo_ns /= FASTER;
    policy.trial_ns /= FASTER;
    policy.interval_ns /= FASTER;
    policy
}

/// The result of a mix.
pub(crate) struct Mixed {
    /// Mean turnaround time in seconds.
    pub(crate) mean_s: f64,
    /// CPU use until the last program ended.
    used: f64,
}

/// Runs a mix under a policy.
pub(crate) fn mixed(
    programs: &[Program],
    policy: impl FnOnce(&Topology) -> Option<Box<dyn Policy>>,
) -> Mixed {
    let machine = simulate(&solaris_64(), programs.to_vec(), None);
    let policies = policy(machine.topology()).into_iter().collect();
    let outcomes = ended(machine, policies, 100 * MS / FASTER);
    let last_s = outcomes.iter().map(wall_s).fold(0.0, f64::max);
    let busy_ns: u64 = outcomes.iter().map(|o| o.user_ns + o.system_ns).sum();
    Mixed {
        mean_s: outcomes.iter().map(wall_s).sum::<f64>() / outcomes.len() as f64,
        used: busy_ns as f64 / 1e9 / last_s / f64::from(solaris_64().cpus()),
    }
}

/// The programs by their short names, each with its whole work.
pub(crate) fn wholes() -> BTreeMap<&'static str, Program> {
    KINDS.iter().map(|kind| (kind.short, kind.whole())).collect()
}

/// The time that ADAPT saves on mixes: a row for each, and the mean.
fn gains_on(mixes: &[Vec<&str>], mean: impl Into<Option<f64>>) -> Vec<Row> {
    let wholes = wholes();
    let (mut rows, mut sums) = (vec![], [0.0; 2]);
    for mix in mixes {
        let programs: Vec<Program> = mix.iter().map(|short| wholes[short].clone()).collect();
        let plain = mixed(&programs, |_| None);
        let with = mixed(&programs, |topology| Some(Box::new(adapt(topology))));
        let ours = [saved(&plain, &with), (with.used - plain.used) * 100.0];
        sums.iter_mut().zip(ours).for_each(|(sum, ours)| *sum += ours / mixes.len() as f64);
        rows.push(Row {
            name: mix.join(" "),
            figures: ours.map(|ours| Figure::shown(None, ours)).into(),
        });
    }
    let first = match mean.into() {
        Some(mean) => Figure::checked(mean, sums[0], SAVED_WITHIN),
        None => Figure::shown(None, sums[0]),
    };
    rows.push(Row { name: "mean".into(), figures: vec![first, Figure::shown(None, sums[1])] });
    rows
}

/// The part of the time that is saved, in percent.
pub(crate) fn saved(plain: &Mixed, with: &Mixed) -> f64 {
    (1.0 - with.mean_s / plain.mean_s) * 100.0
}

const COLUMNS: [&str; 2] = ["time saved, %", "more use, points"];

/// Figure 6.9.
pub(crate) fn gains() -> Report {
    Report {
        what: "programs",
        columns: COLUMNS.to_vec(),
        rows: gains_on(&MIXES.map(<[&str]>::to_vec), MEAN_SAVED),
        notes: vec![
            "The text lacks the figure's numbers: 21% on average, 44% at most, moderate for \
             programs that compute and rarely wait for locks.",
            "The policy does not act on programs that rarely wait and whose threads have a core \
             each. CPU use includes spinning.",
        ],
    }
}

/// Figure 6.9 with mixes that the thesis does not have, and that no rule was chosen by.
pub(crate) fn gains_on_others() -> Report {
    let mut random = fastrand::Rng::with_seed(1);
    let mut others: Vec<Vec<&str>> = Vec::new();
    while others.len() < MIXES.len() {
        let size = MIXES[others.len()].len();
        let drawn = random.choose_multiple(&KINDS, size);
        let drawn: Vec<&str> = drawn.into_iter().map(|kind| kind.short).collect();
        let is_equal = |mix: &[&str]| mix.iter().all(|name| drawn.contains(name));
        if !MIXES.iter().any(|mix| mix.len() == size && is_equal(mix)) {
            others.push(drawn);
        }
    }
    Report {
        what: "programs",
        columns: COLUMNS.to_vec(),
        rows: gains_on(&others, None),
        notes: vec!["As many mixes of each size as in the thesis, drawn from its programs."],
    }
}

/// Table 6.6.
pub(crate) fn predictions() -> Report {
    let machine = solaris_64();
    let mut testbed = simulated(vec![find("FA").program(None), find("SM").program(None)]);
    let topology = machine.topology().unwrap_or_else(|e| panic!("a built-in machine: {e}"));
    let name = identity(&machine).unwrap_or_else(|e| panic!("a built-in machine: {e}")).name;
    let policy = Adapt::new(&topology, &name, MODEL.clone())
        .unwrap_or_else(|e| panic!("its own model: {e}"));
    let mut run = |programs: &[usize], cores: u32| {
        testbed.run(programs, cores).unwrap_or_else(|e| panic!("built-in programs: {e}"))
    };
    let alone = [run(&[0], 64)[0], run(&[1], 64)[0]];
    let all = policy.predict_all(&alone).unwrap_or_default();
    let beside = run(&[0, 1], 64);
    // The sets are those of the thesis.
    let row = |at: usize, name: &str, cores: u32, paper: [f64; 4], set: Usage| {
        let percent = |share: Option<f64>| share.unwrap_or(0.0) * 100.0;
        let ours = [
            percent(beside[at].usr),
            percent(all.get(at).copied()),
            percent(set.usr),
            percent(policy.predict_set(&alone[at], cores)),
        ];
        let figures =
            paper.into_iter().zip(ours).map(|(paper, ours)| Figure::shown(paper, ours)).collect();
        Row { name: name.into(), figures }
    };
    let sets = [run(&[0], 40)[0], run(&[1], 24)[0]];
    let rows = vec![
        row(0, "FA", 40, [52.3, 56.4, 41.2, 44.5], sets[0]),
        row(1, "SM", 24, [49.4, 45.2, 46.8, 41.6], sets[1]),
    ];
    Report {
        what: "program",
        columns: vec!["all: actual, %", "predicted, %", "sets: actual, %", "predicted, %"],
        rows,
        notes: vec![
            "All cores shared, and sets of 40 and 24 cores. Time that waits for memory is user \
             time, in the thesis and here.",
        ],
    }
}
