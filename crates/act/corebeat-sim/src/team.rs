//! The thread team of an OpenMP program: its first thread forks, the others take part, and wait
//! for the next region.
//!
//! ```text
//!   first    --- fork ===== its part ===== join (waits for the last thread) --- fork ...
//!   others   start    ===== their parts ===== start    (threads beyond the size stay at start)
//! ```

use crate::code::{ObjectId, Op, TeamCode};
use crate::kernel::Kernel;
use crate::shared_loop::SharedLoop;
use crate::sync::{Outcome, SyncObjects};
use crate::thread::{Activity, State};
use corebeat_machine::{CpuId, RegionSample, TeamSample};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// A program's thread team.
#[derive(Debug)]
pub(crate) struct ThreadTeam {
    /// Its threads among all threads; the first one forks.
    threads: Range<usize>,
    /// The point at which the other threads wait for a region, and the first for the end of a
    /// region.
    start: ObjectId,
    join: ObjectId,
    /// Its shared loops.
    loops: Vec<usize>,
    /// The size that an action has set.
    requested: Option<u32>,
    /// The size at the last fork, and the number of threads that are still in the region.
    size: u32,
    left: u32,
    /// Start of the region.
    began: u64,
    /// Count and total time of the regions that ended since the last snapshot, by region and size.
    ended: BTreeMap<(u64, u32), (u64, u64)>,
}

impl ThreadTeam {
    /// The team of this code, if it has parallel regions.
    pub(crate) fn new(code: &TeamCode, threads: Range<usize>) -> Option<ThreadTeam> {
        let loops = |op: &Op| if let Op::Begin(shared) = op { Some(*shared) } else { None };
        let (start, join) = code.team_points?;
        Some(ThreadTeam {
            threads,
            start,
            join,
            loops: code.ops.iter().filter_map(loops).collect(),
            requested: None,
            size: 0,
            left: 0,
            began: 0,
            ended: BTreeMap::new(),
        })
    }

    /// Its threads among all threads.
    pub(crate) fn threads(&self) -> Range<usize> {
        self.threads.clone()
    }

    fn size_max(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Number of threads that share the work of a region.
    pub(crate) fn size(&self) -> u32 {
        self.size.max(1)
    }

    /// The size that an action has set.
    #[cfg(test)]
    pub(crate) fn requested(&self) -> Option<u32> {
        self.requested
    }

    /// Sets the size of the next region; `None` for all threads. Returns whether it changed.
    pub(crate) fn resize(&mut self, size: Option<u32>) -> bool {
        std::mem::replace(&mut self.requested, size) != size
    }

    /// Activity of the team since the last call.
    pub(crate) fn sample(&mut self) -> TeamSample {
        let region =
            |((region, size), (count, time_ns))| RegionSample { region, size, count, time_ns };
        let regions = std::mem::take(&mut self.ended).into_iter().map(region).collect();
        TeamSample { size_max: self.size_max(), size: self.size, fixed: false, regions }
    }

    /// Whether a thread waits for the first fork from its start on.
    pub(crate) fn starts_waiting(&self, i: usize) -> bool {
        self.threads.contains(&i) && self.threads.start != i
    }

    /// Lets a starting thread wait for the first fork. Each thread begins on another CPU.
    pub(crate) fn wait_first(&self, kernel: &mut Kernel, sync: &mut SyncObjects, i: usize) {
        let t = &kernel.threads[i];
        let is_allowed = |c: &usize| t.cpus.contains(CpuId(*c as u32));
        let cpus: Vec<usize> = (0..kernel.cpus.len()).filter(is_allowed).collect();
        let cpu = cpus[t.member % cpus.len()];
        let t = &mut kernel.threads[i];
        (t.cpu, t.state) = (cpu, State::Parked);
        sync.get_mut(self.start).waiters.push_back(i);
    }

    /// The first thread begins a region: the threads that take part leave their waiting point.
    /// `claimed` is the number of CPUs that the program has claimed, if it has a claim.
    pub(crate) fn fork(
        &mut self,
        kernel: &mut Kernel,
        sync: &mut SyncObjects,
        loops: &mut [SharedLoop],
        i: usize,
        claimed: Option<u32>,
    ) {
        let size = self.requested.unwrap_or(u32::MAX).min(claimed.unwrap_or(u32::MAX));
        let size = size.clamp(1, self.size_max());
        (self.size, self.left, self.began) = (size, size, kernel.now());
        for &shared in &self.loops {
            loops[shared].join(size as usize);
        }
        sync.access(kernel, i, self.start);
        let waiting = std::mem::take(&mut sync.get_mut(self.start).waiters);
        let (called, rest): (VecDeque<usize>, VecDeque<usize>) =
            waiting.into_iter().partition(|&w| kernel.threads[w].member < size as usize);
        // Threads that do not take part stop spinning. (gcc's runtime ends such threads.)
        for &w in &rest {
            let (cpu, state) = (kernel.threads[w].cpu, kernel.threads[w].state);
            if state == State::Running {
                kernel.settle(cpu);
                kernel.kick(cpu);
            }
            if let Activity::Spin(left) = &mut kernel.threads[w].activity {
                *left = 0;
            }
        }
        sync.get_mut(self.start).waiters = rest;
        let fork = kernel.threads[i].pc;
        let delay_ns = sync.end_waits(kernel, called, Some(fork), self.start);
        kernel.threads[i].debt_system += delay_ns;
    }

    /// A thread has done its part of a region. The last thread ends the region. The first thread
    /// waits for the end, the others for the next fork.
    pub(crate) fn join(
        &mut self,
        kernel: &mut Kernel,
        sync: &mut SyncObjects,
        i: usize,
        region: usize,
    ) -> Outcome {
        let first = self.threads.start;
        self.left -= 1;
        let is_last = self.left == 0;
        if is_last {
            let (count, time_ns) = self.ended.entry((region as u64, self.size)).or_default();
            (*count, *time_ns) = (*count + 1, *time_ns + kernel.now() - self.began);
        }
        sync.access(kernel, i, self.join);
        if i == first {
            return match is_last {
                true => Outcome::Done,
                false => sync.wait(kernel, i, self.join, false),
            };
        }
        if is_last {
            let called = std::mem::take(&mut sync.get_mut(self.join).waiters);
            if !called.is_empty() {
                let pc = kernel.threads[first].pc;
                let delay_ns = sync.end_waits(kernel, called, Some(pc), self.join);
                kernel.threads[i].debt_system += delay_ns;
            }
        }
        sync.wait(kernel, i, self.start, false)
    }

    /// Ends the other threads after the first one has ended. `end` is the position of the last
    /// operation of their code.
    pub(crate) fn dismiss(&self, kernel: &mut Kernel, sync: &mut SyncObjects, end: usize) {
        let called = std::mem::take(&mut sync.get_mut(self.start).waiters);
        sync.end_waits(kernel, called, Some(end - 1), self.start);
    }
}
