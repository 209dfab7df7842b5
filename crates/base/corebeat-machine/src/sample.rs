//! Observations of threads, programs and the host over a span of time.

use crate::CpuId;
use serde::Serialize;

/// Unique identity of a thread: its number and its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ThreadId {
    /// Number of the operating system, which is reused after the end of the thread.
    pub tid: i32,
    /// Start in clock ticks since boot (field 22 of `/proc/TID/stat`); virtual time in a simulator.
    pub start_ticks: u64,
}

/// Number that a machine assigns to a watched program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProgramId(pub u32);

/// Use of the time of a thread, as shares of the span from 0 to 1.
///
/// The first six shares are disjoint and add up to 1 if all are known. `spin` is a part of `user`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TimeShares {
    /// Running in user mode.
    pub user: Option<f64>,
    /// Running in the kernel.
    pub system: Option<f64>,
    /// Blocked on a lock that another thread holds.
    pub lock: Option<f64>,
    /// Blocked until another thread wakes the thread: at a condition variable, a barrier, a
    /// semaphore, a join, or in a pool without work (on Linux: asleep in any futex call that is
    /// not recognised as the wait for a lock).
    pub park: Option<f64>,
    /// Ready to run, but not running (run-queue wait).
    pub wait: Option<f64>,
    /// Blocked on anything else: I/O, timers, children.
    pub sleep: Option<f64>,
    /// Running, but only polling memory until another thread writes it.
    pub spin: Option<f64>,
}

impl TimeShares {
    /// All shares known and 0.
    pub const ZERO: TimeShares = TimeShares {
        user: Some(0.0),
        system: Some(0.0),
        lock: Some(0.0),
        park: Some(0.0),
        wait: Some(0.0),
        sleep: Some(0.0),
        spin: Some(0.0),
    };

    /// Combines each share with that of `other`. A share that is unknown on one side is unknown in
    /// the result.
    pub fn zip_with(&self, other: &TimeShares, combine: impl Fn(f64, f64) -> f64) -> TimeShares {
        let both = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| combine(a, b));
        TimeShares {
            user: both(self.user, other.user),
            system: both(self.system, other.system),
            lock: both(self.lock, other.lock),
            park: both(self.park, other.park),
            wait: both(self.wait, other.wait),
            sleep: both(self.sleep, other.sleep),
            spin: both(self.spin, other.spin),
        }
    }

    /// Divides each share by a number.
    pub fn divided_by(&self, divisor: f64) -> TimeShares {
        self.zip_with(&TimeShares::ZERO, |share, _| share / divisor)
    }

    /// Returns the share on a CPU: user and system.
    pub fn running(&self) -> Option<f64> {
        Some(self.user? + self.system?)
    }

    /// Returns the share in which a thread runs or waits for a CPU: user, system and wait.
    pub fn runnable(&self) -> Option<f64> {
        Some(self.running()? + self.wait?)
    }

    /// Returns the share of blocked time: lock, park and sleep, or the rest beside running and wait
    /// if one of the three is unknown.
    pub fn blocked(&self) -> Option<f64> {
        match (self.lock, self.park, self.sleep) {
            (Some(lock), Some(park), Some(sleep)) => Some(lock + park + sleep),
            _ => Some((1.0 - self.running()? - self.wait?).max(0.0)),
        }
    }

    /// Returns the share blocked on other threads: lock and park, also if only their sum is known.
    ///
    /// This is the lock time (LCK) of Solaris, which counts every wait for a lock, a condition
    /// variable or a semaphore.
    pub fn lock_or_park(&self) -> Option<f64> {
        match (self.lock, self.park) {
            (Some(lock), Some(park)) => Some(lock + park),
            _ => Some((self.blocked()? - self.sleep?).max(0.0)),
        }
    }
}

/// Counts over the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Number of times that the thread blocked.
    pub voluntary_switches: Option<u64>,
    /// Number of times that the thread was preempted.
    pub involuntary_switches: Option<u64>,
    /// Number of moves to another CPU.
    pub migrations: Option<u64>,
    /// Last-level cache references.
    pub cache_references: Option<u64>,
    /// Last-level cache misses.
    pub cache_misses: Option<u64>,
    /// Instructions retired in user mode.
    pub instructions: Option<u64>,
}

impl Counters {
    /// Returns the sum of each field. A field that is unknown on one side is unknown in the sum.
    pub fn plus(&self, other: &Counters) -> Counters {
        let add = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Counters {
            voluntary_switches: add(self.voluntary_switches, other.voluntary_switches),
            involuntary_switches: add(self.involuntary_switches, other.involuntary_switches),
            migrations: add(self.migrations, other.migrations),
            cache_references: add(self.cache_references, other.cache_references),
            cache_misses: add(self.cache_misses, other.cache_misses),
            instructions: add(self.instructions, other.instructions),
        }
    }

    /// Counts that are known and 0, as the start of a sum.
    pub const ZERO: Counters = Counters {
        voluntary_switches: Some(0),
        involuntary_switches: Some(0),
        migrations: Some(0),
        cache_references: Some(0),
        cache_misses: Some(0),
        instructions: Some(0),
    };
}

/// One thread over the part of the span in which it ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadSample {
    /// Identity of the thread.
    pub id: ThreadId,
    /// Process of the thread.
    pub pid: i32,
    /// Name, at most 15 bytes on Linux.
    pub name: String,
    /// CPU on which the thread ran last.
    pub cpu: Option<CpuId>,
    /// Watched time in nanoseconds; shorter than the span of the snapshot if the thread started or
    /// ended within the span, or was stopped. A thread without such time has no shares.
    pub span_ns: u64,
    /// Use of its time.
    pub shares: TimeShares,
    /// Counts of the thread.
    pub counters: Counters,
}

/// Executions of one parallel region with one team size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RegionSample {
    /// Address of the code of the region.
    pub region: u64,
    /// Size of the team.
    pub size: u32,
    /// Number of executions that ended within the span.
    pub count: u64,
    /// Sum of their times from entry to exit, in nanoseconds.
    pub time_ns: u64,
}

/// OpenMP team of a program whose size Corebeat can set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TeamSample {
    /// Largest size, as requested by the program or its user.
    pub size_max: u32,
    /// Size of the last team.
    pub size: u32,
    /// Whether the program has read its thread count and may rely on the count: the size must not
    /// change any more.
    pub fixed: bool,
    /// Executions of parallel regions that ended within the span.
    pub regions: Vec<RegionSample>,
}

/// Progress of a program: its heart rate and its goal (Sironi et al., *Metronome: Operating System
/// Level Performance Management via Self-Adaptive Computing*, 2012, section 4).
///
/// The program writes its goal, so all values are unvalidated: a rate may be any `f64`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ProgressSample {
    /// Heartbeats per second over the window of the goal (equation 7).
    pub rate: f64,
    /// Length of the window, in nanoseconds.
    pub window_ns: u64,
    /// Lowest rate of the goal, in beats per second.
    pub rate_min: Option<f64>,
    /// Highest rate of the goal, in beats per second.
    pub rate_max: Option<f64>,
    /// Whether the program requests to be held below `rate_max` even if no other program benefits.
    pub hold: bool,
    /// Heartbeats since the start of the progress.
    pub beats: u64,
}

/// One program: all threads of one or more processes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgramSample {
    /// Number of the program.
    pub id: ProgramId,
    /// Name of the program.
    pub name: String,
    /// Threads in the order of [`ThreadId`], including those that ended within the span.
    pub threads: Vec<ThreadSample>,
    /// Bytes that the program read and wrote by system calls over the span: a substitute for
    /// progress.
    pub io_bytes: Option<u64>,
    /// OpenMP team, if the program has one.
    pub team: Option<TeamSample>,
    /// Progress, if the program reports one. Machines set `None`; the monitor of heartbeats sets
    /// the value.
    pub progress: Option<ProgressSample>,
}

impl ProgramSample {
    /// Returns the sum over the threads of a share times the time, in nanoseconds. `None` if the
    /// share of a thread with a span is unknown.
    fn time_ns(&self, share: impl Fn(&TimeShares) -> Option<f64>) -> Option<f64> {
        let timed = self.threads.iter().filter(|t| t.span_ns > 0);
        timed.map(|t| share(&t.shares).map(|s| s * t.span_ns as f64)).sum()
    }

    /// Returns the mean of a share over the threads, weighted by watched time. Threads without a
    /// span are ignored. `None` if no thread has a span, or if the share of one that has a span is
    /// unknown.
    pub fn mean(&self, share: impl Fn(&TimeShares) -> Option<f64>) -> Option<f64> {
        let span: f64 = self.threads.iter().map(|t| t.span_ns as f64).sum();
        self.time_ns(share).filter(|_| span > 0.0).map(|sum| sum / span)
    }

    /// Returns the mean number of CPUs of a share: the sum over the threads of share times time,
    /// divided by `span_ns`. Threads without a span are ignored. `None` if `span_ns` is 0, or if
    /// the share of a thread with a span is unknown.
    pub fn cpus(&self, span_ns: u64, share: impl Fn(&TimeShares) -> Option<f64>) -> Option<f64> {
        let sum = self.time_ns(share);
        // The empty sum is -0.0; adding 0.0 makes it 0.0.
        sum.filter(|_| span_ns > 0).map(|s| s / span_ns as f64 + 0.0)
    }

    /// Returns the sum of the counters of all threads.
    pub fn counters(&self) -> Counters {
        self.threads.iter().fold(Counters::ZERO, |sum, t| sum.plus(&t.counters))
    }
}

/// Load of the host outside of the watched programs, and counters of the host.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct HostSample {
    /// Mean number of CPUs that other programs used over the span. A machine that cannot measure
    /// short spans reports the mean over the last spans together.
    pub others_busy: Option<f64>,
    /// Mean number of runnable threads of other programs over the span.
    pub others_runnable: Option<f64>,
    /// Counts of all threads on all CPUs in user mode, if single threads cannot be counted cheaply;
    /// without switches and migrations.
    pub counters: Counters,
}

/// Observation of all watched programs over a span.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Snapshot {
    /// End of the span, in nanoseconds on the clock of the machine.
    pub at_ns: u64,
    /// Length of the span, in nanoseconds.
    pub span_ns: u64,
    /// Host.
    pub host: HostSample,
    /// Programs in the order of [`ProgramId`].
    pub programs: Vec<ProgramSample>,
}

impl Snapshot {
    /// The sample of a program; `None` if the machine did not watch the program.
    pub fn program(&self, id: ProgramId) -> Option<&ProgramSample> {
        self.programs.iter().find(|program| program.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(span_ns: u64, lock: Option<f64>) -> ThreadSample {
        ThreadSample {
            id: ThreadId { tid: 1, start_ticks: 1 },
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns,
            shares: TimeShares { lock, ..TimeShares::default() },
            counters: Counters::ZERO,
        }
    }

    fn program(threads: Vec<ThreadSample>) -> ProgramSample {
        ProgramSample {
            id: ProgramId(0),
            name: "p".into(),
            threads,
            io_bytes: None,
            team: None,
            progress: None,
        }
    }

    #[test]
    fn mean_weighs_threads_by_their_span() {
        let p = program(vec![thread(300, Some(1.0)), thread(100, Some(0.0))]);
        assert_eq!(p.mean(|s| s.lock), Some(0.75));
        assert_eq!(p.cpus(400, |s| s.lock), Some(0.75));
    }

    #[test]
    fn mean_with_one_unknown_is_unknown() {
        assert_eq!(program(vec![thread(1, Some(1.0)), thread(1, None)]).mean(|s| s.lock), None);
        let stopped = program(vec![thread(1, Some(1.0)), thread(0, None)]);
        assert_eq!(stopped.mean(|s| s.lock), Some(1.0));
        assert_eq!(stopped.cpus(1, |s| s.lock), Some(1.0));
        assert_eq!(program(vec![]).mean(|s| s.lock), None);
        assert!(program(vec![]).cpus(1, |s| s.lock).is_some_and(f64::is_sign_positive));
    }

    #[test]
    fn blocked_falls_back_to_the_rest() {
        let s = TimeShares {
            user: Some(0.25),
            system: Some(0.25),
            wait: Some(0.25),
            ..Default::default()
        };
        assert_eq!(s.blocked(), Some(0.25));
        assert_eq!(TimeShares::default().blocked(), None);
        assert_eq!(TimeShares { lock: Some(0.25), ..s }.blocked(), Some(0.25));
        let all = TimeShares { lock: Some(0.125), park: Some(0.25), ..TimeShares::ZERO };
        assert_eq!(all.blocked(), Some(0.375));
    }

    #[test]
    fn lock_or_park_is_known_if_only_the_sum_is() {
        let s = TimeShares { lock: Some(0.25), park: Some(0.5), ..TimeShares::default() };
        assert_eq!(s.lock_or_park(), Some(0.75));
        let sum = TimeShares {
            lock: None,
            park: None,
            user: Some(0.125),
            sleep: Some(0.125),
            ..TimeShares::ZERO
        };
        assert_eq!(sum.lock_or_park(), Some(0.75));
        assert_eq!(TimeShares { sleep: None, ..sum }.lock_or_park(), None);
    }
}
