//! `corebeat restore` and `corebeat status` from the command line. corebeat-linux contains the
//! tests of the restoration.

use crate::{
    COREBEAT, Running, assert_refused, command, command_of, corebeat, groups_of, is_root, left,
    signal, stderr, stdout, unprivileged,
};
use corebeat_test_group::compile;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Output, Stdio};

#[test]
fn journal_that_cannot_be_written_does_not_stay() {
    let folder = tempfile::tempdir().unwrap();
    let limited = "ulimit -f 0; exec \"$0\" run --quota 0.5 -- true";
    let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &["-c", limited, COREBEAT]);
    assert_refused(&shell.output().unwrap(), 125, "write the journal");
    assert!(left(folder.path()).is_empty());
}

#[test]
fn restore_without_changes_prints_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("state")).unwrap();
    let with_a_folder = command(folder.path(), &["restore"]).output().unwrap();
    let line = format!("nothing to restore: no journal in {}/state\n", folder.path().display());
    assert_eq!(String::from_utf8_lossy(&with_a_folder.stdout), line);
    for done in [with_a_folder, corebeat(&["restore"])] {
        assert_eq!((done.status.code(), &done.stderr[..]), (Some(0), &b""[..]));
        assert!(done.stdout.starts_with(b"nothing to restore: no journal in /"));
    }
}

#[test]
fn restore_with_a_file_as_state_folder_fails_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join("state")).unwrap();
    let done = command(folder.path(), &["restore"]).output().unwrap();
    assert_refused(&done, 125, "set COREBEAT_STATE_DIR to a writable folder");
}

#[test]
fn status_and_restore_without_a_home_folder_fail_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["status"][..], &["restore"], &["restore", "--dry-run"]] {
        let mut command = unprivileged(folder.path(), args);
        command.env_remove("COREBEAT_STATE_DIR").env_remove("XDG_STATE_HOME");
        let done = command.env("HOME", "/nonexistent").output().unwrap();
        assert_refused(&done, 125, "set COREBEAT_STATE_DIR");
    }
}

#[test]
fn restore_with_a_full_output_does_not_panic() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let status = command(folder.path(), &["restore"]).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(125));
}

#[test]
fn closed_output_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("rename.snet", "net rename connect [{A} -> {B=A}];");
    write("record", "{\"A\":\"a\"}\n");
    for args in [
        &["--help"][..],
        &["restore"],
        &["restore", "--dry-run"],
        &["status"],
        &["doctor"],
        &["workload"],
        &["net", "header"],
        &["net", "run", "rename.snet", "-i", "record"],
        &["top", "--once", "--period", "50"],
    ] {
        let closed = ["-c", "exec \"$0\" \"$@\" >&-", COREBEAT];
        let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &[&closed, args].concat());
        assert_refused(&shell.output().unwrap(), 125, "standard output is closed; redirect it");
    }
}

/// A process that answers each line that it reads.
struct Dialog {
    running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Dialog {
    fn start(command: &mut Command) -> Dialog {
        let mut running = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let input = running.0.stdin.take().unwrap();
        let output = BufReader::new(running.0.stdout.take().unwrap());
        Dialog { running, input, output }
    }

    fn pid(&self) -> u32 {
        self.running.0.id()
    }

    fn receive(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn request(&mut self, text: &str) -> String {
        self.input.write_all(text.as_bytes()).unwrap();
        self.receive()
    }
}

/// Runs a command that must succeed in a folder, and returns its standard output.
fn say(folder: &Path, args: &[&str]) -> String {
    let done = command(folder, args).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{args:?}: {}", stderr(&done));
    stdout(&done)
}

#[test]
fn team_size_of_a_killed_run_is_listed_and_undone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let program = folder.join("ask");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../act/corebeat-linux/tests/team/ask.c");
    let arguments = ["-O1", "-w", "-fopenmp"];
    assert!(compile("gcc", &arguments, Path::new(source), &program), "the test requires gcc");
    let mut run = command(folder, &["run", "--policy", "team", "--report", "none", "--"]);
    // Runs of other tests remove a channel that a killed Corebeat left in their folder.
    let mut run = Dialog::start(run.arg(&program).env("XDG_RUNTIME_DIR", folder));
    let requested = run.request("r");

    let status = say(folder, &["status"]);
    assert!(status.starts_with(&format!("{:>7}  {COREBEAT} run", run.pid())), "{status}");
    let file = |line: &str| {
        let file = line.trim_start().strip_prefix("team channel ")?;
        file.strip_suffix(": created -> removed").map(PathBuf::from)
    };
    let file = status.lines().find_map(file).expect("a line about the file");
    assert_eq!(file.parent(), Some(folder));
    run.running.0.kill().unwrap();
    run.running.0.wait().unwrap();
    // As if Corebeat had set the size 1, with a lease that does not end during the test.
    let channel = OpenOptions::new().write(true).open(&file).unwrap();
    channel.write_all_at(&u64::MAX.to_ne_bytes(), 16).unwrap();
    channel.write_all_at(&1u32.to_ne_bytes(), 8).unwrap();
    assert_eq!(run.request("r"), "1\n");

    let status = say(folder, &["status"]);
    assert!(status.starts_with(&format!("{:>7}  has ended", run.pid())), "{status}");
    let limited = ": OpenMP teams of at most 1 -> as requested";
    assert!(status.contains(limited) && status.contains(file.to_str().unwrap()), "{status}");
    let dry = say(folder, &["restore", "--dry-run"]);
    assert!(file.exists() && dry.lines().count() == 2 && dry.contains(limited), "{dry}");
    let done = command(folder, &["restore"]).output().unwrap();
    let wet = stderr(&done).replace("corebeat: restored", "would restore");
    assert_eq!((done.status.code(), wet), (Some(0), dry));
    assert_eq!((run.request("r"), file.exists(), left(folder).len()), (requested, false, 0));
    assert_eq!(say(folder, &["status"]), "no Corebeat has changed anything\n");
}

#[test]
fn changes_that_cannot_be_verified_without_a_mount_are_kept() {
    if !is_root() {
        return println!("skipped: no permission to unmount anything");
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut run = command(folder, &["run", "--quota", "0.5", "--report", "none", "--"]);
    let mut run = Dialog::start(run.arg("cat"));
    assert_eq!(run.request("ready\n"), "ready\n");
    run.running.0.kill().unwrap();
    run.running.0.wait().unwrap();
    let journals = left(folder);
    let groups = groups_of(run.pid());
    let subset = "mount -t proc -o subset=pid proc /proc";
    // A container may have mounted its own over that of the host.
    let none = "umount -l -R /proc && while umount -l -R /proc 2>/dev/null; do :; done";
    for (change, why) in [
        (none, "mount it with 'mount -t proc proc /proc'"),
        (subset, "mount /proc without 'subset=pid'"),
        ("umount -l -R /sys/fs/cgroup", "control groups are not mounted there; mount them"),
    ] {
        let Some(done) = in_mounts(folder, change, "restore") else { continue };
        assert_eq!(done.status.code(), Some(125), "{done:?}");
        assert!(stderr(&done).contains(why), "{done:?}");
        assert_eq!((left(folder), groups_of(run.pid())), (journals.clone(), groups.clone()));
    }
    let done = command(folder, &["restore"]).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!((left(folder), groups_of(run.pid())), (vec![], vec![]));
    // Without the boot in its journal, the changes could not be undone.
    if let Some(done) = in_mounts(folder, subset, "run --quota 0.5 -- true") {
        assert_refused(&done, 125, "mount /proc without 'subset=pid'");
    }
}

/// Runs Corebeat in mounts of its own, after this change of them. `None` without permission.
fn in_mounts(folder: &Path, change: &str, arguments: &str) -> Option<Output> {
    let script = format!("{change} && touch ready && exec \"$0\" {arguments}");
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", &script, COREBEAT]).current_dir(folder);
    let done = shell.env("COREBEAT_STATE_DIR", folder.join("state")).output().unwrap();
    if fs::remove_file(folder.join("ready")).is_err() {
        println!("skipped: no permission for '{change}'");
        return None;
    }
    Some(done)
}

/// Copies a program. Another process writes the copy: a writable descriptor of this process would
/// be inherited by forks of other tests, and a file that is open for writing cannot be executed.
fn copy(program: &str, to: &Path) {
    assert!(Command::new("cp").arg(program).arg(to).status().unwrap().success());
}

#[test]
fn running_corebeat_is_found_by_its_journal_and_not_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (renamed, other) = (folder.join("renamed"), folder.join("corebeat"));
    copy(COREBEAT, &renamed);
    copy("/bin/sh", &other);
    fs::write(folder.join("run"), "echo ready; read line").unwrap();
    let mut other = Dialog::start(&mut command_of(&other, folder, &["run"]));
    assert_eq!(other.receive(), "ready\n");
    assert_eq!(say(folder, &["status"]), "no Corebeat has changed anything\n");

    let args = ["run", "--report", "none", "--", "sh", "run"];
    let mut run = Dialog::start(&mut command_of(&renamed, folder, &args));
    assert_eq!(run.receive(), "ready\n");
    let status = say(folder, &["status"]);
    let expected = format!("{:>7}  {} run --report none", run.pid(), renamed.display());
    assert!(status.starts_with(&expected), "{status}");
    assert!(!status.contains(&format!("{:>7}  ", other.pid())), "{status}");
    let restored = say(folder, &["restore"]);
    assert!(restored.contains("a running Corebeat will undo"), "{restored}");
    assert_eq!(say(folder, &["restore", "--dry-run"]), restored);
    run.input.write_all(b"\n").unwrap();
    assert!(run.running.0.wait().unwrap().success());
    assert_eq!(left(folder), [""; 0].map(PathBuf::from));
}

#[test]
fn damaged_journal_is_kept_with_status_125_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, state) = (folder.path(), folder.path().join("state"));
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let journal = state.join("7-8-0.journal");
    fs::write(&journal, "damaged\n").unwrap();
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o600)).unwrap();
    let why = "is not used: line 1 is damaged; inspect and remove it";
    for args in [&["status"][..], &["status", "--json"], &["restore", "--dry-run"]] {
        let said = say(folder, args);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let done = command(folder, &["restore"]).output().unwrap();
    assert_eq!((done.status.code(), stderr(&done).lines().count()), (Some(125), 2));
    assert!(stderr(&done).contains(why) && journal.exists(), "{}", stderr(&done));
}

/// Starts a Corebeat that limits a process, and waits for its control group.
fn limit(folder: &Path, pid: u32, quota: &str) -> Option<Running> {
    let groups = || fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let before = groups();
    let args =
        ["run", "--policy", "none", "--report", "none", "--quota", quota, "-p", &pid.to_string()];
    let mut run = Running::start(command(folder, &args).stderr(Stdio::piped()));
    while groups() == before {
        if run.0.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::yield_now();
    }
    Some(run)
}

#[test]
fn quota_around_that_of_another_corebeat_is_undone_when_the_latter_ends() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let program = Running::start(Command::new("sleep").arg("600"));
    let groups = || fs::read_to_string(format!("/proc/{}/cgroup", program.0.id())).unwrap();
    let before = groups();
    let Some(mut outer) = limit(folder, program.0.id(), "0.8") else {
        return println!("skipped: no permission for control groups");
    };
    let mut inner = limit(folder, program.0.id(), "0.5").unwrap();
    signal(&outer.0, Signal::TERM);
    assert_eq!(outer.0.wait().unwrap().code(), Some(125));
    let said = std::io::read_to_string(outer.0.stderr.take().unwrap()).unwrap();
    assert!(said.contains("not restored: control group"), "{said}");
    assert_eq!(command(folder, &["restore"]).output().unwrap().status.code(), Some(125));
    signal(&inner.0, Signal::TERM);
    assert_eq!(inner.0.wait().unwrap().code(), Some(0));
    assert_eq!((groups(), left(folder)), (before, vec![]));
}
