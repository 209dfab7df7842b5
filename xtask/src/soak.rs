//! The long checks: many random cases, more interleavings, large sizes, and a loaded machine.

use crate::effect;
use crate::step::{Outcome, require_normal_priority, run_cargo, run_models};
use crate::vm;
use crate::workspace::Workspace;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Cases of each property test per minute, and their maximum. The default of proptest is 256.
const CASES: u32 = 1_000;
const CASES_MAX: u32 = 20_000;
/// The variable that holds the minutes of this run. Tests that read it use larger sizes, or run for
/// a part of that time.
const SOAK: &str = "COREBEAT_SOAK";
/// Tests that read [`SOAK`].
const LARGE: [&[&str]; 16] = [
    &["-p", "corebeat-heartbeat", "--test", "hostile", "random"],
    &["-p", "corebeat-trace", "--test", "hostile", "random"],
    &["-p", "corebeat-lpel", "--test", "scale"],
    &["-p", "corebeat-snet", "--test", "scale"],
    &["-p", "corebeat-daemon", "--lib", "garbage_is_answered_or_dropped"],
    &["-p", "corebeat-cli", "--test", "cli", "killed_at_any_system_call"],
    &["-p", "corebeat-lpel", "--test", "network", "networks_leave_nothing_behind"],
    &["-p", "corebeat-stm", "--test", "bank"],
    &["-p", "corebeat-scoop", "--test", "scale"],
    &["-p", "corebeat-rewrite", "--test", "fuzz"],
    &["-p", "corebeat-reactor", "--example", "cache", "damaged"],
    &["-p", "corebeat-reactor", "--example", "web", "damaged"],
    &["-p", "corebeat-reactor", "--lib", "simulated_servers"],
    &["-p", "corebeat-verify", "--test", "crosscheck"],
    &["-p", "corebeat-verify", "--test", "peers"],
    &["-p", "corebeat-verify", "--test", "fuzz"],
];
/// The tests that run under ThreadSanitizer: crate, test files, and a filter of names.
const RACES: [(&str, &[&str], &str); 7] = [
    ("corebeat-trace", &["small"], ""),
    ("corebeat-lpel", &["small", "stream", "set", "awaiting", "deadlock"], ""),
    ("corebeat-lpel", &["network"], "network_delivers"),
    ("corebeat-snet", &["network", "random_net"], ""),
    ("corebeat-stm", &["small", "bank", "word", "trace"], ""),
    ("corebeat-scoop", &["small"], ""),
    ("corebeat-clustered", &["small", "load", "random"], ""),
];
/// ThreadSanitizer must instrument the standard library, too. Cargo builds it only for a named
/// target.
const RACES_TARGET: &str = "x86_64-unknown-linux-gnu";

/// The conditions of the rounds, in turns: simultaneous tests and busy threads per CPU. Results of
/// tests must not depend on the scheduler of the system.
const CONDITIONS: [(&str, usize, usize); 3] = [
    ("as usual", 1, 0),
    ("eight tests on each CPU", 8, 0),
    ("beside four busy threads on each CPU", 1, 4),
];

/// Runs the property tests with many cases, the large sizes, the models, and the race detector once
/// each. Then repeats all tests until the time is over.
pub(crate) fn run(minutes: u32) -> Result<(), String> {
    require_normal_priority()?;
    let workspace = Workspace::read()?;
    let end = Instant::now() + Duration::from_secs(60 * u64::from(minutes));
    let cases = CASES.saturating_mul(minutes.max(1)).min(CASES_MAX).to_string();
    let minutes = minutes.to_string();
    let tests = ["test", "--workspace", "--release", "--all-targets"];
    println!("\n==== many cases");
    run_cargo(&tests, &[("PROPTEST_CASES", &cases)])?;
    println!("\n==== large sizes");
    for test in LARGE {
        run_cargo(
            &[&["test", "--release"], test, &["--", "--nocapture"]].concat(),
            &[(SOAK, &minutes)],
        )?;
    }
    println!("\n==== models with one preemption more");
    run_models(&workspace, &[(SOAK, &minutes)])?;
    println!("\n==== races");
    if let Outcome::Skipped(why) = find_races(&workspace)? {
        println!("==== races: skipped: {why}");
    }
    println!("\n==== generated programs");
    if let Outcome::Skipped(why) = effect::soak(&workspace, &minutes)? {
        println!("==== generated programs: skipped: {why}");
    }
    println!("\n==== kills of the scheduler in the kernel");
    if let Outcome::Skipped(why) = vm::soak(&workspace)? {
        println!("==== kills of the scheduler in the kernel: skipped: {why}");
    }
    let mut round = 0;
    while Instant::now() < end {
        let (conditions, threads, load) = CONDITIONS[round % CONDITIONS.len()];
        round += 1;
        println!("\n==== round {round}: {conditions}");
        let threads = format!("--test-threads={}", threads * cpus());
        under_load(load * cpus(), || run_cargo(&[&tests[..], &["--", &threads]].concat(), &[]))
            .map_err(|why| format!("round {round}, {conditions}: {why}"))?;
    }
    println!("\n==== passed: all of it once, and {round} rounds");
    Ok(())
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs a function beside this number of threads that compute without end.
fn under_load<T>(threads: usize, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            // Relaxed: the flag publishes no other data.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Runs [`RACES`] under ThreadSanitizer, which reports the data races of an execution.
fn find_races(workspace: &Workspace) -> Result<Outcome, String> {
    let nightly = match effect::nightly(workspace, "rust-src")? {
        Ok(name) => format!("+{name}"),
        Err(missing) => return Ok(Outcome::Skipped(missing)),
    };
    let target = workspace.target_directory.join("races");
    let env = [
        ("RUSTFLAGS", "-Zsanitizer=thread --cfg corebeat_threads"),
        ("CARGO_TARGET_DIR", target.to_str().ok_or("the target folder's name is not UTF-8")?),
        ("PROPTEST_CASES", "40"),
    ];
    for (package, tests, filter) in RACES {
        let mut args =
            vec![nightly.as_str(), "test", "-Zbuild-std", "--target", RACES_TARGET, "-p", package];
        tests.iter().for_each(|test| args.extend(["--test", test]));
        args.push(filter);
        run_cargo(&args, &env)?;
    }
    Ok(Outcome::Passed)
}
