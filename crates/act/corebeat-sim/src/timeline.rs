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

/// What all CPUs did, from the beginning up to when there were [`SPANS_MAX`] spans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    /// By CPU, in order of time.
    pub cpus: Vec<Vec<Span>>,
    spans: usize,
    /// From when on nothing was kept, in nanoseconds, if there was too much.
    pub cut_ns: Option<u64>,
}

impl Timeline {
    pub(crate) fn new(cpus: usize) -> Self {
        Timeline { cpus: vec![vec![]; cpus], spans: 0, cut_ns: None }
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
