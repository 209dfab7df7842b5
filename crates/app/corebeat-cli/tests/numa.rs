//! `corebeat` on a machine with several sockets, against the kernel's own numbers. Where all CPUs share one last-level cache the test
//! says so and does nothing: `cargo xtask vm` has a machine with two.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

#[test]
fn shuffler_moves_threads_that_share_locks_between_sockets() {
    let caches: BTreeSet<u32> = corebeat_linux::topology().cpus().iter().map(|cpu| cpu.cache).collect();
    if caches.len() < 2 {
        println!(
            "skipped: all CPUs share one last-level cache; 'cargo xtask ci --only vm' starts a machine with two"
        );
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let corebeat = env!("CARGO_BIN_EXE_corebeat");
    let run = ["run", "--policy", "shuffler", "--report", "json", "--", corebeat];
    // Locks are fought for in most of its time, for longer than the policy's two seconds on any machine that emulates several sockets.
    let work = ["workload", "fluid", "--threads", "8", "--scale", "0.02"];
    let mut command = Command::new(corebeat);
    command.args(run).args(work).env("COREBEAT_STATE_DIR", state.path()).stdin(Stdio::null());
    let done = command.output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    let report: Value = serde_json::from_str(&told).unwrap_or_else(|e| panic!("{e}: {told}"));
    assert_eq!(report["ended"]["exit"], 0, "{told}");
    if std::env::var_os("COREBEAT_VM").is_some() {
        let deeds = report["deeds"].as_array().unwrap();
        let places: BTreeSet<&str> =
            deeds.iter().filter_map(|d| d["action"]["set_cpus"]["cpus"].as_str()).collect();
        assert_eq!(places, BTreeSet::from(["0-3", "4-7"]), "{told}");
        assert!(deeds.iter().all(|d| d["failed"].is_null()), "{told}");
    }
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0, "a journal is left");
}
