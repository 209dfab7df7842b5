//! Loops of `corpus.c`, compiled by gcc and clang at four levels, and sampled while they run.

use super::place::{Maps, Names, SpinTimes};
use super::ring::{Record, Ring, records};
use super::{Function, Samples, Scope, judge};
use corebeat_test_group::TestGroup;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WAITS: [&str; 12] = [
    "flag_until_set",
    "plain_flag_until_set",
    "flag_with_pause",
    "bounded_with_counter",
    "bounded_with_volatile_counter",
    "test_and_set",
    "test_and_test_and_set",
    "compare_and_swap",
    "ticket",
    "mcs",
    "phase_of_barrier",
    "pthread_spin",
];
const COMPUTES: [&str; 10] = [
    "sum",
    "search",
    "product_of_matrices",
    "random_numbers",
    "sort",
    "list",
    "sieve",
    "count_by_a_constant",
    "volatile_delay",
    "text",
];
const SAMPLES: u32 = 100;

/// Compiles the corpus. `None` if the compiler is missing.
fn compile(compiler: &str, level: &str, folder: &Path) -> Option<std::path::PathBuf> {
    let program = folder.join(format!("{compiler}{level}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/spin/corpus.c");
    let arguments = ["-std=gnu11", "-pthread", level];
    corebeat_test_group::compile(compiler, &arguments, &source, &program).then_some(program)
}

/// Runs a loop, and returns how many of [`SAMPLES`] samples of it wait, and the function in which
/// most of these wait. `None` if sampling is not permitted.
fn waiting_samples(program: &Path, name: &str) -> Option<(u32, Option<Function>)> {
    const HZ: u64 = 4_000;
    let group = TestGroup::new();
    let mut command = Command::new(program);
    let mut child = group.add(command.arg(name).stdout(Stdio::piped())).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{name}");
    let (mut samples, mut buffer) = (Samples::default(), Vec::new());
    let (mut names, mut maps) = (Names::default(), Maps::new());
    let ring = Ring::open(Scope::Thread(child.id() as i32), HZ, 1);
    let until = Instant::now() + Duration::from_secs(60);
    if let Ok(mut ring) = ring {
        while samples.total < SAMPLES {
            assert!(Instant::now() < until, "{name}: too few samples within a minute");
            buffer.clear();
            ring.take(&mut buffer);
            records(&buffer, |record| {
                if let Record::Sample { pid, ip, .. } = record {
                    let waits = judge(pid, ip).expect("the code can be read");
                    let place = waits.then(|| names.place(pid, ip, &mut maps).into());
                    samples.count(place.as_ref());
                }
            });
            std::thread::yield_now();
        }
    }
    drop(group);
    child.wait().unwrap();
    let mut times = SpinTimes::default();
    samples.divide(1.0, &mut times);
    names.search();
    let longest = names.functions(&times).into_iter().next().map(|longest| longest.function);
    (samples.total > 0).then(|| (samples.spinning() * SAMPLES / samples.total, longest))
}

#[test]
fn loops_of_compilers_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let (mut found, mut waits, mut false_alarms, mut computes) = (0, 0, 0, 0);
    let mut wrong = Vec::new();
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            let Some(program) = compile(compiler, level, folder.path()) else {
                println!("skipped: {compiler} is missing");
                break;
            };
            for name in WAITS {
                let Some((waiting, function)) = waiting_samples(&program, name) else {
                    return println!("skipped: samples are not permitted");
                };
                // The loop of `pthread_spin` is in the C library.
                let (function, file) = match function {
                    Some(Function::Named { name, file }) => (name, file),
                    other => panic!("{compiler} {level} {name}: {other:?}"),
                };
                match name {
                    "pthread_spin" => assert!(function.contains("pthread_spin_lock"), "{file}"),
                    _ => assert_eq!((function, Path::new(&file)), (name.into(), &*program)),
                }
                (found, waits) = (found + waiting, waits + SAMPLES);
                if waiting < SAMPLES * 19 / 20 {
                    wrong.push(format!("{compiler} {level} {name}: {waiting} of {SAMPLES}"));
                }
            }
            for name in COMPUTES {
                let Some((waiting, _)) = waiting_samples(&program, name) else { return };
                (false_alarms, computes) = (false_alarms + waiting, computes + SAMPLES);
                if waiting > 0 {
                    wrong.push(format!("{compiler} {level} {name}: {waiting} of {SAMPLES}"));
                }
            }
        }
    }
    println!("{found} of {waits} waiting samples found, {false_alarms} of {computes} others");
    assert!(found * 20 >= waits * 19, "{found} of {waits}: {wrong:#?}");
    assert!(false_alarms * 1_000 <= computes, "{false_alarms} of {computes}: {wrong:#?}");
}
