//! `corebeat run --policy coscheduling`: several programs, which take turns where they do not fit side by side.

use corebeat_linux::{LinuxMachine, Options};
use corebeat_machine::Action;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::yield_now;

/// A command that leaves its journal in a folder of its own.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.args(["run", "--policy", "coscheduling"]).args(args);
    command.env("COREBEAT_STATE_DIR", folder.join("state")).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(tempfile::tempdir().unwrap().path(), args).output().unwrap()
}

fn told(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// Signals a Corebeat.
fn signal(corebeat: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &corebeat.id().to_string()]).status().unwrap().success());
}

/// Waits until something is so; for ever, if it never is.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        yield_now();
    }
}

#[test]
fn programs_that_make_no_sense_are_a_usage_error_and_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let touch = ["touch", ran.to_str().unwrap()];
    for (options, before, after) in [
        (&["--slice-ms", "0"][..], &[][..], &[][..]),
        (&["--slice-ms", "10001"], &[], &[]),
        (&["--period", "100"], &[], &[]),
        (&["--exact-locks"], &[], &[]),
        (&["--memory", "local"], &[], &[]),
        (&[], &["--"], &[]),
        (&[], &[], &["--"]),
        (&[], &[], &["--", "--", "true"]),
    ] {
        let args = [options, &["--"], before, &touch, after].concat();
        let done = run(&args);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", told(&done));
        assert_eq!(told(&done).lines().count(), 1, "{args:?}: {}", told(&done));
        assert!(!ran.exists(), "{args:?}");
    }
}

#[test]
fn options_that_make_no_sense_leave_the_report_of_before_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    fs::write(&file, "of before").unwrap();
    let done = run(&["--period", "100", "--report-file", file.to_str().unwrap(), "--", "true"]);
    assert_eq!(done.status.code(), Some(2), "{}", told(&done));
    assert_eq!(fs::read_to_string(file).unwrap(), "of before");
}

#[test]
fn status_is_that_of_the_first_that_failed() {
    let programs = |parts: &[&str]| {
        let parts = parts.iter().flat_map(|part| ["--", "sh", "-c", part]);
        run(&parts.collect::<Vec<_>>()).status
    };
    assert_eq!(programs(&["exit 0", "exit 0"]).code(), Some(0));
    assert_eq!(programs(&["exit 0", "exit 3", "exit 4"]).code(), Some(3));
    assert_eq!(programs(&["exit 3", "kill -TERM $$"]).code(), Some(3));
    assert_eq!(programs(&["exit 0", "kill -TERM $$", "exit 3"]).signal(), Some(15));
    // A program that leaves others behind has ended.
    assert_eq!(programs(&["sleep 0 & exit 5", "exit 0"]).code(), Some(5));
}

#[test]
fn report_has_the_fields_that_the_book_explains() {
    let book = include_str!("../../../../docs/coscheduling.md");
    let done = run(&["--report", "json", "--", "true", "--", "sh", "-c", "exit 7"]);
    let report: Value = serde_json::from_slice(&done.stderr).unwrap();
    let names = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
    let fields: BTreeSet<_> = names(&report).union(&names(&report["programs"][1])).cloned().collect();
    let rows = book.lines().filter(|l| l.starts_with("| `"));
    let cells = rows.flat_map(|l| l.split('|').filter(|cell| cell.trim_start().starts_with('`')));
    let explained = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(String::from).collect();
    assert_eq!(fields, explained);
    assert_eq!(report["programs"][1]["ended"]["exit"], 7);
    assert_eq!(report["slice_ms"], 50);
}

#[test]
fn program_that_cannot_be_started_leaves_no_other_running() {
    let folder = tempfile::tempdir().unwrap();
    for (program, status) in [("/no/such/program", 127), ("/", 126)] {
        let mut command = command(folder.path(), &["--", "cat", "--", program, "--", "cat"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut corebeat = piped.spawn().unwrap();
        let mut words = corebeat.stdin.take().unwrap();
        let ended = corebeat.wait().unwrap();
        // Who still runs says it again.
        let _ = words.write_all(b"somebody runs");
        drop(words);
        let (mut said, mut told) = (String::new(), String::new());
        corebeat.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        corebeat.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!((ended.code(), said.as_str()), (Some(status), ""), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn signal_reaches_each_program_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Says what it hears, until it may end.
    let script = "trap 'echo $0 >> heard' TERM USR1; : > $0; until [ -e over ]; do sleep 0.01; done";
    let args: Vec<&str> = ["a", "b", "c"].iter().flat_map(|name| ["--", "sh", "-c", script, name]).collect();
    let mut corebeat = command(folder.path(), &args).current_dir(folder.path()).spawn().unwrap();
    until(|| ["a", "b", "c"].iter().all(|name| at(name).exists()));
    let heard = || {
        let text = fs::read_to_string(at("heard")).unwrap_or_default();
        ["a", "b", "c"].map(|name| text.lines().filter(|l| *l == name).count())
    };
    signal(&corebeat, "-USR1");
    until(|| heard().iter().all(|count| *count > 0));
    signal(&corebeat, "-TERM");
    until(|| heard().iter().all(|count| *count > 1));
    fs::write(at("over"), "").unwrap();
    assert_eq!(corebeat.wait().unwrap().code(), Some(0));
    assert_eq!(heard(), [2, 2, 2]);
}

#[test]
fn more_programs_than_cpus_all_end_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let count = corebeat_linux::topology().cpus().len() + 1;
    let work = ["--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"];
    let args: Vec<&str> =
        ["--report", "json", "--slice-ms", "5"].into_iter().chain(work.repeat(count)).collect();
    let done = command(folder.path(), &args).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", told(&done));
    let report: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(report["programs"].as_array().unwrap().len(), count);
    let journals = fs::read_dir(folder.path().join("state")).map_or(0, |all| all.flatten().count());
    assert_eq!(journals, 0, "{report}");
}

/// Whether this user may freeze programs here.
fn can_freeze(folder: &Path) -> bool {
    let mut sleeper = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let options = Options { state_dir: Some(folder.join("state")), ..Options::default() };
    let mut machine = LinuxMachine::new(options).unwrap();
    let program = machine.watch(sleeper.id() as i32).unwrap();
    let frozen = machine.apply(&Action::SetFrozen { program, frozen: true });
    machine.restore();
    drop(sleeper.stdin.take());
    sleeper.wait().unwrap();
    frozen.is_ok()
}

/// Whether the kernel says that a process is in a group of ours, and frozen.
fn is_frozen(pid: &str) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let ours = groups.lines().filter(|l| l.contains("/corebeat-")).filter_map(|l| l.splitn(3, ':').nth(2));
    let has = |root: &str, path: &str, file: &str, word: &str| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup{root}{path}/{file}")).unwrap_or_default();
        text.lines().any(|l| l == word)
    };
    ours.into_iter().any(|path| {
        ["", "/unified"].iter().any(|root| has(root, path, "cgroup.events", "frozen 1"))
            || has("/freezer", path, "freezer.state", "FROZEN")
    })
}

#[test]
fn programs_that_are_frozen_end_when_corebeat_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let count = corebeat_linux::topology().cpus().len() + 1;
    // A turn takes longer than anybody waits here.
    let options = ["--slice-ms", "10000", "--report", "none"];
    let names: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    let programs = names.iter().flat_map(|n| ["--", "sh", "-c", "echo $$ > $0; while :; do :; done", n]);
    let args: Vec<&str> = options.into_iter().chain(programs).collect();
    let mut corebeat = command(folder.path(), &args).current_dir(folder.path()).spawn().unwrap();
    let pid = |name: &String| fs::read_to_string(at(name)).unwrap_or_default().trim().to_owned();
    if can_freeze(folder.path()) {
        until(|| names.iter().any(|name| is_frozen(&pid(name))));
    } else {
        until(|| names.iter().all(|name| !pid(name).is_empty()));
    }
    signal(&corebeat, "-TERM");
    assert_eq!(corebeat.wait().unwrap().signal(), Some(15));
}
