//! `corebeat beat` with a daemon, and without one.

mod place;

use place::{listens, until};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A daemon in a folder of its own.
struct Place {
    folder: TempDir,
    daemon: Child,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Place::start(folder.path());
        Place { folder, daemon }
    }

    fn start(folder: &Path) -> Child {
        let socket = folder.join("socket");
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_corebeat"));
        daemon.args(["daemon", "--scope", "user", "--policy", "none", "--period", "10", "--socket"]);
        daemon.arg(&socket).env("COREBEAT_STATE_DIR", folder.join("state"));
        let daemon = daemon.stderr(Stdio::null()).spawn().unwrap();
        until(|| listens(&socket));
        daemon
    }

    fn restart(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        self.daemon = Place::start(self.folder.path());
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("socket")
    }

    fn corebeat(&self, args: &[&str]) -> Output {
        corebeat(&self.socket(), args).output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn corebeat(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.args(args).env("COREBEAT_SOCKET", socket);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn beat_without_a_daemon_says_how_to_start_one() {
    let exec = ["beat", "exec", "--group", "1", "--", "true"];
    for args in [&["beat", "list"][..], &["beat", "watch"], &exec, &["daemon", "status"]] {
        let output = corebeat(Path::new("/nonexistent/socket"), args).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        let said = text(&output.stderr);
        assert!(said.lines().count() == 1 && said.contains("corebeat daemon"), "{said}");
        assert!(said.contains("/nonexistent/socket") && said.contains("COREBEAT_SOCKET"), "{said}");
    }
}

#[test]
fn exec_gives_the_group_a_goal_and_the_programs_exit_status() {
    let place = Place::new();
    let list = format!("{0} beat list; {0} beat list --json; exit 3", env!("CARGO_BIN_EXE_corebeat"));
    let exec = ["beat", "exec", "--group", "7", "--min", "20", "--max", "30", "--mode", "604", "--"];
    let output = place.corebeat(&[&exec[..], &["sh", "-c", &list]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let line = said.lines().nth(1).unwrap_or_else(|| panic!("{said}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1..3], ["7", "604"], "{said}");
    assert!(line.contains("20.0 to 30.0"), "{said}");
    let group: serde_json::Value = serde_json::from_str(said.lines().nth(2).unwrap()).unwrap();
    assert_eq!((&group["mode"], &group["goal"]["rate_max"]), (&"604".into(), &30.0.into()), "{said}");
    // With the program the group has ended.
    assert_eq!(text(&place.corebeat(&["beat", "list"]).stdout).lines().count(), 1);
}

#[test]
fn exec_keeps_the_group_and_its_goal_over_a_restart_of_the_daemon() {
    let mut place = Place::new();
    let exec = ["beat", "exec", "--group", "7", "--min", "20", "--max", "30", "--mode", "604", "--"];
    let mut exec = corebeat(&place.socket(), &[&exec[..], &["sh", "-c", "read x; exit 4"]].concat());
    let mut exec = exec.stdin(Stdio::piped()).spawn().unwrap();
    let group = |place: &Place| {
        let said = text(&place.corebeat(&["beat", "list", "--json"]).stdout);
        let group: Option<serde_json::Value> = said.lines().next().map(|l| serde_json::from_str(l).unwrap());
        group.map(|g| (g["group"].clone(), g["mode"].clone(), g["goal"].clone()))
    };
    until(|| group(&place).is_some_and(|(_, _, goal)| goal["rate_max"] == 30.0));
    let before = group(&place);
    place.restart();
    until(|| group(&place) == before);
    drop(exec.stdin.take());
    assert_eq!(exec.wait().unwrap().code(), Some(4));
}

#[test]
fn status_tells_how_the_daemon_is_and_what_it_cannot_do() {
    let place = Place::new();
    let output = place.corebeat(&["daemon", "status"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let expected = ["steering     no", "samples      each 10 ms", "groups       0", "claims       0"];
    assert!(expected.iter().all(|line| said.lines().any(|l| l == *line)), "{said}");
    let object = text(&place.corebeat(&["daemon", "status", "--json"]).stdout);
    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
    let notes = object["notes"].as_array().unwrap();
    let told = said.lines().filter_map(|line| line.strip_prefix("note         "));
    assert_eq!(told.collect::<Vec<_>>(), notes.iter().map(|n| n.as_str().unwrap()).collect::<Vec<_>>());
    // It is no daemon itself.
    let mistake = place.corebeat(&["daemon", "--period", "10", "status"]);
    assert_eq!(mistake.status.code(), Some(2), "{}", text(&mistake.stderr));
}

#[test]
fn watch_shows_a_workload_that_beats() {
    let place = Place::new();
    let work = ["workload", "swaption", "--scale", "0.2", "--group", "3"];
    let mut program = corebeat(&place.socket(), &work).stdout(Stdio::null()).spawn().unwrap();
    let beats = || {
        let said = text(&place.corebeat(&["beat", "list", "--json"]).stdout);
        let group: Option<serde_json::Value> = said.lines().next().map(|l| serde_json::from_str(l).unwrap());
        group.is_some_and(|g| g["group"] == 3 && g["beats"].as_u64() > Some(0))
    };
    until(|| beats() || program.try_wait().unwrap().is_some());
    assert!(program.wait().unwrap().success());
    let output = place.corebeat(&["beat", "watch", "99"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("no group 99"), "{}", text(&output.stderr));
}

#[test]
fn goal_that_makes_no_sense_is_a_mistake_on_the_command_line() {
    let mistakes: [&[&str]; 5] = [
        &["--min", "3", "--max", "2"],
        &["--min", "nan"],
        &["--window", "0"],
        &["--hold"],
        &["--mode", "777"],
    ];
    for mistake in mistakes {
        let args = [&["beat", "exec", "--group", "1"][..], mistake, &["--", "true"]].concat();
        let output = corebeat(Path::new("/nonexistent/socket"), &args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{mistake:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr).lines().count(), 1, "{mistake:?}");
    }
}

#[test]
fn socket_by_a_relative_path_is_refused_in_one_line() {
    for args in [&["beat", "list"][..], &["daemon", "--scope", "user"]] {
        let output = corebeat(Path::new("somewhere/socket"), args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{args:?}: {said}");
        assert!(said.contains("COREBEAT_SOCKET names somewhere/socket, which is no absolute path"), "{said}");
    }
}
