//! The processes to show: those that the user named, or all processes of the user.

use crate::process::{Processes, owner};
use crate::server::Servers;
use crate::view::{Program, View};
use corebeat_command::Failure;
use corebeat_host::own_cpu_s;
use corebeat_linux::{LinuxMachine, Listed, process_numbers};
use corebeat_machine::{Machine, ProgramId, ProgramSample, Snapshot};
use std::collections::{BTreeMap, HashSet};

/// Observed processes, and the names of processes to observe as soon as they start.
pub(crate) struct Subjects {
    /// Empty if all processes of the user are shown, or numbers only.
    names: HashSet<String>,
    numbers: HashSet<i32>,
    /// First process of each observed program.
    roots: BTreeMap<ProgramId, i32>,
    /// Processes that the search skips: processes of other users, hidden processes, and processes
    /// that ended and were not waited for.
    skipped: HashSet<i32>,
    /// The user whose processes are shown if none is named. `None` for the processes of all users.
    user: Option<u32>,
    processes: Processes,
    servers: Servers,
    own_cpu_s: f64,
}

impl Subjects {
    /// Starts to observe the requested processes; without a request those of `user`, by default of
    /// this user.
    ///
    /// # Errors
    /// A number or name belongs to no process, a process is hidden, or the user does not exist.
    pub(crate) fn new(
        requested: &[String],
        user: Option<&str>,
        machine: &mut LinuxMachine,
    ) -> Result<Self, Failure> {
        let me = rustix::process::geteuid().as_raw();
        let user = match user {
            Some(text) => Some(user_number(text)?),
            // For root, the processes of all users are shown.
            None => Some(me).filter(|&me| me != 0),
        };
        let mut subjects = Subjects {
            names: HashSet::new(),
            numbers: HashSet::new(),
            roots: BTreeMap::new(),
            skipped: HashSet::new(),
            user,
            processes: Processes::default(),
            servers: Servers::default(),
            own_cpu_s: 0.0,
        };
        for text in requested {
            // Digits only: the parser also accepts a sign.
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            match text.parse::<i32>().ok().filter(|_| is_number) {
                Some(pid) => {
                    if subjects.numbers.insert(pid) {
                        subjects.begin(pid, machine)?;
                    }
                }
                None => {
                    if !processes().into_iter().any(|pid| has_name(pid, [text])) {
                        return Err(Failure::usage(format!(
                            "there is no process named '{text}'; write a number or a name from \
                             'ps -e', or nothing for all your processes"
                        )));
                    }
                    subjects.names.insert(text.clone());
                }
            }
        }
        subjects.search(machine);
        // The start costs more than the observation.
        subjects.own_cpu_s = own_cpu_s();
        Ok(subjects)
    }

    /// Whether the user named processes.
    pub(crate) fn are_named(&self) -> bool {
        !self.names.is_empty() || !self.numbers.is_empty()
    }

    /// Figures of a snapshot. Programs that have ended are part of it for the last time. Starts to
    /// observe new programs.
    pub(crate) fn figures(&mut self, machine: &mut LinuxMachine, snapshot: &Snapshot) -> View {
        let mut programs: Vec<Program> = match self.are_named() {
            true => {
                let whole = |p: &ProgramSample| {
                    Some(Program::whole(*self.roots.get(&p.id)?, p, snapshot.span_ns))
                };
                snapshot.programs.iter().filter_map(whole).collect()
            }
            false => Program::by_process(snapshot),
        };
        programs.iter_mut().for_each(|program| program.find_spin_functions(machine));
        self.processes.describe(&mut programs);
        self.servers.describe(&mut programs);
        let ended: Vec<ProgramId> =
            self.roots.keys().copied().filter(|&id| !machine.is_alive(id)).collect();
        for id in ended {
            machine.unwatch(id);
            self.roots.remove(&id);
        }
        self.search(machine);
        let own_cpu_s = own_cpu_s();
        let watching_cpu_s = own_cpu_s - std::mem::replace(&mut self.own_cpu_s, own_cpu_s);
        View {
            span_s: snapshot.span_ns as f64 / 1e9,
            cpus: machine.topology().cpus().len(),
            // The sum of no numbers is -0.0.
            busy: programs
                .iter()
                .map(|p| p.figures.cpus_busy)
                .sum::<Option<f64>>()
                .map(|b| b + 0.0),
            busy_min: programs.iter().map(|p| p.figures.cpus_busy_min).sum::<f64>() + 0.0,
            others_busy: snapshot.host.others_busy,
            others_runnable: snapshot.host.others_runnable,
            watching_cpu_s,
            notes: machine.notes(),
            programs,
        }
    }

    /// Starts to observe a process with its descendants as a program.
    fn begin(&mut self, pid: i32, machine: &mut LinuxMachine) -> Result<(), corebeat_linux::Error> {
        let id = machine.watch(pid)?;
        if !machine.is_alive(id) {
            machine.unwatch(id);
            return Err(corebeat_linux::Error::NoProcess { pid });
        }
        self.roots.insert(id, pid);
        Ok(())
    }

    /// Searches for processes to show that are not observed yet. A process that ends during the
    /// search, or is hidden, is left out.
    fn search(&mut self, machine: &mut LinuxMachine) {
        if self.are_named() && self.names.is_empty() {
            return;
        }
        let all = processes();
        let roots: HashSet<i32> = self.roots.values().copied().collect();
        self.skipped = all.iter().copied().filter(|pid| self.skipped.contains(pid)).collect();
        for pid in all {
            if roots.contains(&pid) || self.skipped.contains(&pid) {
                continue;
            }
            // The name of a process may change; its owner hardly ever does.
            let (wanted, is_final) = match self.are_named() {
                true => (has_name(pid, &self.names), false),
                false => (is_of(pid, self.user), true),
            };
            if (wanted && self.begin(pid, machine).is_err()) || (!wanted && is_final) {
                self.skipped.insert(pid);
            }
        }
    }
}

/// The number of a user, from its name or number.
fn user_number(text: &str) -> Result<u32, Failure> {
    let number = corebeat_linux::user_id(text).or_else(|| text.parse().ok());
    number.ok_or_else(|| {
        Failure::usage(format!(
            "there is no user '{text}'; write a name from 'getent passwd', or a number"
        ))
    })
}

/// Whether a process is not a kernel thread, and belongs to a user, or `user` is `None`.
fn is_of(pid: i32, user: Option<u32>) -> bool {
    owner(pid).is_some_and(|owner| user.is_none_or(|user| user == owner))
        && Listed::read(pid).is_some_and(|process| !process.is_kernel)
}

/// All processes except this one.
fn processes() -> Vec<i32> {
    let own = std::process::id() as i32;
    process_numbers().into_iter().filter(|&pid| pid != own).collect()
}

/// Whether a process has one of these names.
fn has_name<'a>(pid: i32, names: impl IntoIterator<Item = &'a String>) -> bool {
    let process = Listed::read(pid);
    process.is_some_and(|process| names.into_iter().any(|name| process.is_named(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::process::CommandExt;
    use std::time::Duration;

    /// A process that ends when this value is dropped.
    struct Sleeper(std::process::Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn subjects_by_name_include_processes_that_start_later() {
        let dir = tempfile::tempdir().unwrap();
        // The kernel cuts this name within its last character.
        let name = format!("cb-{:011}é", std::process::id());
        let program = dir.path().join(&name);
        let sleep =
            ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|p| fs::exists(p).unwrap()).unwrap();
        std::os::unix::fs::symlink(sleep, &program).unwrap();
        let start = || {
            // A multi-call binary selects its function by the first argument.
            let child =
                std::process::Command::new(&program).arg0("sleep").arg("60").spawn().unwrap();
            // The process gets its name last, after the exec.
            let named = || has_name(child.id() as i32, [&name]);
            assert!((0..60_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                named()
            }));
            Sleeper(child)
        };
        let mut machine = LinuxMachine::new(corebeat_linux::Options::default()).unwrap();
        assert!(Subjects::new(std::slice::from_ref(&name), None, &mut machine).is_err());
        let mut first = start();
        assert!(is_of(first.0.id() as i32, None));
        let mut subjects = Subjects::new(std::slice::from_ref(&name), None, &mut machine).unwrap();
        let mut pids = || -> Vec<u32> {
            let snapshot = machine.observe().unwrap();
            let view = subjects.figures(&mut machine, &snapshot);
            view.programs.iter().map(|p| p.pid as u32).collect()
        };
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
    fn processes_belong_to_their_user() {
        let (own, me) = (std::process::id() as i32, rustix::process::geteuid().as_raw());
        assert!(is_of(own, None) && is_of(own, Some(me)) && !is_of(own, Some(me + 1)));
        assert!(!is_of(i32::MAX, None));
        assert_eq!(user_number("root").unwrap(), 0);
        assert_eq!(user_number("60001").unwrap(), 60_001);
        let refused = user_number("no such user").unwrap_err();
        assert!(refused.to_string().contains("there is no user 'no such user'"));
    }
}
