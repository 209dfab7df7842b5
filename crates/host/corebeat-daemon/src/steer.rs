//! The control loop of the daemon: observes programs that report progress, and programs that use
//! the CPU, decides, acts, and releases programs that do neither any more.

use crate::auto::Auto;
use crate::change::Changes;
use crate::daemon::Steering;
use crate::limit::{NOTES_MAX, PROGRAMS_MAX, PROGRAMS_PER_USER_MAX, THREADS_PER_PROGRAM_MAX};
use corebeat_host::{Step, apply};
use corebeat_kernel::KernelScheduler;
use corebeat_linux::{Error, LinuxMachine, Listed, Options};
use corebeat_machine::{
    Action, AppliedAction, Effect, Inaction, Machine, Policy, ProgramId, ProgressSample, Restored,
    Snapshot, Topology,
};
use corebeat_policy::fair::{Fair, Means};
use corebeat_wire::host;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Number of cycles for which a program without progress is still observed, so that the policy can
/// undo its changes.
const LAST_CYCLES: u32 = 2;

/// The host with its programs that are steered.
pub(crate) struct Steer {
    machine: LinuxMachine,
    fair: Fair,
    /// Programs that emit heartbeats, by process, with the number of cycles for which a program
    /// without progress is still observed.
    programs: BTreeMap<i32, (Watched, u32)>,
    /// Programs that use the CPU, if the daemon steers them.
    auto: Option<Auto>,
    changes: Changes,
    /// Begins and ends of the steering of programs that use the CPU, one line each.
    events: Vec<String>,
    mechanisms: Mechanisms,
    /// Processes of the programs that a policy leaves as they are, with the policy.
    idle: BTreeSet<(i32, &'static str)>,
    /// Limitations other than those of the mechanisms.
    notes: Vec<String>,
    /// Programs that the scheduler in the kernel has, if it is loaded.
    admitted: Option<BTreeSet<ProgramId>>,
    /// Whether this scheduler schedules all threads of the host.
    schedules_all: bool,
    /// The observations since the last update of the web page, if there is one.
    recent: Option<Recent>,
}

/// Observations since the last update of the web page.
#[derive(Debug, Default)]
struct Recent {
    step: Step,
    last: Snapshot,
}

/// A program that is observed.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) id: ProgramId,
    /// User whose threads actions may change.
    pub(crate) uid: u32,
    /// Name of the first process.
    name: String,
}

impl Watched {
    /// Starts to observe a process of this user with its descendants. `None` if the process has
    /// ended, which is no error, or is hidden. `is_meant` returns whether the process that has the
    /// number now is the one that is meant.
    pub(crate) fn begin(
        machine: &mut LinuxMachine,
        pid: i32,
        uid: u32,
        is_meant: impl Fn() -> bool,
    ) -> Option<Watched> {
        let id = machine.watch(pid).ok()?;
        let name = Listed::read(pid).map(|process| process.name);
        // If the process has not ended by now, its number was not reused before the observation
        // started.
        let Some(name) = name.filter(|_| is_meant()) else {
            machine.unwatch(id);
            return None;
        };
        machine.set_owner(id, uid);
        Some(Watched { id, uid, name })
    }
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
    /// Creates the loop without programs. The journal is in this folder. `user` is the user whose
    /// programs are steered; `None` for all users. `records` states whether [`Steer::on_page`] is
    /// called.
    pub(crate) fn new(
        state: &Path,
        steering: &Steering,
        user: Option<u32>,
        records: bool,
    ) -> Result<Steer, Error> {
        let selection = match steering {
            Steering::Auto(selection) => Some(selection),
            Steering::None | Steering::Fair => None,
        };
        // fair requires no counters, and auto leaves programs alone that spin.
        let machine = LinuxMachine::new(Options {
            nonblocking: true,
            state_dir: Some(state.into()),
            counters: selection.is_some(),
            spin: selection.is_some(),
            ..Options::default()
        })?;
        let fair = fair(&machine, Means::Nice);
        let auto = selection.map(|selection| Auto::new(selection, user, machine.topology()));
        Ok(Steer {
            machine,
            fair,
            auto,
            changes: Changes::default(),
            events: vec![],
            programs: BTreeMap::new(),
            mechanisms: Mechanisms::default(),
            idle: BTreeSet::new(),
            notes: Vec::new(),
            admitted: None,
            schedules_all: false,
            recent: records.then(Recent::default),
        })
    }

    /// Loads the scheduler into the kernel, which has exact weights and quotas, for the observed
    /// programs or for all threads of the host.
    ///
    /// # Errors
    /// The scheduler cannot be loaded.
    pub(crate) fn load_scheduler(&mut self, all: bool) -> Result<(), Error> {
        let scheduler = KernelScheduler::load(all).map_err(|e| Error::Unsupported {
            what: "the scheduler in the kernel".into(),
            how: e.to_string(),
        })?;
        self.machine.set_scheduler(Box::new(scheduler));
        self.schedules_all = all;
        self.admitted = Some(BTreeSet::new());
        self.fair = fair(&self.machine, Means::Weight);
        Ok(())
    }

    /// Moves observed programs to the scheduler in the kernel, if it is loaded. Returns whether
    /// policies may act. Without `auto`, and unless the scheduler schedules all threads, the first
    /// program stays with the default scheduler, and no policy acts, until there is a second one,
    /// unless it is to be held: programs of the default scheduler would have precedence over it,
    /// also while they read their input, and no other program could give up CPU time for it.
    fn admit_new(&mut self, progress: &BTreeMap<i32, ProgressSample>) -> bool {
        let ids: Vec<ProgramId> = self.all().map(|(_, program, _)| program.id).collect();
        let Some(admitted) = &mut self.admitted else { return true };
        admitted.retain(|id| ids.contains(id));
        let is_held = |pid: &i32| progress.get(pid).is_some_and(|progress| progress.hold);
        let may_wait = self.auto.is_none() && !self.schedules_all;
        let is_first = may_wait && admitted.is_empty() && ids.len() < 2;
        if is_first && !self.programs.keys().any(is_held) {
            return false;
        }
        for id in ids {
            if admitted.contains(&id) {
                continue;
            }
            match self.machine.admit(id) {
                Ok(()) => drop(admitted.insert(id)),
                Err(e) => note(&mut self.notes, format!("a program keeps its scheduler: {e}")),
            }
        }
        true
    }

    /// CPUs of the host.
    pub(crate) fn topology(&self) -> &Topology {
        self.machine.topology()
    }

    /// Whether no program is observed, and none is searched for.
    pub(crate) fn is_idle(&self) -> bool {
        self.programs.is_empty() && self.auto.is_none()
    }

    /// Whether the states of threads are to be sampled. `fair` does not use them.
    pub(crate) fn takes_samples(&self) -> bool {
        self.auto.as_ref().is_some_and(|auto| !auto.is_idle())
    }

    /// Samples the states of threads.
    pub(crate) fn sample(&mut self) {
        self.machine.sample();
    }

    /// Returns the begins and ends of the steering of programs that use the CPU, since the last
    /// call.
    pub(crate) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// The observed programs, each with its process and its policy: first those that emit
    /// heartbeats.
    fn all(&self) -> impl Iterator<Item = (i32, &Watched, &'static str)> {
        let fair = self.programs.iter().map(|(&pid, (program, _))| (pid, program, "fair"));
        let auto = self.auto.iter().flat_map(Auto::programs);
        fair.chain(auto.map(|(process, program)| (process.tid, program, "auto")))
    }

    /// The steered programs, each with its user.
    pub(crate) fn steered(&self) -> Vec<(u32, host::Steered)> {
        let describe = |(pid, program, policy): (i32, &Watched, &str)| {
            let steered = host::Steered {
                pid: pid.cast_unsigned(),
                name: program.name.clone(),
                policy: policy.into(),
                changes: self.changes.of(program.id),
            };
            (program.uid, steered)
        };
        self.all().map(describe).collect()
    }

    /// The programs for the web page, with a point if they were observed since the last call.
    pub(crate) fn on_page(&mut self) -> Vec<corebeat_web::Program> {
        let recent = self.recent.as_mut().map(std::mem::take).unwrap_or_default();
        let Recent { mut step, last } = recent;
        let mut points: BTreeMap<ProgramId, _> = step.take().into_iter().collect();
        let describe = |(pid, program, policy): (i32, &Watched, &str)| {
            let mut shown = corebeat_web::Program {
                id: program.id.0,
                pid: Some(pid),
                name: program.name.clone(),
                policy: policy.into(),
                changes: self.changes.of(program.id),
                points: points.remove(&program.id).into_iter().collect(),
                ..corebeat_web::Program::default()
            };
            last.program(program.id).into_iter().for_each(|p| shown.describe_threads(p));
            shown
        };
        self.all().map(describe).collect()
    }

    /// Process and name of the program that an action was for.
    pub(crate) fn program(&self, action: &Action) -> Option<(i32, &str)> {
        let program = action.program()?;
        let found = self.all().find(|(_, watched, _)| watched.id == program);
        found.map(|(pid, watched, _)| (pid, &watched.name[..]))
    }

    /// Name of the program of a process.
    pub(crate) fn name(&self, pid: i32) -> Option<&str> {
        self.all().find(|(process, ..)| *process == pid).map(|(_, watched, _)| &watched.name[..])
    }

    /// Whether a mechanism is available, as far as known. Classes and slices, which `auto` sets,
    /// require no permission for the programs of the same user.
    pub(crate) fn can_act(&self) -> bool {
        self.auto.is_some() || self.mechanisms.is_any()
    }

    /// Returns the programs, by process, that a policy has begun to leave as they are since the
    /// last call: `fair`, although they are too slow, or a policy of `auto`.
    pub(crate) fn new_inactions(&mut self) -> BTreeMap<i32, Vec<Inaction>> {
        let fair = self.programs.iter().flat_map(|(&pid, (watched, _))| {
            self.fair.inactions(watched.id).into_iter().map(move |inaction| (pid, inaction))
        });
        let now: Vec<(i32, Inaction)> =
            fair.chain(self.auto.iter().flat_map(Auto::inactions)).collect();
        let idle = now.iter().map(|(pid, inaction)| (*pid, inaction.policy)).collect();
        let before = std::mem::replace(&mut self.idle, idle);
        let mut new: BTreeMap<i32, Vec<Inaction>> = BTreeMap::new();
        for (pid, inaction) in now {
            if !before.contains(&(pid, inaction.policy)) {
                new.entry(pid).or_default().push(inaction);
            }
        }
        new
    }

    /// Number of observed programs.
    pub(crate) fn count(&self) -> usize {
        self.programs.len() + self.auto.iter().flat_map(Auto::programs).count()
    }

    /// Makes one cycle. `owner_of` returns the user of a process with progress, if it is still the
    /// process that connected. `claimers` are processes with claims.
    ///
    /// # Errors
    /// The host cannot be observed.
    pub(crate) fn cycle(
        &mut self,
        progress: &BTreeMap<i32, ProgressSample>,
        owner_of: impl Fn(i32) -> Option<u32>,
        claimers: impl Iterator<Item = i32>,
        acts: bool,
    ) -> Result<Vec<AppliedAction>, Error> {
        self.observe_new(progress, owner_of);
        let acts = acts && self.admit_new(progress);
        let was_idle = self.count() == 0;
        let applied = if was_idle { vec![] } else { self.steer(progress, acts)? };
        self.release_ended(progress);
        let apart = progress.keys().copied().chain(claimers).collect();
        if let Some(auto) = &mut self.auto {
            let released = |id| self.changes.remove(id);
            self.events.extend(auto.search(&mut self.machine, &apart, released));
        }
        if was_idle && self.count() > 0 {
            // The first span begins now, and not at the last observation.
            self.machine.observe()?;
        }
        Ok(applied)
    }

    /// Observes the programs, decides, and acts.
    fn steer(
        &mut self,
        progress: &BTreeMap<i32, ProgressSample>,
        acts: bool,
    ) -> Result<Vec<AppliedAction>, Error> {
        let of_program = |(pid, (w, _)): (&i32, &(Watched, u32))| Some((w.id, *progress.get(pid)?));
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
                self.changes.remove(p.id);
                self.auto.iter_mut().for_each(|auto| auto.refuse(p.id));
                let limit = format!("more than {THREADS_PER_PROGRAM_MAX} threads");
                note(
                    &mut self.notes,
                    format!("'{}' is not observed, because it has {limit}", p.name),
                );
            }
            fits
        });
        let mut applied = vec![];
        if acts {
            applied.extend(apply(&mut measured, &mut self.fair, &snapshot));
            let auto = self.auto.iter_mut();
            applied.extend(auto.flat_map(|auto| auto.decide(&mut measured, &snapshot)));
        }
        self.changes.record(&applied, &snapshot);
        if let Some(recent) = &mut self.recent {
            recent.step.add(&snapshot);
            recent.last = snapshot;
        }
        self.select_knob();
        Ok(applied)
    }

    /// Undoes all changes, and resets the policies.
    pub(crate) fn restore(&mut self) -> Restored {
        self.forget(self.fair.means);
        self.admitted.iter_mut().for_each(BTreeSet::clear);
        self.machine.restore()
    }

    /// Continues with this means and new policies without memory of the programs.
    fn forget(&mut self, means: Means) {
        self.changes.clear();
        self.auto.iter_mut().for_each(Auto::forget);
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
            let of_owner = self.programs.values().filter(|(w, _)| w.uid == owner).count();
            if of_owner >= PROGRAMS_PER_USER_MAX {
                continue;
            }
            let is_meant = || owner_of(pid) == Some(owner);
            let watched = Watched::begin(&mut self.machine, pid, owner, is_meant);
            self.programs.extend(watched.map(|watched| (pid, (watched, LAST_CYCLES))));
        }
    }

    /// Releases programs without progress, and programs that have ended: progress after the end
    /// belongs to another process with the same number.
    fn release_ended(&mut self, progress: &BTreeMap<i32, ProgressSample>) {
        let Steer { machine, changes, .. } = self;
        self.programs.retain(|pid, (watched, cycles_left)| {
            *cycles_left = match progress.contains_key(pid) {
                true => LAST_CYCLES,
                false => cycles_left.saturating_sub(1),
            };
            let stays = *cycles_left > 0 && machine.is_alive(watched.id);
            if !stays {
                machine.release(watched.id);
                changes.remove(watched.id);
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

/// The policies that leave a program as it is, and their reasons, for one row of a table: a host
/// starts many short programs, which all policies leave as they are.
pub(crate) fn in_one_row(inactions: Vec<Inaction>) -> (String, String) {
    let policies: Vec<&str> = inactions.iter().map(|inaction| inaction.policy).collect();
    let reason = |Inaction { policy, why }: &Inaction| match inactions.len() {
        1 => why.clone(),
        _ => format!("{policy}: {why}"),
    };
    let reasons: Vec<String> = inactions.iter().map(reason).collect();
    (policies.join(", "), reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn reasons_of_several_policies_are_in_one_row() {
        let of = |policy| Inaction { policy, why: format!("no {policy}") };
        assert_eq!(in_one_row(vec![of("team")]), ("team".into(), "no team".into()));
        let both = in_one_row(vec![of("team"), of("faithful")]);
        let expected = ("team, faithful".into(), "team: no team; faithful: no faithful".into());
        assert_eq!(both, expected);
    }

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
