//! Control groups of programs: weight, quota and freezing.

use super::{Actuator, processes, whole};
use crate::Error;
use crate::cgroup::{self, Group, Place};
use crate::journal::Record;
use crate::process::is_same;
use corebeat_machine::{Effect, ProgramId, ThreadId};
use std::io;

/// Settings of the control group of a program.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct GroupLimits {
    pub(super) weight: Option<u32>,
    /// Limit of CPU time, in CPUs.
    pub(super) cpus: Option<f64>,
}

impl GroupLimits {
    /// Writes the settings to a group that has the settings `before`.
    fn change(self, group: &Group, before: GroupLimits) -> Result<(), Error> {
        if self.weight != before.weight {
            group.set_weight(self.weight.unwrap_or(cgroup::WEIGHT_DEFAULT))?;
        }
        if self.cpus != before.cpus {
            group.limit(self.cpus)?;
        }
        Ok(())
    }
}

/// Purpose of a control group.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Limits(GroupLimits),
    Freeze,
}

impl Actuator {
    /// Sets weight and quota of a program, by a control group. A program with neither gets no
    /// group.
    pub(super) fn set_limits(
        &mut self,
        program: ProgramId,
        limits: GroupLimits,
        threads: &[ThreadId],
    ) -> Result<Effect, Error> {
        let mut fresh = Vec::new();
        let result = match limits == GroupLimits::default() {
            true => Ok(()),
            false => self.move_to_groups(program, Purpose::Limits(limits), threads, &mut fresh),
        };
        let state = self.programs.entry(program).or_default();
        if let Err(e) = result {
            // The journal lists groups that cannot be removed now; restore removes them.
            remove_groups_unless(&state.freeze_groups, &fresh);
            return Err(e);
        }
        let before = state.limits;
        let changed = state.groups.iter().try_for_each(|g| limits.change(g, before));
        if let Err(e) = changed {
            // Best effort: the write that failed just now may fail again.
            state.groups.iter().for_each(|g| drop(before.change(g, limits)));
            remove_groups_unless(&state.freeze_groups, &fresh);
            return Err(e);
        }
        let has_changed = !fresh.is_empty() || (limits != before && !state.groups.is_empty());
        state.limits = limits;
        state.groups.extend(fresh);
        Ok(whole(has_changed))
    }

    /// Returns for how long the quotas that were set for a program have stopped it, in seconds.
    /// `None` without a quota.
    pub(crate) fn throttled_s(&self, program: ProgramId) -> Option<f64> {
        let groups = &self.programs.get(&program)?.groups;
        groups.iter().filter_map(Group::throttled_s).reduce(|a, b| a + b)
    }

    /// Freezes or thaws a program by control groups or, if it can have none, by signals from then
    /// on.
    pub(super) fn set_frozen(
        &mut self,
        program: ProgramId,
        frozen: bool,
        threads: &[ThreadId],
    ) -> Result<Effect, Error> {
        let mut no_groups = None;
        if !self.programs.entry(program).or_default().uses_signals {
            let why = match self.freeze_group(program, frozen, threads) {
                Err(why) if frozen && self.may_stop && !is_in_use(&why) => why,
                other => return other,
            };
            if self.programs.get(&program).is_some_and(|state| !state.freeze_groups.is_empty()) {
                return Err(why);
            }
            no_groups = Some(why.to_string());
        }
        let has_changed = if frozen { self.stop(program, threads)? } else { self.resume(program)? };
        self.no_freezer_reason = self.no_freezer_reason.take().or(no_groups);
        let state = self.programs.entry(program).or_default();
        (state.uses_signals, state.frozen) = (true, frozen);
        Ok(whole(has_changed))
    }

    /// Returns why programs are stopped by signals instead of frozen, if any was.
    pub(crate) fn no_freezer_reason(&self) -> Option<&str> {
        self.no_freezer_reason.as_deref()
    }

    /// Freezes or thaws a program by control groups. The first freeze creates the groups, which
    /// stay until the end.
    fn freeze_group(
        &mut self,
        program: ProgramId,
        frozen: bool,
        threads: &[ThreadId],
    ) -> Result<Effect, Error> {
        let mut fresh = Vec::new();
        let gathered = match frozen {
            true => self.move_to_groups(program, Purpose::Freeze, threads, &mut fresh),
            false => Ok(()),
        };
        let state = self.programs.entry(program).or_default();
        if let Err(e) = gathered {
            remove_groups_unless(&state.groups, &fresh);
            return Err(e);
        }
        state.freeze_groups.extend(fresh);
        if let Err(e) = state.freeze_groups.iter().try_for_each(|g| g.freeze(frozen)) {
            // Do not leave half of the program frozen: the other half would wait for it.
            state.freeze_groups.iter().for_each(|g| drop(g.freeze(false)));
            state.frozen = false;
            return Err(e);
        }
        let has_changed = !state.freeze_groups.is_empty() && state.frozen != frozen;
        state.frozen = frozen;
        Ok(whole(has_changed))
    }

    /// Moves processes of a program that are in no group of Corebeat into one, which is created if
    /// necessary.
    fn move_to_groups(
        &mut self,
        program: ProgramId,
        purpose: Purpose,
        threads: &[ThreadId],
        fresh: &mut Vec<Group>,
    ) -> Result<(), Error> {
        let mut processes = processes(threads);
        if matches!(purpose, Purpose::Freeze) {
            // This process may descend from the program. A frozen Corebeat could thaw nothing.
            let own = std::process::id() as i32;
            processes.retain(|process| process.tid != own);
        }
        if processes.is_empty() {
            return Ok(());
        }
        // The name is as unique as that of the journal: no other Corebeat removes the group.
        let name = format!("{}-{}", self.journal()?.stem(), program.0);
        for process in processes {
            let known = self.programs.get(&program).map_or(&[][..], |s| match purpose {
                Purpose::Limits(_) => &s.groups,
                Purpose::Freeze => &s.freeze_groups,
            });
            let mut groups = known.iter().chain(fresh.iter());
            if groups.clone().any(|g| g.holds(process.tid)) {
                continue;
            }
            let place = match purpose {
                Purpose::Limits(_) => Place::of(process.tid)?,
                Purpose::Freeze => Place::to_freeze(process.tid)?,
            };
            let Some(place) = place else { continue };
            let group = place.group(&name);
            if !groups.any(|g| *g == group) {
                let place = group.place();
                let _alone = match place.lock(self.lock_timeout) {
                    Err(e) if self.lock_timeout.is_zero() => return Err(e),
                    locked => locked.ok(),
                };
                let enable = place.to_enable().map(|path| Record::Enable { path: path.into() });
                let make = Record::Group { path: group.path().into() };
                self.write_ahead(enable.into_iter().chain([make]).collect())?;
                fresh.push(group.clone());
                group.make()?;
                if let Purpose::Limits(limits) = purpose {
                    limits.change(&group, GroupLimits::default())?;
                }
            }
            if matches!(is_same(process), Ok(true)) {
                group.take(process.tid)?;
            }
        }
        Ok(())
    }
}

/// Removes groups that were created in vain, except those with another purpose.
fn remove_groups_unless(kept: &[Group], fresh: &[Group]) {
    let is_kept = |group: &Group| kept.iter().any(|k| k.path() == group.path());
    fresh.iter().filter(|g| !is_kept(g)).for_each(|g| drop(cgroup::remove(g.path())));
}

/// Returns whether an action failed only because another process holds the lock of the group.
fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::Refused { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
}
