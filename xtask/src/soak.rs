//! Long runs: rare cases, rare interleavings.

use crate::step::run_cargo;
use std::time::{Duration, Instant};

/// Cases of each property test: 256 is proptest's default.
const CASES: &str = "20000";

/// Property tests once with many cases; then all tests, again and again, until the time is over.
pub(crate) fn run(minutes: u32) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(60 * u64::from(minutes));
    let tests = ["test", "--workspace", "--release", "--all-targets"];
    println!("\n==== many cases");
    run_cargo(&tests, &[("PROPTEST_CASES", CASES)])?;
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        println!("\n==== round {round}");
        run_cargo(&tests, &[]).map_err(|why| format!("round {round}: {why}"))?;
    }
    println!("\n==== passed: many cases once, and {round} rounds");
    Ok(())
}
