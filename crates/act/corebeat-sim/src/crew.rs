//! The team of an OpenMP program: its first thread forks, the others come, do their part, and wait for the next region.
//!
//! ```text
//!   first    --- fork ===== its part ===== join (waits for the last) --- fork ...
//!   others   dock     ===== their parts ===== dock                       (those that the size leaves out stay there)
//! ```

use crate::code::{Op, Place, TeamCode};
use crate::thread::{Doing, State};
use crate::turn::Course;
use crate::world::{Event, World};
use corebeat_machine::{CpuId, RegionSample, TeamSample};
use std::collections::{BTreeMap, VecDeque};

/// A program's team, between its regions and in them.
#[derive(Debug)]
pub(crate) struct Crew {
    /// Its threads among all; the first forks.
    threads: std::ops::Range<usize>,
    /// Where the others wait between regions, and the first for the others.
    dock: Place,
    join: Place,
    /// Loops in it whose times are shared.
    pools: Vec<usize>,
    /// How large it is to be.
    asked: Option<u32>,
    /// How large it was when it last forked, and how many of those are still in the region.
    size: u32,
    left: u32,
    /// When the region began.
    began: u64,
    /// Regions that ended since the last snapshot, by region and size: how many, and their time together.
    ended: BTreeMap<(u64, u32), (u64, u64)>,
}

impl Crew {
    /// The team of this code, if it has parallel regions.
    pub(crate) fn new(code: &TeamCode, threads: std::ops::Range<usize>) -> Option<Crew> {
        let pool = |op: &Op| if let Op::Begin(pool) = op { Some(*pool) } else { None };
        let (dock, join) = code.crew?;
        Some(Crew {
            threads,
            dock,
            join,
            pools: code.ops.iter().filter_map(pool).collect(),
            asked: None,
            size: 0,
            left: 0,
            began: 0,
            ended: BTreeMap::new(),
        })
    }

    /// Its threads among all.
    pub(crate) fn threads(&self) -> std::ops::Range<usize> {
        self.threads.clone()
    }

    fn size_max(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Says how large the next team is to be; `None` for as large as it can be.
    pub(crate) fn resize(&mut self, size: Option<u32>) {
        self.asked = size;
    }

    /// What is seen of it since this was last asked.
    pub(crate) fn sample(&mut self) -> TeamSample {
        let region = |((region, size), (count, time_ns))| RegionSample { region, size, count, time_ns };
        let regions = std::mem::take(&mut self.ended).into_iter().map(region).collect();
        TeamSample { size_max: self.size_max(), size: self.size, fixed: false, regions }
    }
}

impl World {
    /// Whether a thread waits for the first of its team to fork, from its start on.
    pub(crate) fn is_docked_first(&self, i: usize) -> bool {
        self.programs[self.threads[i].program]
            .crew
            .as_ref()
            .is_some_and(|crew| crew.threads.contains(&i) && crew.threads.start != i)
    }

    /// Lets a thread wait for the first fork. It is on no CPU yet; they begin each on another.
    pub(crate) fn dock_first(&mut self, i: usize) {
        let Some(crew) = &self.programs[self.threads[i].program].crew else { return };
        let t = &mut self.threads[i];
        let here = |c: &usize| t.cpus.contains(CpuId(*c as u32));
        let cpus: Vec<usize> = (0..self.cpus.len()).filter(here).collect();
        t.cpu = cpus[t.member % cpus.len()];
        t.state = State::Blocked;
        self.meetings[crew.dock].waiters.push_back(i);
    }

    /// The first thread begins a region: those that take part come from the dock.
    pub(crate) fn fork(&mut self, c: usize, i: usize) {
        let (now, program, fork) = (self.now, self.threads[i].program, self.threads[i].pc);
        let claimed = self.heed(program).unwrap_or(u32::MAX);
        let Some(crew) = &mut self.programs[program].crew else { return };
        let size = crew.asked.unwrap_or(u32::MAX).min(claimed).clamp(1, crew.size_max());
        (crew.size, crew.left, crew.began) = (size, size, now);
        let dock = crew.dock;
        for pool in crew.pools.clone() {
            self.pools[pool].join(size as usize);
        }
        self.fetch(c, i, dock);
        let docked = std::mem::take(&mut self.meetings[dock].waiters);
        let (called, rest): (VecDeque<usize>, VecDeque<usize>) =
            docked.into_iter().partition(|&w| self.threads[w].member < size as usize);
        // Those that are left out do not spin for what is not theirs. (gcc's runtime ends them.)
        for &w in &rest {
            let (cpu, state) = (self.threads[w].cpu, self.threads[w].state);
            if state == State::Running {
                self.settle(cpu);
                self.kick(cpu);
            }
            if let Doing::Spin(left) = &mut self.threads[w].doing {
                *left = 0;
            }
        }
        self.meetings[dock].waiters = rest;
        self.threads[i].debt_system += self.send(called, fork, dock);
    }

    /// A thread has done its part of a region. The last one ends it; the first waits for that, the others for the next fork.
    pub(crate) fn join(&mut self, c: usize, i: usize, region: usize) -> Option<Course> {
        let now = self.now;
        let Some(crew) = &mut self.programs[self.threads[i].program].crew else { return None };
        let (first, dock, join) = (crew.threads.start, crew.dock, crew.join);
        crew.left -= 1;
        let is_last = crew.left == 0;
        if is_last {
            let (count, time_ns) = crew.ended.entry((region as u64, crew.size)).or_default();
            (*count, *time_ns) = (*count + 1, *time_ns + now - crew.began);
        }
        self.fetch(c, i, join);
        if i != first {
            if is_last && !self.meetings[join].waiters.is_empty() {
                let called = std::mem::take(&mut self.meetings[join].waiters);
                let pc = self.threads[first].pc;
                self.threads[i].debt_system += self.send(called, pc, join);
            }
            return self.wait_at(i, dock, false);
        }
        if is_last {
            self.go_on(i);
            return None;
        }
        self.wait_at(i, join, false)
    }

    /// A program's first thread has ended: no region is to come, and the others end, too.
    pub(crate) fn dismiss(&mut self, i: usize) {
        let t = &self.threads[i];
        let Some(crew) = self.programs[t.program].crew.as_ref().filter(|crew| crew.threads.start == i) else {
            return;
        };
        let (dock, before_end) = (crew.dock, self.code[t.team].len() - 2);
        let called = std::mem::take(&mut self.meetings[dock].waiters);
        self.send(called, before_end, dock);
    }

    /// Has threads go on after an operation. Those that are blocked are woken one after the other; how long that takes.
    fn send(&mut self, called: impl IntoIterator<Item = usize>, after: usize, from: Place) -> u64 {
        let mut delay = 0;
        for w in called {
            self.threads[w].pc = after;
            if self.threads[w].state == State::Blocked {
                delay += self.hardware.wake_ns;
                self.go_on(w);
                self.coming += 1;
                self.post(self.now + delay, Event::Wake(w));
            } else {
                self.free(None, w, from);
            }
        }
        delay
    }

    /// By how many a computation of a region is divided.
    pub(crate) fn crew_size(&self, i: usize) -> u32 {
        self.programs[self.threads[i].program].crew.as_ref().map_or(1, |crew| crew.size.max(1))
    }
}
