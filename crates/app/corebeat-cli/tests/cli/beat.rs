//! `corebeat beat` with and without a daemon.

use crate::{
    COREBEAT, Running, assert_refused, command, listens, stderr, stdout, unprivileged, until,
};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A daemon in a temporary folder.
struct Place {
    folder: TempDir,
    daemon: Running,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Place::start(folder.path());
        Place { folder, daemon }
    }

    fn start(folder: &Path) -> Running {
        let serve = ["daemon", "--scope", "user", "--policy", "none", "--period", "10", "--socket"];
        let mut daemon = command(folder, &serve);
        let daemon = Running::start(daemon.arg("socket").stderr(Stdio::null()));
        until(|| listens(&folder.join("socket")));
        daemon
    }

    fn restart(&mut self) {
        self.daemon.0.kill().unwrap();
        self.daemon.0.wait().unwrap();
        self.daemon = Place::start(self.folder.path());
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn corebeat(&self, args: &[&str]) -> Output {
        corebeat(&self.socket(), args).output().unwrap()
    }

    /// The first group that `beat list` prints.
    fn group(&self) -> Option<Value> {
        let groups = stdout(&self.corebeat(&["beat", "list", "--json"]));
        groups.lines().next().map(|line| serde_json::from_str(line).unwrap())
    }
}

fn corebeat(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(COREBEAT);
    command.args(args).env("COREBEAT_SOCKET", socket);
    command
}

#[test]
fn beat_without_a_daemon_fails_with_one_line() {
    let exec = ["beat", "exec", "--group", "1", "--", "true"];
    for args in [&["beat", "list"][..], &["beat", "watch"], &exec, &["daemon", "status"]] {
        let done = corebeat(Path::new("/nonexistent/socket"), args).output().unwrap();
        for expected in ["corebeat daemon", "/nonexistent/socket", "COREBEAT_SOCKET"] {
            assert_refused(&done, 125, expected);
        }
    }
}

#[test]
fn socket_without_permission_is_reported_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o000)).unwrap();
    let mut list = unprivileged(folder.path(), &["beat", "list"]);
    let done = list.env("COREBEAT_SOCKET", &socket).output().unwrap();
    assert_refused(&done, 125, "unset COREBEAT_SOCKET");
}

/// A command with a goal for a group.
const EXEC: [&str; 10] =
    ["beat", "exec", "--group", "7", "--min", "20", "--max", "30", "--mode", "604"];

#[test]
fn exec_sets_the_goal_and_returns_the_status_of_the_program() {
    let place = Place::new();
    let list = format!("{COREBEAT} beat list; {COREBEAT} beat list --json; exit 3");
    let done = place.corebeat(&[&EXEC[..], &["--", "sh", "-c", &list]].concat());
    assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
    let said = stdout(&done);
    let line = said.lines().nth(1).unwrap_or_else(|| panic!("{said}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1..3], ["7", "604"], "{said}");
    assert!(line.contains("20.0 to 30.0"), "{said}");
    let group: Value = serde_json::from_str(said.lines().nth(2).unwrap()).unwrap();
    assert_eq!((&group["mode"], &group["goal"]["rate_max"]), (&"604".into(), &30.0.into()));
    // The group ends with the program.
    assert_eq!(stdout(&place.corebeat(&["beat", "list"])).lines().count(), 1);
}

#[test]
fn exec_keeps_the_group_and_its_goal_over_a_restart_of_the_daemon() {
    let mut place = Place::new();
    let program = ["--", "sh", "-c", "read x; exit 4"];
    let mut exec = corebeat(&place.socket(), &[&EXEC[..], &program].concat());
    let mut exec = exec.stdin(Stdio::piped()).spawn().unwrap();
    let group = |place: &Place| {
        place.group().map(|g| (g["group"].clone(), g["mode"].clone(), g["goal"].clone()))
    };
    until(|| group(&place).is_some_and(|(_, _, goal)| goal["rate_max"] == 30.0));
    let before = group(&place);
    place.restart();
    until(|| group(&place) == before);
    drop(exec.stdin.take());
    assert_eq!(exec.wait().unwrap().code(), Some(4));
}

#[test]
fn status_contains_counts_and_limitations() {
    let place = Place::new();
    let status = place.corebeat(&["daemon", "status"]);
    assert!(status.status.success(), "{}", stderr(&status));
    let said = stdout(&status);
    let expected =
        ["steering     no", "samples      every 10 ms", "groups       0", "claims       0"];
    assert!(expected.iter().all(|line| said.lines().any(|l| l == *line)), "{said}");
    let object = crate::json(&place.corebeat(&["daemon", "status", "--json"]));
    let notes: Vec<&str> =
        object["notes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
    let printed = said.lines().filter_map(|line| line.strip_prefix("note         "));
    assert_eq!(printed.collect::<Vec<_>>(), notes);
    // The command is not a client of a group.
    assert_refused(&place.corebeat(&["daemon", "--period", "10", "status"]), 2, "");
}

#[test]
fn watch_shows_a_workload_with_heartbeats() {
    let place = Place::new();
    let work = ["workload", "swaption", "--scale", "0.2", "--group", "3"];
    let mut program = corebeat(&place.socket(), &work).stdout(Stdio::null()).spawn().unwrap();
    let beats = || place.group().is_some_and(|g| g["group"] == 3 && g["beats"].as_u64() > Some(0));
    until(|| beats() || program.try_wait().unwrap().is_some());
    assert!(program.wait().unwrap().success());
    assert_refused(&place.corebeat(&["beat", "watch", "99"]), 125, "no group 99");
}

#[test]
fn rewrites_are_heartbeats() {
    let place = Place::new();
    let rules = place.folder.path().join("rules");
    // Each application makes the next one possible.
    let endless = "CREATE (:A)-[:R]->(:A); MATCH (a)-[r:R]->(b) DELETE r CREATE (a)-[:R]->(b);";
    fs::write(&rules, endless).unwrap();
    let work = ["rewrite", "run", rules.to_str().unwrap(), "--group", "3"];
    let mut program = Running::start(corebeat(&place.socket(), &work).stdout(Stdio::null()));
    let beats = || place.group().is_some_and(|g| g["group"] == 3 && g["beats"].as_u64() > Some(0));
    until(|| beats() || program.0.try_wait().unwrap().is_some());
    assert_eq!(program.0.try_wait().unwrap(), None, "the run has no end");
}

#[test]
fn invalid_goal_is_a_mistake_on_the_command_line() {
    let mistakes: [&[&str]; 5] = [
        &["--min", "3", "--max", "2"],
        &["--min", "nan"],
        &["--window", "0"],
        &["--hold"],
        &["--mode", "777"],
    ];
    for mistake in mistakes {
        let args = [&["beat", "exec", "--group", "1"][..], mistake, &["--", "true"]].concat();
        let done = corebeat(Path::new("/nonexistent/socket"), &args).output().unwrap();
        assert_refused(&done, 2, "");
    }
}

#[test]
fn socket_by_a_relative_path_is_refused_in_one_line() {
    for args in [&["beat", "list"][..], &["daemon", "--scope", "user"]] {
        let done = corebeat(Path::new("somewhere/socket"), args).output().unwrap();
        assert_refused(&done, 2, "COREBEAT_SOCKET is the relative path somewhere/socket");
    }
}
