//! Sums over all snapshots of a loop.

use corebeat_linux::Usage;
use corebeat_machine::{
    AppliedAction, Counters, ProgramId, ProgramSample, Snapshot, ThreadId, TimeShares,
};
use std::collections::{BTreeMap, BTreeSet};

/// Largest share of the thread time whose blocked time of unknown cause counts as sleep.
const UNKNOWN_MAX: f64 = 0.01;

/// Sums over all snapshots since the loop started, and all applied actions.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// CPUs that other programs kept busy, times nanoseconds, and the nanoseconds for which the
    /// value was known.
    others_busy: (f64, u64),
    /// Sums by program.
    pub programs: BTreeMap<ProgramId, ProgramTally>,
    /// Applied and refused actions, in order.
    pub applied: Vec<AppliedAction>,
    /// Largest number of threads of all programs in one snapshot.
    threads_max: usize,
}

/// Sums over all snapshots of one program.
#[derive(Debug, Clone)]
pub struct ProgramTally {
    /// Threads of the last snapshot, and the number of all threads so far. The set of all threads
    /// is not kept: some programs start thousands of threads a second.
    threads: BTreeSet<ThreadId>,
    threads_seen: usize,
    /// Largest number of threads in one snapshot.
    pub threads_max: usize,
    /// Thread time: the sum of the spans of all threads, in nanoseconds.
    pub thread_ns: u64,
    /// Sum of share times span for each share, in nanoseconds; `None` once the share of a thread
    /// was unknown.
    sums_ns: TimeShares,
    /// Blocked time of unknown cause, in nanoseconds. The sums of `lock`, `park` and `sleep`
    /// exclude this time.
    unknown_ns: f64,
    /// Sums of the counters; `None` once the counter of a thread was unknown.
    pub counters: Counters,
    /// Bytes read and written by system calls.
    pub io_bytes: Option<u64>,
    /// Number of executed OpenMP parallel regions, and their time in nanoseconds, by team size.
    pub regions: BTreeMap<u32, (u64, u64)>,
}

impl Tally {
    /// Adds a snapshot.
    pub(crate) fn add(&mut self, snapshot: &Snapshot) {
        if let Some(busy) = snapshot.host.others_busy {
            self.others_busy.0 += busy * snapshot.span_ns as f64;
            self.others_busy.1 += snapshot.span_ns;
        }
        let threads = snapshot.programs.iter().map(|program| program.threads.len()).sum();
        self.threads_max = self.threads_max.max(threads);
        for program in &snapshot.programs {
            self.programs.entry(program.id).or_insert_with(ProgramTally::new).add(program);
        }
    }

    /// Mean number of CPUs that other programs kept busy; `None` if the value was never known.
    pub fn others_busy(&self) -> Option<f64> {
        (self.others_busy.1 > 0).then(|| self.others_busy.0 / self.others_busy.1 as f64)
    }

    /// Sums over these programs; `None` if no snapshot contained one of them.
    pub(crate) fn total(&self, ids: impl Iterator<Item = ProgramId>) -> Option<ProgramTally> {
        let mut programs = ids.filter_map(|id| self.programs.get(&id));
        let mut total = programs.next()?.clone();
        programs.for_each(|program| total.merge(program));
        total.threads_max = self.threads_max;
        Some(total)
    }
}

impl ProgramTally {
    fn new() -> Self {
        ProgramTally {
            threads: BTreeSet::new(),
            threads_seen: 0,
            threads_max: 0,
            thread_ns: 0,
            sums_ns: TimeShares::ZERO,
            unknown_ns: 0.0,
            counters: Counters::ZERO,
            io_bytes: Some(0),
            regions: BTreeMap::new(),
        }
    }

    fn add(&mut self, program: &ProgramSample) {
        self.threads_max = self.threads_max.max(program.threads.len());
        let threads: BTreeSet<ThreadId> = program.threads.iter().map(|t| t.id).collect();
        self.threads_seen += threads.difference(&self.threads).count();
        self.threads = threads;
        for thread in &program.threads {
            // A thread with an empty span has no shares. Its unknown values must not make the sums
            // unknown.
            if thread.span_ns == 0 {
                continue;
            }
            self.thread_ns += thread.span_ns;
            let (span, mut shares) = (thread.span_ns as f64, thread.shares);
            if let (None, Some(blocked)) = (shares.sleep, shares.blocked()) {
                self.unknown_ns += blocked * span;
                (shares.lock, shares.park, shares.sleep) = (Some(0.0), Some(0.0), Some(0.0));
            }
            self.sums_ns = self.sums_ns.zip_with(&shares, |sum, share| sum + share * span);
            self.counters = self.counters.plus(&thread.counters);
        }
        self.io_bytes = self.io_bytes.zip(program.io_bytes).map(|(a, b)| a.saturating_add(b));
        for region in program.team.iter().flat_map(|t| &t.regions) {
            let sum = self.regions.entry(region.size).or_default();
            sum.0 = sum.0.saturating_add(region.count);
            sum.1 = sum.1.saturating_add(region.time_ns);
        }
    }

    /// Adds the sums of another program.
    fn merge(&mut self, other: &ProgramTally) {
        self.threads_seen += other.threads_seen;
        self.thread_ns += other.thread_ns;
        self.unknown_ns += other.unknown_ns;
        self.sums_ns = self.sums_ns.zip_with(&other.sums_ns, |a, b| a + b);
        self.counters = self.counters.plus(&other.counters);
        self.io_bytes = self.io_bytes.zip(other.io_bytes).map(|(a, b)| a.saturating_add(b));
        for (&size, &(count, time_ns)) in &other.regions {
            let sum = self.regions.entry(size).or_default();
            sum.0 = sum.0.saturating_add(count);
            sum.1 = sum.1.saturating_add(time_ns);
        }
    }

    /// Sums with these shares of one second.
    #[cfg(test)]
    pub(crate) fn with_shares(shares: TimeShares) -> ProgramTally {
        let sums_ns = shares.zip_with(&shares, |share, _| share * 1e9);
        ProgramTally { thread_ns: 1_000_000_000, sums_ns, ..ProgramTally::new() }
    }

    /// This CPU time, in seconds, divided by the observed shares, and bytes. Switches are not
    /// included.
    pub(crate) fn usage(&self, cpu_s: f64) -> Usage {
        let shares = self.shares();
        let part = |share: Option<f64>| Some(share? / shares.running().filter(|&r| r > 0.0)?);
        let system_s = part(shares.system).unwrap_or(0.0) * cpu_s;
        Usage { user_s: cpu_s - system_s, system_s, io_bytes: self.io_bytes, ..Usage::NONE }
    }

    /// Observed CPU time, in seconds; 0 if unknown.
    pub(crate) fn running_s(&self) -> f64 {
        self.shares().running().unwrap_or(0.0) * self.thread_ns as f64 / 1e9
    }

    /// Number of different threads in all snapshots.
    pub fn threads_seen(&self) -> usize {
        self.threads_seen
    }

    /// Mean shares over all thread time. A share is `None` if it was unknown for a thread, or if
    /// there was no thread.
    ///
    /// Blocked time of unknown cause is attributed to `lock`, `park` and `sleep` in proportion to
    /// the time of known cause, if that time is at least as long. Otherwise, at most 1% of the
    /// thread time counts as sleep, and more makes these shares `None`.
    pub fn shares(&self) -> TimeShares {
        if self.thread_ns == 0 {
            return TimeShares::default();
        }
        let TimeShares { lock, park, sleep, .. } = self.sums_ns;
        let known_ns: Option<f64> = [lock, park, sleep].into_iter().sum();
        let known_ns = known_ns.unwrap_or(0.0);
        let (lock, park, sleep) = if self.unknown_ns == 0.0 {
            (lock, park, sleep)
        } else if self.unknown_ns <= known_ns {
            let whole = |part: Option<f64>| part.map(|p| p * (1.0 + self.unknown_ns / known_ns));
            (whole(lock), whole(park), whole(sleep))
        } else if self.unknown_ns <= UNKNOWN_MAX * self.thread_ns as f64 {
            (lock, park, sleep.map(|s| s + self.unknown_ns))
        } else {
            (None, None, None)
        };
        TimeShares { lock, park, sleep, ..self.sums_ns }.divided_by(self.thread_ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::ThreadSample;
    use proptest::prelude::*;

    fn snapshot(span_ns: u64, lock: Option<f64>) -> Snapshot {
        let thread = ThreadSample {
            id: ThreadId { tid: 1, start_ticks: 1 },
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns,
            shares: TimeShares {
                lock,
                park: lock.map(|_| 0.0),
                sleep: lock.map(|l| 1.0 - l),
                ..TimeShares::default()
            },
            counters: Counters { migrations: Some(2), ..Counters::default() },
        };
        let program = ProgramSample {
            id: ProgramId(0),
            name: "p".into(),
            threads: vec![thread],
            io_bytes: Some(5),
            team: None,
            progress: None,
        };
        Snapshot { at_ns: span_ns, span_ns, programs: vec![program], ..Snapshot::default() }
    }

    proptest! {
        #[test]
        fn tally_of_many_spans_equals_one_long_span(
            spans in proptest::collection::vec((1u64..1_000_000_000, 0.0f64..=1.0), 1..20)
        ) {
            let mut tally = Tally::default();
            spans.iter().for_each(|&(ns, lock)| tally.add(&snapshot(ns, Some(lock))));
            let whole: u64 = spans.iter().map(|s| s.0).sum();
            let locked: f64 = spans.iter().map(|s| s.0 as f64 * s.1).sum();
            let p = &tally.programs[&ProgramId(0)];
            prop_assert!((p.shares().lock.unwrap() - locked / whole as f64).abs() < 1e-9);
            prop_assert_eq!(p.counters.migrations, Some(2 * spans.len() as u64));
            prop_assert_eq!(p.threads_seen(), 1);
        }
    }

    #[test]
    fn tally_counts_a_thread_once_over_all_snapshots() {
        let mut tally = Tally::default();
        for tids in [&[1, 2][..], &[2, 3], &[3]] {
            let mut sample = snapshot(10, None);
            let thread = sample.programs[0].threads.remove(0);
            let of = |&tid| ThreadSample { id: ThreadId { tid, start_ticks: 1 }, ..thread.clone() };
            sample.programs[0].threads = tids.iter().map(of).collect();
            tally.add(&sample);
        }
        let p = &tally.programs[&ProgramId(0)];
        assert_eq!((p.threads_seen(), p.threads_max), (3, 2));
    }

    #[test]
    fn tally_attributes_unknown_sleep_in_proportion_to_known_sleep() {
        let mut tally = Tally::default();
        let mut shares_after = |park: Option<f64>, sleep| {
            let lock = park.map(|_| 0.0);
            let mut sample = snapshot(10, lock);
            sample.programs[0].threads[0].shares =
                TimeShares { user: Some(0.5), lock, park, sleep, spin: None, ..TimeShares::ZERO };
            tally.add(&sample);
            let shares = tally.programs[&ProgramId(0)].shares();
            (shares.park, shares.sleep)
        };
        assert_eq!(shares_after(None, None), (None, None));
        assert_eq!(shares_after(Some(0.125), Some(0.375)), (Some(0.125), Some(0.375)));
        assert_eq!(
            shares_after(None, None),
            (None, None),
            "more time of unknown than of known cause"
        );
        assert_eq!(shares_after(Some(0.375), Some(0.125)), (Some(0.25), Some(0.25)));
    }

    #[test]
    fn tally_counts_little_unknown_sleep_as_sleep() {
        let mut tally = Tally::default();
        let mut sample = snapshot(10, None);
        let unknown =
            TimeShares { lock: None, park: None, sleep: None, spin: None, ..TimeShares::ZERO };
        let shares = TimeShares { user: Some(0.992), ..unknown };
        sample.programs[0].threads[0].shares = shares;
        tally.add(&sample);
        let shares = tally.programs[&ProgramId(0)].shares();
        assert!(
            shares.lock == Some(0.0) && (shares.sleep.unwrap() - 0.008).abs() < 1e-9,
            "{shares:?}"
        );
    }

    #[test]
    fn tally_share_that_was_unknown_once_stays_unknown() {
        let mut tally = Tally::default();
        tally.add(&snapshot(10, Some(1.0)));
        tally.add(&snapshot(0, None));
        assert_eq!(
            tally.programs[&ProgramId(0)].shares().lock,
            Some(1.0),
            "a span of no time changes nothing"
        );
        tally.add(&snapshot(10, None));
        assert_eq!(tally.programs[&ProgramId(0)].shares().lock, None);
        assert_eq!(tally.programs[&ProgramId(0)].shares().user, None);
    }
}
