//! The analysis and the simulation against pyCPA and SimSo, which `peers.py` runs. Without their
//! modules the tests print a line and end, unless `COREBEAT_PYTHON` names an interpreter, which
//! must have them.
//!
//! `COREBEAT_SETS` is the number of sets of each kind, and `COREBEAT_SEED` the seed of the first.
//! Each CPU runs a peer for a part of the sets.

mod amount;

use amount::{cases, number};
use corebeat_verify::generate::{entry, task_set, utilisations};
use corebeat_verify::{
    Activation, Core, CoreSet, Entry, Load, Method, Model, Policy, Range, System, Task, Verdict,
    analyse, responses,
};
use fastrand::Rng;
use std::io::{Read, Write};
use std::ops::Range as Seeds;
use std::process::{Command, Stdio};
use std::thread;

#[expect(clippy::disallowed_methods, reason = "a test reads which interpreter it shall run")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The seeds of the sets of each kind: few in tests, up to 100,000 in long runs, 500 for each
/// minute that `COREBEAT_SOAK` states.
fn seeds() -> Seeds<u64> {
    let first = number("COREBEAT_SEED").unwrap_or(0);
    first..first + cases("COREBEAT_SETS", 20, 500, 20..=100_000)
}

fn sets() -> u64 {
    seeds().count() as u64
}

/// The response times that a peer computes for each line, or `None` with a message if it is
/// missing.
fn ask(peer: &str, lines: &[String]) -> Option<Vec<Vec<Option<u64>>>> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let answers: Vec<_> = thread::scope(|scope| {
        let ask = |part| scope.spawn(move || ask_one(peer, part));
        let parts: Vec<_> = lines.chunks(lines.len().div_ceil(cpus)).map(ask).collect();
        parts.into_iter().map(|part| part.join().expect("the peer answers")).collect()
    });
    answers.into_iter().collect::<Option<Vec<_>>>().map(|parts| parts.concat())
}

/// Runs a peer once.
fn ask_one(peer: &str, lines: &[String]) -> Option<Vec<Vec<Option<u64>>>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers.py");
    let python = variable("COREBEAT_PYTHON").unwrap_or("python3".into());
    let mut command = Command::new(&python);
    command.args([script, peer]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = command.stderr(Stdio::piped()).spawn() else {
        println!("skipped: no {python}");
        return None;
    };
    let (mut text, mut errors) = (String::new(), String::new());
    let (mut input, mut stderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            // A peer that is missing ends before it reads.
            let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
            drop(input);
        });
        scope.spawn(|| stderr.read_to_string(&mut errors).unwrap());
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    });
    let is_success = child.wait().unwrap().success();
    // An interpreter that is named must have the module.
    let is_missing = errors.contains(&format!("ModuleNotFoundError: No module named '{peer}'"));
    if is_missing && variable("COREBEAT_PYTHON").is_none() {
        println!("skipped: {python} has no module {peer}");
        return None;
    }
    assert!(is_success, "{errors}");
    let number = |word: &str| word.parse().ok();
    let answers: Vec<_> =
        text.lines().map(|line| line.split(' ').map(number).collect::<Vec<_>>()).collect();
    assert_eq!(answers.len(), lines.len(), "{errors}");
    Some(answers)
}

/// A set in the form of `peers.py`.
fn line(kind: &str, cores: usize, duration: u64, set: &[Entry]) -> String {
    let of = |e: &Entry| match e.activation {
        Activation::Periodic { period_ns, offset_ns, jitter_ns } => format!(
            " {period_ns},{},{jitter_ns},{},{}",
            offset_ns.unwrap_or(0),
            e.execution_ns.worst,
            e.deadline_ns.unwrap_or(period_ns)
        ),
        _ => unreachable!("generated sets are periodic"),
    };
    format!("{kind} {cores} {duration}{}", set.iter().map(of).collect::<String>())
}

#[test]
fn pycpa_has_equal_preemptive_and_no_lower_other_response_times() {
    let (mut lines, mut expected) = (vec![], vec![]);
    for round in seeds() {
        let mut random = Rng::with_seed(round);
        let count = random.usize(2..=8);
        let share = 0.3 + random.f64() * 0.65;
        let mut set = task_set(&mut random, count, share, (1_000, 100_000), 100);
        let is_preemptive = random.bool();
        let has_jitter = random.bool();
        let mut loads = vec![];
        for e in &mut set {
            let period_ns = e.deadline_ns.unwrap();
            let jitter_ns = if has_jitter { random.u64(0..period_ns) } else { 0 };
            e.activation = Activation::Periodic { period_ns, offset_ns: None, jitter_ns };
            let load = Load::new(period_ns, e.execution_ns.worst);
            loads.push(Load { jitter_ns, from_release: true, ..load });
        }
        let mut blocking = 0;
        for load in loads.iter_mut().rev().filter(|_| !is_preemptive) {
            (load.blocking_ns, load.is_non_preemptive) = (blocking, true);
            blocking = blocking.max(load.worst_ns - 1);
        }
        let mut set_of_loads = CoreSet::new(loads);
        set_of_loads.analyse();
        lines.push(line(if is_preemptive { "fp" } else { "np" }, 1, 0, &set));
        expected.push((is_preemptive, set_of_loads.responses().to_vec()));
    }
    let Some(answers) = ask("pycpa", &lines) else { return };
    let mut compared = [0, 0];
    for ((line, (is_preemptive, ours)), theirs) in lines.iter().zip(expected).zip(answers) {
        for (ours, theirs) in ours.into_iter().zip(theirs) {
            let Some(theirs) = theirs else { continue };
            compared[usize::from(is_preemptive)] += 1;
            let holds = if is_preemptive { ours == theirs } else { ours <= theirs };
            assert!(holds, "{ours}, pyCPA {theirs}: {line}");
        }
    }
    println!("response times compared with pyCPA: {compared:?} (not preempted, preemptive)");
    assert!(compared.iter().all(|n| *n > sets() / 2), "{compared:?}");
}

#[test]
fn simso_reaches_the_exact_response_times_of_one_core() {
    let (mut lines, mut expected) = (vec![], vec![]);
    for round in seeds() {
        let mut random = Rng::with_seed(round);
        let count = random.usize(2..=6);
        let share = 0.3 + random.f64() * 0.65;
        // Half of the sets have offsets; their periods have a small common multiple.
        let has_offsets = random.bool();
        let mut set: Vec<Entry> = vec![];
        for (n, share) in utilisations(&mut random, count, share).into_iter().enumerate() {
            let period_ns = random.choice([200, 400, 500, 1_000, 2_000]).unwrap();
            let worst = ((period_ns as f64 * share) as u64).max(1);
            let mut e = entry(n, 0, period_ns, worst, (count - n) as u32);
            let offset_ns = Some(if has_offsets { random.u64(..period_ns) } else { 0 });
            e.activation = Activation::Periodic { period_ns, offset_ns, jitter_ns: 0 };
            set.push(e);
        }
        // The latest offset, two hyper-periods, and the longest response that is compared.
        lines.push(line("fp", 1, 8_000, &set));
        expected.push(responses(&System::of(set)));
    }
    let Some(answers) = ask("simso", &lines) else { return };
    let (mut equal, mut of_offsets) = (0, 0);
    for ((line, bounds), theirs) in lines.iter().zip(expected).zip(answers) {
        for (bound, theirs) in bounds.iter().zip(theirs) {
            let (Some(ours), Some(theirs)) = (bound.response_ns, theirs) else { continue };
            assert!(bound.is_exact, "{line}");
            // A job that ends after the simulation does not count.
            assert!(theirs <= ours, "{ours} is below {theirs} of SimSo: {line}");
            if ours <= 2_000 {
                equal += 1;
                of_offsets += u64::from(bound.method == Method::Offsets);
                assert_eq!(ours, theirs, "{line}");
            }
        }
    }
    println!("response times equal to those of SimSo: {equal}, of offsets {of_offsets}");
    assert!(equal > sets() && of_offsets > sets() / 2, "{equal} {of_offsets}");
}

#[test]
fn simso_exceeds_no_bound_of_cores_with_one_queue() {
    let (mut lines, mut reports) = (vec![], vec![]);
    for round in seeds() {
        let mut random = Rng::with_seed(round);
        let is_edf = random.bool();
        let cores = random.usize(2..=4);
        let count = random.usize(cores + 1..=cores * 3);
        let sum = cores as f64 * (0.2 + random.f64() * 0.5);
        let mut model = Model::default();
        for core in 0..cores {
            let policy = if is_edf { Policy::EarliestDeadline } else { Policy::FixedPriority };
            let (name, cluster) = (format!("c{core}"), "all".to_owned());
            model.cores.push(Core { name, cluster, policy, ..Core::default() });
        }
        let mut set = vec![];
        for (n, share) in utilisations(&mut random, count, sum).into_iter().enumerate() {
            let period_ns = random.u64(50..1_000);
            let worst = ((period_ns as f64 * share) as u64).clamp(1, period_ns);
            let mut e = entry(n, 0, period_ns, worst, (count - n) as u32);
            let offset_ns = Some(random.u64(..period_ns));
            e.activation = Activation::Periodic { period_ns, offset_ns, jitter_ns: 0 };
            let (range, priority) = (Range::exactly(worst), e.priority);
            let mut task = Task::new(format!("t{n}"), period_ns, range, priority);
            task.activation = Some(e.activation.clone());
            model.tasks.push(task);
            set.push(e);
        }
        lines.push(line(if is_edf { "edf" } else { "fp" }, cores, 5_000, &set));
        reports.push(analyse(&model));
    }
    let Some(answers) = ask("simso", &lines) else { return };
    let (mut compared, mut schedulable) = (0, 0);
    for ((line, report), theirs) in lines.iter().zip(reports).zip(answers) {
        schedulable += u64::from(report.verdict == Verdict::Schedulable);
        for (task, theirs) in report.tasks.iter().zip(theirs) {
            let (Some(ours), Some(theirs)) = (task.response_ns, theirs) else { continue };
            compared += 1;
            assert!(theirs <= ours, "{ours} is below {theirs} of SimSo: {line}");
        }
    }
    println!("bounds compared with SimSo: {compared}, schedulable sets: {schedulable}");
    assert!(compared > sets() && schedulable > sets() / 10, "{compared} {schedulable}");
}
