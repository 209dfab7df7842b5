//! `corebeat` on a machine with several sockets, against the kernel's own numbers. If all CPUs
//! share one last-level cache, the test prints a line and does nothing. `cargo xtask vm` has a
//! machine with two caches.

use crate::{COREBEAT, corebeat, json, report, stderr};
use std::collections::BTreeSet;

#[test]
fn shuffler_moves_threads_that_share_locks_between_sockets() {
    let caches: BTreeSet<u32> =
        corebeat_linux::topology().cpus().iter().map(|cpu| cpu.cache).collect();
    if caches.len() < 2 {
        println!(
            "skipped: all CPUs share one last-level cache; 'cargo xtask ci --only vm' starts a machine with two"
        );
        return;
    }
    // Threads contend for locks in most of its time, for longer than the policy's two seconds on
    // any machine that emulates several sockets.
    let work = ["workload", "fluid", "--threads", "8", "--scale", "0.06"];
    let run = ["run", "--policy", "shuffler", "--report", "json", "--", COREBEAT];
    let done = corebeat(&[&run[..], &work].concat());
    let (printed, report) = (stderr(&done), report(&done));
    assert_eq!(report["ended"]["exit"], 0, "{printed}");
    if std::env::var_os("COREBEAT_VM").is_some() {
        let applied = report["applied"].as_array().unwrap();
        let places: BTreeSet<&str> =
            applied.iter().filter_map(|d| d["action"]["set_cpus"]["cpus"].as_str()).collect();
        assert_eq!(places, BTreeSet::from(["0-3", "4-7"]), "{printed}");
        assert!(applied.iter().all(|d| d["failed"].is_null()), "{printed}");
    }
}

#[test]
fn doctor_tells_what_the_machine_has() {
    if std::env::var_os("COREBEAT_VM").is_none() {
        println!("skipped: requires the machine that 'cargo xtask ci --only vm' starts");
        return;
    }
    let done = corebeat(&["doctor", "--json"]);
    assert!(done.status.success() && done.stderr.is_empty(), "{}", stderr(&done));
    let printed = json(&done);
    let cpus = printed["topology"]["cpus"].as_array().unwrap();
    let of = |field: &str| cpus.iter().map(|c| c[field].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("id"), (0..8).collect::<Vec<_>>(), "{printed}");
    assert_eq!(of("node"), [0, 0, 0, 0, 1, 1, 1, 1], "{printed}");
    assert_eq!(of("package"), of("node"), "{printed}");
    let fact = |name: &str| {
        printed["facts"].as_array().unwrap().iter().find(|f| f["name"] == name).unwrap()
    };
    let groups =
        if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2 } else { 1 };
    let detail = fact("control groups")["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("version {groups}")), "{printed}");
    assert_eq!(fact("control groups")["offer"], "yes", "{printed}");
}
