//! A process with threads to act on, and independent functions that read its settings.
//!
//! Other processes of a test are the same executable, started with `ROLE` in the environment.

use corebeat_machine::{CpuSet, ThreadId};
use corebeat_test_group::TestGroup;
use std::ffi::CStr;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "COREBEAT_TEST_ROLE";

/// Returns the arguments of the role of this process, if the role is `name`.
pub(crate) fn role(name: &str) -> Option<Vec<String>> {
    let role = std::env::var(ROLE).ok()?;
    let mut parts = role.split(' ').map(str::to_owned);
    (parts.next()? == name).then(|| parts.collect())
}

/// A process with a role in a test. Dropping kills its process group.
pub(crate) struct Player {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    group: TestGroup,
}

impl Player {
    /// Starts the test `test` with a role.
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

    /// Same as [`Player::start`], with a command that runs this executable.
    pub(crate) fn start_with(mut command: Command, test: &str, role: &str) -> Player {
        let args = [test, "--exact", "--nocapture", "--test-threads=1"];
        command.args(args).env(ROLE, role);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Player {
        let group = TestGroup::new();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = group.add(&mut command).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Player { child, input, output, group }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for a line that begins with a word, and returns the rest of the line.
    pub(crate) fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no '{word}' before the end");
            // The test harness prints the name of the test before.
            if let Some(at) = line.find(&format!("@{word}")) {
                return line[at + word.len() + 1..].trim().to_owned();
            }
        }
    }

    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Kills the process group and waits for its end.
    pub(crate) fn kill(self) {}

    /// Kills the process group, and waits until the process is gone.
    pub(crate) fn end(&mut self) {
        self.group.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.end();
    }
}

/// Prints a line for [`Player::wait_for`].
pub(crate) fn print_line(line: &str) {
    println!("@{line}");
}

/// Name of the threads of a victim: not UTF-8, and with the syntax of `/proc/PID/stat`.
const NAME: &CStr = c"na) S\xff\n 1 (";

/// Runs `threads` threads. For each line of input, one of them starts another thread.
pub(crate) fn play_victim(threads: usize) {
    // Later threads inherit the name. SAFETY: the kernel copies the name, which ends with a zero.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) }, 0);
    let (more, wanted) = std::sync::mpsc::channel::<()>();
    for _ in 1..threads.saturating_sub(1) {
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(600)));
    }
    std::thread::spawn(move || {
        for () in wanted {
            std::thread::spawn(|| {
                print_line("born");
                std::thread::sleep(std::time::Duration::from_secs(600));
            });
        }
    });
    print_line("ready");
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        more.send(()).unwrap();
    }
    // The test has ended.
    std::process::exit(0)
}

/// Settings of a thread, read without code of Corebeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) cpus: CpuSet,
    pub(crate) nice: i32,
    pub(crate) resets_on_fork: bool,
    pub(crate) policy: u32,
    pub(crate) slice_ns: u64,
    pub(crate) group: String,
}

/// Reads a file of a thread. Empty if the thread has ended.
fn read(tid: i32, file: &str) -> String {
    let bytes = std::fs::read(format!("/proc/{tid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns a field of the `stat` file of a thread, numbered as in proc_pid_stat(5). Empty if the
/// thread has ended.
fn stat(tid: i32, field: usize) -> String {
    let stat = read(tid, "stat");
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split(' ').nth(field - 3).unwrap_or_default().to_owned()
}

/// Reads the settings of a thread.
pub(crate) fn settings_of(tid: i32) -> Observed {
    let status = read(tid, "status");
    let cpus = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    let mut attr = [0u64; 7];
    // SAFETY: the kernel writes at most the 56 bytes that `attr` has.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid, attr.as_mut_ptr(), 56u32, 0u32) };
    assert_eq!(result, 0);
    Observed {
        cpus: cpus.trim().parse().unwrap(),
        nice: stat(tid, 19).parse().unwrap(),
        resets_on_fork: attr[1] & 1 != 0,
        policy: stat(tid, 41).parse().unwrap(),
        slice_ns: attr[3],
        group: read(tid, "cgroup"),
    }
}

/// Returns all threads of a process in the order of their creation, in which the kernel lists them.
/// Their numbers have another order if the kernel began again at the smallest ones meanwhile.
pub(crate) fn threads(pid: i32) -> Vec<ThreadId> {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|e| identity(e.unwrap().file_name().to_str().unwrap().parse().unwrap()))
        .collect()
}

/// Returns the identity of a thread.
pub(crate) fn identity(tid: i32) -> ThreadId {
    ThreadId { tid, start_ticks: stat(tid, 22).parse().unwrap() }
}

/// Reads the settings of all threads of a process.
pub(crate) fn all_settings(pid: i32) -> Vec<Observed> {
    threads(pid).into_iter().map(|t| settings_of(t.tid)).collect()
}

/// Returns the state letter of a process (proc_pid_stat(5)): T for stopped, Z and X for ended.
pub(crate) fn state(pid: i32) -> char {
    stat(pid, 3).chars().next().unwrap_or('X')
}

/// Returns a process and all its descendants, the process first.
pub(crate) fn tree(pid: i32) -> Vec<i32> {
    // Processes may end meanwhile.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.flat_map(|task| {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        text.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<i32>>()
    });
    let below: Vec<i32> = children.flat_map(tree).collect();
    std::iter::once(pid).chain(below).collect()
}

/// Returns the weight or the shares of the Corebeat group of a process.
pub(crate) fn weight(pid: i32) -> String {
    in_group(pid, "cpu.weight").or_else(|| in_group(pid, "cpu.shares")).unwrap()
}

/// Returns the quota of the Corebeat group of a process in the format of version 2: microseconds or
/// "max", and the period.
pub(crate) fn quota(pid: i32) -> String {
    in_group(pid, "cpu.max").unwrap_or_else(|| {
        let [quota, period] =
            ["quota", "period"].map(|f| in_group(pid, &format!("cpu.cfs_{f}_us")).unwrap());
        format!("{} {period}", if quota == "-1" { "max" } else { &quota })
    })
}

/// Reads a file of the Corebeat group of a process.
fn in_group(pid: i32, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(group_dir(pid).join(file)).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the folder of the Corebeat group of a process, in version 2 or 1.
pub(crate) fn group_dir(pid: i32) -> PathBuf {
    let groups = settings_of(pid).group;
    let path =
        groups.lines().find(|l| l.contains("/corebeat-")).unwrap().splitn(3, ':').nth(2).unwrap();
    let dirs = ["", "/cpu"].map(|root| PathBuf::from(format!("/sys/fs/cgroup{root}{path}")));
    dirs.into_iter().find(|dir| dir.exists()).unwrap()
}
