//! `corebeat workload` and `corebeat demo` from the command line.

use crate::{assert_refused, command, corebeat, stderr, stdout};
use std::process::Output;

fn printed(done: &Output) -> String {
    assert_eq!(done.status.code(), Some(0), "{}", stderr(done));
    stdout(done)
}

#[test]
fn workload_without_a_name_lists_all() {
    let list = printed(&corebeat(&["workload"]));
    let names: Vec<&str> = list.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(
        names,
        ["option", "swaption", "cluster", "cluster-spin", "search", "fluid", "triad"]
    );
}

#[test]
fn workload_prints_the_same_checksum_for_every_thread_count() {
    let checksum = |threads| {
        let kernel = ["workload", "swaption", "--scale", "0.0002", "--threads", threads];
        let text = printed(&corebeat(&kernel));
        text.split_once("checksum ").unwrap().1.split_once(',').unwrap().0.to_owned()
    };
    assert_eq!(checksum("1"), checksum("3"));
}

#[test]
fn invalid_command_lines_are_usage_errors() {
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
fn folders_of_killed_demos_are_removed_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    // Above the largest process number of Linux, 2^22.
    let left = ["goals", "trace"].map(|name| {
        let left = folder.path().join(format!("corebeat-{name}-4200000000"));
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("socket"), "").unwrap();
        left
    });
    let mut demo = command(folder.path(), &["demo", "trace", "--transactions", "1"]);
    printed(&demo.env("TMPDIR", folder.path()).output().unwrap());
    assert!(left.iter().all(|folder| !folder.exists()));
    let rest = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(rest, 0, "the folder of the demo itself stays");
}

#[test]
fn demo_shows_each_named_kernel() {
    let table = printed(&corebeat(&["demo", "swaption", "--scale", "0.002"]));
    assert!(table.lines().any(|l| l.starts_with("swaption ")), "{table}");
    assert!(table.contains("geometric mean"), "{table}");
}

#[test]
fn workload_and_demo_with_a_full_output_do_not_panic() {
    for args in [&["workload"][..], &["workload", "triad", "--scale", "0.0001"], &["demo", "triad"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let done = command(folder.path(), args).stdout(full).output().unwrap();
        assert_refused(&done, 125, "cannot print");
    }
}
