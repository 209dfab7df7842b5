//! The program `corebeat` from the command line; a module for each command.

mod adapt;
mod beat;
mod coscheduling;
mod cpus;
mod daemon;
mod doctor;
mod generate;
mod numa;
mod paper;
mod restore;
mod run;
mod top;
mod tune;
mod workload;

use corebeat_test_group::{TestGroup, reset_signals};
use corebeat_wire::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

const COREBEAT: &str = env!("CARGO_BIN_EXE_corebeat");

/// A command that runs in a folder, with its journal there, and without input.
fn command(folder: &Path, args: &[&str]) -> Command {
    command_of(Path::new(COREBEAT), folder, args)
}

/// As [`command`], for a copy of the program.
fn command_of(program: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).env("COREBEAT_STATE_DIR", folder.join("state"));
    command.stdin(Stdio::null());
    reset_signals(&mut command);
    command
}

/// A user without privileges.
const NOBODY: u32 = 65534;

/// As [`command`], for a user without privileges, who becomes the owner of the folder.
fn unprivileged(folder: &Path, args: &[&str]) -> Command {
    if !is_root() {
        return command(folder, args);
    }
    // The folder of the program may be closed to other users.
    let program = folder.join("corebeat");
    if !program.exists() {
        // By another process: while this one has the copy open for writing, a child of another test
        // may inherit the descriptor, and the copy cannot be executed.
        assert!(Command::new("cp").arg(COREBEAT).arg(&program).status().unwrap().success());
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = command_of(&program, folder, args);
    command.uid(NOBODY).gid(NOBODY);
    command
}

/// Runs a command in a new folder, and requires that no journal is left.
fn corebeat(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let done = command(folder.path(), args).output().unwrap();
    assert_eq!(left(folder.path()), Vec::<PathBuf>::new(), "{args:?}: {}", stderr(&done));
    done
}

/// Files that the commands in a folder left, such as journals.
fn left(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("state")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn stdout(done: &Output) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn stderr(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// The JSON object that a command printed.
fn json(done: &Output) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(done)))
}

/// The JSON report on standard error.
fn report(done: &Output) -> Value {
    serde_json::from_slice(&done.stderr).unwrap_or_else(|e| panic!("{e}: {}", stderr(done)))
}

/// Requires that a command failed with this status and with one line that contains a text.
fn assert_refused(done: &Output, status: i32, expected: &str) {
    let line = stderr(done);
    assert_eq!((done.status.code(), line.lines().count()), (Some(status), 1), "{line}");
    assert!(line.starts_with("corebeat: ") && line.contains(expected), "'{expected}': {line}");
}

/// Waits until a condition holds. The limit is long, because a program on a busy machine may not
/// reach its daemon within 2 s, and tries again after a minute.
fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(3));
    }
    panic!("the condition did not hold within five minutes");
}

/// Whether a daemon listens on a socket.
fn listens(socket: &Path) -> bool {
    Connection::to(socket).is_ok_and(|found| found.is_some())
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Signals that end a process by default, except KILL and those of its own faults and failed
/// writes.
fn ending_signals() -> impl Iterator<Item = i32> {
    let others = [
        libc::SIGKILL,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGPIPE,
        libc::SIGXFSZ,
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    let standard = (1..32).filter(move |signal| !others.contains(signal));
    standard.chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// As [`signal`], for every number of a signal.
fn send(child: &Child, signal: i32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Control groups that the Corebeat with this process number has created.
fn groups_of(corebeat: u32) -> Vec<PathBuf> {
    let ours = format!("corebeat-{corebeat}-");
    let is_ours = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with(&ours);
    let roots = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/cpu",
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/fs/cgroup/unified",
    ];
    let entries =
        roots.iter().filter_map(|root| fs::read_dir(root).ok()).flat_map(|dir| dir.flatten());
    entries.filter(is_ours).map(|e| e.path()).collect()
}
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A process that ends, with all that it started, when this value is dropped.
struct Running(Child, TestGroup);

impl Running {
    fn start(command: &mut Command) -> Running {
        let group = TestGroup::new();
        Running(group.add(command).spawn().unwrap(), group)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.1.kill();
        // The process may have left the group for a session of its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
