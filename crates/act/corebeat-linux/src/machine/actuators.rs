//! The means to act: an [`Actuator`] for threads, groups and memory, and the channel to OpenMP
//! teams.

use super::Options;
use super::watched::thread_of;
use crate::process;
use crate::program::Program;
use crate::{Actuator, Error, TeamChannel, state_dir};
use corebeat_machine::{
    Action, Coscheduler, CpuId, Effect, ProgramId, Restored, Scheduler, SchedulerError, TeamSample,
    ThreadId, Turns,
};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

/// The means to act upon programs.
pub(super) struct Actuators {
    /// Created by the first action: a machine that only watches needs no folder.
    actuator: Option<Actuator>,
    nonblocking: bool,
    freezes_by_groups_only: bool,
    state_dir: Option<PathBuf>,
    teams: Option<TeamChannel>,
    /// A scheduler in the kernel.
    scheduler: Option<Box<dyn Scheduler>>,
    /// Programs that the scheduler in the kernel has.
    admitted: BTreeSet<ProgramId>,
}

impl Actuators {
    pub(super) fn new(options: &Options) -> Self {
        Actuators {
            actuator: None,
            nonblocking: options.nonblocking,
            freezes_by_groups_only: options.freezes_by_groups_only,
            state_dir: options.state_dir.clone(),
            teams: None,
            scheduler: None,
            admitted: BTreeSet::new(),
        }
    }

    /// Carries out an action on a watched program or on one of its threads.
    pub(super) fn act(
        &mut self,
        action: &Action,
        id: ProgramId,
        program: &Program,
    ) -> Result<Effect, Error> {
        if let Action::SetTeam { size, .. } = *action {
            return self.set_team(program, size);
        }
        let is_denied = |t: &ThreadId| is_denied(program, *t);
        let denied = || Error::Denied {
            what: format!("act upon '{}', which runs as another user", program.name),
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        let threads: Vec<ThreadId> =
            program.threads().map(|t| t.id).filter(|t| !is_denied(t)).collect();
        let is_allowed = match thread_of(action) {
            Some(thread) => threads.contains(&thread),
            None => !threads.is_empty() || program.threads().next().is_none(),
        };
        if !is_allowed {
            return Err(denied());
        }
        if let Some(scheduler) = &mut self.scheduler
            && program.is_alive()
            && let Some(effect) =
                scheduler.act(action, id, threads.len() as u32).map_err(unsupported)?
        {
            return Ok(effect);
        }
        let actuator = self.actuator()?;
        let effect = actuator.apply(action, id, &threads)?;
        // A thread may have changed its user meanwhile.
        if threads.iter().any(is_denied) {
            actuator.release(id);
            return Err(denied());
        }
        Ok(effect)
    }

    /// Sets the scheduler in the kernel.
    pub(super) fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.scheduler = Some(scheduler);
    }

    /// Returns whether there is a scheduler in the kernel.
    pub(super) fn have_scheduler(&self) -> bool {
        self.scheduler.is_some()
    }

    /// Moves a program to the scheduler in the kernel, if there is one.
    pub(super) fn admit(&mut self, id: ProgramId, program: &Program) -> Result<(), Error> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        let threads: Vec<ThreadId> =
            program.threads().map(|t| t.id).filter(|t| !is_denied(program, *t)).collect();
        scheduler.admit(id, &threads).map_err(unsupported)?;
        self.admitted.insert(id);
        match scheduler.policy() {
            Some(policy) => self.actuator()?.set_policy(id, &threads, policy).map(drop),
            None => Ok(()),
        }
    }

    /// Runs programs as coscheduled sets by the scheduler in the kernel.
    pub(super) fn coschedule(
        &mut self,
        programs: &[ProgramId],
        cpus: &[CpuId],
        coscheduler: Box<dyn Coscheduler + Send>,
        slice_ns: u64,
    ) -> Result<(), Error> {
        let scheduler = self.scheduler.as_mut().ok_or_else(|| Error::Unsupported {
            what: "coscheduling without freezing".into(),
            how: "it requires a scheduler in the kernel".into(),
        })?;
        scheduler.coschedule(programs, cpus, coscheduler, slice_ns).map_err(unsupported)
    }

    /// Returns the turns of a program that the scheduler in the kernel coschedules.
    pub(super) fn turns(&self, program: ProgramId) -> Option<Turns> {
        self.scheduler.as_ref()?.turns(program)
    }

    fn set_team(&mut self, program: &Program, size: Option<u32>) -> Result<Effect, Error> {
        let channel = self.teams.as_ref().ok_or_else(|| Error::Unsupported {
            what: "the thread count of a running program".into(),
            how: "start the program by 'corebeat run' with a policy that sizes teams".into(),
        })?;
        if !program.is_alive() || channel.size() == size {
            return Ok(Effect::default());
        }
        self.announce_teams()?;
        self.teams.iter().try_for_each(|channel| channel.set_size(None, size))?;
        Ok(Effect { changed: 1 })
    }

    /// Sets the channel to the OpenMP teams.
    pub(super) fn set_teams(&mut self, channel: TeamChannel) {
        self.teams = Some(channel);
        // The error is ignored: the first size is refused for the same reason.
        let _ = self.announce_teams();
    }

    /// Writes the file of the team channel to the journal, so that sizes are undone after a kill.
    fn announce_teams(&mut self) -> Result<(), Error> {
        let Some(path) = self.teams.as_ref().map(|channel| channel.path().to_owned()) else {
            return Ok(());
        };
        if !path.exists() {
            return Err(Error::Unsupported {
                what: format!("the team channel {}", path.display()),
                how:
                    "its file was removed, and a size could not be undone: start the program again"
                        .into(),
            });
        }
        self.actuator()?.announce_teams(&path)
    }

    fn actuator(&mut self) -> Result<&mut Actuator, Error> {
        match &mut self.actuator {
            Some(actuator) => Ok(actuator),
            none => {
                let dir = match &self.state_dir {
                    Some(dir) => dir.clone(),
                    None => state_dir()?,
                };
                let actuator = none.insert(Actuator::new(dir));
                if self.nonblocking {
                    actuator.set_nonblocking();
                }
                if self.freezes_by_groups_only {
                    actuator.freeze_by_groups_only();
                }
                Ok(actuator)
            }
        }
    }

    /// Applies the settings of a program to its new threads. Returns a note if that fails.
    pub(super) fn inherit(
        &mut self,
        id: ProgramId,
        program: &Program,
        new: impl IntoIterator<Item = ThreadId>,
    ) -> Option<String> {
        let new: Vec<ThreadId> = new.into_iter().filter(|t| !is_denied(program, *t)).collect();
        // A thread that started while its program was admitted is in no group of the scheduler yet.
        let admitted = match &mut self.scheduler {
            Some(scheduler) if self.admitted.contains(&id) && scheduler.failure().is_none() => {
                scheduler.admit(id, &new).map_err(unsupported)
            }
            _ => Ok(()),
        };
        let inherit = |()| self.actuator.as_mut().map_or(Ok(()), |it| it.inherit(id, &new));
        let failed = admitted.and_then(inherit).err()?;
        Some(format!("new threads of {} do not get the program's settings: {failed}", program.name))
    }

    /// Returns whether an action was requested.
    pub(super) fn have_acted(&self) -> bool {
        self.actuator.is_some()
    }

    /// Returns what the OpenMP teams did since the last call, by process.
    pub(super) fn team_samples(&mut self) -> HashMap<i32, TeamSample> {
        self.teams.as_mut().map(|t| t.samples().into_iter().collect()).unwrap_or_default()
    }

    /// Undoes all changes to a program.
    pub(super) fn release(&mut self, program: ProgramId) -> Restored {
        self.admitted.remove(&program);
        self.scheduler.iter_mut().for_each(|scheduler| scheduler.release(program));
        self.actuator.as_mut().map(|actuator| actuator.release(program)).unwrap_or_default()
    }

    /// Undoes all changes.
    pub(super) fn restore(&mut self) -> Restored {
        let restored = self.actuator.as_mut().map(Actuator::restore).unwrap_or_default();
        self.admitted.clear();
        self.scheduler.iter_mut().for_each(|scheduler| scheduler.restore());
        if let Some(channel) = &self.teams {
            // Also without a journal. Only the size 0 is refused.
            let _ = channel.set_size(None, None);
        }
        restored
    }

    /// Returns whether a restoration left changes.
    pub(super) fn keep_changes(&self) -> bool {
        self.actuator.as_ref().is_some_and(Actuator::keeps_changes)
    }

    /// Returns for how long quotas of Corebeat have stopped a program, in seconds.
    pub(super) fn throttled_s(&self, program: ProgramId) -> Option<f64> {
        self.actuator.as_ref()?.throttled_s(program)
    }

    /// Returns a line if programs are stopped by signals instead of control groups, and one if the
    /// kernel has removed the scheduler.
    pub(super) fn notes(&self) -> Vec<String> {
        let why = self.actuator.as_ref().and_then(Actuator::no_freezer_reason);
        let signals = why.map(|why| {
            format!(
                "programs are stopped by signals, which they and their parents can detect, because \
                 they cannot be frozen: {why}"
            )
        });
        let removed = self.scheduler.as_ref().and_then(|scheduler| scheduler.failure());
        let removed = removed.map(|why| {
            format!("the kernel has removed the scheduler, and its settings had no effect: {why}")
        });
        signals.into_iter().chain(removed).collect()
    }
}

/// Returns the error for a request that the scheduler does not carry out.
fn unsupported(SchedulerError { what, how }: SchedulerError) -> Error {
    Error::Unsupported { what, how }
}

/// Returns whether actions on a thread are denied, because the thread runs as another user than
/// the owner of its program.
fn is_denied(program: &Program, thread: ThreadId) -> bool {
    program.owner.is_some_and(|uid| process::is_of_other_user(thread.tid, uid))
}
