//! A process with threads to act upon, and eyes of the test's own to see what was done to it.
//!
//! Other processes of a test are this very executable, started again with `ROLE` in the environment.

use corebeat_machine::{CpuSet, ThreadId};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "COREBEAT_TEST_ROLE";

/// The arguments of the role that this process was started for, if it is `name`.
pub(crate) fn role(name: &str) -> Option<Vec<String>> {
    let role = std::env::var(ROLE).ok()?;
    let mut parts = role.split(' ').map(str::to_owned);
    (parts.next()? == name).then(|| parts.collect())
}

/// A process that plays a part of this test. Killed when dropped, with all of its process group.
pub(crate) struct Player {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Player {
    /// Starts the test `test`, which plays `role`.
    pub(crate) fn start(test: &str, role: &str) -> Player {
        let exe = std::env::current_exe().unwrap();
        Self::start_with(Command::new(exe), test, role)
    }

    /// Starts a shell.
    pub(crate) fn start_shell(script: &str) -> Player {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Self::spawn(command)
    }

    /// As [`Player::start`], where the command is this executable or something that runs it.
    pub(crate) fn start_with(mut command: Command, test: &str, role: &str) -> Player {
        let args = [test, "--exact", "--nocapture", "--test-threads=1"];
        command.args(args).env(ROLE, role);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Player {
        let mut child =
            command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Player { child, input, output }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for a line that begins so, and returns the rest of it.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no '{word}' before the end");
            // The test harness writes the test's name before.
            if let Some(at) = line.find(&format!("@{word}")) {
                return line[at + word.len() + 1..].trim().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(self) {}
}

impl Drop for Player {
    fn drop(&mut self) {
        // SAFETY: a plain system call. The number is the group's while its first process has not been waited for.
        unsafe { libc::kill(-self.pid(), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

/// Says a line that [`Player::hear`] waits for.
pub(crate) fn say(line: &str) {
    println!("@{line}");
}

/// Plays a process of `threads` threads; for each line that it is told, one of them starts another.
pub(crate) fn play_victim(threads: usize) {
    let (more, wanted) = std::sync::mpsc::channel::<()>();
    for _ in 1..threads.saturating_sub(1) {
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(600)));
    }
    std::thread::spawn(move || {
        for () in wanted {
            std::thread::spawn(|| {
                say("born");
                std::thread::sleep(std::time::Duration::from_secs(600));
            });
        }
    });
    say("ready");
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        more.send(()).unwrap();
    }
    // Whoever listened has ended: nothing more is to be said.
    std::process::exit(0)
}

/// What a thread has, by sources other than Corebeat's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) cpus: CpuSet,
    pub(crate) nice: i32,
    pub(crate) resets_on_fork: bool,
    pub(crate) policy: u32,
    pub(crate) slice_ns: u64,
    pub(crate) group: String,
}

/// Looks at a thread.
pub(crate) fn look(tid: i32) -> Seen {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{tid}/{file}")).unwrap();
    let status = read("status");
    let cpus = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    let stat = read("stat");
    let field = |n: usize| stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(n - 3).unwrap().to_owned();
    let mut attr = [0u64; 7];
    // SAFETY: the kernel writes at most the 56 bytes that `attr` has.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, attr.as_mut_ptr(), 56u32, 0u32) };
    assert_eq!(result, 0);
    Seen {
        cpus: cpus.trim().parse().unwrap(),
        nice: field(19).parse().unwrap(),
        resets_on_fork: attr[1] & 1 != 0,
        policy: field(41).parse().unwrap(),
        slice_ns: attr[3],
        group: read("cgroup"),
    }
}

/// All threads of a process, by number.
pub(crate) fn threads(pid: i32) -> Vec<ThreadId> {
    let mut tids: Vec<i32> = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    tids.sort_unstable();
    tids.into_iter().map(identity).collect()
}

/// A thread by number and start.
pub(crate) fn identity(tid: i32) -> ThreadId {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    let start = stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(22 - 3).unwrap();
    ThreadId { tid, start_ticks: start.parse().unwrap() }
}

/// What all threads of a process have.
pub(crate) fn look_all(pid: i32) -> Vec<Seen> {
    threads(pid).into_iter().map(|t| look(t.tid)).collect()
}

/// What the first thread of a process does, by the letter of proc_pid_stat(5): T is stopped, Z and X have ended.
pub(crate) fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').and_then(|at| stat[at + 2..].chars().next()).unwrap_or('X')
}

/// A process and all its descendants, it first.
pub(crate) fn tree(pid: i32) -> Vec<i32> {
    // Some may end meanwhile.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.flat_map(|task| {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        text.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<i32>>()
    });
    let below: Vec<i32> = children.flat_map(tree).collect();
    std::iter::once(pid).chain(below).collect()
}

/// The weight, or the shares, of the group of ours that a process is in.
pub(crate) fn weight(pid: i32) -> String {
    in_group(pid, "cpu.weight").or_else(|| in_group(pid, "cpu.shares")).unwrap()
}

/// The limit of CPU time of the group of ours that a process is in, as version 2 writes it: microseconds, or "max", and of how
/// many.
pub(crate) fn quota(pid: i32) -> String {
    in_group(pid, "cpu.max").unwrap_or_else(|| {
        let [quota, period] = ["quota", "period"].map(|f| in_group(pid, &format!("cpu.cfs_{f}_us")).unwrap());
        format!("{} {period}", if quota == "-1" { "max" } else { &quota })
    })
}

/// A file of the group of ours that a process is in, in version 2 or 1.
fn in_group(pid: i32, file: &str) -> Option<String> {
    let groups = look(pid).group;
    let path = groups.lines().find(|l| l.contains("/corebeat-")).unwrap().splitn(3, ':').nth(2).unwrap();
    let read = |root: &str| std::fs::read_to_string(format!("/sys/fs/cgroup{root}{path}/{file}")).ok();
    Some(read("").or_else(|| read("/cpu"))?.trim().to_owned())
}
