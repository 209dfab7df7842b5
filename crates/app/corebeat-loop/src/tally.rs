//! What was seen and done, added up.

use corebeat_machine::{Counters, Decision, ProgramId, ProgramSample, Snapshot, ThreadId, TimeShares};
use std::collections::{BTreeMap, BTreeSet};

/// A share of the time of all threads that makes no difference.
const UNSEEN_MAX: f64 = 0.01;

/// Something that was done, or tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Deed {
    /// When, in nanoseconds on the machine's clock.
    pub at_ns: u64,
    /// Which policy wanted it.
    pub policy: &'static str,
    /// What, and why.
    pub decision: Decision,
    /// Why it could not be done, if it could not.
    pub failed: Option<String>,
}

/// Everything that was seen and done since the loop began.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// CPUs that others kept busy, times nanoseconds, where it could be told, and the time for which it could.
    others_busy: (f64, u64),
    /// The programs seen.
    pub programs: BTreeMap<ProgramId, ProgramTally>,
    /// What was done, in order.
    pub deeds: Vec<Deed>,
}

/// One program over all snapshots.
#[derive(Debug, Clone)]
pub struct ProgramTally {
    /// The threads of the last snapshot, and how many were ever seen. All of them are not kept: some programs start
    /// thousands a second.
    threads: BTreeSet<ThreadId>,
    threads_seen: usize,
    /// The most threads in one snapshot.
    pub threads_max: usize,
    /// Thread time: the sum of all threads' spans, in nanoseconds.
    pub thread_ns: u64,
    /// Each share's sum of share times span in nanoseconds; `None` once it could not be told for some thread.
    sums_ns: TimeShares,
    /// Of what is not in the sums of `lock` and `sleep`: how long threads were blocked while nobody saw in what.
    unseen_ns: f64,
    /// All counters together; `None` once one could not be told for some thread.
    pub counters: Counters,
    /// Bytes read and written.
    pub io_bytes: Option<u64>,
    /// Executions of OpenMP parallel regions, and their time in nanoseconds, by team size.
    pub regions: BTreeMap<u32, (u64, u64)>,
}

impl Tally {
    /// Adds a snapshot.
    pub(crate) fn see(&mut self, seen: &Snapshot) {
        if let Some(busy) = seen.host.others_busy {
            self.others_busy.0 += busy * seen.span_ns as f64;
            self.others_busy.1 += seen.span_ns;
        }
        for program in &seen.programs {
            self.programs.entry(program.id).or_insert_with(ProgramTally::new).see(program);
        }
    }

    /// CPUs that others kept busy, on average.
    pub fn others_busy(&self) -> Option<f64> {
        (self.others_busy.1 > 0).then(|| self.others_busy.0 / self.others_busy.1 as f64)
    }
}

impl ProgramTally {
    fn new() -> Self {
        let zero = Some(0.0);
        ProgramTally {
            threads: BTreeSet::new(),
            threads_seen: 0,
            threads_max: 0,
            thread_ns: 0,
            sums_ns: TimeShares {
                user: zero,
                system: zero,
                lock: zero,
                latency: zero,
                sleep: zero,
                spin: zero,
            },
            unseen_ns: 0.0,
            counters: Counters::ZERO,
            io_bytes: Some(0),
            regions: BTreeMap::new(),
        }
    }

    fn see(&mut self, program: &ProgramSample) {
        self.threads_max = self.threads_max.max(program.threads.len());
        let threads: BTreeSet<ThreadId> = program.threads.iter().map(|t| t.id).collect();
        self.threads_seen += threads.difference(&self.threads).count();
        self.threads = threads;
        for thread in &program.threads {
            // A thread that was there for no time has nothing to say, not even that it does not know.
            if thread.span_ns == 0 {
                continue;
            }
            self.thread_ns += thread.span_ns;
            let span = thread.span_ns as f64;
            let add =
                |sum: &mut Option<f64>, share: Option<f64>| *sum = sum.zip(share).map(|(s, x)| s + x * span);
            add(&mut self.sums_ns.user, thread.shares.user);
            add(&mut self.sums_ns.system, thread.shares.system);
            add(&mut self.sums_ns.latency, thread.shares.latency);
            match (thread.shares.lock, thread.shares.sleep, thread.shares.blocked()) {
                (None, None, Some(blocked)) => self.unseen_ns += blocked * span,
                (lock, sleep, _) => {
                    add(&mut self.sums_ns.lock, lock);
                    add(&mut self.sums_ns.sleep, sleep);
                }
            }
            add(&mut self.sums_ns.spin, thread.shares.spin);
            self.counters = self.counters.plus(&thread.counters);
        }
        self.io_bytes = self.io_bytes.zip(program.io_bytes).map(|(a, b)| a.saturating_add(b));
        for region in program.team.iter().flat_map(|t| &t.regions) {
            let sum = self.regions.entry(region.size).or_default();
            sum.0 = sum.0.saturating_add(region.count);
            sum.1 = sum.1.saturating_add(region.time_ns);
        }
    }

    /// How many threads were ever seen.
    pub fn threads_seen(&self) -> usize {
        self.threads_seen
    }

    /// The mean shares over all thread time. Unknown where one thread's was, and where no thread was seen. Where it was not seen what threads
    /// slept in, this is divided as the rest, if that is no shorter; or it is sleep, if it is next to nothing.
    pub fn shares(&self) -> TimeShares {
        let mean = |sum: Option<f64>| sum.filter(|_| self.thread_ns > 0).map(|s| s / self.thread_ns as f64);
        let (lock, sleep) = self.sums_ns.lock.zip(self.sums_ns.sleep).unzip();
        let seen = lock.zip(sleep).map_or(0.0, |(lock, sleep)| lock + sleep);
        let (lock, sleep) = if self.unseen_ns == 0.0 {
            (self.sums_ns.lock, self.sums_ns.sleep)
        } else if self.unseen_ns <= seen {
            let all = |part: Option<f64>| part.map(|p| p * (1.0 + self.unseen_ns / seen));
            (all(lock), all(sleep))
        } else if self.unseen_ns <= UNSEEN_MAX * self.thread_ns as f64 {
            (lock, sleep.map(|s| s + self.unseen_ns))
        } else {
            (None, None)
        };
        TimeShares {
            user: mean(self.sums_ns.user),
            system: mean(self.sums_ns.system),
            lock: mean(lock),
            latency: mean(self.sums_ns.latency),
            sleep: mean(sleep),
            spin: mean(self.sums_ns.spin),
        }
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
            shares: TimeShares { lock, sleep: lock.map(|l| 1.0 - l), ..TimeShares::default() },
            counters: Counters { migrations: Some(2), ..Counters::default() },
        };
        let program = ProgramSample {
            id: ProgramId(0),
            name: "p".into(),
            threads: vec![thread],
            io_bytes: Some(5),
            team: None,
            pulse: None,
        };
        Snapshot { at_ns: span_ns, span_ns, programs: vec![program], ..Snapshot::default() }
    }

    proptest! {
        #[test]
        fn tally_adds_up_like_one_long_span(
            spans in proptest::collection::vec((1u64..1_000_000_000, 0.0f64..=1.0), 1..20)
        ) {
            let mut tally = Tally::default();
            spans.iter().for_each(|&(ns, lock)| tally.see(&snapshot(ns, Some(lock))));
            let whole: u64 = spans.iter().map(|s| s.0).sum();
            let locked: f64 = spans.iter().map(|s| s.0 as f64 * s.1).sum();
            let p = &tally.programs[&ProgramId(0)];
            prop_assert!((p.shares().lock.unwrap() - locked / whole as f64).abs() < 1e-9);
            prop_assert_eq!(p.counters.migrations, Some(2 * spans.len() as u64));
            prop_assert_eq!(p.threads_seen(), 1);
        }
    }

    #[test]
    fn tally_counts_a_thread_once_however_long_it_stays() {
        let mut tally = Tally::default();
        for tids in [&[1, 2][..], &[2, 3], &[3]] {
            let mut seen = snapshot(10, None);
            let thread = seen.programs[0].threads.remove(0);
            let of = |&tid| ThreadSample { id: ThreadId { tid, start_ticks: 1 }, ..thread.clone() };
            seen.programs[0].threads = tids.iter().map(of).collect();
            tally.see(&seen);
        }
        let p = &tally.programs[&ProgramId(0)];
        assert_eq!((p.threads_seen(), p.threads_max), (3, 2));
    }

    #[test]
    fn tally_divides_what_was_not_seen_as_what_was() {
        let mut tally = Tally::default();
        let mut see = |lock, sleep| {
            let mut seen = snapshot(10, lock);
            let half = TimeShares {
                user: Some(0.5),
                system: Some(0.0),
                latency: Some(0.0),
                ..TimeShares::default()
            };
            seen.programs[0].threads[0].shares = TimeShares { lock, sleep, ..half };
            tally.see(&seen);
            let shares = tally.programs[&ProgramId(0)].shares();
            (shares.lock, shares.sleep)
        };
        assert_eq!(see(None, None), (None, None));
        assert_eq!(see(Some(0.125), Some(0.375)), (Some(0.125), Some(0.375)));
        assert_eq!(see(None, None), (None, None), "more was not seen than was");
        assert_eq!(see(Some(0.375), Some(0.125)), (Some(0.25), Some(0.25)));
    }

    #[test]
    fn tally_takes_next_to_nothing_for_sleep() {
        let mut tally = Tally::default();
        let mut seen = snapshot(10, None);
        let shares =
            TimeShares { user: Some(0.992), system: Some(0.0), latency: Some(0.0), ..TimeShares::default() };
        seen.programs[0].threads[0].shares = shares;
        tally.see(&seen);
        let shares = tally.programs[&ProgramId(0)].shares();
        assert!(shares.lock == Some(0.0) && (shares.sleep.unwrap() - 0.008).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn tally_unknown_once_is_unknown() {
        let mut tally = Tally::default();
        tally.see(&snapshot(10, Some(1.0)));
        tally.see(&snapshot(0, None));
        assert_eq!(tally.programs[&ProgramId(0)].shares().lock, Some(1.0), "no time, nothing to know");
        tally.see(&snapshot(10, None));
        assert_eq!(tally.programs[&ProgramId(0)].shares().lock, None);
        assert_eq!(tally.programs[&ProgramId(0)].shares().user, None);
    }
}
