//! `corebeat workload` and `corebeat demo`, as a user runs them.

use std::process::{Command, Output, Stdio};

fn corebeat(args: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.args(args).env("COREBEAT_STATE_DIR", state.path()).stdin(Stdio::null()).output().unwrap()
}

fn printed(done: &Output) -> String {
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout.clone()).unwrap()
}

#[test]
fn workload_without_a_name_lists_all() {
    let list = printed(&corebeat(&["workload"]));
    let names: Vec<&str> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(names, ["option", "swaption", "cluster", "cluster-spin", "search", "fluid", "triad"]);
}

#[test]
fn workload_prints_the_same_checksum_for_every_thread_count() {
    let checksum = |threads| {
        let text = printed(&corebeat(&["workload", "swaption", "--threads", threads, "--scale", "0.0002"]));
        text.split_once("checksum ").unwrap().1.split_once(',').unwrap().0.to_owned()
    };
    assert_eq!(checksum("1"), checksum("3"));
}

#[test]
fn workload_and_demo_of_what_makes_no_sense_are_usage_errors() {
    for args in [
        &["workload", "ferret"][..],
        &["workload", "triad", "--threads", "0"],
        &["workload", "triad", "--threads", "1025"],
        &["workload", "triad", "--scale", "0"],
        &["workload", "triad", "--scale", "NaN"],
        &["workload", "triad", "--scale", "-1"],
        &["workload", "triad", "--scale", "1e300"],
        &["workload", "triad", "--scale", "much"],
        &["demo", "ferret"],
        &["demo", "--scale", "0"],
        &[],
        &["no-such-command"],
    ] {
        let done = corebeat(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(!done.stderr.is_empty() && done.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn demo_shows_each_kernel_that_is_named() {
    let table = printed(&corebeat(&["demo", "swaption", "--scale", "0.002"]));
    assert!(table.lines().any(|l| l.starts_with("swaption ")), "{table}");
    assert!(table.contains("geometric mean"), "{table}");
}

#[test]
fn workload_and_demo_whose_output_is_full_do_not_panic() {
    for args in [&["workload"][..], &["workload", "triad", "--scale", "0.0001"], &["demo", "triad"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let done = Command::new(env!("CARGO_BIN_EXE_corebeat")).args(args).stdout(full).output().unwrap();
        assert_eq!(done.status.code(), Some(125), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&done.stderr).lines().count(), 1, "{args:?}");
    }
}
