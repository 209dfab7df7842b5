//! Claims of CPUs: programs request CPUs, an arbiter assigns them, and parallel regions have one
//! thread on each CPU of the claim.

use crate::event::Event;
use crate::kernel::Kernel;
use corebeat_machine::{Arbiter, CpuId, CpuSet, ProgramId};
use std::ops::Range;

/// The time that a program has to release requested CPUs, in nanoseconds: that of the daemon.
const RELEASE_NS: u64 = 500_000_000;

/// The state of a program's claim.
#[derive(Debug, Clone, Copy, Default)]
struct Claim {
    /// The program has claimed CPUs.
    is_active: bool,
    /// When the CPUs that the program must release are taken, in nanoseconds.
    deadline: Option<u64>,
}

/// All claims, and the arbiter.
#[derive(Default)]
pub(crate) struct Claims {
    arbiter: Option<Box<dyn Arbiter>>,
    /// By program.
    claims: Vec<Claim>,
}

impl Claims {
    /// No claims, for this number of programs.
    pub(crate) fn new(programs: usize) -> Claims {
        Claims { arbiter: None, claims: vec![Claim::default(); programs] }
    }

    pub(crate) fn arbitrate(&mut self, arbiter: Box<dyn Arbiter>) {
        self.arbiter = Some(arbiter);
    }

    /// A program requests CPUs.
    pub(crate) fn invade(&mut self, kernel: &mut Kernel, program: usize, min: u32, max: u32) {
        self.claims[program].is_active = true;
        self.update(kernel, program, |arbiter, id| arbiter.claim(id, min, max));
    }

    /// A program releases all but `keep` of its CPUs. `team` has the threads of its thread team.
    pub(crate) fn retreat(
        &mut self,
        kernel: &mut Kernel,
        program: usize,
        keep: u32,
        team: Option<Range<usize>>,
    ) {
        if !self.claims[program].is_active {
            return;
        }
        self.update(kernel, program, |arbiter, id| arbiter.release(id, keep));
        self.claims[program].is_active = keep > 0;
        // The first thread leaves the CPUs that are now another program's.
        if let Some(arbiter) = &self.arbiter {
            pin(kernel, program, team, &arbiter.cpus_of(ProgramId(program as u32)));
        }
    }

    /// Takes CPUs whose release deadline has passed. An event for an earlier request, which the
    /// program has fulfilled, has no effect.
    pub(crate) fn take_overdue(&mut self, kernel: &mut Kernel, program: usize) {
        if self.claims[program].deadline == Some(kernel.now()) {
            self.claims[program].deadline = None;
            self.update(kernel, program, |arbiter, id| arbiter.take(id));
        }
    }

    /// Applies a program's pending changes between two regions: it releases the requested CPUs, and
    /// uses those that it has received. Returns for how many threads the claim has CPUs, at least
    /// one; `None` without a claim.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut Kernel,
        program: usize,
        team: Range<usize>,
    ) -> Option<u32> {
        let id = ProgramId(program as u32);
        let keep = self.arbiter.as_ref().filter(|_| self.claims[program].is_active)?.keeps(id);
        if keep.is_some() {
            self.update(kernel, program, |arbiter, id| arbiter.take(id));
        }
        let cpus = self.arbiter.as_ref()?.cpus_of(id);
        pin(kernel, program, Some(team), &cpus);
        Some((cpus.len() as u32).max(1))
    }

    /// Changes a program's claim, and sets deadlines for programs that must release CPUs for it.
    fn update(
        &mut self,
        kernel: &mut Kernel,
        program: usize,
        change: impl FnOnce(&mut dyn Arbiter, ProgramId),
    ) {
        let Some(arbiter) = self.arbiter.as_deref_mut() else { return };
        change(arbiter, ProgramId(program as u32));
        for (other, claim) in self.claims.iter_mut().enumerate() {
            let must_release = arbiter.keeps(ProgramId(other as u32)).is_some();
            match (must_release, claim.deadline) {
                (true, None) => {
                    claim.deadline = Some(kernel.now() + RELEASE_NS);
                    kernel.events.post_in(RELEASE_NS, Event::ReleaseDeadline(other));
                }
                (false, Some(_)) => claim.deadline = None,
                _ => {}
            }
        }
    }
}

/// Pins each thread of a team to one of these CPUs. Threads beyond the CPUs run where the program
/// may.
fn pin(kernel: &mut Kernel, program: usize, team: Option<Range<usize>>, cpus: &CpuSet) {
    let mut claimed = cpus.iter();
    for i in team.unwrap_or_default() {
        let own = || kernel.programs[program].cpus.clone();
        let cpus = claimed.next().map_or_else(own, |cpu: CpuId| [cpu].into_iter().collect());
        if kernel.threads[i].cpus != cpus {
            kernel.restrict(i, cpus);
        }
    }
}
