//! A simulated thread: what it does, how it takes turns, where its time went.

use corebeat_machine::{Class, CpuSet};

/// What a thread is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its program has not started.
    New,
    /// In a run queue.
    Ready,
    /// On its CPU.
    Running,
    /// Ready, but its program has used up its limit of CPU time.
    Throttled,
    /// Blocked at a lock, a barrier, a condition or a queue.
    Blocked,
    /// Waits for a device.
    Asleep,
    Ended,
}

/// What it does when it is on its CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Doing {
    /// The operation that comes next.
    Next,
    /// So much is left of a computation, in nanoseconds at full speed.
    Work(f64),
    /// Waits without giving its CPU up, for so many nanoseconds.
    Spin(u64),
}

/// Where time went, in nanoseconds, and what was counted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    pub(crate) user: u64,
    pub(crate) system: u64,
    /// A part of user.
    pub(crate) spin: u64,
    pub(crate) lock: u64,
    pub(crate) latency: u64,
    pub(crate) sleep: u64,
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    /// Of these, those to a thread of the same program with a higher priority.
    pub(crate) backstabs: u64,
    /// Slices used up while nobody else waited for the CPU.
    pub(crate) renewed: u64,
    pub(crate) migrations: u64,
    pub(crate) references: f64,
    pub(crate) misses: f64,
    pub(crate) instructions: f64,
}

impl Account {
    /// The time that it has seen.
    pub(crate) fn whole(&self) -> u64 {
        self.user + self.system + self.lock + self.latency + self.sleep
    }

    /// What was added since `before`.
    pub(crate) fn since(&self, before: &Account) -> Account {
        Account {
            user: self.user - before.user,
            system: self.system - before.system,
            spin: self.spin - before.spin,
            lock: self.lock - before.lock,
            latency: self.latency - before.latency,
            sleep: self.sleep - before.sleep,
            voluntary: self.voluntary - before.voluntary,
            involuntary: self.involuntary - before.involuntary,
            backstabs: self.backstabs - before.backstabs,
            renewed: self.renewed - before.renewed,
            migrations: self.migrations - before.migrations,
            references: self.references - before.references,
            misses: self.misses - before.misses,
            instructions: self.instructions - before.instructions,
        }
    }
}

/// A thread.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub(crate) program: usize,
    /// The team's number among all, and the thread's in its team.
    pub(crate) team: usize,
    pub(crate) member: usize,

    // Where it is in its code.
    pub(crate) pc: usize,
    pub(crate) loops: Vec<u64>,
    pub(crate) doing: Doing,
    /// Kernel and user time that is due before it goes on.
    pub(crate) debt_system: u64,
    pub(crate) debt_user: u64,
    /// It was woken to try for a lock again, and is first in line if it must wait once more.
    pub(crate) again: bool,
    /// The locks that it holds.
    pub(crate) held: Vec<usize>,

    // How it takes turns.
    pub(crate) state: State,
    /// Since when, or when its time was last booked.
    pub(crate) since: u64,
    pub(crate) cpus: CpuSet,
    /// Where it runs, or is in the queue, or was last.
    pub(crate) cpu: usize,
    /// Where it ran last.
    pub(crate) ran_on: Option<usize>,
    pub(crate) class: Class,
    pub(crate) nice: i8,
    pub(crate) weight: u64,
    /// Virtual run time on the clock of its CPU; between two CPUs how far it is ahead of that clock.
    pub(crate) virtual_ns: i64,
    /// From 0 to 59, on a time-sharing machine.
    pub(crate) priority: u8,
    /// A second's tick has come since its priority last changed: it rises when it next comes back from a sleep.
    pub(crate) is_due: bool,
    /// What it was told to use instead of the default.
    pub(crate) slice: Option<u64>,
    /// What is left of its slice.
    pub(crate) left: u64,

    // Its memory.
    pub(crate) footprint_kib: u64,
    /// Its own data by node, in millionths; empty until it first runs.
    pub(crate) pages: Vec<u64>,

    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) account: Account,
    /// As it was when last observed.
    pub(crate) seen: Account,
}

impl Thread {
    /// Whether it wants a CPU.
    pub(crate) fn is_runnable(&self) -> bool {
        matches!(self.state, State::Ready | State::Running | State::Throttled)
    }

    /// Adds user time that is due before it goes on. A large cache that is slow to fill may take for ever.
    pub(crate) fn owe(&mut self, ns: u64) {
        self.debt_user = self.debt_user.saturating_add(ns);
    }

    /// What is due before it goes on, in nanoseconds.
    pub(crate) fn debt(&self) -> u64 {
        self.debt_system.saturating_add(self.debt_user)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, State::New | State::Ended)
    }
}

/// What a thread of this class and nice value weighs: 1,024 at nice 0, and 1.25 times as much as the next one's; 3 where it takes only
/// what is left (`sched_prio_to_weight` and `WEIGHT_IDLEPRIO` in Linux' kernel/sched).
pub(crate) fn weight(class: Class, nice: i8) -> u64 {
    if class == Class::Idle {
        return 3;
    }
    let step: f64 = if nice < 0 { 1.25 } else { 1.0 / 1.25 };
    let times = (0..nice.unsigned_abs()).fold(1024.0, |weight, _| weight * step);
    (times.round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_is_linux() {
        for (nice, linux) in [(-20, 88_761.0), (-5, 3_121.0), (0, 1_024.0), (5, 335.0), (19, 15.0)] {
            let ours = weight(Class::Normal, nice) as f64;
            assert!((ours / linux - 1.0).abs() < 0.02, "nice {nice}: {ours} for {linux}");
        }
        assert_eq!(weight(Class::Idle, 0), 3);
    }
}
