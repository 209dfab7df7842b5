//! `corebeat run --policy coscheduling`: several programs, which take turns where they do not fit side by side.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::yield_now;

/// Owns nothing.
const NOBODY: u32 = 65534;

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
fn until(mut is_so: impl FnMut() -> bool) {
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

/// What the first thread of a process does, by the letter of proc_pid_stat(5); nothing where there is none.
fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.chars().next()
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

fn is_stopped(pid: &str) -> bool {
    state(pid) == Some('T')
}

/// Whether a process may not run, by a group or by a signal.
fn is_held(pid: &str) -> bool {
    is_stopped(pid) || is_frozen(pid)
}

/// Programs that each leave the work to a child, more than fit side by side. They run while there is a file.
struct Scene {
    folder: tempfile::TempDir,
    names: Vec<String>,
    corebeat: Child,
    is_poor: bool,
    /// Whether signals hold them, and not groups.
    by_signals: bool,
}

impl Scene {
    /// Once one of them may not run. `is_poor` is who may make no control groups: where root runs the tests, that is somebody else.
    fn new(is_poor: bool) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let count = corebeat_linux::topology().cpus().len() + 1;
        let names: Vec<String> = (0..count).map(|n| n.to_string()).collect();
        fs::write(folder.path().join("on"), "").unwrap();
        let script = "while [ -e on ]; do :; done & echo $! > $0; wait";
        let programs = names.iter().flat_map(|n| ["--", "sh", "-c", script, n]);
        let options = ["run", "--policy", "coscheduling", "--report", "json"];
        if is_poor && is_root() {
            // Where it was built only root may be able to read it. Copied by somebody else: see the tests of corebeat-linux.
            let mut copy = Command::new("cp");
            copy.arg(env!("CARGO_BIN_EXE_corebeat")).arg(folder.path().join("corebeat"));
            assert!(copy.status().unwrap().success());
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut command = Scene::command(folder.path(), is_poor);
        command.args(options.into_iter().chain(programs));
        let corebeat = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut scene = Scene { folder, names, corebeat, is_poor, by_signals: false };
        until(|| {
            scene.by_signals = scene.is_anybody(is_stopped);
            scene.by_signals || scene.is_anybody(is_frozen)
        });
        scene
    }

    fn command(folder: &Path, is_poor: bool) -> Command {
        let mut command = match is_poor && is_root() {
            true => Command::new(folder.join("corebeat")),
            false => Command::new(env!("CARGO_BIN_EXE_corebeat")),
        };
        if is_poor && is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.current_dir(folder).env("COREBEAT_STATE_DIR", folder.join("state")).stdin(Stdio::null());
        command
    }

    /// The number of a program's child.
    fn pid(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default().trim().to_owned()
    }

    fn is_anybody(&self, so: impl Fn(&str) -> bool) -> bool {
        self.names.iter().any(|name| so(&self.pid(name)))
    }

    /// Lets all programs come to their ends.
    fn let_end(&self) {
        fs::remove_file(self.folder.path().join("on")).unwrap();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn programs_that_are_held_get_their_turns_when_others_end() {
    for is_poor in [false, true] {
        let mut scene = Scene::new(is_poor);
        assert!(
            !is_root() || scene.by_signals == is_poor,
            "root may make groups, and nobody else in its place"
        );
        scene.let_end();
        let mut told = String::new();
        scene.corebeat.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(scene.corebeat.wait().unwrap().code(), Some(0), "{told}");
        let report: Value = serde_json::from_str(&told).unwrap();
        let notes = report["notes"].as_array().unwrap();
        let says_so = |n: &Value| n.as_str().unwrap().contains("stopped by signals");
        assert_eq!(notes.iter().any(says_so), scene.by_signals, "{told}");
        for program in report["programs"].as_array().unwrap() {
            assert_eq!(program["ended"]["exit"], 0, "{told}");
            let share = program["coscheduled"].as_f64().unwrap_or(0.0);
            assert!((0.0..=1.0).contains(&share) && program["turns_s"].as_f64() <= report["wall_s"].as_f64());
        }
        assert_eq!(fs::read_dir(scene.folder.path().join("state")).unwrap().count(), 0, "{told}");
    }
}

#[test]
fn programs_that_are_held_end_when_corebeat_is_asked_to() {
    for is_poor in [false, true] {
        let mut scene = Scene::new(is_poor);
        signal(&scene.corebeat, "-TERM");
        assert_eq!(scene.corebeat.wait().unwrap().signal(), Some(15));
        assert!(!scene.is_anybody(is_held));
        scene.let_end();
    }
}

#[test]
fn restore_lets_those_run_who_are_held_when_corebeat_is_killed() {
    for is_poor in [false, true] {
        let mut scene = Scene::new(is_poor);
        scene.corebeat.kill().unwrap();
        scene.corebeat.wait().unwrap();
        until(|| scene.is_anybody(is_held));
        let done = Scene::command(scene.folder.path(), scene.is_poor).arg("restore").output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", told(&done));
        assert!(!scene.is_anybody(is_held), "{}", told(&done));
        assert_eq!(fs::read_dir(scene.folder.path().join("state")).unwrap().count(), 0);
        scene.let_end();
        until(|| !scene.is_anybody(|pid| state(pid).is_some_and(|state| state != 'Z')));
    }
}
