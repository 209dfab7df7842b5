//! A watched program: its processes, and how new ones are found.

use crate::counter::{Counting, DESCRIPTORS_PER_COUNTER};
use crate::file::Buffer;
use crate::process::{self, Children, Process};
use crate::thread::{self, DESCRIPTORS_PER_THREAD, LookFile, Looks, Observed, Thread, now_ns};
use corebeat_machine::{ThreadId, ThreadSample};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::fs::File;

/// What looking at a program takes.
#[derive(Debug)]
pub(crate) struct Senses {
    pub(crate) buffer: Buffer,
    pub(crate) look_file: LookFile,
    /// How threads are counted, if they are.
    pub(crate) counting: Option<Counting>,
    /// How many more descriptors may be kept open.
    pub(crate) descriptors_left: usize,
}

impl Senses {
    /// Whether the files of one more thread are kept open.
    fn keep(&mut self) -> bool {
        let left = self.descriptors_left.checked_sub(self.descriptors_per_thread());
        self.descriptors_left = left.unwrap_or(self.descriptors_left);
        left.is_some()
    }

    pub(crate) fn descriptors_per_thread(&self) -> usize {
        DESCRIPTORS_PER_THREAD + if self.counting.is_some() { DESCRIPTORS_PER_COUNTER } else { 0 }
    }
}

/// From when on threads that are found are accounted for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Since {
    /// From now: the program was there before anybody watched it.
    Now,
    /// From their birth, or from this moment on the monotonic clock if that was later.
    Birth(u64),
}

impl Since {
    fn apply(self, thread: &mut Thread) {
        if let Since::Birth(since_ns) = self {
            let start_ns = thread.id.start_ticks.saturating_mul(1_000_000_000 / thread::ticks_per_s());
            thread.count_from_birth(start_ns.saturating_sub(boot_ahead_ns()).max(since_ns));
        }
    }
}

/// How far the boot clock, which thread starts are told in, is ahead of the monotonic one: the time spent suspended.
fn boot_ahead_ns() -> u64 {
    let boot = clock_gettime(ClockId::Boottime);
    (boot.tv_sec as u64 * 1_000_000_000 + boot.tv_nsec as u64).saturating_sub(now_ns())
}

/// A watched program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) processes: Vec<Process>,
    /// Children of Corebeat itself that nobody else claims belong to this program: its orphans.
    pub(crate) takes_orphans: bool,
    /// Whose threads may be acted upon; everybody's where nothing is said.
    pub(crate) owner: Option<u32>,
    /// How many of the processes were there at the last observation.
    known: usize,
}

/// A thread that was found: the place of its process, and its number.
pub(crate) type Found = (usize, i32);

impl Program {
    /// A program of one process that has not been looked at.
    pub(crate) fn new(name: String, process: Process, takes_orphans: bool) -> Self {
        Program { name, processes: vec![process], takes_orphans, owner: None, known: 1 }
    }

    pub(crate) fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.processes.iter().flat_map(|p| p.threads.values())
    }

    pub(crate) fn threads_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        self.processes.iter_mut().flat_map(|p| p.threads.values_mut())
    }

    /// The process, out of this program if it belongs to it.
    pub(crate) fn take(&mut self, wanted: ThreadId) -> Option<Process> {
        let place = self.processes.iter().position(|p| p.id == wanted)?;
        // Those behind it move up.
        self.known -= usize::from(place < self.known);
        Some(self.processes.remove(place))
    }

    /// Begins to watch a process, without its threads. One that has ended meanwhile is none.
    pub(crate) fn add_process(&mut self, pid: i32, senses: &mut Senses) -> Option<usize> {
        self.processes.push(Process::open(pid, senses.keep()).ok()?);
        Some(self.processes.len() - 1)
    }

    /// Begins to watch a thread, unless it is watched or has ended.
    pub(crate) fn add_thread(
        &mut self,
        place: usize,
        tid: i32,
        since: Since,
        senses: &mut Senses,
    ) -> Option<Found> {
        let process = &mut self.processes[place];
        if process.threads.contains_key(&tid) {
            return None;
        }
        let keep = senses.keep();
        let counter = senses.counting.filter(|_| keep).and_then(|c| c.thread(tid));
        let buffer = &mut senses.buffer;
        let mut thread = Thread::open(process.id.tid, tid, senses.look_file, keep, counter, buffer)?;
        // Alive still, so that its number has been its own up to now: this is no thread of a later process.
        if !process.is_alive() {
            return None;
        }
        since.apply(&mut thread);
        process.threads.insert(tid, thread);
        Some((place, tid))
    }

    /// Looks for new threads and processes by walking over those that are known. Processes in `claimed` belong to
    /// somebody; what is found is added to them.
    pub(crate) fn walk(
        &mut self,
        claimed: &mut HashSet<i32>,
        children: &Children,
        since: Since,
        senses: &mut Senses,
    ) -> Vec<Found> {
        if self.takes_orphans {
            let own = std::process::id() as i32;
            self.claim(children.of(own, &process::threads(own)), claimed, senses);
        }
        let mut found = Vec::new();
        let mut place = 0;
        while let Some(process) = self.processes.get_mut(place) {
            if let Since::Now = since {
                // Progress is counted from here.
                process.progress(false, &mut senses.buffer);
            } else if !process.threads.is_empty() && process.threads.values().all(Thread::is_quiet) {
                // Who slept has started nobody.
                place += 1;
                continue;
            }
            let pid = process.id.tid;
            let mut tids = process::threads(pid);
            found.extend(tids.iter().filter_map(|&tid| self.add_thread(place, tid, since, senses)));
            let threads = &self.processes[place].threads;
            tids.retain(|tid| !threads.get(tid).is_some_and(Thread::is_quiet));
            let children = children.of(pid, &tids);
            // As for threads: the children of a later process of this number are nobody's.
            if self.processes[place].is_alive() {
                self.claim(children, claimed, senses);
            }
            place += 1;
        }
        found
    }

    fn claim(&mut self, pids: Vec<i32>, claimed: &mut HashSet<i32>, senses: &mut Senses) {
        for pid in pids {
            if claimed.insert(pid) {
                self.add_process(pid, senses);
            }
        }
    }

    /// What part of blocked time is lock time, by the looks at all threads.
    pub(crate) fn lock_part(&self) -> Option<f64> {
        self.threads().map(Thread::looks).fold(Looks::default(), Looks::plus).lock_part()
    }

    /// What the threads did since the last observation. Those that have ended are no longer watched. `full` says which of
    /// those that have not slept all the time are to be read in full.
    pub(crate) fn observe(
        &mut self,
        mut full: impl FnMut() -> bool,
        buffer: &mut Buffer,
    ) -> Vec<ThreadSample> {
        let lock_part = self.lock_part();
        let mut samples = Vec::new();
        for process in &mut self.processes {
            process.threads.retain(|_, thread| {
                let full = thread.is_quiet() || full();
                match thread.observe(full, lock_part, buffer) {
                    Observed::Lives(sample) => {
                        samples.push(sample);
                        true
                    }
                    Observed::Ended(sample) => {
                        samples.extend(sample);
                        false
                    }
                }
            });
        }
        samples
    }

    /// What threads that have just been found did since they are accounted for.
    pub(crate) fn observe_found(&mut self, found: &[Found], buffer: &mut Buffer) -> Vec<ThreadSample> {
        let lock_part = self.lock_part();
        let sample = |&(place, tid): &Found| {
            let thread = self.processes.get_mut(place)?.threads.get_mut(&tid)?;
            match thread.observe(true, lock_part, buffer) {
                Observed::Lives(sample) => Some(sample),
                Observed::Ended(sample) => sample,
            }
        };
        found.iter().filter_map(sample).collect()
    }

    /// Bytes that the processes have read and written and their CPU time in clock ticks, since the last call. Processes
    /// that have ended are no longer watched.
    pub(crate) fn progress(&mut self, buffer: &mut Buffer) -> (Option<u64>, u64) {
        let (mut io_bytes, mut cpu_ticks) = (Some(0u64), 0u64);
        for (place, process) in self.processes.iter_mut().enumerate() {
            let progress = process.progress(place >= self.known, buffer);
            cpu_ticks = progress.cpu_ticks.saturating_add(cpu_ticks);
            io_bytes = match progress.io_bytes {
                Some(bytes) => io_bytes.map(|sum| sum.saturating_add(bytes)),
                None if process.hides_io() => None,
                None => io_bytes,
            };
        }
        self.processes.retain(|p| !p.threads.is_empty() || p.is_alive());
        self.known = self.processes.len();
        (io_bytes, cpu_ticks)
    }
}

/// What a number that was newly given out stands for: its process and that process's parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Newcomer {
    pub(crate) tid: i32,
    pub(crate) pid: i32,
    pub(crate) parent: i32,
}

impl Newcomer {
    /// `None` if it has ended, or is hidden.
    pub(crate) fn read(tid: i32, buffer: &mut Buffer) -> Option<Self> {
        let (pid, parent) =
            parse_family(&buffer.read(&File::open(format!("/proc/{tid}/status")).ok()?).ok()?)?;
        Some(Newcomer { tid, pid, parent })
    }
}

/// `Tgid` and `PPid` from the text of `/proc/TID/status`.
fn parse_family(text: &str) -> Option<(i32, i32)> {
    let value = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok());
    Some((value("Tgid:")?, value("PPid:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn newcomer_of_this_thread_belongs_to_this_process() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let newcomer = Newcomer::read(tid, &mut Buffer::new()).unwrap();
        assert_eq!(newcomer.pid, std::process::id() as i32);
        assert_eq!(Some(newcomer.parent), rustix::process::getppid().map(|p| p.as_raw_nonzero().get()));
        assert_eq!(Newcomer::read(i32::MAX, &mut Buffer::new()), None);
    }

    proptest! {
        #[test]
        fn family_parser_never_panics(text in "(Tgid:|PPid:|\t|\n|[0-9]|\\PC){0,20}") {
            let _ = parse_family(&text);
        }
    }
}
