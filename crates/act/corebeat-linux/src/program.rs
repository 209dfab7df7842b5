//! A watched program: its processes and threads, and the search for new ones.

use crate::counter::{Counting, DESCRIPTORS_PER_COUNTER};
use crate::file::{Buffer, field};
use crate::process::{self, Children, Process, Progress, Sums};
use crate::thread::{
    self, DESCRIPTORS_PER_THREAD, Observed, Thread, WaitParts, WaitSamples, clock_ns, now_ns,
};
use corebeat_machine::{ThreadId, ThreadRow, ThreadSample, ThreadTable};
use rustix::time::ClockId;
use std::collections::{HashMap, HashSet};
use std::fs::File;

/// Resources for reading the files of threads.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) buffer: Buffer,
    /// Counters of single threads, if these are available.
    pub(crate) counting: Option<Counting>,
    /// Number of descriptors that may still be kept open.
    pub(crate) descriptors_left: usize,
    /// Table in which the kernel counts threads.
    pub(crate) table: Option<Box<dyn ThreadTable>>,
    /// Why the table has refused a thread, the first time.
    pub(crate) table_refusal: Option<String>,
}

impl Reader {
    /// Returns whether the files of one more thread may be kept open, and reserves descriptors.
    fn keep(&mut self) -> bool {
        let left = self.descriptors_left.checked_sub(self.descriptors_per_thread());
        self.descriptors_left = left.unwrap_or(self.descriptors_left);
        left.is_some()
    }

    /// Copies the counts of all threads to the table of the kernel, if there is one.
    pub(crate) fn refresh_table(&mut self) {
        if let Some(Err(why)) = self.table.as_mut().map(|table| table.refresh()) {
            self.table_refusal.get_or_insert(why);
        }
    }

    /// Adds a thread to the table of the kernel, if there is one. Files replace a missing row.
    fn row(&mut self, tid: i32) -> Option<Box<dyn ThreadRow>> {
        let table = self.table.as_mut()?;
        match table.add(tid) {
            Ok(row) => Some(row),
            Err(why) => {
                self.table_refusal.get_or_insert(why);
                None
            }
        }
    }

    pub(crate) fn descriptors_per_thread(&self) -> usize {
        DESCRIPTORS_PER_THREAD + if self.counting.is_some() { DESCRIPTORS_PER_COUNTER } else { 0 }
    }
}

/// Start of accounting for threads that are found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Since {
    /// Now: the program ran before it was watched. Its accounting starts anew.
    Now,
    /// The start of the thread, or this time on the monotonic clock if that is later.
    Birth(u64),
}

/// Known threads whose processes and children a walk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All threads.
    All,
    /// Threads that ran in one of the last [`QUIET_SPANS`]: others have started no thread by then.
    Awake,
}

/// Number of spans after which a thread that slept has started none that is still unknown. A search
/// concerns numbers that were assigned since the last observation but one, which began before it
/// read the thread: in the span that this reading ended, or in the two that followed.
const QUIET_SPANS: u32 = 3;

impl Since {
    fn apply(self, thread: &mut Thread) {
        if let Since::Birth(since_ns) = self {
            let start_ns =
                thread.id.start_ticks.saturating_mul(1_000_000_000 / thread::ticks_per_s());
            thread.count_from_birth(start_ns.saturating_sub(boot_ahead_ns()).max(since_ns));
        }
    }
}

/// Returns by how much the boot clock, in which the kernel reports starts of threads, is ahead of
/// the monotonic clock: the time in which the host was suspended.
fn boot_ahead_ns() -> u64 {
    clock_ns(ClockId::Boottime).saturating_sub(now_ns())
}

/// Processes of a program that run, and CPU times as the kernel accounts them, in steps of a clock
/// tick.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Remaining {
    /// Number of processes that run.
    pub processes: usize,
    /// CPU time of these processes, in seconds.
    pub cpu_s: f64,
    /// Observed CPU time of all processes of the program, in seconds: at most the true value.
    pub program_cpu_s: f64,
    /// Whether a process of the program has ignored SIGCHLD. The kernel accounts the CPU time of
    /// its ended children nowhere.
    pub discards_children: bool,
}

/// A watched program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) processes: Vec<Process>,
    /// CPU time of all processes so far, with those that have ended, in clock ticks.
    cpu_ticks: u64,
    /// Whether a process has ignored SIGCHLD.
    discards_children: bool,
    /// Whether children of this process that belong to no other program belong to this program, as
    /// its orphans.
    pub(crate) takes_orphans: bool,
    /// User whose threads actions may change; `None` for all users.
    pub(crate) owner: Option<u32>,
}

/// A thread that was found: the position of its process, and its number.
pub(crate) type Found = (usize, i32);

impl Program {
    /// Creates a program of one process that has not been read yet.
    pub(crate) fn new(name: String, process: Process, takes_orphans: bool) -> Self {
        Program {
            name,
            processes: vec![process],
            cpu_ticks: 0,
            discards_children: false,
            takes_orphans,
            owner: None,
        }
    }

    pub(crate) fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.processes.iter().flat_map(|p| p.threads.values())
    }

    pub(crate) fn threads_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        self.processes.iter_mut().flat_map(|p| p.threads.values_mut())
    }

    /// Returns whether a process of the program still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.processes.iter().any(Process::is_alive)
    }

    /// Removes a process from the program, if it belongs to the program.
    pub(crate) fn take(&mut self, wanted: ThreadId) -> Option<Process> {
        let place = self.processes.iter().position(|p| p.id == wanted)?;
        Some(self.processes.remove(place))
    }

    /// Starts to watch a process, without its threads. `None` if the process has ended.
    pub(crate) fn add_process(&mut self, pid: i32, reader: &mut Reader) -> Option<usize> {
        self.processes.push(Process::open(pid, reader.keep()).ok()?);
        Some(self.processes.len() - 1)
    }

    /// Starts to watch a thread, unless it is watched already or has ended.
    pub(crate) fn add_thread(
        &mut self,
        place: usize,
        tid: i32,
        since: Since,
        reader: &mut Reader,
    ) -> Option<Found> {
        let process = &mut self.processes[place];
        if process.threads.contains_key(&tid) {
            return None;
        }
        let keep = reader.keep();
        let counter = reader.counting.filter(|_| keep).and_then(|c| c.thread(tid));
        let row = reader.row(tid);
        let buffer = &mut reader.buffer;
        let mut thread = Thread::open(process.id.tid, tid, keep, counter, row, buffer)?;
        // A process that is still alive has kept its number: the thread belongs to this process and
        // not to a later one.
        if !process.is_alive() {
            return None;
        }
        since.apply(&mut thread);
        process.threads.insert(tid, thread);
        Some((place, tid))
    }

    /// Finds new threads and processes by walking over the known ones. Processes in `claimed`
    /// belong to a program already; processes that are found are added to the set.
    pub(crate) fn walk(
        &mut self,
        claimed: &mut HashSet<i32>,
        children: &Children,
        since: Since,
        reach: Reach,
        reader: &mut Reader,
    ) -> Vec<Found> {
        if self.takes_orphans {
            let own = std::process::id() as i32;
            self.claim(children.of(own, &process::threads(own)), claimed, reader);
        }
        let mut found = Vec::new();
        let mut place = 0;
        while let Some(process) = self.processes.get_mut(place) {
            if let Since::Now = since {
                // Progress counts from now.
                process.count_from_now(&mut reader.buffer);
            }
            let skips = |thread: &Thread| reach == Reach::Awake && thread.is_quiet_for(QUIET_SPANS);
            if !process.threads.is_empty() && process.threads.values().all(skips) {
                place += 1;
                continue;
            }
            let pid = process.id.tid;
            let mut tids = process::threads(pid);
            found.extend(tids.iter().filter_map(|&tid| self.add_thread(place, tid, since, reader)));
            let threads = &self.processes[place].threads;
            tids.retain(|tid| !threads.get(tid).is_some_and(skips));
            let children = children.of(pid, &tids);
            // Ignore children of a later process with this number.
            if self.processes[place].is_alive() {
                self.claim(children, claimed, reader);
            }
            place += 1;
        }
        found
    }

    fn claim(&mut self, pids: Vec<i32>, claimed: &mut HashSet<i32>, reader: &mut Reader) {
        for pid in pids {
            if claimed.insert(pid) {
                self.add_process(pid, reader);
            }
        }
    }

    /// Returns the parts of blocked time, from the samples of all threads.
    pub(crate) fn wait_parts(&self) -> Option<WaitParts> {
        self.threads()
            .map(Thread::wait_samples)
            .fold(WaitSamples::default(), WaitSamples::plus)
            .parts()
    }

    /// Returns what the threads did since the last observation, and removes those that have ended.
    /// `full` returns whether a thread that did not sleep all the time is to be read in full.
    pub(crate) fn observe(
        &mut self,
        mut full: impl FnMut() -> bool,
        buffer: &mut Buffer,
    ) -> Vec<ThreadSample> {
        let parts = self.wait_parts();
        let mut samples = Vec::new();
        for process in &mut self.processes {
            process.threads.retain(|_, thread| {
                let full = thread.is_quiet() || full();
                match thread.observe(full, parts, buffer) {
                    Observed::Alive(sample) => {
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

    /// Returns what threads that were found just now did since the start of their accounting.
    pub(crate) fn observe_found(
        &mut self,
        found: &[Found],
        buffer: &mut Buffer,
    ) -> Vec<ThreadSample> {
        let parts = self.wait_parts();
        let sample = |&(place, tid): &Found| {
            let thread = self.processes.get_mut(place)?.threads.get_mut(&tid)?;
            match thread.observe(true, parts, buffer) {
                Observed::Alive(sample) => Some(sample),
                Observed::Ended(sample) => sample,
            }
        };
        found.iter().filter_map(sample).collect()
    }

    /// Returns the progress of all processes since the last call. Removes processes that are gone,
    /// and adds their sums to those of their parents in `settled`.
    pub(crate) fn progress(
        &mut self,
        settled: &mut HashMap<i32, Sums>,
        buffer: &mut Buffer,
    ) -> Progress {
        /// Number of readings. A process that is gone after a reading may be part of the sums that
        /// were read, or not.
        const READINGS_MAX: u32 = 4;
        self.settle(settled);
        for _ in 0..READINGS_MAX {
            self.processes.iter_mut().for_each(|process| process.read(buffer));
            if !self.settle(settled) {
                break;
            }
        }
        self.processes.retain(|process| !process.is_settled || !process.threads.is_empty());
        let progress = |process: &mut Process| {
            process.progress(settled.remove(&process.id.tid).unwrap_or_default())
        };
        let progress = self.processes.iter_mut().map(progress).fold(Progress::NONE, Progress::plus);
        self.cpu_ticks = self.cpu_ticks.saturating_add(progress.cpu_ticks);
        self.discards_children |= self.processes.iter().any(|p| p.discards_children);
        progress
    }

    /// Adds what has counted of processes that are gone to `settled`, by parent. Returns whether
    /// there was one. A process that has ended keeps its sums until its parent waits for it.
    fn settle(&mut self, settled: &mut HashMap<i32, Sums>) -> bool {
        let mut any = false;
        // Children come before their parents, which may be gone as well.
        for process in self.processes.iter_mut().rev().filter(|p| !p.is_settled) {
            if !process.is_alive() && process::is_gone(process.id) {
                let of_children = settled.remove(&process.id.tid).unwrap_or_default();
                let sums = settled.entry(process.parent).or_default();
                *sums = sums.plus(process.settle()).plus(of_children);
                any = true;
            }
        }
        any
    }

    /// Returns the processes that run, and CPU times so far. Call it after the last observation.
    pub(crate) fn remaining(&mut self, buffer: &mut Buffer) -> Remaining {
        self.processes.retain(Process::is_alive);
        self.processes.iter_mut().for_each(|p| p.count_from_now(buffer));
        let ticks = self.processes.iter().map(|p| p.sums().cpu_ticks());
        let seconds = |ticks: u64| ticks as f64 / thread::ticks_per_s() as f64;
        Remaining {
            processes: self.processes.len(),
            cpu_s: seconds(ticks.fold(0, u64::saturating_add)),
            program_cpu_s: seconds(self.cpu_ticks),
            discards_children: self.discards_children,
        }
    }
}

/// A new thread, with its process and the parent of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewThread {
    pub(crate) tid: i32,
    pub(crate) pid: i32,
    pub(crate) parent: i32,
}

impl NewThread {
    /// Reads a thread by its number. `None` if it has ended or is hidden.
    pub(crate) fn read(tid: i32, buffer: &mut Buffer) -> Option<Self> {
        let (pid, parent) =
            parse_family(&buffer.read(&File::open(format!("/proc/{tid}/status")).ok()?).ok()?)?;
        Some(NewThread { tid, pid, parent })
    }
}

/// Parses `Tgid` and `PPid` from the text of `/proc/TID/status`.
fn parse_family(text: &str) -> Option<(i32, i32)> {
    let value = |name: &str| field(text, name)?.parse().ok();
    Some((value("Tgid:")?, value("PPid:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn newcomer_of_this_thread_belongs_to_this_process() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let new_thread = NewThread::read(tid, &mut Buffer::new()).unwrap();
        assert_eq!(new_thread.pid, std::process::id() as i32);
        assert_eq!(
            Some(new_thread.parent),
            rustix::process::getppid().map(|p| p.as_raw_nonzero().get())
        );
        assert_eq!(NewThread::read(i32::MAX, &mut Buffer::new()), None);
    }

    proptest! {
        #[test]
        fn family_parser_never_panics(text in "(Tgid:|PPid:|\t|\n|[0-9]|\\PC){0,20}") {
            let _ = parse_family(&text);
        }
    }
}
