//! What one observation showed, as it is shown: programs with their sums, and their threads.

use corebeat_machine::{Counters, CpuId, ProgramSample, Snapshot, ThreadSample, TimeShares};
use serde::Serialize;

/// One observation. The book's page `top.md` explains each field.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct Seen {
    pub(crate) span_s: f64,
    pub(crate) cpus: usize,
    /// CPUs kept busy by the programs.
    pub(crate) busy: Option<f64>,
    pub(crate) others_busy: Option<f64>,
    pub(crate) others_runnable: Option<f64>,
    /// CPU time that watching took within the span.
    pub(crate) watching_cpu_s: f64,
    pub(crate) notes: Vec<String>,
    pub(crate) programs: Vec<Program>,
}

/// A program: a named process with its descendants, or one process where nothing was named.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Program {
    pub(crate) pid: i32,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    pub(crate) threads: Vec<Thread>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) cpu: Option<CpuId>,
    pub(crate) span_s: f64,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// What is told of a thread, and of all threads of a program together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(crate) struct Figures {
    /// CPUs kept busy over the whole observation.
    pub(crate) cpus_busy: Option<f64>,
    /// Shares of the time that was watched.
    pub(crate) shares: TimeShares,
    pub(crate) counters: Counters,
}

impl Figures {
    /// Those of threads together, over an observation of `span_ns`. A thread that was watched for no time yet has nothing
    /// to say, not even that it does not know.
    fn of<'a>(threads: impl Iterator<Item = &'a ThreadSample> + Clone, span_ns: u64) -> Figures {
        let watched = threads.filter(|t| t.span_ns > 0);
        let watched_ns: f64 = watched.clone().map(|t| t.span_ns as f64).sum();
        let sum = |share: fn(&TimeShares) -> Option<f64>| {
            let ns = watched.clone().map(|t| share(&t.shares).map(|s| s * t.span_ns as f64));
            ns.sum::<Option<f64>>().filter(|_| watched_ns > 0.0)
        };
        let mean = |share: fn(&TimeShares) -> Option<f64>| sum(share).map(|ns| ns / watched_ns);
        Figures {
            cpus_busy: sum(TimeShares::running).filter(|_| span_ns > 0).map(|ns| ns / span_ns as f64),
            shares: TimeShares {
                user: mean(|s| s.user),
                system: mean(|s| s.system),
                lock: mean(|s| s.lock),
                latency: mean(|s| s.latency),
                sleep: mean(|s| s.sleep),
                spin: mean(|s| s.spin),
            },
            counters: match watched_ns > 0.0 {
                true => watched.fold(Counters::ZERO, |sum, t| sum.plus(&t.counters)),
                false => Counters::default(),
            },
        }
    }
}

impl Program {
    fn new(pid: i32, name: String, threads: &[&ThreadSample], span_ns: u64) -> Self {
        let figures = Figures::of(threads.iter().copied(), span_ns);
        let thread = |t: &&ThreadSample| Thread {
            tid: t.id.tid,
            pid: t.pid,
            name: t.name.clone(),
            cpu: t.cpu,
            span_s: t.span_ns as f64 / 1e9,
            figures: Figures::of(std::iter::once(*t), span_ns),
        };
        Program { pid, name, figures, threads: threads.iter().map(thread).collect() }
    }

    /// A program as the machine has it. `pid` is its first process.
    pub(crate) fn whole(pid: i32, sample: &ProgramSample, span_ns: u64) -> Self {
        Program::new(pid, sample.name.clone(), &sample.threads.iter().collect::<Vec<_>>(), span_ns)
    }

    /// Each process of all programs by itself, this one left out.
    pub(crate) fn by_process(snapshot: &Snapshot) -> Vec<Self> {
        let own = std::process::id() as i32;
        let mut threads: Vec<&ThreadSample> =
            snapshot.programs.iter().flat_map(|p| &p.threads).filter(|t| t.pid != own).collect();
        threads.sort_by_key(|t| (t.pid, t.id));
        let process = |threads: &[&ThreadSample]| {
            let pid = threads[0].pid;
            // The first thread has the process's name; it may have ended before the others.
            let first = threads.iter().find(|t| t.id.tid == pid).unwrap_or(&threads[0]);
            Program::new(pid, first.name.clone(), threads, snapshot.span_ns)
        };
        threads.chunk_by(|a, b| a.pid == b.pid).map(process).collect()
    }

    /// Whether a thread ran, or wanted to. Who may not be known is not called idle.
    pub(crate) fn is_active(&self) -> bool {
        let nothing = |share: Option<f64>| share == Some(0.0);
        !(nothing(self.figures.shares.running()) && nothing(self.figures.shares.latency))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use corebeat_machine::{ProgramId, ThreadId};

    /// A thread that was watched for a second. `shares` are user, system, lock and latency; the rest is sleep.
    pub(crate) fn thread(pid: i32, tid: i32, name: &str, shares: [f64; 4]) -> ThreadSample {
        let [user, system, lock, latency] = shares;
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
                latency: Some(latency),
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

    /// A thread of which nothing is known but that it is there.
    pub(crate) fn stranger(pid: i32, tid: i32) -> ThreadSample {
        let blank = thread(pid, tid, "stranger", [0.0; 4]);
        ThreadSample { shares: TimeShares::default(), counters: Counters::default(), cpu: None, ..blank }
    }

    pub(crate) fn snapshot(threads: Vec<ThreadSample>) -> Snapshot {
        let program = ProgramSample {
            id: ProgramId(0),
            name: "p".into(),
            threads,
            io_bytes: None,
            team: None,
            pulse: None,
        };
        Snapshot { at_ns: 0, span_ns: 1_000_000_000, programs: vec![program], ..Snapshot::default() }
    }

    #[test]
    fn by_process_makes_a_program_of_each() {
        let seen = Program::by_process(&snapshot(vec![
            thread(2, 2, "b", [1.0, 0.0, 0.0, 0.0]),
            thread(1, 1, "a", [0.25, 0.25, 0.0, 0.0]),
            thread(2, 3, "worker", [0.0, 0.0, 1.0, 0.0]),
            thread(std::process::id() as i32, 9, "we", [0.0; 4]),
        ]));
        let rows: Vec<(i32, &str, usize, Option<f64>)> =
            seen.iter().map(|p| (p.pid, &*p.name, p.threads.len(), p.figures.cpus_busy)).collect();
        assert_eq!(rows, [(1, "a", 1, Some(0.5)), (2, "b", 2, Some(1.0))]);
        assert_eq!(seen[1].figures.shares.lock, Some(0.5));
    }

    #[test]
    fn figures_of_a_thread_watched_for_no_time_spoil_nothing() {
        let unborn = ThreadSample { span_ns: 0, ..stranger(1, 2) };
        let known = thread(1, 1, "a", [1.0, 0.0, 0.0, 0.0]);
        let whole = |threads| Program::whole(1, &snapshot(threads).programs[0], 1_000_000_000);
        assert_eq!(whole(vec![known.clone(), unborn.clone()]).figures.cpus_busy, Some(1.0));
        assert_eq!(whole(vec![unborn]).figures, Figures::default());
        assert_eq!(whole(vec![known, stranger(1, 2)]).figures.cpus_busy, None);
    }

    #[test]
    fn program_that_only_sleeps_is_idle_and_an_unknown_one_is_not() {
        let active = |t| Program::whole(1, &snapshot(vec![t]).programs[0], 1).is_active();
        assert!(!active(thread(1, 1, "a", [0.0, 0.0, 1.0, 0.0])));
        assert!(active(thread(1, 1, "a", [0.0, 0.0, 0.0, 0.1])));
        assert!(active(stranger(1, 1)));
    }
}
