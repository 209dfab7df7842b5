//! Long runs: rare cases, rare interleavings, large numbers.

use crate::step::{Outcome, run_cargo, run_models};
use crate::workspace::Workspace;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Cases of each property test for each minute, and at most. Without us there are 256, as proptest has it.
const CASES: u32 = 1_000;
const CASES_MAX: u32 = 20_000;
/// Tells tests for how many minutes we run: they use larger sizes then, or take a part of that time.
const SOAK: &str = "COREBEAT_SOAK";
/// Tests that ask for [`SOAK`].
const LARGE: [&[&str]; 9] = [
    &["-p", "corebeat-heartbeat", "--test", "hostile", "random"],
    &["-p", "corebeat-trace", "--test", "hostile", "random"],
    &["-p", "corebeat-lpel", "--test", "scale"],
    &["-p", "corebeat-snet", "--test", "scale"],
    &["-p", "corebeat-daemon", "--lib", "garbage_is_answered_or_dropped"],
    &["-p", "corebeat-cli", "--test", "daemon", "killed_at_any_system_call"],
    &["-p", "corebeat-lpel", "--test", "network", "networks_leave_nothing_behind"],
    &["-p", "corebeat-stm", "--test", "bank"],
    &["-p", "corebeat-scoop", "--test", "scale"],
];
/// What is run under ThreadSanitizer: which tests of which crate, and those of them whose name has this.
const RACES: [(&str, &[&str], &str); 7] = [
    ("corebeat-trace", &["small"], ""),
    ("corebeat-lpel", &["small", "stream", "set", "awaiting", "deadlock"], ""),
    ("corebeat-lpel", &["network"], "network_delivers"),
    ("corebeat-snet", &["network", "random_net"], ""),
    ("corebeat-stm", &["small", "bank", "word", "trace"], ""),
    ("corebeat-scoop", &["small"], ""),
    ("corebeat-clustered", &["small", "load", "random"], ""),
];
/// It knows what the standard library does only if that is built with it, and so for a target.
const RACES_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Property tests once with many cases, and once each what is large, models, and races; then all tests, again and again,
/// until the time is over.
pub(crate) fn run(minutes: u32) -> Result<(), String> {
    let workspace = Workspace::read()?;
    let end = Instant::now() + Duration::from_secs(60 * u64::from(minutes));
    let cases = CASES.saturating_mul(minutes.max(1)).min(CASES_MAX).to_string();
    let minutes = minutes.to_string();
    let tests = ["test", "--workspace", "--release", "--all-targets"];
    println!("\n==== many cases");
    run_cargo(&tests, &[("PROPTEST_CASES", &cases)])?;
    println!("\n==== large sizes");
    for test in LARGE {
        run_cargo(&[&["test", "--release"], test, &["--", "--nocapture"]].concat(), &[(SOAK, &minutes)])?;
    }
    println!("\n==== models with one preemption more");
    run_models(&workspace, &[(SOAK, &minutes)])?;
    println!("\n==== races");
    if let Outcome::Skipped(why) = find_races(&workspace)? {
        println!("==== races: skipped: {why}");
    }
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        println!("\n==== round {round}");
        run_cargo(&tests, &[]).map_err(|why| format!("round {round}: {why}"))?;
    }
    println!("\n==== passed: all of it once, and {round} rounds");
    Ok(())
}

/// ThreadSanitizer sees races that have happened, in runs as long as one likes.
fn find_races(workspace: &Workspace) -> Result<Outcome, String> {
    let sysroot = Command::new("rustc").args(["+nightly", "--print", "sysroot"]).output();
    let has_sources = sysroot.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout);
        output.status.success() && Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library").is_dir()
    });
    if !has_sources {
        let get = "rustup toolchain install nightly --component rust-src";
        return Ok(Outcome::Skipped(format!("no nightly toolchain with its sources here ({get})")));
    }
    let target = workspace.target_directory.join("races");
    let env = [
        ("RUSTFLAGS", "-Zsanitizer=thread --cfg corebeat_threads"),
        ("CARGO_TARGET_DIR", target.to_str().ok_or("the target folder's name is not UTF-8")?),
        ("PROPTEST_CASES", "40"),
    ];
    for (package, tests, filter) in RACES {
        let mut args = vec!["+nightly", "test", "-Zbuild-std", "--target", RACES_TARGET, "-p", package];
        tests.iter().for_each(|test| args.extend(["--test", test]));
        args.push(filter);
        run_cargo(&args, &env)?;
    }
    Ok(Outcome::Passed)
}
