//! `corebeat run --policy coscheduling`: several programs that take turns if they do not fit on the
//! CPUs at the same time.

use crate::{
    Running, assert_refused, corebeat, is_root, left, report, signal, stderr, stdout, until,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const RUN: [&str; 3] = ["run", "--policy", "coscheduling"];

fn command(folder: &Path, args: &[&str]) -> Command {
    crate::command(folder, &[&RUN, args].concat())
}

fn run(args: &[&str]) -> Output {
    corebeat(&[&RUN, args].concat())
}

#[test]
fn invalid_programs_and_options_are_usage_errors_and_run_nothing() {
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
        assert_refused(&run(&args), 2, "");
        assert!(!ran.exists(), "{args:?}");
    }
}

#[test]
fn corebeat_does_not_freeze_itself_with_its_shell() {
    let folder = tempfile::tempdir().unwrap();
    // More threads than CPUs, so that the programs take turns.
    let busy = "for n in $(seq $(nproc)); do while :; do :; done & done";
    let mut other = command_of("/bin/sh", folder.path(), &["-c", &format!("{busy}; wait")]);
    let other = Running::start(&mut other);
    let pid = other.0.id().to_string();
    let run = "run --policy coscheduling --slice-ms 20 --report none";
    let script = format!("{busy}; \"$0\" {run} -p $$ -p \"$1\" & echo $! > pid; wait");
    let mut shell = command_of("/bin/sh", folder.path(), &["-c", &script, crate::COREBEAT, &pid]);
    let shell = Running::start(&mut shell);
    let corebeat = || fs::read_to_string(folder.path().join("pid")).unwrap_or_default();
    // Both programs have been held.
    until(|| is_held(&pid));
    until(|| is_held(&shell.0.id().to_string()));
    let number = corebeat().trim().parse().ok().and_then(Pid::from_raw).unwrap();
    kill_process(number, Signal::TERM).unwrap();
    until(|| state(corebeat().trim()).is_none_or(|state| state == 'Z'));
    assert!(left(folder.path()).is_empty());
}

fn command_of(program: &str, folder: &Path, args: &[&str]) -> Command {
    crate::command_of(Path::new(program), folder, args)
}

#[test]
fn invalid_options_keep_an_old_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    fs::write(&file, "old report").unwrap();
    let done = run(&["--period", "100", "--report-file", file.to_str().unwrap(), "--", "true"]);
    assert_refused(&done, 2, "");
    assert_eq!(fs::read_to_string(file).unwrap(), "old report");
}

#[test]
fn status_is_that_of_the_first_program_that_failed() {
    let programs = |parts: &[&str]| {
        let parts = parts.iter().flat_map(|part| ["--", "sh", "-c", part]);
        run(&parts.collect::<Vec<_>>()).status
    };
    assert_eq!(programs(&["exit 0", "exit 0"]).code(), Some(0));
    assert_eq!(programs(&["exit 0", "exit 3", "exit 4"]).code(), Some(3));
    assert_eq!(programs(&["exit 3", "kill -TERM $$"]).code(), Some(3));
    assert_eq!(programs(&["exit 0", "kill -TERM $$", "exit 3"]).signal(), Some(15));
    // A program has ended although a process that it started runs.
    assert_eq!(programs(&["sleep 0 & exit 5", "exit 0"]).code(), Some(5));
}

#[test]
fn report_contains_each_program_and_their_turns() {
    let done = run(&["--report", "json", "--", "true", "--", "sh", "-c", "exit 7"]);
    let report = report(&done);
    let names = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
    assert_eq!(names(&report["programs"][0]), names(&report["programs"][1]));
    assert!(names(&report).is_superset(&names(&report["programs"][1])));
    assert!(names(&report["programs"][1]).contains("shares"));
    assert_eq!(report["programs"][1]["ended"]["exit"], 7);
    assert_eq!((&report["ended"]["exit"], &report["slice_ms"]), (&7.into(), &50.into()));
    assert!(report["programs"][0]["turns_s"].is_number(), "{report}");
}

#[test]
fn programs_that_spin_keep_their_results_under_auto() {
    let folder = tempfile::tempdir().unwrap();
    let program = ["--", crate::COREBEAT, "workload", "cluster-spin", "--threads", "2"];
    let program = [&program[..], &["--scale", "0.01"]].concat();
    let auto = ["run", "--period", "50", "--report", "json"];
    let done = crate::command(folder.path(), &[&auto[..], &program, &program].concat()).output();
    let done = done.unwrap();
    let report = report(&done);
    for program in report["programs"].as_array().unwrap() {
        assert_eq!(program["ended"]["exit"], 0, "{report}");
        let applied = program["applied"].as_array().unwrap().iter();
        let is_turn = |row: &&Value| row["policy"] == "coscheduling" && row["failed"].is_null();
        let took_turns = applied.filter(is_turn).count() > 0;
        assert!(!took_turns || program["turns_s"].is_number(), "{report}");
    }
    let printed = stdout(&done);
    let checksums = |line: &str| line.split(',').next().map(str::to_owned);
    let different: BTreeSet<_> = printed.lines().filter_map(checksums).collect();
    assert_eq!((printed.lines().count(), different.len()), (2, 1), "{printed}");
    assert!(left(folder.path()).is_empty());
}

#[test]
fn program_that_cannot_be_started_ends_the_others() {
    let folder = tempfile::tempdir().unwrap();
    for (program, status) in [("/no/such/program", 127), ("/", 126)] {
        let mut command = command(folder.path(), &["--", "cat", "--", program, "--", "cat"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut corebeat = piped.spawn().unwrap();
        let mut words = corebeat.stdin.take().unwrap();
        let ended = corebeat.wait().unwrap();
        // A `cat` that still runs would print the input.
        let _ = words.write_all(b"input");
        drop(words);
        let (mut printed, mut errors) = (String::new(), String::new());
        corebeat.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        corebeat.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!((ended.code(), printed.as_str()), (Some(status), ""), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn signal_reaches_each_program_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Records each signal until the file `over` exists.
    let script =
        "trap 'echo $0 >> received' TERM USR1; : > $0; until [ -e over ]; do sleep 0.01; done";
    let args: Vec<&str> =
        ["a", "b", "c"].iter().flat_map(|name| ["--", "sh", "-c", script, name]).collect();
    let mut corebeat = command(folder.path(), &args).spawn().unwrap();
    until(|| ["a", "b", "c"].iter().all(|name| at(name).exists()));
    let received = || {
        let text = fs::read_to_string(at("received")).unwrap_or_default();
        ["a", "b", "c"].map(|name| text.lines().filter(|l| *l == name).count())
    };
    signal(&corebeat, Signal::USR1);
    until(|| received().iter().all(|count| *count > 0));
    signal(&corebeat, Signal::TERM);
    until(|| received().iter().all(|count| *count > 1));
    fs::write(at("over"), "").unwrap();
    assert_eq!(corebeat.wait().unwrap().code(), Some(0));
    assert_eq!(received(), [2, 2, 2]);
}

#[test]
fn more_programs_than_cpus_all_end_and_leave_no_journal() {
    let folder = tempfile::tempdir().unwrap();
    let count = corebeat_linux::topology().cpus().len() + 1;
    let work = ["--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"];
    let args: Vec<&str> =
        ["--report", "json", "--slice-ms", "5"].into_iter().chain(work.repeat(count)).collect();
    let done = command(folder.path(), &args).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let report = report(&done);
    assert_eq!(report["programs"].as_array().unwrap().len(), count);
    assert!(left(folder.path()).is_empty(), "{report}");
}

/// State of the first thread of a process, as the letter of proc_pid_stat(5).
fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.chars().next()
}

/// Whether a process is in a control group of Corebeat, and frozen.
fn is_frozen(pid: &str) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let ours =
        groups.lines().filter(|l| l.contains("/corebeat-")).filter_map(|l| l.splitn(3, ':').nth(2));
    let has = |root: &str, path: &str, file: &str, word: &str| {
        let text =
            fs::read_to_string(format!("/sys/fs/cgroup{root}{path}/{file}")).unwrap_or_default();
        text.lines().any(|l| l == word)
    };
    ours.into_iter().any(|path| {
        ["", "/unified"].iter().any(|root| has(root, path, "cgroup.events", "frozen 1"))
            || has("/freezer", path, "freezer.state", "FROZEN")
    })
}

fn is_stopped(pid: &str) -> bool {
    state(pid) == Some('T')
}

/// Whether a control group or a signal stops a process.
fn is_held(pid: &str) -> bool {
    is_stopped(pid) || is_frozen(pid)
}

/// More programs than CPUs. Each has a child that works while a file exists.
struct Scene {
    folder: tempfile::TempDir,
    names: Vec<String>,
    corebeat: Child,
    unprivileged: bool,
    /// Whether signals stop the programs, rather than control groups.
    by_signals: bool,
}

impl Scene {
    /// Waits until one program is held. An unprivileged user cannot create control groups; if root
    /// runs the tests, this is another user.
    fn new(unprivileged: bool) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let count = corebeat_linux::topology().cpus().len() + 1;
        let names: Vec<String> = (0..count).map(|n| n.to_string()).collect();
        fs::write(folder.path().join("on"), "").unwrap();
        let script = "while [ -e on ]; do :; done & echo $! > $0; wait";
        let programs = names.iter().flat_map(|n| ["--", "sh", "-c", script, n]);
        let options = ["run", "--policy", "coscheduling", "--report", "json"];
        let mut command = Scene::command(folder.path(), unprivileged);
        command.args(options.into_iter().chain(programs));
        let corebeat = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut scene = Scene { folder, names, corebeat, unprivileged, by_signals: false };
        until(|| {
            scene.by_signals = scene.is_any(is_stopped);
            scene.by_signals || scene.is_any(is_frozen)
        });
        scene
    }

    fn command(folder: &Path, unprivileged: bool) -> Command {
        match unprivileged {
            true => crate::unprivileged(folder, &[]),
            false => crate::command(folder, &[]),
        }
    }

    /// Process number of a program's child.
    fn pid(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default().trim().to_owned()
    }

    fn is_any(&self, holds: impl Fn(&str) -> bool) -> bool {
        self.names.iter().any(|name| holds(&self.pid(name)))
    }

    /// Ends the work of all programs.
    fn end_work(&self) {
        fs::remove_file(self.folder.path().join("on")).unwrap();
    }
}

#[test]
fn held_programs_get_their_turns_when_others_end() {
    for unprivileged in [false, true] {
        let mut scene = Scene::new(unprivileged);
        assert!(
            !is_root() || scene.by_signals == unprivileged,
            "only root can create control groups"
        );
        scene.end_work();
        let mut printed = String::new();
        scene.corebeat.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
        assert_eq!(scene.corebeat.wait().unwrap().code(), Some(0), "{printed}");
        let report: Value = serde_json::from_str(&printed).unwrap();
        let notes = report["notes"].as_array().unwrap();
        let is_noted = |n: &Value| n.as_str().unwrap().contains("stopped by signals");
        assert_eq!(notes.iter().any(is_noted), scene.by_signals, "{printed}");
        for program in report["programs"].as_array().unwrap() {
            assert_eq!(program["ended"]["exit"], 0, "{printed}");
            let share = program["coscheduled"].as_f64().unwrap_or(0.0);
            assert!((0.0..=1.0).contains(&share), "{printed}");
            assert!(program["turns_s"].as_f64() <= report["wall_s"].as_f64(), "{printed}");
        }
        assert!(left(scene.folder.path()).is_empty(), "{printed}");
    }
}

#[test]
fn held_programs_end_when_a_signal_ends_corebeat() {
    for unprivileged in [false, true] {
        let mut scene = Scene::new(unprivileged);
        signal(&scene.corebeat, Signal::TERM);
        assert_eq!(scene.corebeat.wait().unwrap().signal(), Some(15));
        assert!(!scene.is_any(is_held));
        scene.end_work();
    }
}

#[test]
fn restore_releases_held_programs_after_corebeat_is_killed() {
    for unprivileged in [false, true] {
        let mut scene = Scene::new(unprivileged);
        let pid = scene.corebeat.id().to_string();
        let say = |args: &[&str]| {
            let mut command = Scene::command(scene.folder.path(), unprivileged);
            let done = command.args(args).output().unwrap();
            assert_eq!((done.status.code(), stderr(&done).as_str()), (Some(0), ""), "{args:?}");
            stdout(&done)
        };
        scene.corebeat.kill().unwrap();
        scene.corebeat.wait().unwrap();
        until(|| scene.is_any(is_held));
        let ended = say(&["status"]);
        assert!(ended.contains(&format!("{pid}  has ended")), "{ended}");
        let journals = left(scene.folder.path());
        assert!(say(&["restore", "--dry-run"]).starts_with("would restore "));
        assert_eq!(left(scene.folder.path()), journals, "a dry run removes nothing");
        assert!(scene.is_any(is_held), "a dry run changes nothing");
        let done = Scene::command(scene.folder.path(), scene.unprivileged)
            .arg("restore")
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        assert!(!scene.is_any(is_held), "{}", stderr(&done));
        assert!(left(scene.folder.path()).is_empty(), "{}", stderr(&done));
        scene.end_work();
        until(|| !scene.is_any(|pid| state(pid).is_some_and(|state| state != 'Z')));
    }
}
