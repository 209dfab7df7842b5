//! Claims of CPUs: programs ask, an arbiter says who has what, and parallel regions have a thread on each CPU of the claim.

use crate::crew::Crew;
use crate::world::{Event, World};
use corebeat_machine::{Arbiter, CpuId, CpuSet, ProgramId};

/// So long a program has until what it was asked to give back is taken, in nanoseconds: that of the daemon.
const SHRINK_NS: u64 = 500_000_000;

impl World {
    /// A program asks for CPUs.
    pub(crate) fn invade(&mut self, program: usize, min: u32, max: u32) {
        self.programs[program].claims = true;
        self.settle_claims(program, |arbiter, id| arbiter.claim(id, min, max));
    }

    /// A program gives back all but so many of its CPUs.
    pub(crate) fn retreat(&mut self, program: usize, to: u32) {
        if !self.programs[program].claims {
            return;
        }
        self.settle_claims(program, |arbiter, id| arbiter.release(id, to));
        self.programs[program].claims = to > 0;
        // Its first thread goes on where it is not in another's way.
        let left = self.arbiter.as_ref().map(|arbiter| arbiter.cpus_of(ProgramId(program as u32)));
        if let Some(left) = left {
            self.tie(program, &left);
        }
    }

    /// A time to give back is over. It counts only where the program has not given back what it was asked for then.
    pub(crate) fn take_claimed(&mut self, program: usize) {
        if self.programs[program].shrinks_at == Some(self.now) {
            self.programs[program].shrinks_at = None;
            self.settle_claims(program, |arbiter, id| arbiter.take(id));
        }
    }

    /// Between two regions a program does what it is asked, and takes what it was given. How many threads its claim has CPUs for, if it
    /// has a claim: one is always there.
    pub(crate) fn heed(&mut self, program: usize) -> Option<u32> {
        let id = ProgramId(program as u32);
        let keep = self.arbiter.as_ref().filter(|_| self.programs[program].claims)?.keeps(id);
        if keep.is_some() {
            self.settle_claims(program, |arbiter, id| arbiter.take(id));
        }
        let cpus = self.arbiter.as_ref()?.cpus_of(id);
        self.tie(program, &cpus);
        Some((cpus.len() as u32).max(1))
    }

    /// Lets something happen to claims, and gives who is asked to shrink by it time to do so.
    fn settle_claims(&mut self, program: usize, happens: impl FnOnce(&mut dyn Arbiter, ProgramId)) {
        let Some(arbiter) = self.arbiter.as_deref_mut() else { return };
        happens(arbiter, ProgramId(program as u32));
        for other in 0..self.programs.len() {
            let is_asked = self.arbiter.as_ref().is_some_and(|a| a.keeps(ProgramId(other as u32)).is_some());
            match (is_asked, self.programs[other].shrinks_at) {
                (true, None) => {
                    self.programs[other].shrinks_at = Some(self.now + SHRINK_NS);
                    self.post(self.now + SHRINK_NS, Event::Shrink(other));
                }
                (false, Some(_)) => self.programs[other].shrinks_at = None,
                _ => {}
            }
        }
    }

    /// Ties the threads of a program's team to these CPUs, each to one; those for whom there is none are free.
    fn tie(&mut self, program: usize, cpus: &CpuSet) {
        let Some(threads) = self.programs[program].crew.as_ref().map(Crew::threads) else { return };
        let mut claimed = cpus.iter();
        for i in threads {
            let own = || self.programs[program].cpus.clone();
            let cpus = claimed.next().map_or_else(own, |cpu: CpuId| [cpu].into_iter().collect());
            if self.threads[i].cpus != cpus {
                self.restrict(i, cpus);
            }
        }
    }
}
