//! Processes of tests that end with their test, also when the test fails or is killed, and that
//! handle signals as in a terminal ([`reset_signals`]); children of fork with a time limit
//! ([`in_child`]); flags that end loops ([`SetOnDrop`]); C programs for tests ([`compile`]); and
//! tests on several ranks of MPI ([`test_on_ranks`], [`mpirun()`]).
//!
//! Place in the loop: none. Tests of other crates use this crate as a development dependency.
//!
//! # Example
//!
//! ```
//! use corebeat_test_group::TestGroup;
//! use std::process::Command;
//!
//! let group = TestGroup::new();
//! let mut command = Command::new("sh");
//! let mut shell = group.add(command.args(["-c", "sleep 600 & sleep 600"])).spawn()?;
//! drop(group); // kills the shell and both of its children
//! assert!(!shell.wait()?.success());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   test -- pipe --> guard         the leader of the process group
//!     |                | kills its group when the pipe is closed
//!     +----------> processes       members of the group, with all that they start
//! ```
//!
//! The kernel closes the pipe however the test ends. The guard keeps the number of the group in
//! use, so that the kill reaches no other group.
//!
//! # Invariants
//!
//! 1. No member outlives the process that created the group
//!    (`members_end_when_the_test_is_killed`).
//! 2. No member outlives the [`TestGroup`] (the example above).
//! 3. A child of [`in_child`] ends with the thread that waits for it, and after [`CHILD_MAX`]
//!    (`child_has_a_time_limit_and_ends_with_its_parent`).
//!
//! # Limits
//!
//! Processes that leave the group (`setsid`, `setpgid`) are not killed; `cargo xtask ci` reports
//! them. Processes in a frozen control group of version 1 end when the group is thawed.

mod mpirun;

pub use mpirun::{MPIRUN_LATE, MPIRUN_MAX_S, mpirun, test_on_ranks, texts};

use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time after which a child of fork counts as hanging, and is killed.
pub const CHILD_MAX: Duration = Duration::from_secs(60);

/// Signals that a script's background processes (`&`) and processes under `nohup` ignore.
const IGNORED_IN_BACKGROUND: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM];

/// Arranges that a process starts with the default actions of the signals that end it. A process
/// inherits ignored signals, so a test that sends such a signal would otherwise wait for ever when
/// the tests run in the background.
pub fn reset_signals(command: &mut Command) -> &mut Command {
    let reset = || {
        for signal in IGNORED_IN_BACKGROUND {
            // SAFETY: the default action runs no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the hook runs between fork and exec, and only makes system calls.
    unsafe { command.pre_exec(reset) }
}

/// Compiles a C program by a compiler with these arguments. Returns whether the compiler exists.
///
/// # Panics
/// If the compiler rejects the source.
pub fn compile(compiler: &str, arguments: &[&str], source: &Path, program: &Path) -> bool {
    let mut command = Command::new(compiler);
    let Ok(done) = command.args(arguments).arg("-o").arg(program).arg(source).output() else {
        return false;
    };
    assert!(done.status.success(), "{compiler}: {}", String::from_utf8_lossy(&done.stderr));
    true
}

/// Makes the calling process, a child of fork, end with the thread that forked, and after
/// [`CHILD_MAX`].
pub fn limit_child() {
    // SAFETY: the calls only set when a signal ends this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::alarm(CHILD_MAX.as_secs() as u32);
    }
}

/// Sets a flag when it is dropped, also when a test fails: ends the loops of other threads.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns whether `check` is true in a child of fork. A panic of `check` counts as false. The
/// child inherits the locks that other threads hold at the fork.
///
/// # Panics
/// If no process can be created, or a signal ends the child, as after [`CHILD_MAX`].
pub fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses memory and threads, which glibc supports after fork, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        limit_child();
        let is_true = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: exits without the handlers that the parent has registered.
        unsafe { libc::_exit(i32::from(!is_true)) };
    }
    let mut status = 0;
    // SAFETY: the pointer refers to memory for a status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "signal {} ended the child", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status) == 0
}

/// Ignores the signals that tests send to whole groups.
const GUARD: &str = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM TSTP; read line; kill -KILL 0";

/// A process group whose members end when this value is dropped or this process ends.
#[derive(Debug)]
pub struct TestGroup(Child);

impl TestGroup {
    /// Creates a group.
    ///
    /// # Panics
    /// If no process can be created.
    #[expect(clippy::new_without_default, reason = "a new group is a process")]
    pub fn new() -> TestGroup {
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD]).process_group(0);
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        TestGroup(guard.spawn().expect("the shell starts"))
    }

    /// Arranges that a process starts in this group.
    pub fn add<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.process_group(self.id())
    }

    /// Starts a process that sleeps for ten minutes.
    ///
    /// # Panics
    /// If no process can be created.
    pub fn sleeper(&self) -> Child {
        self.add(Command::new("sleep").arg("600")).spawn().expect("sleep starts")
    }

    /// Returns the number of the group.
    pub fn id(&self) -> i32 {
        self.0.id() as i32
    }

    /// Kills all members. The caller reaps those that are its children.
    pub fn kill(&self) {
        // The number is in use as long as the guard is not reaped. An error means that no member
        // is left.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};

    const ROLE: &str = "COREBEAT_TEST_ROLE";

    /// The killed test. Does nothing as a test.
    #[test]
    fn play() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let group = TestGroup::new();
        let forks = "while :; do sleep 0 & wait; done";
        let script = format!("{forks} & {forks} & echo @started; wait");
        let mut child = group.add(Command::new("sh").args(["-c", &script])).spawn().unwrap();
        let _ = child.wait();
    }

    #[test]
    fn signals_are_reset_although_the_test_runs_in_the_background() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "kill -INT $$; echo ignored"]).stdout(Stdio::piped());
        let ignore = || {
            // SAFETY: ignoring a signal runs no handler.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the hook only makes system calls.
        let output = unsafe { shell.pre_exec(ignore) }.output().unwrap();
        assert_eq!(output.stdout, b"ignored\n");
        assert!(reset_signals(&mut shell).output().unwrap().stdout.is_empty());
    }

    #[test]
    fn child_has_a_time_limit_and_ends_with_its_parent() {
        assert!(in_child(|| true) && !in_child(|| false) && !in_child(|| panic!("as planned")));
        assert!(in_child(|| {
            let mut signal = 0;
            // SAFETY: the pointer refers to memory for a signal; an alarm of 0 only ends the alarm.
            unsafe {
                libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal);
                signal == libc::SIGKILL
                    && (1..=CHILD_MAX.as_secs() as u32).contains(&libc::alarm(0))
            }
        }));
        let kill = || -> bool {
            // SAFETY: ends this process, a child of the test.
            unsafe { libc::_exit(libc::raise(libc::SIGKILL)) }
        };
        assert!(catch_unwind(|| in_child(kill)).is_err());
    }

    #[test]
    fn members_end_when_the_test_is_killed() {
        let mut test = Command::new(std::env::current_exe().unwrap())
            .args(["tests::play", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(test.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("@started") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the shell does not start");
        }
        test.kill().unwrap();
        test.wait().unwrap();
        // The pipe is open in the shells until all of them have ended.
        output.read_to_end(&mut Vec::new()).unwrap();
    }
}
