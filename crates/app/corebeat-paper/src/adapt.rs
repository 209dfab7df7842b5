//! Several programs, side by side or apart. Pusukuri 2012, chapter 6.
//!
//! Programs are models of two numbers at most, both fitted to other chapters: what they compute between two locks, so that 64 threads
//! on 64 cores wait for locks as long as chapter 4 says; and how much of their time is memory, so that memory over all nodes and fixed turns bring
//! on 24 cores what Table 3.4 says. Programs of which the thesis has neither compute, and that is all. What comes of a mix is not fitted.

use crate::report::{Figure, Report, Row};
use crate::room::{MS, ended, rate, ring, room, wall_s};
use corebeat_machine::{Machine, Policy};
use corebeat_policy::adapt::{Adapt, Model, Usage};
use corebeat_sim::{Hardware, Program, Scheduler, Step, Team, Work};
use corebeat_train::{Range, Simulated, identity};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The thesis' machine of chapters 4 and 6: 64 cores, under Solaris' time sharing.
fn solaris_64() -> Hardware {
    Hardware { scheduler: Scheduler::TimeShare, ..ring(16) }
}

/// A program.
struct Kind {
    name: &'static str,
    short: &'static str,
    /// The threads that it is fastest with on 64 cores (Figure 6.9 (a)).
    threads: u32,
    /// What a thread computes between two locks, in microseconds, if there are any.
    unlocked_us: Option<f64>,
    /// Which share of its work waits for memory.
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

/// Who computes misses the shared cache seldom.
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

/// Those that the models are trained with (section 6.2.1).
const TRAINED: [&str; 12] = ["BT", "FS", "FR", "FA", "SC", "AP", "ART", "SM", "EQ", "JBB", "KM", "PCA"];

/// Figure 6.9 (a).
const MIXES: [&[&str]; 25] = [
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

/// Everything takes a fifth of the thesis' time, but for what a lock's holder does, which takes ten times as long as in a real program: so there are
/// fewer events.
const FASTER: u64 = 5;
const LOCKS: u32 = 4;
const HELD_US: f64 = 100.0;
const SPIN_US: f64 = 200.0;
const SHARED: f64 = 0.8;
/// How long each program takes alone, in seconds.
const ALONE_S: f64 = 4.0;
/// What the thesis saves on average (section 6.3.1), in per cent.
const MEAN_SAVED: f64 = 21.0;
/// Ours is a little more than a third away.
const SAVED_WITHIN: f64 = 0.4;

impl Kind {
    /// So many rounds of it, which its threads share; for ever.
    fn program(&self, rounds: Option<u64>) -> Program {
        let work = |us| Step::from(Work { jitter: 0.3, memory: self.memory, shared: SHARED, ..Work::us(us) });
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

    /// It with as much to do as takes [`ALONE_S`] alone.
    fn whole(&self) -> Program {
        let mut machine = room(&solaris_64(), vec![self.program(None)], Some(10.0));
        let rate = rate(&mut machine, 50 * MS, 350 * MS);
        self.program(Some((rate * ALONE_S) as u64))
    }
}

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let programs = TRAINED.iter().map(|short| find(short).program(None)).collect();
    simulated(programs).train().unwrap_or_else(|e| panic!("programs that are built in: {e}"))
});

/// How each program is alone: the thesis assumes that this is known.
static SOLO: LazyLock<BTreeMap<String, Usage>> = LazyLock::new(|| {
    let programs: Vec<Program> = KINDS.iter().map(|kind| kind.program(None)).collect();
    let mut range = simulated(programs);
    let usage = |at: usize| {
        let seen =
            range.run(&[at], range.cores()).unwrap_or_else(|e| panic!("a program that is built in: {e}"));
        (KINDS[at].name.to_owned(), seen[0])
    };
    (0..KINDS.len()).map(usage).collect()
});

fn simulated(programs: Vec<Program>) -> Simulated {
    Simulated { machine: solaris_64(), programs, warm_ns: 50 * MS, window_ns: 100 * MS, seed: 1 }
}

fn adapt(machine: &impl Machine) -> Adapt {
    let name = identity(&solaris_64()).unwrap_or_else(|e| panic!("a machine that is built in: {e}")).name;
    let policy = Adapt::new(machine.topology(), &name, MODEL.clone());
    let mut policy = policy.unwrap_or_else(|e| panic!("its own model: {e}"));
    policy.solo.clone_from(&SOLO);
    policy.look_ns /= FASTER;
    policy.trial_ns /= FASTER;
    policy.interval_ns /= FASTER;
    policy
}

/// What came of a mix: the mean turnaround time in seconds, and the share of the CPUs' time that was used until the last ended.
fn mixed(programs: &[Program], with: bool) -> (f64, f64) {
    let machine = room(&solaris_64(), programs.to_vec(), None);
    let policies: Vec<Box<dyn Policy>> = if with { vec![Box::new(adapt(&machine))] } else { vec![] };
    let outcomes = ended(machine, policies, 100 * MS / FASTER);
    let last_s = outcomes.iter().map(wall_s).fold(0.0, f64::max);
    let busy_ns: u64 = outcomes.iter().map(|o| o.user_ns + o.system_ns).sum();
    let mean_s = outcomes.iter().map(wall_s).sum::<f64>() / outcomes.len() as f64;
    (mean_s, busy_ns as f64 / 1e9 / last_s / f64::from(solaris_64().cpus()))
}

/// Figure 6.9.
pub(crate) fn gains() -> Report {
    let wholes: BTreeMap<&str, Program> = KINDS.iter().map(|kind| (kind.short, kind.whole())).collect();
    let (mut rows, mut sums) = (vec![], [0.0; 2]);
    for mix in MIXES {
        let programs: Vec<Program> = mix.iter().map(|short| wholes[short].clone()).collect();
        let (plain, with) = (mixed(&programs, false), mixed(&programs, true));
        let ours = [(1.0 - with.0 / plain.0) * 100.0, (with.1 - plain.1) * 100.0];
        sums.iter_mut().zip(ours).for_each(|(sum, ours)| *sum += ours / MIXES.len() as f64);
        rows.push(Row { name: mix.join(" "), figures: ours.map(|ours| Figure::shown(None, ours)).into() });
    }
    let mean = vec![Figure::held(MEAN_SAVED, sums[0], SAVED_WITHIN), Figure::shown(None, sums[1])];
    rows.push(Row { name: "mean".into(), figures: mean });
    Report {
        what: "programs",
        columns: vec!["time saved, %", "more use, points"],
        rows,
        notes: vec![
            "The figure's bars are not in the text: 21% on average, 44% at most, moderate where programs compute and seldom wait for locks.",
            "There nothing is done here, for turns cost nothing on the model without locks. Use counts spinning, as the CPUs do.",
        ],
    }
}

/// Table 6.6.
pub(crate) fn predictions() -> Report {
    let machine = solaris_64();
    let mut range = simulated(vec![find("FA").program(None), find("SM").program(None)]);
    let topology = machine.topology().unwrap_or_else(|e| panic!("a machine that is built in: {e}"));
    let name = identity(&machine).unwrap_or_else(|e| panic!("a machine that is built in: {e}")).name;
    let policy = Adapt::new(&topology, &name, MODEL.clone()).unwrap_or_else(|e| panic!("its own model: {e}"));
    let mut run = |programs: &[usize], cores: u32| {
        range.run(programs, cores).unwrap_or_else(|e| panic!("programs that are built in: {e}"))
    };
    let alone = [run(&[0], 64)[0], run(&[1], 64)[0]];
    let all = policy.predict_all(&alone).unwrap_or_default();
    let beside = run(&[0, 1], 64);
    // The set that each is given in the thesis.
    let row = |at: usize, name: &str, cores: u32, paper: [f64; 4], set: Usage| {
        let percent = |share: Option<f64>| share.unwrap_or(0.0) * 100.0;
        let ours = [
            percent(beside[at].usr),
            percent(all.get(at).copied()),
            percent(set.usr),
            percent(policy.predict_set(&alone[at], cores)),
        ];
        let figures = paper.into_iter().zip(ours).map(|(paper, ours)| Figure::shown(paper, ours)).collect();
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
            "All cores side by side, and sets of 40 and 24 cores. Time that waits for memory is in user mode, there and here.",
        ],
    }
}
