//! The record of which thread ran on which CPU.

/// Maximum number of recorded spans.
pub const SPANS_MAX: usize = 4_000_000;

/// A stay of a thread on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Start in nanoseconds.
    pub from_ns: u64,
    /// End in nanoseconds.
    pub to_ns: u64,
    /// The thread's number among all threads of the scenario.
    pub thread: usize,
}

/// The record of all CPUs, which can be drawn ([`svg`](Timeline::svg)) and exported
/// ([`write_chrome`](Timeline::write_chrome)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// Stays by CPU, in order of time.
    pub cpus: Vec<Vec<Span>>,
    /// Program number and name of each thread.
    pub threads: Vec<(usize, String)>,
    /// Names of the programs.
    pub programs: Vec<String>,
    /// Start in nanoseconds, program number and name of each phase.
    pub phases: Vec<(u64, usize, String)>,
    /// End of the record in nanoseconds.
    pub end_ns: u64,
    /// Time in nanoseconds from which stays are missing, if there were more than [`SPANS_MAX`].
    pub cut_ns: Option<u64>,
}

/// The spans that are recorded during a simulation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    pub(crate) cpus: Vec<Vec<Span>>,
    spans: usize,
    pub(crate) cut_ns: Option<u64>,
}

impl Record {
    pub(crate) fn new(cpus: usize) -> Self {
        Record { cpus: vec![vec![]; cpus], spans: 0, cut_ns: None }
    }

    pub(crate) fn add(&mut self, cpu: usize, from_ns: u64, to_ns: u64, thread: usize) {
        if from_ns == to_ns || self.cut_ns.is_some() {
            return;
        }
        let spans = &mut self.cpus[cpu];
        if let Some(last) = spans.last_mut().filter(|s| s.to_ns == from_ns && s.thread == thread) {
            last.to_ns = to_ns;
            return;
        }
        if self.spans == SPANS_MAX {
            self.cut_ns = Some(from_ns);
            return;
        }
        self.spans += 1;
        spans.push(Span { from_ns, to_ns, thread });
    }
}

#[cfg(test)]
pub(crate) mod sample {
    //! A timeline for tests.

    use super::*;

    /// Two CPUs, two threads of two programs, 10 µs; the second CPU idles in the middle.
    pub(crate) fn timeline() -> Timeline {
        let mut record = Record::new(2);
        record.add(0, 0, 6_000, 0);
        record.add(0, 6_000, 10_000, 1);
        record.add(1, 0, 2_000, 1);
        record.add(1, 8_000, 9_000, 0);
        record.add(1, 9_000, 10_000, 0);
        Timeline {
            cpus: record.cpus,
            threads: vec![(0, "thread \"0\"".into()), (1, "thread 0".into())],
            programs: vec!["a<b".into(), "c".into()],
            phases: vec![(5_000, 1, "solve".into())],
            end_ns: 10_000,
            cut_ns: None,
        }
    }
}
