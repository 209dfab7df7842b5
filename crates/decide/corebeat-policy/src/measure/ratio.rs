//! Shares and rates over the active threads of a program.

use corebeat_machine::{ProgramSample, Snapshot, ThreadSample, TimeShares};

/// Blocked share of the time from which a thread without a wake-up counts as a bystander.
const BYSTANDER_BLOCKED_MIN: f64 = 0.999;

/// Largest share of the threads' time for which a value may be unknown. The unknown part is left
/// out; with a larger part the ratio is unknown.
const UNKNOWN_SHARE_MAX: f64 = 0.1;

/// Returns whether a thread was blocked during the whole span. For example, a main thread that
/// joins its workers is in a futex call all the time but contends for no lock.
pub(crate) fn is_bystander(thread: &ThreadSample) -> bool {
    thread.counters.voluntary_switches == Some(0)
        && thread.shares.blocked().is_some_and(|b| b >= BYSTANDER_BLOCKED_MIN)
}

/// Returns the number of CPUs that other programs use, observed programs included.
pub(crate) fn others_busy(program: &ProgramSample, snapshot: &Snapshot) -> f64 {
    let others = snapshot.programs.iter().filter(|other| other.id != program.id);
    let watched: f64 =
        others.filter_map(|other| other.cpus(snapshot.span_ns, |s| s.running())).sum();
    snapshot.host.others_busy.unwrap_or(0.0) + watched
}

/// A ratio of two sums over threads. The values of some threads may be unknown.
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

    /// Adds a share of the time of each active thread.
    pub(crate) fn add_share(
        &mut self,
        p: &ProgramSample,
        share: impl Fn(&TimeShares) -> Option<f64>,
    ) {
        for t in p.threads.iter().filter(|t| !is_bystander(t)) {
            self.add(t, share(&t.shares).map(|s| (s * t.span_ns as f64, t.span_ns as f64)));
        }
    }

    /// Adds a count per second of CPU time.
    pub(crate) fn add_rate(
        &mut self,
        p: &ProgramSample,
        count: impl Fn(&ThreadSample) -> Option<u64>,
    ) {
        for t in &p.threads {
            let part = count(t)
                .zip(t.shares.running())
                .map(|(c, r)| (c as f64, r * t.span_ns as f64 / 1e9));
            self.add(t, part);
        }
    }

    /// Adds the quotient of two counts.
    pub(crate) fn add_counts(
        &mut self,
        p: &ProgramSample,
        counts: impl Fn(&ThreadSample) -> Option<(u64, u64)>,
    ) {
        for t in &p.threads {
            self.add(t, counts(t).map(|(a, b)| (a as f64, b as f64)));
        }
    }

    /// Returns the ratio, if it is known for nearly all of the threads' time.
    pub(crate) fn get(&self) -> Option<f64> {
        let known = self.known_ns > 0.0 && self.known_ns >= (1.0 - UNKNOWN_SHARE_MAX) * self.all_ns;
        (known && self.below > 0.0).then(|| self.above / self.below)
    }
}

/// Returns the mean of a share over the active threads.
pub(crate) fn share(p: &ProgramSample, of: impl Fn(&TimeShares) -> Option<f64>) -> Option<f64> {
    let mut ratio = Ratio::default();
    ratio.add_share(p, of);
    ratio.get()
}

/// Returns a count per second of CPU time.
pub(crate) fn rate(p: &ProgramSample, count: impl Fn(&ThreadSample) -> Option<u64>) -> Option<f64> {
    let mut ratio = Ratio::default();
    ratio.add_rate(p, count);
    ratio.get()
}

#[cfg(test)]
pub(crate) mod sample {
    //! Samples of programs for tests.

    use corebeat_machine::{
        Counters, ProgramId, ProgramSample, ThreadId, ThreadSample, TimeShares,
    };

    /// Returns a program without threads.
    pub(crate) fn program() -> ProgramSample {
        ProgramSample {
            id: ProgramId(1),
            name: "p".into(),
            threads: vec![],
            io_bytes: None,
            team: None,
            progress: None,
        }
    }

    /// Adds a thread that was observed for one second, with its user, lock and wait shares. The
    /// rest is sleep.
    pub(crate) fn thread(
        p: &mut ProgramSample,
        user: f64,
        lock: f64,
        wait: f64,
    ) -> &mut ThreadSample {
        let shares = TimeShares {
            user: Some(user),
            system: Some(0.0),
            lock: Some(lock),
            park: Some(0.0),
            wait: Some(wait),
            sleep: Some(1.0 - user - lock - wait),
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
        p.threads.last_mut().expect("the thread was pushed in the line above")
    }
}

#[cfg(test)]
mod tests;
