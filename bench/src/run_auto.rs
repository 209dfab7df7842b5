//! Measures `corebeat run --policy auto` with unmodified programs, beside manual settings.

use crate::Bench;
use crate::apart::own_path;
use crate::child::Running;
use crate::load;
use crate::program::{
    Agreement, DEBIAN, Debian, OPENMP, Program, ThreadSetting, threads, workloads,
};
use crate::round::{self, Subject};
use crate::row::Better;
use crate::session::Session;
use crate::tool::{FFMPEG, GCC, GM, LBZIP2, PBZIP2, PIGZ, POVRAY, SEVEN_ZIP, SYSBENCH, XZ, ZSTD};
use std::process::Command;
use std::time::Duration;

pub(crate) const BENCH: Bench = Bench {
    name: "run.auto",
    summary: "programs with 1, 2, 4 and 8 threads a CPU, and beside load, steered by corebeat run --policy auto",
    peers: &[
        "plain",
        "slices of 3, 20 and 100 ms",
        "SCHED_BATCH",
        "SCHED_BATCH with 20 and 100 ms",
        "one CPU a thread",
        "OpenMP: each thread count up to the CPUs",
    ],
    tools: &[GCC, PBZIP2, SEVEN_ZIP, XZ, ZSTD, PIGZ, LBZIP2, FFMPEG, POVRAY, GM],
    cases: |session| {
        let cases = |name| settings(session).map(move |setting| setting.case(name));
        names().flat_map(cases).collect()
    },
    run,
};

/// The manual settings for programs that cannot change their thread count.
const KNOBS: [(&str, &[&str]); 7] = [
    ("slice 3 ms", &["--slice-ms=3"]),
    ("slice 20 ms", &["--slice-ms=20"]),
    ("slice 100 ms", &["--slice-ms=100"]),
    ("batch", &["--batch"]),
    ("batch, slice 20 ms", &["--batch", "--slice-ms=20"]),
    ("batch, slice 100 ms", &["--batch", "--slice-ms=100"]),
    ("one CPU a thread", &["--pin"]),
];

/// The time of a run on all CPUs with one thread per CPU.
const RUN_S: f64 = 5.0;
/// The limit of the trial of a launcher.
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// Approximate limit of the manual thread counts, which applies to machines with many CPUs.
const COUNTS_MAX: usize = 4;

/// The share of the work for a workload that spins at barriers and has more threads than CPUs. The
/// share is divided by the square of the factor: a barrier then takes time slices instead of
/// microseconds, and no run would end within its limit.
const SPIN_SHARE: f64 = 1.0 / 15.0;

/// The conditions of a case.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// Threads per CPU.
    factor: usize,
    /// Whether another program keeps half of the CPUs busy, at most four.
    beside_load: bool,
}

impl Setting {
    fn case(self, name: &str) -> String {
        match self {
            Setting { beside_load: true, .. } => format!("{name} beside load"),
            Setting { factor, .. } => format!("{name} {factor}x"),
        }
    }
}

fn settings(session: &Session) -> impl Iterator<Item = Setting> + use<> {
    let factors: &[usize] = if session.quick { &[1, 4] } else { &[1, 2, 4, 8] };
    let alone = factors.iter().map(|&factor| Setting { factor, beside_load: false });
    alone.chain([Setting { factor: 1, beside_load: true }])
}

fn names() -> impl Iterator<Item = &'static str> {
    workloads()
        .chain(OPENMP)
        .chain(DEBIAN.iter().map(Debian::name).filter(|&name| name != SYSBENCH.program))
}

fn run(session: &Session) -> Result<(), String> {
    let knobs = knobs(session)?;
    for name in names() {
        for setting in settings(session).filter(|setting| session.selects(&setting.case(name))) {
            let Some(program) = program(session, name, setting.factor)? else { continue };
            let load = setting.beside_load.then(busy_program).transpose()?;
            measure(session, &program, setting, &knobs)?;
            // Ends the load.
            drop(load);
        }
    }
    Ok(())
}

/// A program with the size of a case. `None` if a tool is missing.
fn program(
    session: &Session,
    name: &'static str,
    factor: usize,
) -> Result<Option<Program>, String> {
    let core_s = session.core_s(RUN_S);
    if OPENMP.contains(&name) {
        return Program::openmp(session, name, core_s);
    }
    if !workloads().any(|w| w == name) {
        return Program::debian(session, name, core_s);
    }
    let spins = name == "cluster-spin" && factor > 1;
    let share = if spins { SPIN_SHARE / (factor * factor) as f64 } else { 1.0 };
    Program::workload(session, name, core_s * share).map(Some)
}

/// The settings that work on this machine, as words before a command.
fn knobs(session: &Session) -> Result<Vec<(&'static str, Vec<String>)>, String> {
    let own_path = own_path()?;
    let mut knobs = Vec::new();
    for (name, flags) in KNOBS {
        let flags = flags.iter().map(|&f| f.to_owned());
        let launcher: Vec<String> = [own_path.clone(), "knob".into()]
            .into_iter()
            .chain(flags)
            .chain(["--".into()])
            .collect();
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).arg("true");
        let tried = Running::start(command, false)?.wait(TRIAL_MAX)?;
        match tried.check() {
            Ok(()) => knobs.push((name, launcher)),
            Err(why) => session.skip(format!("{name}: {why}")),
        }
    }
    Ok(knobs)
}

/// Starts a program that keeps half of the CPUs busy.
fn busy_program() -> Result<Running, String> {
    let mut command = Command::new(own_path()?);
    command.args(["load", "--threads", &(load::busy() + 1).to_string()]);
    command.args(["--seconds", &load::SECONDS_MAX.to_string()]);
    let program = Running::start(command, true)?;
    program.wait_for(load::READY, TRIAL_MAX)?;
    Ok(program)
}

fn measure(
    session: &Session,
    program: &Program,
    setting: Setting,
    knobs: &[(&'static str, Vec<String>)],
) -> Result<(), String> {
    let (case, factor) = (setting.case(program.name), setting.factor);
    let count = factor * session.cpus;
    let corebeat = session.corebeat()?.to_string_lossy().into_owned();
    let corebeat =
        [&corebeat, "run", "--policy", "auto", "--report", "none", "--"].map(str::to_owned);
    let agreement = Agreement::default();
    let timed = |launcher: &[String], count: usize| {
        program.timed(launcher, count, session.run_max(), &agreement)
    };
    let mut subjects = vec![
        Subject::new("corebeat", || timed(&corebeat, count)),
        Subject::new("plain", || timed(&[], count)),
    ];
    if program.thread_setting == ThreadSetting::ByOpenMp {
        let step = session.cpus.div_ceil(COUNTS_MAX);
        let by_hand = (1..=session.cpus).filter(|n| *n == 1 || *n == session.cpus || n % step == 0);
        for by_hand in by_hand.filter(|&n| n != count) {
            let timed = &timed;
            subjects.push(Subject::new(format!("{} by hand", threads(by_hand)), move || {
                timed(&[], by_hand)
            }));
        }
    } else if factor > 1 {
        for (name, launcher) in knobs {
            let timed = &timed;
            subjects.push(Subject::new(*name, move || timed(launcher, count)));
        }
    }
    round::measure(session, BENCH.name, &case, ("s", Better::Lower), subjects);
    Ok(())
}
