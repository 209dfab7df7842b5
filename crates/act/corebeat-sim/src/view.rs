//! What can be seen of the world: snapshots, as of any machine, and results.

use crate::crew::Crew;
use crate::thread::{Account, State, Thread};
use crate::world::{World, ns};
use corebeat_machine::{
    Counters, CpuId, HostSample, ProgramId, ProgramSample, PulseSample, Snapshot, ThreadId, ThreadSample,
    TimeShares,
};

/// What became of a program. Times of its threads are sums over all of them, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// How many threads it has.
    pub threads: usize,
    /// When it started, in nanoseconds.
    pub start_ns: u64,
    /// When its last thread ended, if it has.
    pub end_ns: Option<u64>,
    /// Running in user mode.
    pub user_ns: u64,
    /// Running in the kernel.
    pub system_ns: u64,
    /// Running, but only waiting: a part of `user_ns`.
    pub spin_ns: u64,
    /// Blocked at locks, barriers, conditions and queues.
    pub lock_ns: u64,
    /// Ready, not running.
    pub latency_ns: u64,
    /// Waiting for devices.
    pub sleep_ns: u64,
    /// CPUs given up.
    pub voluntary_switches: u64,
    /// CPUs taken away.
    pub involuntary_switches: u64,
    /// Of these, those taken by a thread of the same program whose priority had become higher, before the slice was used up: what Pusukuri
    /// 2012, section 5.1, calls backstabbing.
    pub backstabs: u64,
    /// Slices used up while nobody else waited for the CPU, so that it was not taken away. Solaris counts these as involuntary switches.
    pub renewed_slices: u64,
    /// Goings on on another CPU.
    pub migrations: u64,
    /// Heartbeats.
    pub beats: u64,
    /// When which phase began, in nanoseconds.
    pub phases: Vec<(u64, String)>,
}

impl World {
    /// Books the time of all threads up to now.
    fn settle_all(&mut self) {
        (0..self.cpus.len()).for_each(|c| self.settle(c));
        for t in &mut self.threads {
            let waited = self.now - t.since;
            match t.state {
                State::Ready | State::Throttled => t.account.latency += waited,
                State::Blocked => t.account.lock += waited,
                State::Asleep => t.account.sleep += waited,
                State::New | State::Running | State::Ended => continue,
            }
            t.since = self.now;
        }
    }

    /// What happened since the last snapshot, which ended at `before`.
    pub(crate) fn snapshot(&mut self, before: u64) -> Snapshot {
        self.settle_all();
        let span_ns = self.now - before;
        let mut host =
            HostSample { others_busy: Some(0.0), others_runnable: Some(0.0), counters: Counters::default() };
        let mut programs = Vec::new();
        for number in 0..self.programs.len() {
            let program = &self.programs[number];
            if program.start > self.now || program.ended.is_some_and(|at| at < before) {
                continue;
            }
            let mut threads = Vec::new();
            for i in program.threads.clone() {
                let t = &mut self.threads[i];
                if t.state == State::New || (t.state == State::Ended && t.ended < before) {
                    continue;
                }
                let diff = t.account.since(&t.seen);
                t.seen = t.account;
                if program.watched {
                    threads.push((i, diff));
                } else if span_ns > 0 {
                    let add = |sum: &mut Option<f64>, ns: u64| {
                        *sum = sum.map(|s| s + ns as f64 / span_ns as f64);
                    };
                    add(&mut host.others_busy, diff.user + diff.system);
                    add(&mut host.others_runnable, diff.user + diff.system + diff.latency);
                }
            }
            if !program.watched {
                continue;
            }
            let pid = number as i32 + 1;
            let threads = threads.iter().map(|(i, diff)| self.sample(*i, pid, diff)).collect();
            let pulse = self.pulse(number);
            let program = &mut self.programs[number];
            // Who has ended has no team any more, which a policy might size.
            let team = program.crew.as_mut().filter(|_| program.ended.is_none()).map(Crew::sample);
            let io_bytes = program.io_bytes - program.io_bytes_seen;
            program.io_bytes_seen = program.io_bytes;
            programs.push(ProgramSample {
                id: ProgramId(number as u32),
                name: program.name.clone(),
                threads,
                io_bytes: Some(io_bytes),
                team,
                pulse,
            });
        }
        Snapshot { at_ns: self.now, span_ns, host, programs }
    }

    fn sample(&self, i: usize, pid: i32, diff: &Account) -> ThreadSample {
        let t = &self.threads[i];
        let span_ns = diff.whole();
        let share = |ns: u64| (span_ns > 0).then(|| ns as f64 / span_ns as f64);
        ThreadSample {
            id: thread_id(i, t),
            pid,
            name: self.thread_name(i),
            cpu: t.ran_on.map(|c| CpuId(c as u32)),
            span_ns,
            shares: TimeShares {
                user: share(diff.user),
                system: share(diff.system),
                lock: share(diff.lock),
                latency: share(diff.latency),
                sleep: share(diff.sleep),
                spin: share(diff.spin),
            },
            counters: Counters {
                voluntary_switches: Some(diff.voluntary),
                involuntary_switches: Some(diff.involuntary),
                migrations: Some(diff.migrations),
                cache_references: Some(diff.references as u64),
                cache_misses: Some(diff.misses as u64),
                instructions: Some(diff.instructions as u64),
            },
        }
    }

    /// The rate over the goal's window, or over a second; since the start where that is shorter.
    fn pulse(&self, number: usize) -> Option<PulseSample> {
        let program = &self.programs[number];
        if program.beats == 0 && program.goal.is_none() {
            return None;
        }
        let window_ns = program.goal.map_or(1_000_000_000, |g| ns(g.window_ms, 1e6)).max(1);
        let seen_ns = window_ns.min(self.now - program.start).max(1);
        let begin = self.now - seen_ns;
        let beats = program.beat_times.len() - program.beat_times.partition_point(|&at| at <= begin);
        Some(PulseSample {
            rate: beats as f64 / seen_ns as f64 * 1e9,
            window_ns,
            rate_min: program.goal.and_then(|g| g.min),
            rate_max: program.goal.and_then(|g| g.max),
            hold: program.goal.is_some_and(|g| g.hold),
            beats: program.beats,
        })
    }

    /// What became of all programs so far, in the scenario's order.
    pub(crate) fn outcomes(&mut self) -> Vec<Outcome> {
        self.settle_all();
        let outcome = |program: &crate::world::Running| {
            let threads = || self.threads[program.threads.clone()].iter();
            let sum = |of: fn(&Account) -> u64| threads().map(|t| of(&t.account)).sum();
            Outcome {
                name: program.name.clone(),
                threads: program.threads.len(),
                start_ns: program.start,
                end_ns: program.ended,
                user_ns: sum(|a| a.user),
                system_ns: sum(|a| a.system),
                spin_ns: sum(|a| a.spin),
                lock_ns: sum(|a| a.lock),
                latency_ns: sum(|a| a.latency),
                sleep_ns: sum(|a| a.sleep),
                voluntary_switches: sum(|a| a.voluntary),
                involuntary_switches: sum(|a| a.involuntary),
                backstabs: sum(|a| a.backstabs),
                renewed_slices: sum(|a| a.renewed),
                migrations: sum(|a| a.migrations),
                beats: program.beats,
                phases: program.phases.iter().map(|&(at, phase)| (at, self.phases[phase].clone())).collect(),
            }
        };
        self.programs.iter().map(outcome).collect()
    }
}

/// Threads are numbered from 1, and never twice.
pub(crate) fn thread_id(i: usize, thread: &Thread) -> ThreadId {
    ThreadId { tid: i as i32 + 1, start_ticks: thread.started }
}
