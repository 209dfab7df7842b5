//! What policies read from a program's sample: shares and rates over the threads that took part.

use corebeat_machine::{ProgramSample, Snapshot, ThreadSample, TimeShares};

/// From this share of its time on, a thread that never woke up counts as a bystander.
const BYSTANDER_BLOCKED_MIN: f64 = 0.999;

/// Unknown parts of less than this share of the threads' time are left out; with more, the whole is unknown.
const UNKNOWN_SHARE_MAX: f64 = 0.1;

/// Whether the thread only waited, from the span's beginning to its end: a main thread that joins its workers is in
/// a futex call all the time, and yet contends for nothing.
pub(crate) fn is_bystander(thread: &ThreadSample) -> bool {
    thread.counters.voluntary_switches == Some(0)
        && thread.shares.blocked().is_some_and(|b| b >= BYSTANDER_BLOCKED_MIN)
}

/// How many CPUs others than this program keep busy, whoever watches them.
pub(crate) fn others_busy(program: &ProgramSample, seen: &Snapshot) -> f64 {
    let others = seen.programs.iter().filter(|other| other.id != program.id);
    let watched: f64 = others.filter_map(|other| other.cpus(seen.span_ns, |s| s.running())).sum();
    seen.host.others_busy.unwrap_or(0.0) + watched
}

/// A ratio of two sums over threads, some of which may be unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ratio {
    above: f64,
    below: f64,
    known_ns: f64,
    all_ns: f64,
}

impl Ratio {
    fn add(&mut self, thread: &ThreadSample, part: Option<(f64, f64)>) {
        let span_ns = thread.span_ns as f64;
        self.all_ns += span_ns;
        if let Some((above, below)) = part {
            self.above += above;
            self.below += below;
            self.known_ns += span_ns;
        }
    }

    /// Adds the share of the time of those who took part.
    pub(crate) fn add_share(&mut self, p: &ProgramSample, share: impl Fn(&TimeShares) -> Option<f64>) {
        for t in p.threads.iter().filter(|t| !is_bystander(t)) {
            self.add(t, share(&t.shares).map(|s| (s * t.span_ns as f64, t.span_ns as f64)));
        }
    }

    /// Adds a count for each second of CPU time.
    pub(crate) fn add_rate(&mut self, p: &ProgramSample, count: impl Fn(&ThreadSample) -> Option<u64>) {
        for t in &p.threads {
            let part = count(t).zip(t.shares.running()).map(|(c, r)| (c as f64, r * t.span_ns as f64 / 1e9));
            self.add(t, part);
        }
    }

    /// Adds one count over another.
    pub(crate) fn add_counts(
        &mut self,
        p: &ProgramSample,
        counts: impl Fn(&ThreadSample) -> Option<(u64, u64)>,
    ) {
        for t in &p.threads {
            self.add(t, counts(t).map(|(a, b)| (a as f64, b as f64)));
        }
    }

    /// The ratio, if nearly all of it is known.
    pub(crate) fn get(&self) -> Option<f64> {
        let known = self.known_ns > 0.0 && self.known_ns >= (1.0 - UNKNOWN_SHARE_MAX) * self.all_ns;
        (known && self.below > 0.0).then(|| self.above / self.below)
    }
}

/// The mean of a share over the threads that took part.
pub(crate) fn share(p: &ProgramSample, of: impl Fn(&TimeShares) -> Option<f64>) -> Option<f64> {
    let mut ratio = Ratio::default();
    ratio.add_share(p, of);
    ratio.get()
}

/// A count for each second of CPU time.
pub(crate) fn rate(p: &ProgramSample, count: impl Fn(&ThreadSample) -> Option<u64>) -> Option<f64> {
    let mut ratio = Ratio::default();
    ratio.add_rate(p, count);
    ratio.get()
}

#[cfg(test)]
pub(crate) mod sample {
    //! Samples for tests.

    use corebeat_machine::{Counters, ProgramId, ProgramSample, ThreadId, ThreadSample, TimeShares};

    /// A program without threads.
    pub(crate) fn program() -> ProgramSample {
        ProgramSample {
            id: ProgramId(1),
            name: "p".into(),
            threads: vec![],
            io_bytes: None,
            team: None,
            pulse: None,
        }
    }

    /// Adds a thread that was watched for a second: user, lock and latency shares; the rest is sleep.
    pub(crate) fn thread(p: &mut ProgramSample, user: f64, lock: f64, latency: f64) -> &mut ThreadSample {
        let shares = TimeShares {
            user: Some(user),
            system: Some(0.0),
            lock: Some(lock),
            latency: Some(latency),
            sleep: Some(1.0 - user - lock - latency),
            spin: None,
        };
        let counters = Counters { cache_references: None, cache_misses: None, ..Counters::ZERO };
        let id = ThreadId { tid: p.threads.len() as i32 + 1, start_ticks: 0 };
        p.threads.push(ThreadSample {
            id,
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns: 1_000_000_000,
            shares,
            counters,
        });
        p.threads.last_mut().expect("just pushed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_leaves_out_a_main_thread_that_only_joins() {
        let mut p = sample::program();
        sample::thread(&mut p, 0.0, 1.0, 0.0);
        sample::thread(&mut p, 0.8, 0.2, 0.0);
        assert_eq!(share(&p, |s| s.lock), Some(0.2));
        p.threads[0].counters.voluntary_switches = Some(3);
        assert_eq!(share(&p, |s| s.lock), Some(0.6));
    }

    #[test]
    fn share_forgives_a_short_unknown_and_no_long_one() {
        let mut p = sample::program();
        sample::thread(&mut p, 1.0, 0.0, 0.0);
        let t = sample::thread(&mut p, 1.0, 0.0, 0.0);
        t.span_ns = 50_000_000;
        t.shares.user = None;
        assert_eq!(share(&p, |s| s.user), Some(1.0));
        p.threads[1].span_ns = 1_000_000_000;
        assert_eq!(share(&p, |s| s.user), None);
    }

    #[test]
    fn rate_is_per_second_of_cpu_time() {
        let mut p = sample::program();
        sample::thread(&mut p, 0.5, 0.5, 0.0).counters.voluntary_switches = Some(100);
        assert_eq!(rate(&p, |t| t.counters.voluntary_switches), Some(200.0));
        p.threads[0].shares.user = Some(0.0);
        assert_eq!(rate(&p, |t| t.counters.voluntary_switches), None);
    }
}
