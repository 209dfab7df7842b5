//! Programs are started as `env` would start them, and Corebeat stands in for them towards its parent.

use corebeat_linux::{Error, Launch, MemoryPolicy, Signals, Started};
use corebeat_machine::NodeId;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A shell's wait of at most a minute, in which it hears signals.
const WAIT: &str = "for i in $(seq 3000); do sleep 0.02; done";
const ROLE: &str = "COREBEAT_TEST_ROLE";

fn sh(script: &str) -> Launch {
    Launch::new("sh", ["-c", script].map(OsString::from))
}

fn run(launch: &Launch) -> ExitStatus {
    let mut started = launch.start().unwrap();
    started.release().unwrap();
    started.wait().unwrap()
}

fn is_there(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The state letter of a process.
fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
}

/// Waits for what must come.
fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not come");
}

fn send(pid: i32, signal: i32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A Corebeat in a process of its own, which runs a shell script and stands in for it.
struct Front {
    /// The test harness, started again, which waits for ...
    harness: Child,
    /// ... its child of one thread, as `main` is before it starts others.
    pid: i32,
    output: BufReader<ChildStdout>,
}

impl Front {
    fn start(script: &str) -> Front {
        // Whoever runs the tests in the background, or under nohup, ignores some of these; a shell cannot trap those then.
        let listen = || {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                // SAFETY: the default action runs no code of ours.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        Self::prepared(script, |command| {
            // SAFETY: the hook makes system calls only.
            unsafe { command.pre_exec(listen) };
        })
    }

    fn prepared(script: &str, prepare: impl FnOnce(&mut Command)) -> Front {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["play", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, script);
        // Its own process group, as a shell with job control would have it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        prepare(&mut command);
        let mut harness = command.spawn().unwrap();
        let output = BufReader::new(harness.stdout.take().unwrap());
        let mut front = Front { harness, pid: 0, output };
        front.pid = front.hear("@front").parse().unwrap();
        front
    }

    /// The number of its process group.
    fn group(&self) -> i32 {
        self.harness.id() as i32
    }

    /// Waits for a line with this word, and returns what stands after it.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no '{word}' before the end");
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].trim().to_owned();
            }
        }
    }

    fn end(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.harness.wait().unwrap(), rest)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.harness.kill();
        let _ = self.harness.wait();
    }
}

/// The other process of these tests. As a test of its own it does nothing.
#[test]
fn play() {
    let Some(script) = std::env::var_os(ROLE) else { return };
    // SAFETY: the harness' other thread only waits for this one, so no lock is held by a thread that the child lacks.
    match unsafe { libc::fork() } {
        0 => front(script),
        pid => {
            let mut status = 0;
            // SAFETY: the status is written to an integer of the right type.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            corebeat_linux::exit_as(ExitStatus::from_raw(status))
        }
    }
}

fn front(script: OsString) -> ! {
    let signals = Signals::new().unwrap();
    println!("\n@front {}", std::process::id());
    let mut launch = sh(script.to_str().unwrap());
    launch.keep_orphans = true;
    launch.env.push((ROLE.into(), None));
    let mut started = launch.start().unwrap();
    started.release().unwrap();
    let status = loop {
        if let Some(status) = started.attend(&signals, Duration::from_secs(5)).unwrap() {
            break status;
        }
    };
    // SAFETY: a plain system call that writes nowhere.
    let others = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    println!("@left {others}");
    corebeat_linux::exit_as(status)
}

#[test]
fn status_is_the_programs() {
    assert_eq!(run(&sh("exit 7")).code(), Some(7));
    assert_eq!(run(&sh("kill -KILL $$")).signal(), Some(libc::SIGKILL));
    let (status, _) = Front::start("exit 9").end();
    assert_eq!(status.code(), Some(9));
    let (status, _) = Front::start("kill -SEGV $$").end();
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn program_does_nothing_before_its_release() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let mut launch = sh("echo \"$A$B\" > \"$FILE\"");
    launch.env = vec![
        ("FILE".into(), Some(file.clone().into())),
        ("A".into(), Some("a b".into())),
        ("HOME".into(), None),
        ("B".into(), None),
    ];
    let mut started = launch.start().unwrap();
    let exe = std::fs::read_link(format!("/proc/{}/exe", started.pid())).unwrap();
    assert_eq!(exe, std::env::current_exe().unwrap(), "it is still a copy of this process");
    assert!(!file.exists());
    started.release().unwrap();
    started.release().unwrap();
    assert!(started.wait().unwrap().success());
    assert!(started.wait().unwrap().success(), "the status can be asked for again");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "a b\n");
}

#[test]
fn program_that_is_dropped_before_its_release_is_gone() {
    let started = sh("exit 0").start().unwrap();
    let pid = started.pid();
    assert!(is_there(pid));
    drop(started);
    assert!(!is_there(pid));
}

/// Each has copies of what was open when it was made, and once in some thousand times that is what an earlier one's exec is awaited on.
#[test]
fn programs_that_are_held_together_do_not_wait_for_each_other() {
    for _ in 0..50 {
        let mut held: Vec<Started> = (0..4).map(|_| sh("exit 0").start().unwrap()).collect();
        // Those that are dropped are waited for, too.
        held.truncate(3);
        Started::release_all(&mut held.iter_mut().collect::<Vec<_>>()).unwrap();
        assert!(held.iter_mut().all(|started| started.wait().unwrap().success()));
    }
}

#[test]
fn program_that_cannot_be_started_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let try_it = |program: &Path| -> Error {
        let mut launch = Launch::new(program, []);
        // Without directories that this user may not look into: there, nobody can tell what is missing.
        launch.env.push(("PATH".into(), Some("/usr/bin:/bin".into())));
        let mut started: Started = launch.start().unwrap();
        let error = started.release().unwrap_err();
        assert!(error.to_string().contains(program.to_str().unwrap()), "{error}");
        error
    };
    assert!(matches!(try_it(Path::new("no-such-program-anywhere")), Error::NotFound { .. }));
    assert!(matches!(try_it(&dir.path().join("none")), Error::NotFound { .. }));
    assert!(matches!(try_it(dir.path()), Error::NotExecutable { .. }));
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "exit 5").unwrap();
    assert!(matches!(try_it(&plain), Error::NotExecutable { .. }));
    // Without a first line that names an interpreter it is a shell script, for `env` as for us.
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(run(&Launch::new(&plain, [])).code(), Some(5));
    assert!(matches!(Launch::new("a\0b", []).start(), Err(Error::Refused { .. })));
}

#[test]
fn program_gets_streams_descriptors_signals_and_limits_as_they_were() {
    // Sorted, as sizes and orders of what is asked for differ.
    let script = "ls /proc/self/fd; grep -E '^(Sig(Blk|Ign)|Cpus_allowed_list)' /proc/self/status; ulimit -n; ulimit -Hn";
    for ignore in [false, true] {
        let prepare = |command: &mut Command| {
            command.stdin(Stdio::null()).env_remove(ROLE);
            // SAFETY: system calls only.
            unsafe {
                command.pre_exec(move || {
                    libc::signal(libc::SIGPIPE, if ignore { libc::SIG_IGN } else { libc::SIG_DFL });
                    libc::signal(libc::SIGCHLD, if ignore { libc::SIG_IGN } else { libc::SIG_DFL });
                    let mut mask = std::mem::zeroed();
                    libc::sigemptyset(&mut mask);
                    if ignore {
                        libc::sigaddset(&mut mask, libc::SIGUSR1);
                        libc::sigaddset(&mut mask, libc::SIGRTMIN());
                    }
                    libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
                    let files = libc::rlimit { rlim_cur: 200, rlim_max: 300 };
                    libc::setrlimit(libc::RLIMIT_NOFILE, &files);
                    Ok(())
                });
            }
        };
        let mut plain = Command::new("sh");
        plain.args(["-c", script]);
        prepare(&mut plain);
        let expected = String::from_utf8(plain.output().unwrap().stdout).unwrap();
        assert!(expected.contains("SigIgn") && expected.contains("\n200\n"), "{expected}");
        let front = Front::prepared(script, |command| {
            prepare(command);
            command.env(ROLE, script).stdout(Stdio::piped());
        });
        let (status, got) = front.end();
        assert!(status.success());
        assert!(got.contains(&expected), "ignored: {ignore}\n{got}\nexpected:\n{expected}");
    }
}

#[test]
fn signal_to_corebeat_alone_reaches_the_program() {
    let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGWINCH];
    for (name, number) in ["TERM", "INT", "HUP", "USR1", "WINCH"].into_iter().zip(signals) {
        let script = format!("trap 'echo @got; exit 3' {name}; echo @up; {WAIT}");
        let mut front = Front::start(&script);
        front.hear("@up");
        send(front.pid, number);
        front.hear("@got");
        assert_eq!(front.end().0.code(), Some(3), "{name}");
    }
}

#[test]
fn signal_from_the_program_to_its_parent_does_not_come_back() {
    let (status, _) = Front::start("kill -TERM $PPID; (kill -TERM $PPID; sleep 0.2); exit 4").end();
    assert_eq!(status.code(), Some(4));
}

#[test]
fn program_in_a_process_group_of_its_own_is_waited_for() {
    let (status, output) = Front::start("exec timeout 60 sh -c 'sleep 0.2; echo @end; exit 5'").end();
    assert_eq!(status.code(), Some(5));
    assert!(output.contains("@end"));
}

#[test]
fn orphans_are_reaped() {
    let script = "for i in 1 2 3; do sh -c 'sleep 0.01 & sleep 0.02 &'; done; sleep 0.2; exit 0";
    let mut front = Front::start(script);
    // -1: no child is left, running or waiting to be asked.
    assert_eq!(front.hear("@left"), "-1");
}

#[test]
fn stop_and_continue_work_as_for_the_program_itself() {
    let mut front = Front::start("echo @pid $$; kill -TSTP $$; echo @again; exit 6");
    let program: i32 = front.hear("@pid").parse().unwrap();
    until(|| state(program) == 'T' && state(front.pid) == 'T');
    // As a shell's `fg` does: to all of the group.
    send(-front.group(), libc::SIGCONT);
    front.hear("@again");
    assert_eq!(front.end().0.code(), Some(6));
}

#[test]
fn program_goes_on_when_corebeat_is_killed() {
    let mut front = Front::start("echo @pid $$; exec sleep 60");
    let program: i32 = front.hear("@pid").parse().unwrap();
    send(front.pid, libc::SIGKILL);
    assert_eq!(front.harness.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(is_there(program));
    send(program, libc::SIGKILL);
}

#[test]
fn memory_policy_is_the_programs_from_its_start() {
    let mut launch = sh("grep -q interleave:0 /proc/self/numa_maps");
    launch.memory = Some(MemoryPolicy::Interleave(vec![NodeId(0)]));
    if Path::new("/proc/self/numa_maps").exists() {
        assert!(run(&launch).success());
    }
    launch.memory = Some(MemoryPolicy::Bind(vec![NodeId(1000)]));
    assert!(matches!(launch.start(), Err(Error::Senseless(_))));
}
