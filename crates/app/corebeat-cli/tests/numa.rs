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

#[test]
fn doctor_tells_what_the_machine_has() {
    if std::env::var_os("COREBEAT_VM").is_none() {
        println!("skipped: this knows the machine that 'cargo xtask ci --only vm' starts");
        return;
    }
    let done = Command::new(env!("CARGO_BIN_EXE_corebeat")).args(["doctor", "--json"]).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    let cpus = told["topology"]["cpus"].as_array().unwrap();
    let of = |field: &str| cpus.iter().map(|c| c[field].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("id"), (0..8).collect::<Vec<_>>(), "{told}");
    assert_eq!(of("node"), [0, 0, 0, 0, 1, 1, 1, 1], "{told}");
    assert_eq!(of("package"), of("node"), "{told}");
    let fact = |name: &str| told["facts"].as_array().unwrap().iter().find(|f| f["name"] == name).unwrap();
    let groups = if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2 } else { 1 };
    let detail = fact("control groups")["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("version {groups}")), "{told}");
    assert_eq!(fact("control groups")["offer"], "yes", "{told}");
}
