//! Load balancing: which thread a CPU should take from another one.

use crate::cpu::Cpus;
use crate::thread::Thread;
use corebeat_machine::CpuId;

/// CPUs of different nodes are balanced only in every n-th round, unless one of them is idle.
const FAR_EVERY: u64 = 4;
/// A thread moves to a CPU with just one thread less only in every n-th round, so that of three
/// threads on two CPUs each has a CPU to itself for a while.
const ROTATE_EVERY: u64 = 16;

/// The load balancer: which rounds have passed.
#[derive(Debug)]
pub(crate) struct Balancer {
    /// Time between two rounds, in nanoseconds.
    pub(crate) period: u64,
    pub(crate) round: u64,
}

impl Balancer {
    pub(crate) fn new(period: u64) -> Self {
        Balancer { period, round: 0 }
    }

    /// A waiting thread whose move to this CPU reduces the difference between two CPUs' loads.
    pub(crate) fn candidate(&self, c: usize, cpus: &Cpus, threads: &[Thread]) -> Option<usize> {
        let to = &cpus[c];
        if to.set.is_some() {
            return None;
        }
        let rotates = |o: usize| {
            self.round.is_multiple_of(ROTATE_EVERY)
                && to.balanced != self.round
                && cpus[o].balanced != self.round
        };
        let mut best: Option<(u8, u64, usize)> = None;
        for &(level, o) in &to.others {
            if best.is_some_and(|b| b.0 < level)
                || (level == 2 && !to.is_idle && !self.round.is_multiple_of(FAR_EVERY))
            {
                break;
            }
            let more = cpus[o].load.saturating_sub(to.load);
            if cpus[o].queue.is_empty() || best.is_some_and(|b| b.1 >= more) {
                continue;
            }
            let suits = |&i: &usize| {
                let t = &threads[i];
                let evens =
                    t.weight < more || (t.weight == more && to.current.is_some() && rotates(o));
                evens && t.cpus.contains(CpuId(c as u32))
            };
            best = cpus[o].queue.iter().find(suits).map(|i| (level, more, i)).or(best);
        }
        best.map(|b| b.2)
    }
}

/// A thread for an idle CPU: of the nearest CPUs with a waiting thread that may run here, the one
/// with the longest run queue provides it.
pub(crate) fn steal(c: usize, cpus: &Cpus, threads: &[Thread]) -> Option<usize> {
    if cpus.queued == 0 {
        return None;
    }
    let mut best: Option<(u8, usize, usize)> = None;
    for &(level, o) in &cpus[c].others {
        if best.is_some_and(|b| b.0 < level) {
            break;
        }
        let len = cpus[o].queue.len();
        if len > best.map_or(0, |b| b.1) {
            let is_allowed = |&i: &usize| threads[i].cpus.contains(CpuId(c as u32));
            best = cpus[o].queue.iter().find(is_allowed).map(|i| (level, len, i)).or(best);
        }
    }
    best.map(|b| b.2)
}
