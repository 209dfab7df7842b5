//! The scheduler that is loaded in the kernel, and its settings.

use crate::group::{CPUS_MAX, GROUPS_MAX, Request};
use crate::keeper::Keeper;
use crate::loaded::{Groups, Loaded};
use crate::state::{
    GROUP_IS_BATCH, GROUP_IS_IDLE, GROUP_IS_OVER, GROUP_IS_SET, QUOTA_PERIOD_NS, STARVATION_NS,
};
use crate::turn::Planner;
use crate::{Error, availability};
use corebeat_machine::{
    Action, Class, Coscheduler, CpuId, Effect, ProgramId, Scheduler, SchedulerError, Target,
    ThreadId, Turns,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of the policy `SCHED_EXT` (include/uapi/linux/sched.h).
const SCHED_EXT: u32 = 7;

/// The scheduler in the kernel. Dropping it unloads it: the kernel returns all threads to the
/// default scheduler, as it does after a `kill -9` of this process.
pub struct KernelScheduler {
    /// Before the scheduler itself, so that its thread ends first.
    keeper: Option<Keeper>,
    loaded: Arc<Loaded>,
    /// Whether it schedules all threads of the host.
    all: bool,
    programs: BTreeMap<ProgramId, Group>,
    /// Groups whose programs were released, and their generations.
    free: Vec<(u32, u32)>,
    next: u32,
}

/// The group of a program.
#[derive(Debug, Clone, Copy)]
struct Group {
    id: u32,
    /// Number of programs that had the group before.
    generation: u32,
    request: Request,
}

impl KernelScheduler {
    /// Loads the scheduler. With `all`, it schedules all threads of the host from now on, except
    /// those with a real-time policy; otherwise none before
    /// [`admit`](corebeat_machine::Scheduler::admit).
    ///
    /// # Errors
    /// Those of [`check`](crate::check), and [`Error::Load`] if the kernel refuses the scheduler.
    pub fn load(all: bool) -> Result<KernelScheduler, Error> {
        availability::check()?;
        Ok(KernelScheduler {
            keeper: None,
            loaded: Arc::new(Loaded::load(all)?),
            all,
            programs: BTreeMap::new(),
            free: vec![],
            next: 1,
        })
    }

    /// Returns a view of the groups in the kernel, which stays valid after the scheduler has moved
    /// into a machine. It keeps the tables, and not the scheduler, loaded.
    ///
    /// # Errors
    /// [`Error::Request`] if no descriptor is free.
    pub fn groups(&self) -> Result<Groups, Error> {
        self.loaded.groups()
    }

    /// Returns the number of the group of a program.
    pub fn group(&self, program: ProgramId) -> Option<u32> {
        Some(self.programs.get(&program)?.id)
    }

    fn require_loaded(&self) -> Result<(), Error> {
        match self.loaded.end() {
            Some(why) => Err(Error::Removed(why)),
            None => Ok(()),
        }
    }

    /// Changes the settings of a group. Returns whether they differ from the present ones.
    fn set(&mut self, program: ProgramId, request: Request) -> Result<bool, Error> {
        let group = self.programs.get_mut(&program).ok_or(Error::Unknown(program.0))?;
        if group.request == request {
            return Ok(false);
        }
        self.loaded.set_group(group.id, request)?;
        group.request = request;
        Ok(true)
    }

    /// Returns a group of no program without runnable threads. Its threads leave it when they wake
    /// up.
    fn free_group(&mut self) -> Result<Group, Error> {
        let counters = self.loaded.counters()?;
        let is_empty = |id: u32| counters.get(id as usize).is_some_and(|c| c.runnable == 0);
        let group = |(id, generation)| Group { id, generation, request: Request::default() };
        if let Some(at) = self.free.iter().position(|&(id, _)| is_empty(id)) {
            return Ok(group(self.free.swap_remove(at)));
        }
        if self.next >= GROUPS_MAX {
            return Err(Error::Many(GROUPS_MAX as usize - 1));
        }
        self.next += 1;
        Ok(group((self.next - 1, 0)))
    }

    fn admit_program(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<(), Error> {
        self.require_loaded()?;
        let group = match self.programs.get(&program) {
            Some(group) => *group,
            None => {
                let group = self.free_group()?;
                self.loaded.set_group(group.id, group.request)?;
                self.programs.insert(program, group);
                group
            }
        };
        let threads = threads.iter().filter_map(|thread| u32::try_from(thread.tid).ok());
        threads
            .into_iter()
            .try_for_each(|tid| self.loaded.add_member(tid, group.id, group.generation))
    }

    /// Carries out an action, and returns whether it changed anything; `None` for an action of the
    /// machine.
    fn change(&mut self, action: &Action, program: ProgramId) -> Result<Option<bool>, Error> {
        let Some(group) = self.programs.get(&program) else { return Ok(None) };
        let present = group.request;
        let request = match *action {
            Action::SetWeight { weight, .. } => Request { weight: weight.into(), ..present },
            Action::SetQuota { cpus, .. } => {
                let quota_ns = cpus.map_or(0, |cpus| (cpus * QUOTA_PERIOD_NS as f64) as u64);
                Request { quota_ns: quota_ns.max(cpus.map_or(0, |_| 1)), ..present }
            }
            Action::SetClass { target: Target::Program(_), class } => present
                .with(GROUP_IS_BATCH, class == Some(Class::Batch))
                .with(GROUP_IS_IDLE, class == Some(Class::Idle)),
            Action::SetClass { target: Target::Thread(_), .. } => {
                return Err(Error::Unsupported(
                    "it sets the class of whole programs, not that of one thread",
                ));
            }
            _ => return Ok(None),
        };
        self.require_loaded()?;
        self.set(program, request).map(Some)
    }

    fn start_turns(
        &mut self,
        programs: &[ProgramId],
        cpus: &[CpuId],
        coscheduler: Box<dyn Coscheduler + Send>,
        slice_ns: u64,
    ) -> Result<(), Error> {
        self.require_loaded()?;
        let others = programs.len().saturating_sub(1) as u64;
        let most_ns = STARVATION_NS / 2;
        if others.saturating_mul(slice_ns) > most_ns {
            return Err(Error::Turns {
                sets: programs.len(),
                wait_ms: others.saturating_mul(slice_ns) / 1_000_000,
                most_ms: most_ns / 1_000_000,
                slice_ms: most_ns / others.max(1) / 1_000_000,
            });
        }
        let mut sets = vec![];
        let group = |program: &ProgramId| {
            self.programs.get(program).copied().ok_or(Error::Unknown(program.0))
        };
        // An unknown program leaves no other one a set.
        let groups: Vec<Group> = programs.iter().map(group).collect::<Result<_, Error>>()?;
        for (&program, group) in programs.iter().zip(groups) {
            self.set(program, group.request.with(GROUP_IS_SET, true))?;
            sets.push(group.id);
        }
        let cpus: Vec<u32> = cpus.iter().map(|cpu| cpu.0).filter(|cpu| *cpu < CPUS_MAX).collect();
        let planner = Planner::new(coscheduler, sets, cpus.len());
        self.keeper = None;
        self.keeper = Some(Keeper::start(self.loaded.clone(), planner, cpus, slice_ns)?);
        Ok(())
    }
}

impl Scheduler for KernelScheduler {
    fn policy(&self) -> Option<u32> {
        (!self.all).then_some(SCHED_EXT)
    }

    fn admit(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<(), SchedulerError> {
        Ok(self.admit_program(program, threads)?)
    }

    fn act(
        &mut self,
        action: &Action,
        program: ProgramId,
        threads: u32,
    ) -> Result<Option<Effect>, SchedulerError> {
        let changed = match action {
            Action::SetClass { .. } => threads,
            _ => 1,
        };
        let effect = |has_changed| Effect { changed: if has_changed { changed } else { 0 } };
        Ok(self.change(action, program)?.map(effect))
    }

    fn coschedule(
        &mut self,
        programs: &[ProgramId],
        cpus: &[CpuId],
        coscheduler: Box<dyn Coscheduler + Send>,
        slice_ns: u64,
    ) -> Result<(), SchedulerError> {
        Ok(self.start_turns(programs, cpus, coscheduler, slice_ns)?)
    }

    fn turns(&self, program: ProgramId) -> Option<Turns> {
        let group = self.programs.get(&program)?;
        if group.request.flags & GROUP_IS_SET == 0 {
            return None;
        }
        self.loaded.turns(group.id)
    }

    fn release(&mut self, program: ProgramId) {
        if let Some(group) = self.programs.remove(&program) {
            // The error is ignored: without the scheduler there is no setting.
            let _ = self.loaded.set_group(group.id, Request::default().with(GROUP_IS_OVER, true));
            self.free.push((group.id, group.generation.wrapping_add(1)));
        }
    }

    fn restore(&mut self) {
        self.keeper = None;
        let programs: Vec<ProgramId> = self.programs.keys().copied().collect();
        programs.into_iter().for_each(|program| self.release(program));
    }

    fn failure(&self) -> Option<String> {
        self.loaded.end()
    }
}
