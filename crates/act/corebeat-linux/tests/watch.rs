//! Watching programs from their first instruction, by the public API.

use corebeat_linux::{Error, Launch, LinuxMachine, Options};
use corebeat_machine::{Action, Class, Machine, Snapshot, Target};
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

fn shell(script: &str) -> Launch {
    Launch::new("sh", ["-c", script].map(OsString::from))
}

fn machine(state: &tempfile::TempDir) -> LinuxMachine {
    let state_dir = Some(state.path().join("state"));
    LinuxMachine::new(Options { spin: true, state_dir, ..Options::default() }).unwrap()
}

/// Observes, with samples in between, until a snapshot satisfies `right`.
fn until(machine: &mut LinuxMachine, mut right: impl FnMut(&Snapshot) -> bool) -> bool {
    (0..200).any(|_| {
        for _ in 0..3 {
            sleep(Duration::from_millis(10));
            machine.sample();
        }
        right(&machine.observe().unwrap())
    })
}

#[test]
fn launched_program_is_observed_from_its_start_with_its_orphans() {
    // A process that keeps orphans counts all of them as its program's, also those of the programs
    // that other tests start. So this test runs in a process of its own.
    const ALONE: &str = "COREBEAT_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let test = "launched_program_is_observed_from_its_start_with_its_orphans";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let status = alone.args(["--exact", test, "--nocapture"]).env(ALONE, "1").status().unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let mut machine = machine(&state);
    // The subshell ends at once, and its child becomes an orphan.
    let mut launch = shell("(sleep 30 &); sleep 30");
    launch.keep_orphans = true;
    let mut started = launch.start().unwrap();
    let id = machine.watch_launch(&started).unwrap();
    assert_eq!(machine.observe().unwrap().programs[0].threads.len(), 1);
    started.release().unwrap();
    let names = |seen: &Snapshot| -> Vec<String> {
        seen.programs[0].threads.iter().map(|t| t.name.clone()).collect()
    };
    let both = |seen: &Snapshot| names(seen).iter().filter(|n| *n == "sleep").count() == 2;
    let found = until(&mut machine, both);
    machine.signal(id, libc::SIGKILL);
    assert!(found);
    assert!(until(&mut machine, |seen| seen.programs[0].threads.is_empty()));
    assert!(!machine.is_alive(id));
}

#[test]
fn actions_reach_threads_that_start_later_and_are_undone() {
    let state = tempfile::tempdir().unwrap();
    let mut machine = machine(&state);
    let mut started =
        shell("i=0; while [ $i -lt 99 ]; do i=$((i+1)); sleep 0.2; done").start().unwrap();
    let id = machine.watch_launch(&started).unwrap();
    started.release().unwrap();
    machine
        .act(&Action::SetClass { target: Target::Program(id), class: Some(Class::Batch) })
        .unwrap();
    let policy = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Field 41 is the 39th after the name.
        stat.rsplit_once(')')
            .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(38).map(str::to_owned))
    };
    const BATCH: &str = "3";
    assert_eq!(policy(started.pid()).as_deref(), Some(BATCH));
    let mut seen_pids = HashSet::new();
    let more = until(&mut machine, |seen| {
        let pids = seen.programs[0].threads.iter().map(|t| t.pid);
        seen_pids.extend(pids.filter(|&pid| policy(pid).as_deref() == Some(BATCH)));
        seen_pids.len() >= 2
    });
    let restored = machine.restore();
    let after = policy(started.pid());
    machine.signal(id, libc::SIGKILL);
    assert!(more);
    assert!(!restored.undone.is_empty(), "{restored:?}");
    assert_eq!(after.as_deref(), Some("0"));
}

#[test]
fn actions_on_ended_or_unwatched_programs_are_no_error() {
    let state = tempfile::tempdir().unwrap();
    let mut machine = machine(&state);
    let mut started = shell("exit 0").start().unwrap();
    let id = machine.watch_launch(&started).unwrap();
    started.release().unwrap();
    assert!(until(&mut machine, |seen| seen.programs[0].threads.is_empty()));
    machine
        .act(&Action::SetClass { target: Target::Program(id), class: Some(Class::Batch) })
        .unwrap();
    machine.unwatch(id);
    machine
        .act(&Action::SetClass { target: Target::Program(id), class: Some(Class::Batch) })
        .unwrap();
}

#[test]
fn error_about_a_missing_team_channel_names_the_remedy() {
    let state = tempfile::tempdir().unwrap();
    let mut machine = machine(&state);
    let program = machine.watch(std::process::id() as i32).unwrap();
    let error = machine.act(&Action::SetTeam { program, size: Some(1) }).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }));
    assert!(error.to_string().contains("corebeat run"));
}
