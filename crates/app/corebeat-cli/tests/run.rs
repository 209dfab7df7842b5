//! `corebeat run`, as a user and as a script run it.

use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// A command that leaves its journal in a folder of its own.
fn command(folder: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.arg("run").args(args).env("COREBEAT_STATE_DIR", folder.path().join("state")).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(&tempfile::tempdir().unwrap(), args).output().unwrap()
}

fn told(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn run_of_what_makes_no_sense_is_a_usage_error() {
    for args in [
        &[][..],
        &["--"],
        &["--period", "0", "--", "true"],
        &["--policy", "no-such", "--", "true"],
        &["--report", "xml", "--", "true"],
        &["--report", "none", "--report-file", "report", "--", "true"],
        &["--memory", "interleave:9999", "--", "true"],
        &["--period", "-5", "--", "true"],
    ] {
        let done = run(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", told(&done));
        assert_eq!(told(&done).lines().count(), 1, "{args:?}: {}", told(&done));
        assert!(!done.stderr.is_empty() && done.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn run_of_what_cannot_be_started_has_the_status_that_env_has() {
    for (program, status, says) in [
        ("/no/such/program", 127, "there is no program"),
        ("", 127, "there is no program"),
        ("/", 126, "cannot run '/'"),
        ("/dev/null", 126, "cannot run"),
    ] {
        let done = run(&["--", program]);
        assert_eq!(done.status.code(), Some(status), "{program}: {}", told(&done));
        assert!(told(&done).contains(says) && told(&done).lines().count() == 1, "{}", told(&done));
    }
}

#[test]
fn run_gives_back_exit_status_and_signal() {
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    let killed = run(&["--report", "json", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15));
    let report: Value = serde_json::from_slice(&killed.stderr).unwrap();
    assert_eq!(report["ended"]["signal"], 15);
}

#[test]
fn run_leaves_streams_and_arguments_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut cat = command(&folder, &["--report", "none", "--", "sh", "-c", "cat; echo why >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    cat.stdin.take().unwrap().write_all(b"\xffbytes\0").unwrap();
    let done = cat.wait_with_output().unwrap();
    assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"\xffbytes\0"[..], &b"why\n"[..]));

    let broken = OsStr::from_bytes(b"a\xffb");
    let done = command(&folder, &["--report", "json", "--", "printf", "%s"]).arg(broken).output().unwrap();
    assert_eq!(done.stdout, b"a\xffb");
    let report: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(report["command"][2], "a\u{fffd}b");
}

#[test]
fn report_has_the_fields_that_the_book_explains() {
    let book = include_str!("../../../../docs/run.md");
    let table = book.split_once("## The report").unwrap().1.split_once("\n\n").unwrap().1;
    let rows = table.lines().take_while(|l| l.starts_with('|')).filter_map(|l| l.split('|').nth(1));
    let explained: BTreeSet<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let done = run(&["--report", "json", "--", "true"]);
    let report: Value = serde_json::from_slice(&done.stderr).unwrap();
    let fields: BTreeSet<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, explained);
    assert_eq!(report["ended"]["exit"], 0);
    assert!(report["wall_s"].as_f64().unwrap() > 0.0);
    for (field, wanted) in [
        ("shares", "user system lock latency sleep spin"),
        (
            "counters",
            "voluntary_switches involuntary_switches migrations cache_references cache_misses instructions",
        ),
    ] {
        let fields: BTreeSet<&str> = report[field].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, wanted.split(' ').collect(), "{field}");
    }
}

#[test]
fn report_as_a_table_is_the_default_and_names_the_program() {
    for policy in ["auto", "none", "team", "faithful", "tranquilizer", "shuffler"] {
        let done = run(&["--policy", policy, "--", "true"]);
        assert!(told(&done).contains("corebeat: true: "), "{}", told(&done));
        assert!(told(&done).contains(&format!("policy {policy}")), "{}", told(&done));
    }
}

#[test]
fn shuffler_says_where_it_has_nothing_to_do() {
    let done = run(&["--policy", "shuffler", "--", "true"]);
    let caches: BTreeSet<u32> = corebeat_linux::topology().cpus().iter().map(|cpu| cpu.cache).collect();
    assert_eq!(told(&done).contains("shuffler: all CPUs share one"), caches.len() == 1, "{}", told(&done));
}

#[test]
fn report_file_that_cannot_be_made_is_told_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let done = command(&folder, &["--report-file", "/no/such/folder/report", "--", "touch"])
        .arg(&ran)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(told(&done).contains("/no/such/folder/report") && told(&done).lines().count() == 1);
    assert!(!ran.exists());
}

#[test]
fn report_file_gets_the_report_and_one_that_is_full_leaves_the_status_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let path = file.to_str().unwrap();
    let done = run(&["--report", "json", "--report-file", path, "--", "sh", "-c", "exit 7"]);
    assert_eq!((done.status.code(), told(&done).as_str()), (Some(7), ""));
    let report: Value = serde_json::from_reader(File::open(&file).unwrap()).unwrap();
    assert_eq!(report["ended"]["exit"], 7);

    let done = run(&["--report-file", "/dev/full", "--", "sh", "-c", "exit 7"]);
    assert_eq!(done.status.code(), Some(7));
    assert!(told(&done).contains("/dev/full"), "{}", told(&done));
}

#[test]
fn report_that_nobody_can_read_leaves_the_status_alone() {
    let folder = tempfile::tempdir().unwrap();
    let exit = ["--", "sh", "-c", "exit 7"];
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(command(&folder, &exit).stderr(full).status().unwrap().code(), Some(7));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(command(&folder, &exit).stderr(writer).status().unwrap().code(), Some(7));
}
