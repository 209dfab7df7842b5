//! Which processes are shown: those that were named, or all of the user's own.

use crate::failure::Failure;
use crate::top::seen::{Program, Seen};
use corebeat_linux::LinuxMachine;
use corebeat_machine::{Machine, ProgramId, ProgramSample};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The kernel's own threads have this bit in the ninth field of `/proc/PID/stat` (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Bytes of a name that the kernel keeps.
const NAME_MAX: usize = 15;

/// What is watched, and what is yet to come that is to be watched.
pub(crate) struct Subjects {
    machine: LinuxMachine,
    /// Empty where everything of the user's own is shown.
    names: HashSet<Vec<u8>>,
    numbers: HashSet<i32>,
    /// The first process of each program that is watched.
    roots: BTreeMap<ProgramId, i32>,
    /// Processes that are looked at no more: they are somebody else's, hidden, or have ended and wait for their parents.
    foreign: HashSet<i32>,
    own_cpu_s: f64,
}

impl Subjects {
    /// Begins to watch what was asked for.
    ///
    /// # Errors
    /// A number or name that fits no process, and a process that is hidden.
    pub(crate) fn new(asked: &[String], machine: LinuxMachine) -> Result<Self, Failure> {
        let mut subjects = Subjects {
            machine,
            names: HashSet::new(),
            numbers: HashSet::new(),
            roots: BTreeMap::new(),
            foreign: HashSet::new(),
            own_cpu_s: 0.0,
        };
        for text in asked {
            match text.parse::<i32>() {
                Ok(pid) => {
                    if subjects.numbers.insert(pid) {
                        subjects.begin(pid)?;
                    }
                }
                Err(_) => {
                    let name = kept_name(text);
                    if !processes().iter().any(|&pid| has_name(pid, |n| n == name)) {
                        return Err(Failure::usage(format!(
                            "no process is named '{text}'; give a number or a name as 'ps -e' shows it, or nothing for \
                             all of your own"
                        )));
                    }
                    subjects.names.insert(name.to_owned());
                }
            }
        }
        subjects.search();
        // To begin costs more than to go on.
        subjects.own_cpu_s = own_cpu_s();
        Ok(subjects)
    }

    /// Whether the user has named what to watch.
    pub(crate) fn are_named(&self) -> bool {
        !self.names.is_empty() || !self.numbers.is_empty()
    }

    /// A cheap look between two observations.
    pub(crate) fn glance(&mut self) {
        self.machine.glance();
    }

    /// What happened since the last observation. Programs that have ended are shown this last time, and those that have
    /// begun are looked for.
    ///
    /// # Errors
    /// Where the host cannot be seen at all.
    pub(crate) fn observe(&mut self) -> Result<Seen, Failure> {
        let snapshot = self.machine.observe()?;
        let programs: Vec<Program> = match self.are_named() {
            true => {
                let whole =
                    |p: &ProgramSample| Some(Program::whole(*self.roots.get(&p.id)?, p, snapshot.span_ns));
                snapshot.programs.iter().filter_map(whole).collect()
            }
            false => Program::by_process(&snapshot),
        };
        let ended: Vec<ProgramId> =
            self.roots.keys().copied().filter(|&id| !self.machine.is_alive(id)).collect();
        for id in ended {
            self.machine.unwatch(id);
            self.roots.remove(&id);
        }
        self.search();
        let own_cpu_s = own_cpu_s();
        let watching_cpu_s = own_cpu_s - std::mem::replace(&mut self.own_cpu_s, own_cpu_s);
        Ok(Seen {
            span_s: snapshot.span_ns as f64 / 1e9,
            cpus: self.machine.topology().cpus().len(),
            busy: programs.iter().map(|p| p.figures.cpus_busy).sum(),
            others_busy: snapshot.host.others_busy,
            others_runnable: snapshot.host.others_runnable,
            watching_cpu_s,
            notes: self.machine.notes().to_vec(),
            programs,
        })
    }

    /// Watches a process that is to be a program of its own.
    fn begin(&mut self, pid: i32) -> Result<(), corebeat_linux::Error> {
        let id = self.machine.watch(pid)?;
        if !self.machine.is_alive(id) {
            self.machine.unwatch(id);
            return Err(corebeat_linux::Error::NoProcess { pid });
        }
        self.roots.insert(id, pid);
        Ok(())
    }

    /// Looks for processes that are to be shown as programs and are not yet. One that ends meanwhile, or is hidden, is
    /// left out.
    fn search(&mut self) {
        if self.are_named() && self.names.is_empty() {
            return;
        }
        let all = processes();
        let roots: HashSet<i32> = self.roots.values().copied().collect();
        self.foreign = all.iter().copied().filter(|pid| self.foreign.contains(pid)).collect();
        for pid in all {
            if roots.contains(&pid) || self.foreign.contains(&pid) {
                continue;
            }
            // A process may change its name, but hardly its owner.
            let (wanted, for_good) = match self.are_named() {
                true => (has_name(pid, |name| self.names.contains(name)), false),
                false => (is_own(pid), true),
            };
            if (wanted && self.begin(pid).is_err()) || (!wanted && for_good) {
                self.foreign.insert(pid);
            }
        }
    }
}

/// Whether a process belongs to this user, or to anybody if this is root, and is no thread of the kernel's.
fn is_own(pid: i32) -> bool {
    let me = rustix::process::geteuid().as_raw();
    let owner = fs::metadata(format!("/proc/{pid}")).map(|m| m.uid());
    let flags = || parse_flags(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    owner.is_ok_and(|owner| me == 0 || me == owner) && flags().is_some_and(|f| f & KERNEL_THREAD == 0)
}

/// The flags in the text of `/proc/PID/stat`.
fn parse_flags(text: &str) -> Option<u64> {
    // The name in parentheses may hold anything. What follows begins with field 3.
    text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// What the kernel keeps of a name. It may cut a character in two.
fn kept_name(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(NAME_MAX)]
}

/// All processes but this one.
fn processes() -> Vec<i32> {
    let own = std::process::id() as i32;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|&pid| pid != own).collect()
}

fn has_name(pid: i32, wanted: impl Fn(&[u8]) -> bool) -> bool {
    let name = fs::read(format!("/proc/{pid}/comm"));
    name.is_ok_and(|n| wanted(n.strip_suffix(b"\n").unwrap_or(&n)))
}

/// CPU time of this process so far, in seconds.
fn own_cpu_s() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::process::CommandExt;
    use std::time::Duration;

    proptest! {
        #[test]
        fn subject_parsers_never_panic(text in "(\\)|\\(| |[0-9]|S|\\PC){0,30}") {
            let _ = (parse_flags(&text), kept_name(&text));
        }
    }

    #[test]
    fn flags_after_a_name_with_parentheses_are_read() {
        assert_eq!(parse_flags("7 (a) b (c) S 55 7 7 0 -1 4194560 1 0"), Some(4_194_560));
        assert_eq!(parse_flags("7 (a) S 55"), None);
    }

    #[test]
    fn name_longer_than_the_kernel_keeps_is_cut() {
        assert_eq!(kept_name("a-program-with-a-long-name"), b"a-program-with-");
        assert_eq!(kept_name("a-program-withé"), b"a-program-with\xc3");
        assert_eq!(kept_name(""), b"");
    }

    /// A process by a name of its own, ended when dropped.
    struct Sleeper(std::process::Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn subjects_by_name_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("cb-sleep{}", std::process::id());
        let program = dir.path().join(&name);
        let sleep = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|p| fs::exists(p).unwrap()).unwrap();
        std::os::unix::fs::symlink(sleep, &program).unwrap();
        let start = || {
            // A program that is several by its first argument is told which.
            let child = std::process::Command::new(&program).arg0("sleep").arg("60").spawn().unwrap();
            // It gets its name a moment after everything else of a start is done.
            let named = || has_name(child.id() as i32, |n| n == name.as_bytes());
            assert!((0..60_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                named()
            }));
            Sleeper(child)
        };
        let machine = LinuxMachine::new(corebeat_linux::Options::default()).unwrap();
        assert!(Subjects::new(std::slice::from_ref(&name), machine).is_err());
        let mut first = start();
        let machine = LinuxMachine::new(corebeat_linux::Options::default()).unwrap();
        let mut subjects = Subjects::new(std::slice::from_ref(&name), machine).unwrap();
        let mut pids =
            || -> Vec<u32> { subjects.observe().unwrap().programs.iter().map(|p| p.pid as u32).collect() };
        assert_eq!(pids(), [first.0.id()]);
        let second = start();
        pids();
        assert_eq!(pids(), [first.0.id(), second.0.id()]);
        first.0.kill().unwrap();
        first.0.wait().unwrap();
        pids();
        assert_eq!(pids(), [second.0.id()]);
    }

    #[test]
    fn is_own_holds_for_this_process_and_not_for_one_that_is_not_there() {
        assert!(is_own(std::process::id() as i32));
        assert!(!is_own(i32::MAX));
    }
}
