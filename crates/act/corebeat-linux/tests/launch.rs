//! Starting programs as `env` does, and representing them towards the parent of Corebeat.

use corebeat_linux::{Error, Launch, MemoryPolicy, Signals, Started};
use corebeat_machine::NodeId;
use corebeat_test_group::{TestGroup, reset_signals};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A wait of a shell for at most a minute, during which the shell handles signals.
const WAIT: &str = "for i in $(seq 3000); do sleep 0.02; done";
const ROLE: &str = "COREBEAT_TEST_ROLE";
/// Start of a script that is continued between its stop and that of Corebeat.
const RESUMED: &str = "# resumed\n";
/// Start of a script whose Corebeat is killed before the release.
const HELD: &str = "# held\n";
/// Start of a script whose Corebeat aborts.
const ABORTS: &str = "# aborts\n";
/// Start of a script whose Corebeat has a timer from its parent.
const TIMER: &str = "# timer\n";
/// Start of a script whose Corebeat has received a Ctrl-C of its terminal before the fork.
const EARLY: &str = "# early\n";

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

/// Returns the state letter of a process.
fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
}

/// Waits until a condition holds.
fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the condition does not hold in time");
}

fn send(pid: i32, signal: i32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A Corebeat in a separate process, which runs a shell script and represents the script.
struct Front {
    /// The test harness, started again, which waits for `corebeat`.
    harness: Child,
    /// Child of the harness with one thread, as `main` has before it starts others.
    pid: i32,
    output: BufReader<ChildStdout>,
    /// A separate process group, as under a shell with job control.
    group: TestGroup,
}

impl Front {
    fn start(script: &str) -> Front {
        Self::prepared(script, |command| {
            reset_signals(command);
        })
    }

    fn prepared(script: &str, prepare: impl FnOnce(&mut Command)) -> Front {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["play", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, script);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        prepare(&mut command);
        let group = TestGroup::new();
        let mut harness = group.add(&mut command).spawn().unwrap();
        let output = BufReader::new(harness.stdout.take().unwrap());
        let mut front = Front { harness, pid: 0, output, group };
        front.pid = front.wait_for("@front").parse().unwrap();
        front
    }

    /// Waits for a line with this word, and returns the text after the word.
    fn wait_for(&mut self, word: &str) -> String {
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
        self.group.kill();
        let _ = self.harness.wait();
    }
}

/// The other process of these tests. Does nothing as a test.
#[test]
fn play() {
    let Some(script) = std::env::var_os(ROLE) else { return };
    // SAFETY: the other thread of the harness only waits for this thread, so no missing thread
    // holds a lock in the child.
    match unsafe { libc::fork() } {
        0 => front(script),
        pid => {
            let mut status = 0;
            // SAFETY: the call writes the status to an integer of the correct type.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            corebeat_linux::exit_as(ExitStatus::from_raw(status))
        }
    }
}

/// Sends this process the signal of the kernel that Ctrl-C causes.
fn interrupt_from_terminal() {
    // SAFETY: zeros are valid for the struct, and the call reads it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGINT, libc::SI_KERNEL);
        let pid = std::process::id();
        let sent = libc::syscall(libc::SYS_rt_sigqueueinfo, pid, libc::SIGINT, &raw const info);
        assert_eq!(sent, 0);
    }
}

fn front(script: OsString) -> ! {
    let signals = Signals::new().unwrap();
    println!("\n@front {}", std::process::id());
    let mut launch = sh(script.to_str().unwrap());
    launch.keep_orphans = true;
    launch.env.push((ROLE.into(), None));
    let mut started = launch.start().unwrap();
    if script.to_str().is_some_and(|s| s.starts_with(HELD)) {
        send(std::process::id() as i32, libc::SIGKILL);
    }
    if script.to_str().is_some_and(|s| s.starts_with(ABORTS)) {
        std::process::abort();
    }
    if script.to_str().is_some_and(|s| s.starts_with(EARLY)) {
        interrupt_from_terminal();
    }
    Started::forward_to_held(&[&mut started], &signals);
    started.release().unwrap();
    if script.to_str().is_some_and(|s| s.starts_with(TIMER)) {
        let after = |tv_usec| libc::timeval { tv_sec: 0, tv_usec };
        let timer = libc::itimerval { it_value: after(1), it_interval: after(0) };
        // SAFETY: a plain system call on a value that lives through it.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    }
    let status = loop {
        if let Some(status) = started.attend(&signals, Duration::from_secs(5)).unwrap() {
            break status;
        }
        if started.is_stopping() && script.to_str().is_some_and(|s| s.starts_with(RESUMED)) {
            send(started.pid(), libc::SIGCONT);
            until(|| !matches!(state(started.pid()), 'T' | 'R'));
        }
    };
    // SAFETY: a plain system call without output.
    let others = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    println!("@left {others}");
    corebeat_linux::exit_as(status)
}

#[test]
fn status_is_that_of_the_program() {
    assert_eq!(run(&sh("exit 7")).code(), Some(7));
    assert_eq!(run(&sh("kill -KILL $$")).signal(), Some(libc::SIGKILL));
    let (status, _) = Front::start("exit 9").end();
    assert_eq!(status.code(), Some(9));
    let (status, _) = Front::start("kill -SEGV $$").end();
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn program_does_not_run_before_its_release() {
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
    assert_eq!(exe, std::env::current_exe().unwrap(), "the process has not executed the program");
    assert!(!file.exists());
    started.release().unwrap();
    started.release().unwrap();
    assert!(started.wait().unwrap().success());
    assert!(started.wait().unwrap().success(), "the status can be read again");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "a b\n");
}

#[test]
fn held_program_ends_when_dropped() {
    let started = sh("exit 0").start().unwrap();
    let pid = started.pid();
    assert!(is_there(pid));
    drop(started);
    assert!(!is_there(pid));
}

/// Each held process has copies of open descriptors; about once in a thousand cases one of them is
/// the socket that reports the exec of an earlier program.
#[test]
fn programs_that_are_released_together_do_not_deadlock() {
    for _ in 0..50 {
        let mut held: Vec<Started> = (0..4).map(|_| sh("exit 0").start().unwrap()).collect();
        // Dropping a held program waits for its end.
        held.truncate(3);
        Started::release_all(&mut held.iter_mut().collect::<Vec<_>>()).unwrap();
        assert!(held.iter_mut().all(|started| started.wait().unwrap().success()));
    }
}

#[test]
fn errors_distinguish_missing_and_unusable_programs() {
    let dir = tempfile::tempdir().unwrap();
    let try_it = |program: &Path| -> Error {
        let mut launch = Launch::new(program, []);
        // Without folders that this user cannot read: the cause is undetectable there.
        launch.env.push(("PATH".into(), Some("/usr/bin:/bin".into())));
        let mut started: Started = launch.start().unwrap();
        let error = started.release().unwrap_err();
        assert!(error.to_string().contains(program.to_str().unwrap()), "{error}");
        error
    };
    assert!(matches!(try_it(Path::new("no-such-program-anywhere")), Error::NotFound { .. }));
    assert!(matches!(try_it(&dir.path().join("none")), Error::NotFound { .. }));
    let unusable = |error: Error, advice: &str| {
        assert!(matches!(error, Error::NotExecutable { .. }), "{error:?}");
        assert!(error.to_string().contains(advice), "{error}");
    };
    unusable(try_it(dir.path()), "it is a directory: give the path");
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "exit 5").unwrap();
    unusable(try_it(&plain), "check its permissions");
    // Longer than the kernel's limit for one argument, 128 KiB.
    let mut long = Launch::new("true", [OsString::from("a".repeat(200_000))]).start().unwrap();
    unusable(long.release().unwrap_err(), "shorten the arguments");
    // A file without an interpreter line is a shell script, for `env` and for Corebeat.
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(run(&Launch::new(&plain, [])).code(), Some(5));
    assert!(matches!(Launch::new("a\0b", []).start(), Err(Error::Refused { .. })));
}

#[test]
fn program_inherits_streams_descriptors_signals_and_limits() {
    // Sorted, because sizes and orders differ.
    let script = "ls /proc/self/fd; \
                  grep -E '^(Sig(Blk|Ign)|Cpus_allowed_list)' /proc/self/status; \
                  ulimit -n; ulimit -Hn";
    for ignore in [false, true] {
        let prepare = |command: &mut Command| {
            command.stdin(Stdio::null()).env_remove(ROLE);
            // SAFETY: the hook only makes system calls.
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
    let signals = [
        ("TERM", libc::SIGTERM),
        ("INT", libc::SIGINT),
        ("HUP", libc::SIGHUP),
        ("USR1", libc::SIGUSR1),
        ("ALRM", libc::SIGALRM),
        ("ABRT", libc::SIGABRT),
        ("WINCH", libc::SIGWINCH),
    ];
    for (name, number) in signals {
        let script = format!("trap 'echo @got; exit 3' {name}; echo @up; {WAIT}");
        let mut front = Front::start(&script);
        front.wait_for("@up");
        send(front.pid, number);
        front.wait_for("@got");
        assert_eq!(front.end().0.code(), Some(3), "{name}");
    }
}

#[test]
fn signal_from_the_program_to_its_parent_is_not_forwarded() {
    for signal in ["TERM", "ALRM"] {
        let script = format!("kill -{signal} $PPID; (kill -{signal} $PPID; sleep 0.2); exit 4");
        assert_eq!(Front::start(&script).end().0.code(), Some(4), "{signal}");
    }
}

#[test]
fn corebeat_can_abort() {
    let (status, output) = Front::start(&format!("{ABORTS}echo ran")).end();
    assert_eq!((status.signal(), output.contains("ran\n")), (Some(libc::SIGABRT), false));
}

#[test]
fn end_of_a_timer_of_the_parent_reaches_the_program() {
    let (status, output) = Front::start(&format!("{TIMER}exec sleep 600")).end();
    assert_eq!(status.signal(), Some(libc::SIGALRM));
    assert!(output.contains("@left -1"), "Corebeat itself did not end first: {output}");
}

#[test]
fn interrupt_before_the_fork_reaches_the_program() {
    let (status, output) = Front::start(&format!("{EARLY}echo ran")).end();
    assert_eq!((status.signal(), output.contains("ran\n")), (Some(libc::SIGINT), false));
}

#[test]
fn program_in_a_separate_process_group_is_awaited() {
    let (status, output) =
        Front::start("exec timeout 60 sh -c 'sleep 0.2; echo @end; exit 5'").end();
    assert_eq!(status.code(), Some(5));
    assert!(output.contains("@end"));
}

#[test]
fn orphans_are_reaped() {
    let script = "for i in 1 2 3; do sh -c 'sleep 0.01 & sleep 0.02 &'; done; sleep 0.2; exit 0";
    let mut front = Front::start(script);
    // -1: no child is left, running or unreaped.
    assert_eq!(front.wait_for("@left"), "-1");
}

#[test]
fn stop_and_continue_work_as_for_the_program_itself() {
    let mut front = Front::start("echo @pid $$; kill -TSTP $$; echo @again; exit 6");
    let program: i32 = front.wait_for("@pid").parse().unwrap();
    until(|| state(program) == 'T' && state(front.pid) == 'T');
    // As `fg` of a shell: to the whole group.
    send(-front.group.id(), libc::SIGCONT);
    front.wait_for("@again");
    assert_eq!(front.end().0.code(), Some(6));
}

#[test]
fn program_that_stopped_itself_can_be_ended_and_left_as_from_a_shell() {
    let mut front = Front::start("echo @pid $$; kill -STOP $$; echo @again; exit 6");
    let program: i32 = front.wait_for("@pid").parse().unwrap();
    until(|| state(program) == 'T');
    // Ctrl-Z: Corebeat stops, so that the shell shows its prompt.
    send(-front.group.id(), libc::SIGTSTP);
    until(|| state(front.pid) == 'T');
    // As `fg` of a shell.
    send(-front.group.id(), libc::SIGCONT);
    front.wait_for("@again");
    assert_eq!(front.end().0.code(), Some(6));

    let mut front = Front::start("echo @pid $$; kill -STOP $$; echo @again; exit 6");
    let program: i32 = front.wait_for("@pid").parse().unwrap();
    until(|| state(program) == 'T');
    send(front.pid, libc::SIGTERM);
    assert_eq!(front.end().0.signal(), Some(libc::SIGTERM));
}

#[test]
fn job_control_works_in_a_container_without_an_own_session() {
    let group = TestGroup::new();
    let in_container = |program: &OsStr, args: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
        group.add(unshare.arg(program).args(args)).output()
    };
    if !in_container("true".as_ref(), &[]).is_ok_and(|output| output.status.success()) {
        println!("this test requires unshare and user namespaces");
        return;
    }
    let tests = ["program_that_stopped_itself_can", "stop_and_continue_work"];
    let output = in_container(std::env::current_exe().unwrap().as_ref(), &tests).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("2 passed"), "{text}");
}

#[test]
fn corebeat_does_not_stop_after_a_program_that_was_continued() {
    for then in ["exit 6", "sleep 0.1; exit 6"] {
        let mut front = Front::start(&format!("{RESUMED}kill -TSTP $$; {then}"));
        until(|| front.harness.try_wait().unwrap().is_some());
        assert_eq!(front.end().0.code(), Some(6));
    }
}

#[test]
fn program_continues_when_corebeat_is_killed() {
    let mut front = Front::start("echo @pid $$; exec sleep 60");
    let program: i32 = front.wait_for("@pid").parse().unwrap();
    send(front.pid, libc::SIGKILL);
    assert_eq!(front.harness.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(is_there(program));
    send(program, libc::SIGKILL);
}

#[test]
fn held_program_ends_silently_when_corebeat_is_killed() {
    let (mut errors, writer) = std::io::pipe().unwrap();
    let front = Front::prepared(&format!("{HELD}echo ran"), |command| {
        reset_signals(command);
        command.stderr(writer);
    });
    let (status, rest) = front.end();
    assert_eq!((status.signal(), rest.contains("ran\n")), (Some(libc::SIGKILL), false), "{rest}");
    // The pipe ends with the held process.
    let mut text = String::new();
    errors.read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
}

#[test]
fn memory_policy_holds_from_the_start_of_the_program() {
    let mut launch = sh("grep -q interleave:0 /proc/self/numa_maps");
    launch.memory = Some(MemoryPolicy::Interleave(vec![NodeId(0)]));
    if Path::new("/proc/self/numa_maps").exists() {
        assert!(run(&launch).success());
    }
    launch.memory = Some(MemoryPolicy::Bind(vec![NodeId(1000)]));
    assert!(matches!(launch.start(), Err(Error::InvalidArgument(_))));
}

/// A program that computes, waits, forks, and reads and writes, and prints its resources at its
/// end: CPU time in seconds, voluntary and involuntary switches, and bytes. Does nothing as a test.
#[test]
fn use_resources() {
    if std::env::var_os("COREBEAT_TEST_RESOURCES").is_none() {
        return;
    }
    let mut sum = 1u64;
    (0..60_000_000u64).for_each(|i| sum = std::hint::black_box(sum.wrapping_mul(i | 1)));
    for _ in 0..50 {
        assert!(Command::new("true").status().unwrap().success());
        std::thread::sleep(Duration::from_micros(10));
    }
    let copy = "dd if=/dev/zero of=/dev/null bs=64k count=400 2>/dev/null";
    assert!(Command::new("sh").args(["-c", copy]).status().unwrap().success());
    let usage = |of| {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes a struct of this type, for which zeros are valid.
        unsafe {
            libc::getrusage(of, usage.as_mut_ptr());
            usage.assume_init()
        }
    };
    let both = [usage(libc::RUSAGE_SELF), usage(libc::RUSAGE_CHILDREN)];
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let cpu_s: f64 = both.iter().map(|u| seconds(u.ru_utime) + seconds(u.ru_stime)).sum();
    let voluntary: i64 = both.iter().map(|u| u.ru_nvcsw).sum();
    let involuntary: i64 = both.iter().map(|u| u.ru_nivcsw).sum();
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let bytes = io.lines().take(2).map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    println!("\n@used {cpu_s} {voluntary} {involuntary} {}", bytes.sum::<u64>());
}

/// The usage is complete although nothing observes the program, and includes all its children.
#[test]
fn usage_agrees_with_the_resources_that_the_program_reports() {
    let (mut printed, stdout) = std::io::pipe().unwrap();
    let args = ["use_resources", "--exact", "--nocapture", "--test-threads=1"].map(Into::into);
    let launch = Launch {
        env: vec![("COREBEAT_TEST_RESOURCES".into(), Some("1".into()))],
        stdout: Some(std::os::fd::OwnedFd::from(stdout).into()),
        ..Launch::new(std::env::current_exe().unwrap(), args)
    };
    let mut started = launch.start().unwrap();
    started.release().unwrap();
    drop(launch);
    let mut text = String::new();
    printed.read_to_string(&mut text).unwrap();
    assert!(started.wait().unwrap().success());
    let usage = started.usage();
    let line = text.lines().find_map(|l| l.strip_prefix("@used ")).unwrap();
    let used: Vec<f64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
    let counted = [
        usage.cpu_s(),
        usage.voluntary_switches as f64,
        usage.involuntary_switches as f64,
        usage.io_bytes.unwrap() as f64,
    ];
    // The program has no count of its end, and of its start before the exec.
    let unknown = [0.05, 20.0, f64::INFINITY, 20_000.0];
    for ((counted, used), unknown) in counted.into_iter().zip(used).zip(unknown) {
        assert!(
            counted >= used && counted <= used * 1.01 + unknown,
            "{usage:?} for {line}: {counted} and {used}"
        );
    }
}
