//! The control loop of the daemon: observes programs that report progress, decides, acts, and
//! releases programs that report none any more.

use crate::limit::{NOTES_MAX, PROGRAMS_MAX, PROGRAMS_PER_USER_MAX, THREADS_PER_PROGRAM_MAX};
use corebeat_host::apply;
use corebeat_linux::{Error, LinuxMachine, Options};
use corebeat_machine::{
    Action, AppliedAction, Effect, Machine, Policy, ProgramId, ProgressSample, Restored, Snapshot,
    Topology,
};
use corebeat_policy::fair::{Fair, Means};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Number of cycles for which a program without progress is still observed, so that the policy can
/// undo its changes.
const LAST_CYCLES: u32 = 2;

/// The host with its programs that emit heartbeats.
pub(crate) struct Steer {
    machine: LinuxMachine,
    fair: Fair,
    /// Programs by process.
    programs: BTreeMap<i32, Watched>,
    mechanisms: Mechanisms,
    /// Processes of the programs that are too slow and get no larger share.
    idle: BTreeSet<i32>,
    /// Limitations other than those of the mechanisms.
    notes: Vec<String>,
}

#[derive(Debug)]
struct Watched {
    id: ProgramId,
    uid: u32,
    cycles_left: u32,
}

/// Mechanisms that change the CPU share of programs.
#[derive(Debug, Default)]
struct Mechanisms {
    nice: Mechanism,
    weight: Mechanism,
    limit: Mechanism,
}

/// A mechanism, and whether this host permits it.
#[derive(Debug, Default)]
struct Mechanism {
    /// The mechanism has changed a setting: it is available, even if it fails for one program.
    has_worked: bool,
    /// Reason for a failure that concerns the host rather than one program.
    why_not: Option<String>,
}

/// The machine with the progress of its programs. Records the results of the mechanisms.
struct Measured<'a> {
    machine: &'a mut LinuxMachine,
    mechanisms: &'a mut Mechanisms,
    progress: BTreeMap<ProgramId, ProgressSample>,
}

impl Mechanism {
    fn record(&mut self, outcome: &Result<Effect, Error>) {
        match outcome {
            Ok(effect) => self.has_worked |= effect.has_changed(),
            // A refusal without an error number of the kernel concerns one program, which runs as
            // another user.
            Err(Error::Denied { source, .. }) if source.raw_os_error().is_none() => {}
            Err(e @ (Error::Unsupported { .. } | Error::Denied { .. })) => {
                self.why_not.get_or_insert_with(|| e.to_string());
            }
            Err(_) => {}
        }
    }

    /// Reason why the mechanism is not available.
    fn unavailable(&self) -> Option<&str> {
        self.why_not.as_deref().filter(|_| !self.has_worked)
    }
}

impl Mechanisms {
    /// Whether a mechanism is available, as far as known. Limits use the same control groups as
    /// weights, so they count only after they have worked.
    fn is_any(&self) -> bool {
        self.nice.unavailable().is_none()
            || self.weight.unavailable().is_none()
            || self.limit.has_worked
    }

    /// One line for each mechanism that is not available.
    fn notes(&self) -> Vec<String> {
        let shares = match (self.nice.unavailable(), self.weight.unavailable()) {
            (None, _) => None,
            (Some(nice), None) => Some(format!(
                "shares are set by control groups, because nice values are not available: {nice}"
            )),
            (Some(nice), Some(weight)) => {
                Some(format!("CPU shares cannot be set: {nice}; and {weight}"))
            }
        };
        let limit = self.limit.unavailable().map(|why| {
            format!("maximum rates cannot be enforced: CPU quotas are not available here: {why}")
        });
        shares.into_iter().chain(limit).collect()
    }
}

impl Machine for Measured<'_> {
    type Error = Error;

    fn topology(&self) -> &Topology {
        self.machine.topology()
    }

    fn observe(&mut self) -> Result<Snapshot, Error> {
        let mut snapshot = self.machine.observe()?;
        for program in &mut snapshot.programs {
            program.progress = self.progress.get(&program.id).copied();
        }
        Ok(snapshot)
    }

    fn act(&mut self, action: &Action) -> Result<Effect, Error> {
        let outcome = self.machine.act(action);
        match action {
            Action::SetNice { .. } => self.mechanisms.nice.record(&outcome),
            Action::SetWeight { .. } => self.mechanisms.weight.record(&outcome),
            Action::SetQuota { .. } => self.mechanisms.limit.record(&outcome),
            _ => {}
        }
        outcome
    }

    fn restore(&mut self) -> Restored {
        self.machine.restore()
    }
}

impl Steer {
    /// Creates the loop without programs. The journal is in this folder.
    pub(crate) fn new(state: &Path) -> Result<Steer, Error> {
        let options =
            Options { nonblocking: true, state_dir: Some(state.into()), ..Options::default() };
        let machine = LinuxMachine::new(options)?;
        let fair = fair(&machine, Means::Nice);
        Ok(Steer {
            machine,
            fair,
            programs: BTreeMap::new(),
            mechanisms: Mechanisms::default(),
            idle: BTreeSet::new(),
            notes: Vec::new(),
        })
    }

    /// CPUs of the host.
    pub(crate) fn topology(&self) -> &Topology {
        self.machine.topology()
    }

    /// Whether no program is observed.
    pub(crate) fn is_idle(&self) -> bool {
        self.programs.is_empty()
    }

    /// Process of the program that an action was for.
    pub(crate) fn pid(&self, action: &Action) -> Option<i32> {
        let program = action.program()?;
        self.programs.iter().find(|(_, watched)| watched.id == program).map(|(pid, _)| *pid)
    }

    /// Whether a mechanism is available, as far as known.
    pub(crate) fn can_act(&self) -> bool {
        self.mechanisms.is_any()
    }

    /// Returns the programs, by process, that the policy has begun to leave as they are since the
    /// last call, although they are too slow; each with the reason.
    pub(crate) fn new_inactions(&mut self) -> Vec<(i32, String)> {
        let why = |(&pid, watched): (&i32, &Watched)| {
            Some((pid, self.fair.inactions(watched.id).pop()?.why))
        };
        let now: BTreeMap<i32, String> = self.programs.iter().filter_map(why).collect();
        let before = std::mem::replace(&mut self.idle, now.keys().copied().collect());
        now.into_iter().filter(|(pid, _)| !before.contains(pid)).collect()
    }

    /// Number of observed programs.
    pub(crate) fn count(&self) -> usize {
        self.programs.len()
    }

    /// Makes one cycle. `owner_of` returns the user of a process with progress, if it is still the
    /// process that connected.
    ///
    /// # Errors
    /// The host cannot be observed.
    pub(crate) fn cycle(
        &mut self,
        progress: &BTreeMap<i32, ProgressSample>,
        owner_of: impl Fn(i32) -> Option<u32>,
        acts: bool,
    ) -> Result<Vec<AppliedAction>, Error> {
        self.observe_new(progress, owner_of);
        let of_program = |(pid, w): (&i32, &Watched)| Some((w.id, *progress.get(pid)?));
        let progress_by_id = self.programs.iter().filter_map(of_program).collect();
        let mut measured = Measured {
            machine: &mut self.machine,
            mechanisms: &mut self.mechanisms,
            progress: progress_by_id,
        };
        let mut snapshot = measured.observe()?;
        snapshot.programs.retain(|p| {
            let fits = p.threads.len() <= THREADS_PER_PROGRAM_MAX;
            if !fits {
                measured.machine.release(p.id);
                let limit = format!("more than {THREADS_PER_PROGRAM_MAX} threads");
                note(
                    &mut self.notes,
                    format!("'{}' is not observed, because it has {limit}", p.name),
                );
            }
            fits
        });
        let applied =
            if acts { apply(&mut measured, &mut self.fair, &snapshot) } else { Vec::new() };
        self.select_knob();
        self.release_ended(progress);
        Ok(applied)
    }

    /// Undoes all changes, and resets the policy.
    pub(crate) fn restore(&mut self) -> Restored {
        self.forget(self.fair.means);
        self.machine.restore()
    }

    /// Continues with this means and a new policy without memory of the programs.
    fn forget(&mut self, means: Means) {
        self.fair = fair(&self.machine, means);
        self.fair.holds = self.mechanisms.limit.unavailable().is_none();
    }

    /// Limitations of observations and actions on this host.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.machine.notes();
        notes.extend(self.mechanisms.notes());
        notes.extend(self.notes.iter().cloned());
        notes
    }

    /// Starts to observe processes with progress.
    fn observe_new(
        &mut self,
        progress: &BTreeMap<i32, ProgressSample>,
        owner_of: impl Fn(i32) -> Option<u32>,
    ) {
        for &pid in progress.keys() {
            if self.programs.contains_key(&pid) || self.programs.len() >= PROGRAMS_MAX {
                continue;
            }
            let Some(owner) = owner_of(pid) else { continue };
            if self.programs.values().filter(|w| w.uid == owner).count() >= PROGRAMS_PER_USER_MAX {
                continue;
            }
            // A process that has ended is not an error.
            let Ok(id) = self.machine.watch(pid) else { continue };
            // If the process has not ended by now, its number was not reused before the observation
            // started.
            match owner_of(pid) {
                Some(uid) if uid == owner => {
                    self.machine.set_owner(id, uid);
                    self.programs.insert(pid, Watched { id, uid, cycles_left: LAST_CYCLES });
                }
                _ => self.machine.unwatch(id),
            }
        }
    }

    /// Releases programs without progress, and programs that have ended: progress after the end
    /// belongs to another process with the same number.
    fn release_ended(&mut self, progress: &BTreeMap<i32, ProgressSample>) {
        let machine = &mut self.machine;
        self.programs.retain(|pid, watched| {
            watched.cycles_left = match progress.contains_key(pid) {
                true => LAST_CYCLES,
                false => watched.cycles_left.saturating_sub(1),
            };
            let stays = watched.cycles_left > 0 && machine.is_alive(watched.id);
            if !stays {
                machine.release(watched.id);
            }
            stays
        });
    }

    /// Changes from nice values to weights if nice values are not available. A failure for one
    /// program is not a reason.
    fn select_knob(&mut self) {
        self.fair.holds = self.mechanisms.limit.unavailable().is_none();
        if self.fair.means == Means::Nice && self.mechanisms.nice.unavailable().is_some() {
            for left in self.machine.restore().left {
                note(&mut self.notes, format!("not restored: {left}"));
            }
            self.forget(Means::Weight);
        }
    }
}

fn note(notes: &mut Vec<String>, what: String) {
    if notes.len() < NOTES_MAX && !notes.contains(&what) {
        notes.push(what);
    }
}

fn fair(machine: &LinuxMachine, means: Means) -> Fair {
    let mut fair = Fair::new(machine.topology().cpus().len() as u32);
    fair.means = means;
    fair.remembers = true;
    fair
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn denied() -> Result<Effect, Error> {
        Err(Error::Denied { what: "do this".into(), source: io::Error::from_raw_os_error(1) })
    }

    #[test]
    fn mechanism_without_an_effect_has_not_worked() {
        let mut mechanism = Mechanism::default();
        mechanism.record(&Ok(Effect::default()));
        assert!(mechanism.unavailable().is_none(), "not tried yet");
        mechanism.record(&denied());
        assert!(mechanism.unavailable().is_some_and(|why| why.contains("do this")));
        mechanism.record(&Ok(Effect::default()));
        assert!(mechanism.unavailable().is_some());
        // A mechanism that worked once is available.
        mechanism.record(&Ok(Effect { changed: 1 }));
        mechanism.record(&denied());
        assert_eq!(mechanism.unavailable(), None);
    }

    #[test]
    fn failure_for_one_program_does_not_make_a_mechanism_unavailable() {
        let mut mechanism = Mechanism::default();
        let source = io::ErrorKind::PermissionDenied.into();
        mechanism.record(&Err(Error::Denied {
            what: "change a process of another user".into(),
            source,
        }));
        mechanism.record(&Err(Error::NoProcess { pid: 1 }));
        assert_eq!(mechanism.unavailable(), None);
    }

    #[test]
    fn notes_of_mechanisms_are_consistent() {
        let mut mechanisms = Mechanisms::default();
        assert!(mechanisms.is_any() && mechanisms.notes().is_empty());
        mechanisms.nice.record(&denied());
        assert!(
            mechanisms.is_any()
                && mechanisms.notes().len() == 1
                && mechanisms.notes()[0].contains("by control groups")
        );
        mechanisms.weight.record(&denied());
        assert!(!mechanisms.is_any());
        let notes = mechanisms.notes();
        assert!(notes.len() == 1 && notes[0].starts_with("CPU shares cannot be set"), "{notes:?}");
        mechanisms.limit.record(&Ok(Effect { changed: 1 }));
        assert!(mechanisms.is_any());
    }
}
