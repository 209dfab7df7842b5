//! Loops of `corpus.c`, `corpus_rust.rs` and `corpus.go`, compiled by gcc, clang, rustc and Go at
//! several levels, and sampled while they run.

use super::analysis::Analysis;
use super::call::Pages;
use super::place::{Maps, Names, SpinTimes};
use super::ring::{Record, Ring, records};
use super::{Function, STACK_BYTES, Sampled, Samples, Scope};
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
/// Loops that wait in functions that they call.
const CALLS: [&str; 10] = [
    "trylock",
    "trylock_with_yield",
    "trylock_with_pause",
    "trylock_with_volatile_counter",
    "spin_trylock",
    "flag_in_a_function",
    "flag_in_functions",
    "flag_in_a_method",
    "take_into_the_frame",
    "flag_with_yield",
];
const COMPUTES: [&str; 20] = [
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
    "sum_of_calls",
    "search_by_calls",
    "work_that_is_switched_off",
    "steps_with_error_path",
    "steps_with_result",
    "allocations",
    "characters_of_a_file",
    "locked_additions",
    "additions_in_attempts",
    "numbers_as_text",
];
const SAMPLES: u32 = 100;

/// Loops in Rust and Go that wait.
const RUST_WAITS: [&str; 6] = [
    "flag",
    "try_lock",
    "try_lock_with_hint",
    "try_lock_with_yield",
    "try_read",
    "compare_exchange",
];
const GO_WAITS: [&str; 4] = ["loadFlag", "tryLock", "swap", "flagInFunction"];
/// Loops in Rust and Go that compute.
const RUST_COMPUTES: [&str; 5] =
    ["compute_map", "compute_sort", "compute_text", "compute_locks", "compute_steps"];
const GO_COMPUTES: [&str; 4] = ["computeMap", "computeSort", "computeText", "computeLocks"];

/// Compiles a source of the corpus. `None` if the compiler is missing.
fn compile(
    compiler: &str,
    arguments: &[&str],
    source: &str,
    folder: &Path,
) -> Option<std::path::PathBuf> {
    let program = folder.join(format!("{compiler}{}", arguments.concat().replace(' ', "")));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/spin").join(source);
    corebeat_test_group::compile(compiler, arguments, &source, &program).then_some(program)
}

/// Number of samples of loops, and of those that were judged wrong.
#[derive(Default)]
struct Score {
    waits: u32,
    missed: u32,
    computes: u32,
    false_alarms: u32,
    wrong: Vec<String>,
}

impl Score {
    /// Adds the samples of a loop. Returns the function in which most of them wait; `None` if
    /// sampling is not permitted.
    fn add(&mut self, program: &Path, name: &str, waits: bool) -> Option<Option<Function>> {
        let (waiting, function) = waiting_samples(program, name)?;
        let wrong = if waits { SAMPLES - waiting } else { waiting };
        if wrong > if waits { SAMPLES / 20 } else { 0 } {
            self.wrong.push(format!("{} {name}: {wrong} of {SAMPLES}", program.display()));
        }
        match waits {
            true => (self.waits, self.missed) = (self.waits + SAMPLES, self.missed + wrong),
            false => {
                (self.computes, self.false_alarms) =
                    (self.computes + SAMPLES, self.false_alarms + wrong);
            }
        }
        Some(function)
    }

    #[track_caller]
    fn check(&self) {
        let Score { waits, missed, computes, false_alarms, wrong } = self;
        println!("{missed} of {waits} waiting samples missed, {false_alarms} of {computes} wrong");
        println!("{wrong:#?}");
        assert!(missed * 20 <= *waits, "{missed} of {waits}: {wrong:#?}");
        assert!(false_alarms * 1_000 <= *computes, "{false_alarms} of {computes}: {wrong:#?}");
    }
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
    let (mut analysis, mut pages) = (Analysis::default(), Pages::default());
    let ring = Ring::open(Scope::Thread(child.id() as i32), HZ, 16, STACK_BYTES);
    let until = Instant::now() + Duration::from_secs(60);
    if let Ok(mut ring) = ring {
        // The analyses of the first samples are spread over time.
        let mut is_warm = false;
        while samples.total < SAMPLES || !is_warm {
            if samples.total >= SAMPLES {
                (samples, is_warm) = (Samples::default(), true);
            }
            assert!(Instant::now() < until, "{name}: too few samples within a minute");
            buffer.clear();
            ring.take(&mut buffer);
            analysis.begin_round();
            records(&buffer, |record| {
                if let Record::Sample { pid, ip, context, .. } = record {
                    let known = (&mut names, &mut maps, &mut pages);
                    let sampled = analysis.sample((pid, ip), context, known);
                    assert!(!matches!(sampled, Sampled::Unread), "the code can be read");
                    samples.count(&sampled);
                }
            });
            std::thread::yield_now();
        }
    }
    drop(group);
    child.wait().unwrap();
    samples.settle(|id| analysis.shows_waiting(id));
    let mut times = SpinTimes::default();
    samples.divide(1.0, &mut times);
    names.search();
    let longest = names.functions(&times).into_iter().next().map(|longest| longest.function);
    (samples.total > 0).then(|| (samples.spinning() * SAMPLES / samples.total, longest))
}

#[test]
fn loops_of_c_compilers_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            let arguments = ["-std=gnu11", "-pthread", level];
            let Some(program) = compile(compiler, &arguments, "corpus.c", folder.path()) else {
                println!("skipped: {compiler} is missing");
                break;
            };
            for name in WAITS {
                let Some(function) = score.add(&program, name, true) else {
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
            }
            CALLS.into_iter().for_each(|name| _ = score.add(&program, name, true));
            COMPUTES.into_iter().for_each(|name| _ = score.add(&program, name, false));
        }
    }
    score.check();
}

#[test]
fn loops_of_rust_and_go_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let mut score = Score::default();
    for (compiler, arguments, source, waits, computes) in [
        // At level 0, some loops have too many instructions to be followed: see the book.
        ("rustc", ["-C", "opt-level=0"], "corpus_rust.rs", &RUST_WAITS[..1], &RUST_COMPUTES[..]),
        ("rustc", ["-C", "opt-level=1"], "corpus_rust.rs", &RUST_WAITS, &RUST_COMPUTES),
        ("rustc", ["-C", "opt-level=2"], "corpus_rust.rs", &RUST_WAITS, &RUST_COMPUTES),
        ("rustc", ["-C", "opt-level=3"], "corpus_rust.rs", &RUST_WAITS, &RUST_COMPUTES),
        ("go", ["build", "-gcflags=-N -l"], "corpus.go", &GO_WAITS, &GO_COMPUTES),
        ("go", ["build", "-gcflags=-l"], "corpus.go", &GO_WAITS, &GO_COMPUTES),
        ("go", ["build", "-gcflags="], "corpus.go", &GO_WAITS, &GO_COMPUTES),
    ] {
        let Some(program) = compile(compiler, &arguments, source, folder.path()) else {
            println!("skipped: {compiler} is missing");
            continue;
        };
        for (names, waits) in [(waits, true), (computes, false)] {
            names.iter().for_each(|name| _ = score.add(&program, name, waits));
        }
    }
    score.check();
}
