//! The processes of this host: names, users, control groups, CPU times.

use crate::file::read_text;
use crate::{process, thread};
use corebeat_machine::ThreadId;
use std::fs;

/// Length of a process name in the kernel, in bytes.
const NAME_MAX: usize = 15;

/// Suffix of the path of an executable that was removed or replaced since its start.
const DELETED: &str = " (deleted)";

/// A process as one reading of `/proc` showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Number and start of the process.
    pub id: ThreadId,
    /// Number of the parent.
    pub parent: i32,
    /// Name in the kernel: at most 15 bytes, of which invalid UTF-8 is replaced.
    pub name: String,
    /// Whether the process is a thread of the kernel.
    pub is_kernel: bool,
    /// CPU time of all threads, those that have ended included, in nanoseconds. The kernel accounts
    /// it in clock ticks.
    pub cpu_ns: u64,
    /// Nice value of the first thread.
    pub nice: i32,
    /// Whether the first thread has the default scheduling class, and not batch, idle or a
    /// real-time class.
    pub is_normal: bool,
}

impl Listed {
    /// Reads a process. `None` if it has ended or is hidden.
    pub fn read(pid: i32) -> Option<Listed> {
        let text = read_text(format!("/proc/{pid}/stat")).ok()?;
        let stat = thread::parse_stat(&text).filter(|stat| !matches!(stat.state, 'Z' | 'X'))?;
        Some(Listed {
            id: ThreadId { tid: pid, start_ticks: stat.start_ticks },
            parent: stat.parent,
            name: stat.name.to_owned(),
            is_kernel: stat.is_kernel,
            cpu_ns: stat
                .user
                .saturating_add(stat.system)
                .saturating_mul(1_000_000_000 / thread::ticks_per_s()),
            nice: stat.nice,
            is_normal: stat.policy == Some(libc::SCHED_OTHER),
        })
    }

    /// Returns whether `name` is the name of the process in the kernel, up to the length that the
    /// kernel keeps, or the file name of its executable. The executable of another user's process
    /// is unknown without privileges.
    pub fn is_named(&self, name: &str) -> bool {
        let kept = &name.as_bytes()[..name.len().min(NAME_MAX)];
        String::from_utf8_lossy(kept) == self.name
            || executable(self.id.tid).is_some_and(|executable| executable == name)
    }

    /// Returns the user of the process. `None` if the process has ended, or runs on behalf of
    /// another user: its real and its effective user differ.
    pub fn user(&self) -> Option<u32> {
        process::user(self.id.tid)
    }

    /// Returns the control group of the process in each hierarchy: paths from the roots.
    pub fn control_groups(&self) -> Vec<String> {
        let text = read_text(format!("/proc/{}/cgroup", self.id.tid)).unwrap_or_default();
        text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_owned).collect()
    }

    /// Returns the command line of the process. Empty if it has ended, or is hidden.
    pub fn arguments(&self) -> Vec<String> {
        let text = read_text(format!("/proc/{}/cmdline", self.id.tid)).unwrap_or_default();
        text.split_terminator('\0').map(str::to_owned).collect()
    }
}

/// Returns the numbers of all processes, except those that are hidden.
pub fn process_numbers() -> Vec<i32> {
    process::numbers("/proc")
}

/// Returns all processes that have not ended, except those that are hidden.
pub fn processes() -> Vec<Listed> {
    process_numbers().into_iter().filter_map(Listed::read).collect()
}

/// Returns the processes that have a name, without those that descend from another one with the
/// name, and without kernel threads.
pub fn programs_named(name: &str) -> Vec<Listed> {
    let all = processes();
    let is_named = |process: &Listed| !process.is_kernel && process.is_named(name);
    let named: Vec<&Listed> = all.iter().filter(|p| is_named(p)).collect();
    let descends = |process: &Listed| {
        ancestors(process, &all).any(|ancestor| named.iter().any(|p| p.id == ancestor.id))
    };
    named.iter().filter(|p| !descends(p)).map(|&p| p.clone()).collect()
}

/// Returns the ancestors of a process in a listing, its parent first.
fn ancestors<'a>(process: &Listed, all: &'a [Listed]) -> impl Iterator<Item = &'a Listed> {
    let parent_of = |process: &Listed| {
        let parent = process.parent;
        all.iter().find(|p| p.id.tid == parent)
    };
    // The listing is not one moment: reused numbers may form a cycle.
    std::iter::successors(parent_of(process), move |p| parent_of(p)).take(all.len())
}

/// Returns the file name of the executable of a process, if it is known.
fn executable(pid: i32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_string_lossy();
    Some(name.strip_suffix(DELETED).unwrap_or(&name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_test_group::TestGroup;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    fn listed(pid: i32, parent: i32) -> Listed {
        Listed {
            id: ThreadId { tid: pid, start_ticks: 1 },
            parent,
            name: format!("p{pid}"),
            is_kernel: false,
            cpu_ns: 0,
            nice: 0,
            is_normal: true,
        }
    }

    #[test]
    fn ancestors_end_at_an_unknown_parent_and_in_a_cycle() {
        let all = [listed(1, 0), listed(2, 1), listed(3, 2), listed(7, 8), listed(8, 7)];
        let pids = |at: usize| ancestors(&all[at], &all).map(|p| p.id.tid).collect::<Vec<_>>();
        assert_eq!((pids(2), pids(0)), (vec![2, 1], vec![]));
        assert!(pids(3).len() <= all.len());
    }

    #[test]
    fn listing_describes_this_process() {
        let listed = Listed::read(std::process::id() as i32).unwrap();
        assert!(processes().iter().any(|p| p.id == listed.id));
        assert_eq!(listed.user(), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(listed.arguments(), std::env::args().collect::<Vec<_>>());
        assert!(listed.control_groups().iter().all(|path| path.starts_with('/')));
        assert!(!listed.is_kernel && Listed::read(i32::MAX).is_none());
    }

    /// Starts a shell with this executable, which runs a script.
    fn shell(group: &TestGroup, program: &std::path::Path, script: &str) -> Child {
        let mut command = Command::new(program);
        // A multi-call binary selects its function by the first argument.
        command.arg0("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null());
        group.add(&mut command).spawn().unwrap()
    }

    /// Waits until the number of programs with a name is `count`, and returns their numbers.
    fn until_named(name: &str, count: usize) -> Vec<u32> {
        for _ in 0..60_000 {
            let mut pids: Vec<u32> = programs_named(name).iter().map(|p| p.id.tid as u32).collect();
            pids.sort_unstable();
            if pids.len() == count {
                return pids;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("there are not {count} programs named {name}");
    }

    #[test]
    fn name_is_that_of_the_kernel_or_of_the_executable_and_descendants_are_left_out() {
        let (group, dir) = (TestGroup::new(), tempfile::tempdir().unwrap());
        // The kernel cuts this name within its last character.
        let name = format!("cb-{:011}é-long", std::process::id());
        let program = dir.path().join(&name);
        // By another process: a child of another test may inherit a descriptor that is open for
        // writing, and the copy could not be executed.
        assert!(Command::new("cp").arg("/bin/sh").arg(&program).status().unwrap().success());
        let path = program.to_str().unwrap();
        let script = format!("'{path}' -c 'read x' & read x");
        let mut first = shell(&group, &program, &script);
        let mut second = shell(&group, &program, "read x");
        let mut expected = [first.id(), second.id()];
        expected.sort_unstable();
        assert_eq!(until_named(&name, 2), expected);
        // The name in the kernel alone.
        assert!(until_named(&name[..14], 0).is_empty());
        assert_eq!(until_named(&format!("{}é", &name[..14]), 2), expected);
        fs::remove_file(&program).unwrap();
        assert_eq!(executable(first.id() as i32), Some(name.clone()));
        assert!(programs_named("no such program").is_empty());
        group.kill();
        assert!(first.wait().is_ok() && second.wait().is_ok());
    }
}
