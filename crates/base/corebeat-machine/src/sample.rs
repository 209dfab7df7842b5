//! What was seen: threads, programs and the host over a span of time.

use crate::CpuId;
use serde::Serialize;

/// A thread, by a name that is never used twice: its number and when it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ThreadId {
    /// The operating system's number, which is used again after the thread has ended.
    pub tid: i32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/TID/stat`); virtual time on a simulator.
    pub start_ticks: u64,
}

/// A program that a machine watches, by the machine's own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProgramId(pub u32);

/// Where a thread's time went, as shares of the span from 0 to 1.
///
/// The first five are apart from each other and add up to 1 where all are known. `spin` is a part of `user`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TimeShares {
    /// Running in user mode.
    pub user: Option<f64>,
    /// Running in the kernel.
    pub system: Option<f64>,
    /// Blocked on a lock or condition variable (on Linux: asleep in a futex call).
    pub lock: Option<f64>,
    /// Ready to run, not running.
    pub latency: Option<f64>,
    /// Blocked on anything else: I/O, timers, children.
    pub sleep: Option<f64>,
    /// Running, but only reading one place again and again until somebody else writes it.
    pub spin: Option<f64>,
}

impl TimeShares {
    /// On a CPU: user and system.
    pub fn running(&self) -> Option<f64> {
        Some(self.user? + self.system?)
    }

    /// Off the CPU and not ready: lock and sleep, or what running and latency leave where those two cannot be told
    /// apart.
    pub fn blocked(&self) -> Option<f64> {
        match (self.lock, self.sleep) {
            (Some(l), Some(s)) => Some(l + s),
            _ => Some((1.0 - self.running()? - self.latency?).max(0.0)),
        }
    }
}

/// What was counted over the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// The thread gave up its CPU: it blocked.
    pub voluntary_switches: Option<u64>,
    /// The CPU was taken from the thread.
    pub involuntary_switches: Option<u64>,
    /// The thread went on on another CPU.
    pub migrations: Option<u64>,
    /// Last-level cache references.
    pub cache_references: Option<u64>,
    /// Last-level cache misses.
    pub cache_misses: Option<u64>,
    /// Instructions completed in user mode.
    pub instructions: Option<u64>,
}

impl Counters {
    /// The sum, field by field. A field that one side does not know stays unknown.
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

    /// All fields known and 0: where sums start.
    pub const ZERO: Counters = Counters {
        voluntary_switches: Some(0),
        involuntary_switches: Some(0),
        migrations: Some(0),
        cache_references: Some(0),
        cache_misses: Some(0),
        instructions: Some(0),
    };
}

/// One thread over the part of the span that it lived through.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadSample {
    /// Which thread.
    pub id: ThreadId,
    /// The process it belongs to.
    pub pid: i32,
    /// Its name, at most 15 bytes on Linux.
    pub name: String,
    /// The CPU that it ran on last.
    pub cpu: Option<CpuId>,
    /// How long it was watched, in nanoseconds; shorter than the snapshot's span if it began or ended within.
    pub span_ns: u64,
    /// Where its time went.
    pub shares: TimeShares,
    /// What was counted.
    pub counters: Counters,
}

/// Executions of one parallel region with one team size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RegionSample {
    /// Which region: the address of its code.
    pub region: u64,
    /// The team's size.
    pub size: u32,
    /// How many executions ended within the span.
    pub count: u64,
    /// Their time from entry to exit together, in nanoseconds.
    pub time_ns: u64,
}

/// A program's OpenMP team, where Corebeat can set its size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TeamSample {
    /// The largest size that the program allows: what it, or its user, asked for.
    pub size_max: u32,
    /// The size of the last team.
    pub size: u32,
    /// The program has been told its thread count, and may rely on it: the size must not change any more.
    pub fixed: bool,
    /// The executions of parallel regions that ended within the span.
    pub regions: Vec<RegionSample>,
}

/// A program's pulse: how fast it beats, and how fast it wants to (Sironi et al., *Metronome: Operating System Level
/// Performance Management via Self-Adaptive Computing*, 2012, section 4).
///
/// A program writes its goal itself, so nothing here may be relied upon: rates may be anything that an `f64` can be.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct PulseSample {
    /// Heartbeats a second over the window that the goal asks for (equation 7).
    pub rate: f64,
    /// How long that window is, in nanoseconds.
    pub window_ns: u64,
    /// The lowest rate that the goal allows, in beats a second.
    pub rate_min: Option<f64>,
    /// The highest rate that the goal allows, in beats a second.
    pub rate_max: Option<f64>,
    /// It asks to be kept from going past `rate_max`, also where it takes nothing away from others.
    pub hold: bool,
    /// Heartbeats since it has a pulse.
    pub beats: u64,
}

/// One program: all threads of one or more processes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgramSample {
    /// Which program.
    pub id: ProgramId,
    /// Its name.
    pub name: String,
    /// Its threads, by [`ThreadId`], those that ended within the span included.
    pub threads: Vec<ThreadSample>,
    /// Bytes that it read and wrote by system calls over the span: a program's progress where it tells no better one.
    pub io_bytes: Option<u64>,
    /// Its OpenMP team, if it has one.
    pub team: Option<TeamSample>,
    /// Its pulse, if it has one. Machines leave it `None`: who monitors the heartbeats fills it in.
    pub pulse: Option<PulseSample>,
}

impl ProgramSample {
    /// The mean of a share over the threads, weighted by how long each was watched. `None` if the program has no
    /// threads, or if the share of one of them is not known.
    pub fn mean(&self, share: impl Fn(&TimeShares) -> Option<f64>) -> Option<f64> {
        let span: f64 = self.threads.iter().map(|t| t.span_ns as f64).sum();
        if span <= 0.0 {
            return None;
        }
        let sum: Option<f64> =
            self.threads.iter().map(|t| share(&t.shares).map(|s| s * t.span_ns as f64)).sum();
        sum.map(|s| s / span)
    }

    /// CPUs kept by a share on average: the sum over the threads of share times time, over `span_ns`.
    pub fn cpus(&self, span_ns: u64, share: impl Fn(&TimeShares) -> Option<f64>) -> Option<f64> {
        let sum: Option<f64> =
            self.threads.iter().map(|t| share(&t.shares).map(|s| s * t.span_ns as f64)).sum();
        // The sum of nothing is -0.0, which + 0.0 makes 0.0.
        sum.filter(|_| span_ns > 0).map(|s| s / span_ns as f64 + 0.0)
    }

    /// The threads' counters together.
    pub fn counters(&self) -> Counters {
        self.threads.iter().fold(Counters::ZERO, |sum, t| sum.plus(&t.counters))
    }
}

/// The host around the programs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct HostSample {
    /// CPUs that everybody else kept busy, on average over the span.
    pub others_busy: Option<f64>,
    /// Threads of everybody else that were running or ready to run, on average over the span.
    pub others_runnable: Option<f64>,
    /// Counted on all CPUs in user mode, whoever ran, where single threads cannot be counted cheaply. Switches and
    /// migrations are not.
    pub counters: Counters,
}

/// What was seen of all watched programs over a span.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Snapshot {
    /// When the span ended, in nanoseconds on the machine's clock.
    pub at_ns: u64,
    /// How long it was, in nanoseconds.
    pub span_ns: u64,
    /// The host.
    pub host: HostSample,
    /// The programs, by [`ProgramId`].
    pub programs: Vec<ProgramSample>,
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
        ProgramSample { id: ProgramId(0), name: "p".into(), threads, io_bytes: None, team: None, pulse: None }
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
        assert_eq!(program(vec![]).mean(|s| s.lock), None);
        assert!(program(vec![]).cpus(1, |s| s.lock).is_some_and(f64::is_sign_positive));
    }

    #[test]
    fn blocked_falls_back_to_the_rest() {
        let s =
            TimeShares { user: Some(0.25), system: Some(0.25), latency: Some(0.25), ..Default::default() };
        assert_eq!(s.blocked(), Some(0.25));
        assert_eq!(TimeShares::default().blocked(), None);
    }
}
