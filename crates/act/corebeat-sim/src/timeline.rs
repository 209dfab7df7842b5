//! Who ran where, and when.

/// No more spans are kept.
pub const SPANS_MAX: usize = 4_000_000;

/// A thread's stay on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// From when, in nanoseconds.
    pub from_ns: u64,
    /// To when.
    pub to_ns: u64,
    /// Which thread, by its place among all of the scenario.
    pub thread: usize,
}

/// What all CPUs did: for people as a picture, and for other tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// Stays by CPU, in order of time.
    pub cpus: Vec<Vec<Span>>,
    /// Each thread's program, by its place, and the thread's name.
    pub threads: Vec<(usize, String)>,
    /// The programs' names.
    pub programs: Vec<String>,
    /// When which phase of which program began, in nanoseconds.
    pub phases: Vec<(u64, usize, String)>,
    /// When it was looked at, in nanoseconds.
    pub end_ns: u64,
    /// From when on nothing was kept, if there were more than [`SPANS_MAX`] stays.
    pub cut_ns: Option<u64>,
}

/// What is written down while time passes.
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
