//! Users and command lines of processes.

use crate::view::Program;
use corebeat_linux::{process_id, user_name};
use corebeat_machine::ThreadId;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

/// Greatest length of a command line that is read, in bytes.
const COMMAND_MAX: u64 = 4096;

/// A process as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Process {
    /// Number and start time.
    #[serde(skip)]
    pub(crate) id: Option<ThreadId>,
    /// Name of the effective user; the number of a user without a name.
    pub(crate) user: Option<String>,
    /// Command line. It may contain control characters. `None` for a zombie, and for a thread of
    /// the kernel.
    pub(crate) command: Option<String>,
}

/// The processes of the last observation.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    known: BTreeMap<i32, Process>,
    names: HashMap<u32, String>,
}

impl Processes {
    /// Describes the processes of programs and threads. A process that did not run since the last
    /// observation has changed neither its user nor its command line, and is not read again.
    pub(crate) fn describe(&mut self, programs: &mut [Program]) {
        // The first thread of each process, and whether any of its threads ran.
        let mut seen: BTreeMap<i32, (Option<ThreadId>, bool)> = BTreeMap::new();
        for program in programs.iter() {
            seen.entry(program.pid).or_default();
            for thread in &program.threads {
                let (first, ran) = seen.entry(thread.pid).or_default();
                *ran |= thread.figures.shares.running() != Some(0.0);
                if thread.tid == thread.pid {
                    *first = Some(thread.id());
                }
            }
        }
        self.known.retain(|pid, _| seen.contains_key(pid));
        for (pid, (first, ran)) in seen {
            let known = self.known.get(&pid);
            let is_same = known.is_some_and(|p| first.is_none() || p.id == first);
            if is_same && !ran {
                continue;
            }
            match self.read(pid).filter(|p| first.is_none() || p.id == first) {
                Some(process) => drop(self.known.insert(pid, process)),
                // The process has ended. Its description stays.
                None if is_same => {}
                None => drop(self.known.insert(pid, Process { id: first, ..Process::default() })),
            }
        }
        for program in programs {
            program.process = self.known[&program.pid].clone();
            for thread in &mut program.threads {
                thread.process = self.known[&thread.pid].clone();
            }
        }
    }

    /// Reads a process. `None` if the process has ended or is hidden.
    fn read(&mut self, pid: i32) -> Option<Process> {
        let uid = owner(pid)?;
        let command = command(pid);
        // A process that has this number now had the number before.
        let id = Some(process_id(pid)?);
        let name = || user_name(uid).unwrap_or_else(|| uid.to_string());
        let user = Some(self.names.entry(uid).or_insert_with(name).clone());
        Some(Process { id, user, command })
    }
}

/// The effective user of a process: the owner of its folder, also if its other files belong to
/// root.
pub(crate) fn owner(pid: i32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|folder| folder.uid())
}

fn command(pid: i32) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(COMMAND_MAX).read_to_end(&mut bytes).ok()?;
    command_line(&bytes)
}

/// The command line of arguments that end with null bytes. A process that sets its title leaves
/// null bytes or spaces after the title.
fn command_line(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes).replace('\0', " ");
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{snapshot, thread};
    use corebeat_machine::ThreadSample;
    use corebeat_test_group::TestGroup;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    fn program(sample: ThreadSample) -> Vec<Program> {
        vec![Program::whole(sample.pid, &snapshot(vec![sample]).programs[0], 1_000_000_000)]
    }

    /// The sample of a process that ran for a share of the time.
    fn sample(id: ThreadId, user: f64) -> ThreadSample {
        ThreadSample { id, ..thread(id.tid, id.tid, "sleep", [user, 0.0, 0.0, 0.0]) }
    }

    #[test]
    fn command_line_may_have_any_bytes() {
        assert_eq!(command_line(b"sh\0-c\0a  b\0").as_deref(), Some("sh -c a  b"));
        assert_eq!(command_line(b"a\n\x1b[2J\xff\0").as_deref(), Some("a\n\u{1b}[2J\u{fffd}"));
        assert_eq!(command_line(b"title\0\0\0  \0").as_deref(), Some("title"));
        assert_eq!((command_line(b""), command_line(b"\0")), (None, None));
    }

    #[test]
    fn process_has_a_user_and_a_command_line() {
        let group = TestGroup::new();
        let mut sleep = Command::new("sh");
        let odd = OsStr::from_bytes(b"odd\n\x1b\xff");
        // A second command: the shell does not replace itself.
        group.add(sleep.args(["-c", "sleep 600; true"]).arg(odd));
        let mut child = sleep.spawn().unwrap();
        // The kernel sets the command line after the event that ends `spawn`.
        while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let id = process_id(child.id() as i32).unwrap();
        let mut processes = Processes::default();
        let mut programs = program(sample(id, 1.0));
        processes.describe(&mut programs);
        let found = &programs[0].process;
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(found.id, Some(id));
        assert_eq!(found.user, Some(user_name(uid).unwrap_or_else(|| uid.to_string())));
        assert_eq!(found.command.as_deref(), Some("sh -c sleep 600; true odd\n\u{1b}\u{fffd}"));
        assert_eq!(programs[0].threads[0].process, *found);
        // A process that ends keeps its description. A later process with its number has none.
        let before = found.clone();
        drop(group);
        child.wait().unwrap();
        for ran in [1.0, 0.0] {
            let mut programs = program(sample(id, ran));
            processes.describe(&mut programs);
            assert_eq!(programs[0].process, before);
        }
        let later = ThreadId { start_ticks: id.start_ticks + 1, ..id };
        let mut programs = program(sample(later, 0.0));
        processes.describe(&mut programs);
        assert_eq!(programs[0].process, Process { id: Some(later), ..Process::default() });
    }

    #[test]
    fn process_that_did_not_run_is_not_read_again() {
        let id = process_id(std::process::id() as i32).unwrap();
        let mut processes = Processes::default();
        let known = Process { id: Some(id), user: Some("u".into()), command: None };
        processes.known.insert(id.tid, known.clone());
        let mut programs = program(sample(id, 0.0));
        processes.describe(&mut programs);
        assert_eq!(programs[0].process, known);
        let mut programs = program(sample(id, 0.5));
        processes.describe(&mut programs);
        assert_ne!(programs[0].process, known);
    }
}
