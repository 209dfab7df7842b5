//! No function waits for ever for a daemon that is stopped.

use crate::{compile, functions, library};
use corebeat_claim::{Ask, Claim, Retreat};
use corebeat_daemon::{Daemon, Options, Scope};
use corebeat_heartbeat::{Goal, Group};
use corebeat_wire::{Connection, host};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid,
};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variables of the child processes: the folder of the daemon, the number of a case, or nothing.
const DAEMON: &str = "COREBEAT_TEST_DAEMON";
const CASE: &str = "COREBEAT_TEST_CASE";
const CLAIMANT: &str = "COREBEAT_TEST_CLAIMANT";

/// A call that hangs is killed after this many seconds. All calls together wait for a few seconds.
const HANGS_AFTER_S: u32 = 300;

/// A child process. It prints a line when it is ready, and continues after a line of input.
pub(crate) struct Child {
    process: std::process::Child,
    output: BufReader<std::process::ChildStderr>,
}

impl Child {
    fn start(mut command: Command) -> Child {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stderr.take().unwrap());
        let mut child = Child { process, output };
        child.wait_until_ready();
        child
    }

    /// This program, which runs only one test.
    fn of_test(test: &str, variable: &str, value: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(variable, value);
        command
    }

    /// A daemon with its socket in this folder.
    pub(crate) fn daemon(folder: &Path) -> Child {
        Child::start(Child::of_test("stopped::daemon", DAEMON, folder))
    }

    fn stop(&self) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP).unwrap();
        // The signal may arrive late: wait until all threads have stopped.
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }

    fn continue_after(&mut self, what: impl FnOnce()) {
        what();
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn wait_until_ready(&mut self) {
        let mut output = String::new();
        while !output.ends_with("ready\n") {
            assert!(self.output.read_line(&mut output).unwrap() > 0, "{output}");
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ends this process with its parent, and after some minutes.
fn end_with_parent() {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    // SAFETY: the function has no preconditions; the signal ends this process.
    unsafe { libc::alarm(HANGS_AFTER_S) };
}

/// Waits until the daemon is stopped.
fn wait_for_stop() {
    eprintln!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn daemon() {
    // Runs only in a child process.
    let Some(folder) = std::env::var_os(DAEMON).map(PathBuf::from) else { return };
    end_with_parent();
    let mut options = Options::new(folder.join("socket"), Scope::User, folder.join("state"));
    options.steering = corebeat_daemon::Steering::None;
    let daemon = Daemon::open(options).unwrap();
    eprintln!("ready");
    daemon.run(std::io::stdin().as_fd()).unwrap();
}

#[test]
fn claimant() {
    // Runs only in a child process.
    if std::env::var_os(CLAIMANT).is_none() {
        return;
    }
    end_with_parent();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let all = Ask::new(1, u32::MAX);
    let mut claim = Claim::begin().unwrap();
    let other = Claim::begin().unwrap();
    wait_for_stop();
    assert!(claim.retreat(Retreat::To(1)).is_err());
    assert!(claim.invade(all.clone()).is_err());
    drop(other);
    // Does not wait.
    assert!(!claim.poll().unwrap());
    assert_eq!(claim.cpus().len(), 1);
    wait_for_stop();
    // The daemon ends the other claim with its connection, which the drop has closed.
    while claim.invade(all.clone()).unwrap().len() < cpus {
        std::thread::yield_now();
    }
    let mut connection = Connection::open().unwrap().unwrap();
    let listed = connection.call::<_, host::Claims>(host::LIST_CLAIMS, &host::Nothing {}, &[]);
    let held: Vec<usize> = listed.unwrap().0.claims.iter().map(|own| own.cpus.len()).collect();
    assert_eq!(held, [cpus]);
}

#[test]
fn claim_continues_after_its_daemon_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Child::daemon(folder.path());
    let mut command = Child::of_test("stopped::claimant", CLAIMANT, "");
    command.env("COREBEAT_SOCKET", folder.path().join("socket"));
    let mut claimant = Child::start(command);
    claimant.continue_after(|| daemon.stop());
    claimant.wait_until_ready();
    let pid = Pid::from_child(&daemon.process);
    claimant.continue_after(|| kill_process(pid, Signal::CONT).unwrap());
    let ended = claimant.process.wait().unwrap();
    let output = std::io::read_to_string(&mut claimant.output).unwrap();
    assert!(ended.success(), "{ended}: {output}");
}

#[test]
fn descriptor_of_a_claim_stays_in_an_epoll_set_when_the_claim_moves() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "cc", "../tests/move.c", &[]);
    let socket = folder.path().join("socket");
    let daemon = Child::daemon(folder.path());
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library()).env("COREBEAT_SOCKET", &socket);
    let mut claimant = Child::start(command);
    drop(daemon);
    claimant.wait_until_ready();
    let daemon = Child::daemon(folder.path());
    let mut connection = Connection::to(&socket).unwrap().unwrap();
    let mut count = || {
        let (status, _): (host::Status, _) =
            connection.call(host::STATUS, &host::Nothing {}, &[]).unwrap();
        status.claims
    };
    while count() < 2 {
        // The daemon limits the rate of calls.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    claimant.continue_after(|| {});
    claimant.wait_until_ready();
    drop(daemon);
    let ended = claimant.process.wait().unwrap();
    let output = std::io::read_to_string(&mut claimant.output).unwrap();
    assert!(ended.success(), "{ended}: {output}");
}

/// Every call of the Rust crates. Most are repeated, because the second call connects again, or
/// waits for the answer to the first one.
const CASES: &[(&str, fn())] = &[
    ("Group::produce", || {
        wait_for_stop();
        (0..2).for_each(|_| assert!(Group::new(1).produce().is_err()));
    }),
    ("Group::consume", || {
        wait_for_stop();
        (0..2).for_each(|_| assert!(Group::new(1).consume().is_err()));
    }),
    // If the waits of the threads added up, this process would be killed.
    ("Group::produce of many threads", || {
        wait_for_stop();
        let produce = || std::thread::spawn(|| assert!(Group::new(1).produce().is_err()));
        let threads: Vec<_> = (0..HANGS_AFTER_S).map(|_| produce()).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }),
    ("Producer", || {
        let producer = Group::new(1).produce().unwrap();
        wait_for_stop();
        producer.beat(1);
        assert_eq!(producer.group().number, 1);
        // The status page is read without the daemon.
        producer.status().unwrap();
        assert!(producer.global_rate().unwrap() >= 0.0 && producer.window_rate().unwrap() >= 0.0);
        assert_eq!(producer.goal().unwrap(), Goal::default());
        // SAFETY: the producer exists.
        let beats = unsafe { producer.counter().as_ref() };
        assert_eq!(beats.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert!(producer.set_goal(Goal::default()).is_err());
        assert!(producer.set_rate_min(1.0).is_err());
        assert!(producer.set_rate_max(1.0).is_err());
        assert!(producer.set_window(3).is_err());
        assert!(producer.set_hold(false).is_err());
        // The connection persists.
        assert_eq!(producer.goal().unwrap(), Goal::default());
    }),
    ("drop of a Producer", || {
        let producer = Group::new(1).produce().unwrap();
        wait_for_stop();
        drop(producer);
    }),
    ("Consumer", || {
        let consumer = Group::new(1).consume().unwrap();
        wait_for_stop();
        assert_eq!(consumer.group().number, 1);
        consumer.status().unwrap();
        consumer.goal().unwrap();
        assert!(consumer.global_rate().unwrap() >= 0.0 && consumer.window_rate().unwrap() >= 0.0);
        drop(consumer);
    }),
    ("Claim::begin", || {
        wait_for_stop();
        (0..2).for_each(|_| assert!(Claim::begin().is_err()));
    }),
    ("Claim::invade", || {
        let mut claim = Claim::begin().unwrap();
        wait_for_stop();
        (0..2).for_each(|_| assert!(claim.invade(Ask::new(1, 2)).is_err()));
    }),
    ("Claim::retreat", || {
        let mut claim = Claim::begin().unwrap();
        wait_for_stop();
        (0..2).for_each(|_| assert!(claim.retreat(Retreat::To(1)).is_err()));
    }),
    ("Claim::poll", || {
        let mut claim = Claim::begin().unwrap();
        claim.on_change(|| {}).unwrap();
        wait_for_stop();
        // If the claims of other children have changed this one, the call queries the daemon.
        let _ = claim.poll();
        claim.on_change(|| {}).unwrap();
        assert!(claim.cpus().len() <= 1);
        let _ = claim.as_fd();
        claim.cpus().iter().for_each(|cpu| corebeat_claim::pin(*cpu).unwrap());
        assert!(claim.invade(Ask::new(1, 2)).is_err());
        // The answer to the last call is outstanding.
        let _ = claim.poll();
    }),
    ("drop of a Claim", || {
        let claim = Claim::begin().unwrap();
        wait_for_stop();
        drop(claim);
    }),
];

#[test]
fn case() {
    // Runs only in a child process.
    let Some(case) = std::env::var(CASE).ok() else { return };
    end_with_parent();
    let (_, call) = CASES[case.parse::<usize>().unwrap()];
    call();
}

#[test]
fn no_call_waits_for_ever_for_a_stopped_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Child::daemon(folder.path());
    let program = compile(folder.path(), "cc", "../tests/stopped.c", &[]);
    let rust = CASES.iter().enumerate().map(|(number, (name, _))| {
        (name.to_string(), Child::of_test("stopped::case", CASE, number.to_string()))
    });
    let c = [
        functions("hrm.h", &["hrm_", "heartbeat"]),
        functions("invasive_computing.h", &["corebeat_"]),
    ];
    let c = c.into_iter().flatten().map(|function| {
        let mut command = Command::new(&program);
        command.arg(&function).env("LD_LIBRARY_PATH", library());
        (function, command)
    });
    // All children prepare their calls; then the daemon is stopped, and all of them call.
    let mut children: Vec<(String, Child)> = rust
        .chain(c)
        .map(|(name, mut command)| {
            command.env("COREBEAT_SOCKET", folder.path().join("socket"));
            (name, Child::start(command))
        })
        .collect();
    assert!(children.len() > CASES.len() + 20);
    daemon.stop();
    for (_, child) in &mut children {
        child.process.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
    for (name, child) in &mut children {
        let ended = child.process.wait().unwrap();
        let output = std::io::read_to_string(&mut child.output).unwrap();
        assert!(ended.success(), "{name}: {ended}: {output}");
    }
}
