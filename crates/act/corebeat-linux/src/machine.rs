//! This host, put together from its sensors and hands.

use crate::Error;
use crate::counter::{Counting, DESCRIPTORS_PER_COUNTER};
use crate::file::{self, Buffer};
use crate::host::{Host, HostTicks};
use crate::process::{self, Children, Process};
use crate::thread::{self, LookFile, Looks, Observed, Thread, now_ns};
use crate::topology;
use corebeat_machine::{
    Action, HostSample, Machine, ProgramId, ProgramSample, Snapshot, ThreadSample, Topology,
};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// So many threads are looked at in one glance, in turn: a glance costs the same however many threads there are.
const GLANCE_THREADS_MAX: usize = 16;

/// What to look at, beyond what costs next to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Count cache references, cache misses and instructions of threads that switch rarely enough for it.
    pub counters: bool,
}

/// The Linux host that this program runs on.
#[derive(Debug)]
pub struct LinuxMachine {
    topology: Topology,
    counting: Option<Counting>,
    look_file: LookFile,
    descriptors_max: usize,
    buffer: Buffer,
    host: Host,
    programs: BTreeMap<ProgramId, Program>,
    next_program: u32,
    /// When the last observation was made, and what the host showed then.
    at_ns: u64,
    ticks: Option<HostTicks>,
    own_cpu_ns: u64,
    /// The newest process number at the last search for new threads; while it stays there are none.
    newest: Option<u64>,
    /// Where the next glance goes on, in the order of all threads.
    glance_next: usize,
}

/// A watched program.
#[derive(Debug)]
struct Program {
    name: String,
    processes: Vec<Process>,
}

impl LinuxMachine {
    /// This host, with nothing watched yet.
    ///
    /// Raises the soft limit of open files to the hard one, for this process: a watched thread takes a few descriptors
    /// where there are enough of them.
    ///
    /// # Errors
    /// None today; what this host lacks is `None` in the snapshots, and [`facts`](crate::facts) says why.
    pub fn new(options: Options) -> Result<Self, Error> {
        let mut machine = LinuxMachine {
            topology: topology::read(Path::new(topology::SYS)),
            counting: if options.counters { Counting::probe().ok() } else { None },
            look_file: LookFile::of_this_kernel(),
            descriptors_max: file::descriptors_max(),
            buffer: Buffer::new(),
            host: Host::new(),
            programs: BTreeMap::new(),
            next_program: 0,
            at_ns: now_ns(),
            ticks: None,
            own_cpu_ns: own_cpu_ns(),
            newest: None,
            glance_next: 0,
        };
        machine.ticks = machine.host.ticks(&mut machine.buffer);
        Ok(machine)
    }

    /// Watches a process and all its descendants, those to come included. A process that is watched already, as a part
    /// of another program, moves over to the new one together with those of its descendants that nobody watches yet.
    ///
    /// # Errors
    /// [`Error::NoProcess`], and [`Error::Denied`] where `/proc` hides it.
    pub fn watch(&mut self, pid: i32) -> Result<ProgramId, Error> {
        let keep = self.keeps();
        let process = Process::open(pid, keep)?;
        let process = self.take(&process).unwrap_or(process);
        let id = ProgramId(self.next_program);
        self.next_program += 1;
        let mut name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.truncate(name.trim_end_matches('\n').len());
        self.programs.insert(id, Program { name, processes: vec![process] });
        self.discover(id, None);
        // The other programs may have had new threads as well.
        self.newest = None;
        Ok(id)
    }

    /// Stops watching a program. What was done to it stays until [`restore`](Self::restore).
    pub fn unwatch(&mut self, program: ProgramId) {
        self.programs.remove(&program);
    }

    /// Whether a process of the program still runs.
    pub fn is_alive(&self, program: ProgramId) -> bool {
        self.programs.get(&program).is_some_and(|p| p.processes.iter().any(Process::is_alive))
    }

    /// Undoes all that was done.
    ///
    /// # Errors
    /// Where something could not be undone; the rest is undone all the same.
    pub fn restore(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The process out of the program that it belongs to.
    fn take(&mut self, wanted: &Process) -> Option<Process> {
        self.programs.values_mut().find_map(|program| {
            let at = program.processes.iter().position(|p| p.id == wanted.id)?;
            Some(program.processes.swap_remove(at))
        })
    }

    /// Whether there are descriptors left for one more thread or process.
    fn keeps(&self) -> bool {
        let each = thread::DESCRIPTORS_PER_THREAD
            + if self.counting.is_some() { DESCRIPTORS_PER_COUNTER } else { 0 };
        let threads: usize =
            self.programs.values().flat_map(|p| &p.processes).map(|p| p.threads.len() + 1).sum();
        (threads + 1).saturating_mul(each) <= self.descriptors_max
    }

    /// Looks for new threads and processes of a program. Those are accounted for from `since_ns` on, or their birth if
    /// that was later; without `since_ns`, from now. Returns how many processes were there before, and the new threads.
    fn discover(&mut self, id: ProgramId, since_ns: Option<u64>) -> Vec<(usize, i32)> {
        let mut claimed: HashSet<i32> =
            self.programs.values().flat_map(|p| &p.processes).map(|p| p.id.tid).collect();
        let children = Children::now();
        let (boot_ns, tick_ns) = (boot_ns(), 1_000_000_000 / thread::ticks_per_s());
        let mut found = Vec::new();
        let mut next = 0;
        loop {
            let keep = self.keeps();
            let Some(program) = self.programs.get_mut(&id) else { return found };
            let Some(process) = program.processes.get_mut(next) else { return found };
            if since_ns.is_none() {
                process.progress(false, &mut self.buffer);
            }
            let pid = process.id.tid;
            let tids = process::threads(pid);
            for &tid in &tids {
                if process.threads.contains_key(&tid) {
                    continue;
                }
                let counter = self.counting.filter(|_| keep).and_then(|c| c.thread(tid));
                let thread = Thread::open(pid, tid, self.look_file, keep, counter, &mut self.buffer);
                let Some(mut thread) = thread else { continue };
                if let Some(since_ns) = since_ns {
                    let start_ns = thread.id.start_ticks.saturating_mul(tick_ns);
                    thread.count_from_birth(start_ns.saturating_sub(boot_ns).max(since_ns));
                }
                found.push((next, tid));
                process.threads.insert(tid, thread);
            }
            for child in children.of(pid, &tids) {
                if claimed.insert(child) {
                    program.processes.extend(Process::open(child, keep));
                }
            }
            next += 1;
        }
    }
}

impl Machine for LinuxMachine {
    type Error = Error;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Snapshot, Error> {
        let before_ns = self.at_ns;
        let newest = self.host.sample(&mut self.buffer);
        let search = newest.is_none() || newest != self.newest;
        self.newest = newest;

        let mut programs = Vec::with_capacity(self.programs.len());
        let ids: Vec<ProgramId> = self.programs.keys().copied().collect();
        for id in ids {
            programs.push(self.observe_program(id, search, before_ns));
        }

        self.at_ns = now_ns();
        let span_ns = self.at_ns - before_ns;
        let own_ticks: u64 = programs.iter().map(|p| p.1).sum();
        let programs: Vec<ProgramSample> = programs.into_iter().map(|p| p.0).collect();
        let host = self.observe_host(span_ns, own_ticks, &programs);
        Ok(Snapshot { at_ns: self.at_ns, span_ns, host, programs })
    }

    fn glance(&mut self) {
        self.host.sample(&mut self.buffer);
        let mut threads: Vec<&mut Thread> = self
            .programs
            .values_mut()
            .flat_map(|p| &mut p.processes)
            .flat_map(|p| p.threads.values_mut())
            .filter(|t| t.wants_glance())
            .collect();
        let count = threads.len();
        if count == 0 {
            return;
        }
        for turn in 0..count.min(GLANCE_THREADS_MAX) {
            threads[(self.glance_next + turn) % count].glance(&mut self.buffer);
        }
        self.glance_next = (self.glance_next + GLANCE_THREADS_MAX) % count;
    }

    fn act(&mut self, action: &Action) -> Result<(), Error> {
        Err(Error::Missing { what: format!("{action:?}"), how: "hands are not fitted yet".into() })
    }
}

impl LinuxMachine {
    /// A program's sample, and its CPU time in clock ticks.
    fn observe_program(&mut self, id: ProgramId, search: bool, since_ns: u64) -> (ProgramSample, u64) {
        let mut threads: Vec<ThreadSample> = Vec::new();
        let program = self.programs.get_mut(&id).expect("the caller took the number from the map");
        let looks = program.processes.iter().flat_map(|p| p.threads.values()).map(Thread::looks);
        let lock_part = looks.fold(Looks::default(), Looks::plus).lock_part();

        for process in &mut program.processes {
            let buffer = &mut self.buffer;
            process.threads.retain(|_, thread| match thread.observe(lock_part, buffer) {
                Observed::Lives(sample) => {
                    threads.push(sample);
                    true
                }
                Observed::Ended(sample) => {
                    threads.extend(sample);
                    false
                }
            });
        }
        let known = program.processes.len();
        if search {
            let found = self.discover(id, Some(since_ns));
            let program = self.programs.get_mut(&id).expect("searching removes no program");
            for (process, tid) in found {
                let thread = program.processes[process].threads.get_mut(&tid);
                if let Some(Observed::Lives(sample)) = thread.map(|t| t.observe(lock_part, &mut self.buffer))
                {
                    threads.push(sample);
                }
            }
        }

        let program = self.programs.get_mut(&id).expect("searching removes no program");
        let (mut io_bytes, mut cpu_ticks) = (Some(0u64), 0u64);
        for (at, process) in program.processes.iter_mut().enumerate() {
            let progress = process.progress(at >= known, &mut self.buffer);
            cpu_ticks += progress.cpu_ticks;
            io_bytes = match progress.io_bytes {
                Some(bytes) => io_bytes.map(|sum| sum.saturating_add(bytes)),
                None if process.hides_io() => None,
                None => io_bytes,
            };
        }
        program.processes.retain(|p| !p.threads.is_empty() || p.is_alive());
        threads.sort_by_key(|t| t.id);
        // A program goes by the name of its first process's first thread, which changes when another is executed.
        let first = program.processes.first().and_then(|p| threads.iter().find(|t| t.id == p.id));
        if let Some(first) = first
            && first.name != program.name
        {
            program.name = first.name.clone();
        }
        let sample = ProgramSample { id, name: program.name.clone(), threads, io_bytes, team: None };
        (sample, cpu_ticks)
    }

    fn observe_host(&mut self, span_ns: u64, own_ticks: u64, programs: &[ProgramSample]) -> HostSample {
        let ticks = self.host.ticks(&mut self.buffer);
        let own_cpu_ns = own_cpu_ns();
        let tick_ns = 1e9 / thread::ticks_per_s() as f64;
        let ourselves = own_cpu_ns.saturating_sub(self.own_cpu_ns) as f64;
        let others_busy = ticks.zip(self.ticks).filter(|_| span_ns > 0).map(|(now, before)| {
            let busy = now.busy.saturating_sub(before.busy).saturating_sub(own_ticks) as f64 * tick_ns;
            ((busy - ourselves) / span_ns as f64).max(0.0)
        });
        let own_runnable: Option<f64> =
            programs.iter().map(|p| p.cpus(span_ns, |s| Some(s.running()? + s.latency?))).sum();
        let runnable = self.host.take_runnable();
        (self.ticks, self.own_cpu_ns) = (ticks, own_cpu_ns);
        HostSample {
            others_busy,
            others_runnable: runnable.zip(own_runnable).map(|(all, own)| (all - own).max(0.0)),
        }
    }
}

/// CPU time of this process, in nanoseconds.
fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How far the boot clock, which thread starts are told in, is ahead of the monotonic one: the time spent suspended.
fn boot_ns() -> u64 {
    let boot = clock_gettime(ClockId::Boottime);
    (boot.tv_sec as u64 * 1_000_000_000 + boot.tv_nsec as u64).saturating_sub(now_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::TimeShares;
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, mpsc};
    use std::thread::sleep;
    use std::time::Duration;

    /// A process that is ended when dropped, with all that it started: they read from its pipe.
    struct Running(Child);

    impl Running {
        fn shell(script: &str) -> Self {
            let stdin = std::process::Stdio::piped();
            Running(Command::new("sh").args(["-c", script]).stdin(stdin).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn machine() -> LinuxMachine {
        LinuxMachine::new(Options { counters: true }).unwrap()
    }

    /// Observes, with glances between, until what was seen is as it should be.
    fn until(machine: &mut LinuxMachine, mut right: impl FnMut(&Snapshot) -> bool) -> bool {
        (0..100).any(|_| {
            for _ in 0..5 {
                sleep(Duration::from_millis(10));
                machine.glance();
            }
            right(&machine.observe().unwrap())
        })
    }

    fn tid() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    #[test]
    fn machine_shares_of_threads_that_lock_sleep_and_compute_point_the_right_way() {
        let (lock, stop) = (Mutex::new(()), AtomicBool::new(false));
        let held = lock.lock().unwrap();
        std::thread::scope(|scope| {
            let (said, heard) = mpsc::channel();
            for work in ["lock", "sleep", "compute"] {
                let (said, lock, stop) = (said.clone(), &lock, &stop);
                scope.spawn(move || {
                    said.send((work, tid())).unwrap();
                    let _keeps = (work == "lock").then(|| lock.lock());
                    while !stop.load(Ordering::Relaxed) {
                        match work {
                            "sleep" => sleep(Duration::from_millis(1)),
                            _ => std::hint::spin_loop(),
                        }
                    }
                });
            }
            let tids: BTreeMap<&str, i32> = heard.iter().take(3).collect();

            let mut machine = machine();
            machine.watch(std::process::id() as i32).unwrap();
            let right = until(&mut machine, |seen| {
                let shares = |work| -> Option<TimeShares> {
                    Some(seen.programs[0].threads.iter().find(|t| t.id.tid == tids[work])?.shares)
                };
                let points = || {
                    let (lock, sleep, compute) = (shares("lock")?, shares("sleep")?, shares("compute")?);
                    Some(
                        lock.lock? > 0.9
                            && sleep.sleep? > sleep.lock?
                            && sleep.sleep? > sleep.running()?
                            && compute.running()? + compute.latency? > 0.9
                            && compute.user? > compute.system?,
                    )
                };
                points() == Some(true)
            });
            stop.store(true, Ordering::Relaxed);
            drop(held);
            assert!(right);
        });
    }

    #[test]
    fn machine_known_shares_of_every_thread_add_up_to_1() {
        let mut machine = machine();
        machine.watch(std::process::id() as i32).unwrap();
        let mut seen = 0;
        assert!(until(&mut machine, |snapshot| {
            for thread in &snapshot.programs[0].threads {
                let s = thread.shares;
                if let Some(sum) =
                    [s.user, s.system, s.lock, s.latency, s.sleep].into_iter().sum::<Option<f64>>()
                {
                    assert!((sum - 1.0).abs() < 1e-9, "{s:?}");
                    seen += 1;
                }
                assert!(thread.span_ns <= snapshot.span_ns + 100_000_000);
            }
            seen >= 10
        }));
    }

    #[test]
    fn machine_finds_threads_and_processes_that_come_later() {
        let program = Running::shell("read x; sleep 30 & sleep 30 & wait");
        let mut machine = machine();
        let id = machine.watch(program.pid()).unwrap();
        assert_eq!(machine.observe().unwrap().programs[0].threads.len(), 1);
        std::io::Write::write_all(&mut program.0.stdin.as_ref().unwrap(), b"go\n").unwrap();
        assert!(until(&mut machine, |seen| {
            let pids: HashSet<i32> = seen.programs[0].threads.iter().map(|t| t.pid).collect();
            pids.len() == 3
        }));
        assert!(machine.is_alive(id));
        // The shell's children outlive it otherwise.
        for process in &machine.programs[&id].processes {
            let pid = rustix::process::Pid::from_raw(process.id.tid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    #[test]
    fn machine_program_that_has_ended_is_no_error() {
        let mut program = Running::shell("read x");
        let mut machine = machine();
        let id = machine.watch(program.pid()).unwrap();
        assert!(machine.is_alive(id));
        program.0.kill().unwrap();
        assert!(until(&mut machine, |seen| seen.programs[0].threads.is_empty()));
        assert!(!machine.is_alive(id));
        program.0.wait().unwrap();
        machine.observe().unwrap();
        machine.unwatch(id);
        assert!(machine.observe().unwrap().programs.is_empty());
        assert!(matches!(machine.watch(program.pid()), Err(Error::NoProcess { .. })));
    }

    #[test]
    fn machine_watching_a_part_of_a_program_takes_it_out() {
        let program = Running::shell("sleep 30; read x");
        let mut machine = machine();
        let whole = machine.watch(program.pid()).unwrap();
        let mut child = 0;
        assert!(until(&mut machine, |seen| {
            let other = seen.programs[0].threads.iter().find(|t| t.pid != program.pid());
            child = other.map_or(0, |t| t.pid);
            child != 0
        }));
        let part = machine.watch(child).unwrap();
        let seen = machine.observe().unwrap();
        let threads = |id| seen.programs.iter().find(|p| p.id == id).unwrap().threads.len();
        assert_eq!((threads(whole), threads(part)), (1, 1));
        let pid = rustix::process::Pid::from_raw(child).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }

    #[test]
    fn machine_of_this_host_knows_others_and_bytes() {
        let mut machine = machine();
        machine.watch(std::process::id() as i32).unwrap();
        assert!(until(&mut machine, |seen| {
            seen.host.others_busy.is_some()
                && seen.host.others_runnable.is_some()
                && seen.programs[0].io_bytes.is_some_and(|b| b > 0)
        }));
    }
}
