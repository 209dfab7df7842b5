//! The figures of one observation: programs with their sums, and their threads.

use crate::process::Process;
use crate::server::Served;
use corebeat_linux::{Function, LinuxMachine, SpinTimes};
use corebeat_machine::{
    Counters, CpuId, ProgramSample, Snapshot, ThreadId, ThreadSample, TimeShares,
};
use serde::Serialize;

/// One observation. The book's page `top.md` explains each field.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct View {
    pub(crate) span_s: f64,
    pub(crate) cpus: usize,
    /// CPUs that the programs kept busy.
    pub(crate) busy: Option<f64>,
    /// CPUs that they kept busy at least: without threads whose times are unknown.
    pub(crate) busy_min: f64,
    pub(crate) others_busy: Option<f64>,
    pub(crate) others_runnable: Option<f64>,
    /// CPU time of this process within the span, in seconds.
    pub(crate) watching_cpu_s: f64,
    pub(crate) notes: Vec<String>,
    pub(crate) programs: Vec<Program>,
}

/// A program: a named process with its descendants, or one process if no process is named.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Program {
    pub(crate) pid: i32,
    pub(crate) name: String,
    /// The first process.
    #[serde(flatten)]
    pub(crate) process: Process,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Its servers, if they show themselves.
    pub(crate) server: Option<Served>,
    pub(crate) threads: Vec<Thread>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    #[serde(skip)]
    pub(crate) start_ticks: u64,
    pub(crate) pid: i32,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) process: Process,
    pub(crate) cpu: Option<CpuId>,
    pub(crate) span_s: f64,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

impl Thread {
    pub(crate) fn id(&self) -> ThreadId {
        ThreadId { tid: self.tid, start_ticks: self.start_ticks }
    }
}

/// Figures of a thread, or of all threads of a program together.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct Figures {
    /// Mean number of busy CPUs over the whole observation.
    pub(crate) cpus_busy: Option<f64>,
    /// The same of the threads whose times are known.
    #[serde(skip)]
    pub(crate) cpus_busy_min: f64,
    /// Shares of the observed time.
    pub(crate) shares: TimeShares,
    /// The function in which the threads spun longest, if they spun.
    pub(crate) spin_function: Option<Function>,
    pub(crate) counters: Counters,
}

impl Figures {
    /// Figures of several threads together, over an observation of `span_ns`. A thread with an
    /// empty span is left out: its unknown values must not make the figures unknown.
    fn of<'a>(threads: impl Iterator<Item = &'a ThreadSample> + Clone, span_ns: u64) -> Figures {
        let watched = threads.filter(|t| t.span_ns > 0);
        let watched_ns: u64 = watched.clone().map(|t| t.span_ns).sum();
        if watched_ns == 0 {
            return Figures::default();
        }
        let sums_ns = watched.clone().fold(TimeShares::ZERO, |sums, t| {
            sums.zip_with(&t.shares, |sum, share| sum + share * t.span_ns as f64)
        });
        let known_ns: f64 = watched
            .clone()
            .filter_map(|t| t.shares.running().map(|share| share * t.span_ns as f64))
            .sum();
        let cpus = |ns: f64| if span_ns > 0 { Some(ns / span_ns as f64) } else { None };
        Figures {
            cpus_busy: sums_ns.running().and_then(cpus),
            // The sum of no numbers is -0.0.
            cpus_busy_min: cpus(known_ns).unwrap_or(0.0) + 0.0,
            shares: sums_ns.divided_by(watched_ns as f64),
            spin_function: None,
            counters: watched.fold(Counters::ZERO, |sum, t| sum.plus(&t.counters)),
        }
    }
}

impl Program {
    fn new(pid: i32, name: String, threads: &[&ThreadSample], span_ns: u64) -> Self {
        let figures = Figures::of(threads.iter().copied(), span_ns);
        let thread = |t: &&ThreadSample| Thread {
            tid: t.id.tid,
            start_ticks: t.id.start_ticks,
            pid: t.pid,
            name: t.name.clone(),
            process: Process::default(),
            cpu: t.cpu,
            span_s: t.span_ns as f64 / 1e9,
            figures: Figures::of(std::iter::once(*t), span_ns),
        };
        let threads = threads.iter().map(thread).collect();
        Program { pid, name, process: Process::default(), figures, server: None, threads }
    }

    /// A program of the machine. `pid` is its first process.
    pub(crate) fn whole(pid: i32, sample: &ProgramSample, span_ns: u64) -> Self {
        Program::new(pid, sample.name.clone(), &sample.threads.iter().collect::<Vec<_>>(), span_ns)
    }

    /// One program for each process of all programs, except this process.
    pub(crate) fn by_process(snapshot: &Snapshot) -> Vec<Self> {
        let own = std::process::id() as i32;
        let mut threads: Vec<&ThreadSample> =
            snapshot.programs.iter().flat_map(|p| &p.threads).filter(|t| t.pid != own).collect();
        threads.sort_by_key(|t| (t.pid, t.id));
        let process = |threads: &[&ThreadSample]| {
            let pid = threads[0].pid;
            // The first thread has the name of the process. It may have ended before the others.
            let first = threads.iter().find(|t| t.id.tid == pid).unwrap_or(&threads[0]);
            Program::new(pid, first.name.clone(), threads, snapshot.span_ns)
        };
        threads.chunk_by(|a, b| a.pid == b.pid).map(process).collect()
    }

    /// Finds the functions in which the threads spun in the last observation of the machine.
    pub(crate) fn find_spin_functions(&mut self, machine: &LinuxMachine) {
        let mut all = SpinTimes::default();
        for thread in &mut self.threads {
            let spin_ns = thread.figures.shares.spin.unwrap_or(0.0) * thread.span_s * 1e9;
            let times = machine.spin_times((spin_ns > 0.0).then_some((thread.id(), spin_ns)));
            thread.figures.spin_function = machine.spin_function(&times);
            all.merge(times);
        }
        self.figures.spin_function = machine.spin_function(&all);
    }

    /// Whether a thread ran or waited for a CPU. A program with unknown shares is active.
    pub(crate) fn is_active(&self) -> bool {
        let is_zero = |share: Option<f64>| share == Some(0.0);
        !(is_zero(self.figures.shares.running()) && is_zero(self.figures.shares.wait))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use corebeat_machine::ProgramId;

    /// A thread that was observed for a second. `shares` are user, system, lock and wait; the rest
    /// is sleep.
    pub(crate) fn thread(pid: i32, tid: i32, name: &str, shares: [f64; 4]) -> ThreadSample {
        let [user, system, lock, wait] = shares;
        ThreadSample {
            id: ThreadId { tid, start_ticks: 1 },
            pid,
            name: name.into(),
            cpu: Some(CpuId(1)),
            span_ns: 1_000_000_000,
            shares: TimeShares {
                user: Some(user),
                system: Some(system),
                lock: Some(lock),
                park: Some(0.0),
                wait: Some(wait),
                sleep: Some(1.0 - shares.iter().sum::<f64>()),
                spin: Some(0.0),
            },
            counters: Counters {
                voluntary_switches: Some(10),
                involuntary_switches: Some(2),
                migrations: Some(1),
                ..Counters::default()
            },
        }
    }

    /// A thread without known values.
    pub(crate) fn unknown_thread(pid: i32, tid: i32) -> ThreadSample {
        let blank = thread(pid, tid, "unknown_thread", [0.0; 4]);
        ThreadSample {
            shares: TimeShares::default(),
            counters: Counters::default(),
            cpu: None,
            ..blank
        }
    }

    pub(crate) fn snapshot(threads: Vec<ThreadSample>) -> Snapshot {
        let program = ProgramSample {
            id: ProgramId(0),
            name: "p".into(),
            threads,
            io_bytes: None,
            team: None,
            progress: None,
        };
        Snapshot {
            at_ns: 0,
            span_ns: 1_000_000_000,
            programs: vec![program],
            ..Snapshot::default()
        }
    }

    #[test]
    fn by_process_makes_one_program_for_each_process() {
        let view = Program::by_process(&snapshot(vec![
            thread(2, 2, "b", [1.0, 0.0, 0.0, 0.0]),
            thread(1, 1, "a", [0.25, 0.25, 0.0, 0.0]),
            thread(2, 3, "worker", [0.0, 0.0, 1.0, 0.0]),
            thread(std::process::id() as i32, 9, "own", [0.0; 4]),
        ]));
        let rows: Vec<(i32, &str, usize, Option<f64>)> =
            view.iter().map(|p| (p.pid, &*p.name, p.threads.len(), p.figures.cpus_busy)).collect();
        assert_eq!(rows, [(1, "a", 1, Some(0.5)), (2, "b", 2, Some(1.0))]);
        assert_eq!(view[1].figures.shares.lock, Some(0.5));
    }

    #[test]
    fn thread_with_an_empty_span_does_not_change_the_figures() {
        let unborn = ThreadSample { span_ns: 0, ..unknown_thread(1, 2) };
        let known = thread(1, 1, "a", [1.0, 0.0, 0.0, 0.0]);
        let whole = |threads| Program::whole(1, &snapshot(threads).programs[0], 1_000_000_000);
        assert_eq!(whole(vec![known.clone(), unborn.clone()]).figures.cpus_busy, Some(1.0));
        assert_eq!(whole(vec![unborn]).figures, Figures::default());
        let in_part = whole(vec![known, unknown_thread(1, 2)]).figures;
        assert_eq!((in_part.cpus_busy, in_part.cpus_busy_min), (None, 1.0));
    }

    #[test]
    fn program_that_only_sleeps_is_idle_and_an_unknown_program_is_active() {
        let active = |t| Program::whole(1, &snapshot(vec![t]).programs[0], 1).is_active();
        assert!(!active(thread(1, 1, "a", [0.0, 0.0, 1.0, 0.0])));
        assert!(active(thread(1, 1, "a", [0.0, 0.0, 0.0, 0.1])));
        assert!(active(unknown_thread(1, 1)));
    }
}
