//! The loop around the host: watch the programs that have a pulse, decide, act, and let go of those that have none any more.

use crate::limit::{NOTES_MAX, PROGRAMS_MAX, PROGRAMS_PER_USER_MAX, THREADS_PER_PROGRAM_MAX};
use corebeat_linux::{Error, LinuxMachine, Options, Restored};
use corebeat_loop::{Deed, heed};
use corebeat_machine::{Action, Machine, ProgramId, PulseSample, Snapshot, Topology};
use corebeat_policy::fair::{Fair, Lever};
use std::collections::BTreeMap;
use std::path::Path;

/// A program whose pulse has gone is watched for so many turns more, so that policies can take back what they did.
const LAST_TURNS: u32 = 2;

/// A host with programs that beat.
pub(crate) struct Steer {
    machine: LinuxMachine,
    fair: Fair,
    /// By process.
    programs: BTreeMap<i32, Watched>,
    ways: Ways,
    /// What does not work here, other than ways to act.
    notes: Vec<String>,
}

#[derive(Debug)]
struct Watched {
    id: ProgramId,
    uid: u32,
    turns_left: u32,
}

/// The ways to act upon programs.
#[derive(Debug, Default)]
struct Ways {
    nice: Way,
    weight: Way,
    limit: Way,
}

/// A way to act: whether it is to be had here.
#[derive(Debug, Default)]
struct Way {
    /// Something was changed by it: it is to be had, whatever happens with one program.
    has_worked: bool,
    /// Why something could not be, where that is due to the host rather than to the program.
    why_not: Option<String>,
}

/// The machine, with pulses filled in, and an eye on what can be done.
struct Pulsed<'a> {
    machine: &'a mut LinuxMachine,
    ways: &'a mut Ways,
    pulses: BTreeMap<ProgramId, PulseSample>,
}

impl Way {
    fn heed(&mut self, acted: &Result<bool, Error>) {
        match acted {
            Ok(has_changed) => self.has_worked |= has_changed,
            // A refusal without a number of the kernel's is about one program: it runs as another user.
            Err(Error::Denied { source, .. }) if source.raw_os_error().is_none() => {}
            Err(e @ (Error::Missing { .. } | Error::Denied { .. })) => {
                self.why_not.get_or_insert_with(|| e.to_string());
            }
            Err(_) => {}
        }
    }

    /// Why it is not to be had.
    fn lack(&self) -> Option<&str> {
        self.why_not.as_deref().filter(|_| !self.has_worked)
    }
}

impl Ways {
    /// Whether there is anything to act by, as far as that was tried. Limits are had by the same control groups as weights: they
    /// count once they have worked.
    fn is_any(&self) -> bool {
        self.nice.lack().is_none() || self.weight.lack().is_none() || self.limit.has_worked
    }

    /// What is not to be had, one line each.
    fn notes(&self) -> Vec<String> {
        let shares = match (self.nice.lack(), self.weight.lack()) {
            (None, _) => None,
            (Some(nice), None) => Some(format!(
                "shares are given by control groups, because nice values cannot be given: {nice}"
            )),
            (Some(nice), Some(weight)) => {
                Some(format!("no program is given another share of the CPUs: {nice}; and {weight}"))
            }
        };
        let limit = self.limit.lack().map(|why| {
            format!("nobody is held below a highest rate, because there are no limits of CPU time: {why}")
        });
        shares.into_iter().chain(limit).collect()
    }
}

impl Machine for Pulsed<'_> {
    type Error = Error;

    fn topology(&self) -> &Topology {
        self.machine.topology()
    }

    fn observe(&mut self) -> Result<Snapshot, Error> {
        let mut seen = self.machine.observe()?;
        for program in &mut seen.programs {
            program.pulse = self.pulses.get(&program.id).copied();
        }
        Ok(seen)
    }

    fn act(&mut self, action: &Action) -> Result<(), Error> {
        let acted = self.machine.apply(action);
        match action {
            Action::SetNice { .. } => self.ways.nice.heed(&acted),
            Action::SetWeight { .. } => self.ways.weight.heed(&acted),
            Action::SetQuota { .. } => self.ways.limit.heed(&acted),
            _ => {}
        }
        acted.map(drop)
    }
}

impl Steer {
    /// Nothing is watched yet. The journal is kept in this directory.
    pub(crate) fn new(state: &Path) -> Result<Steer, Error> {
        let options = Options { never_waits: true, state_dir: Some(state.into()), ..Options::default() };
        let machine = LinuxMachine::new(options)?;
        let fair = fair(&machine, Lever::Nice);
        Ok(Steer { machine, fair, programs: BTreeMap::new(), ways: Ways::default(), notes: Vec::new() })
    }

    /// The host's CPUs.
    pub(crate) fn topology(&self) -> &Topology {
        self.machine.topology()
    }

    /// Whether there is anything to look at.
    pub(crate) fn is_idle(&self) -> bool {
        self.programs.is_empty()
    }

    /// The process that this was done to.
    pub(crate) fn pid(&self, action: &Action) -> Option<i32> {
        let program = action.program()?;
        self.programs.iter().find(|(_, watched)| watched.id == program).map(|(pid, _)| *pid)
    }

    /// Whether there is anything to act by, as far as that was tried.
    pub(crate) fn can_act(&self) -> bool {
        self.ways.is_any()
    }

    /// How many programs are watched.
    pub(crate) fn count(&self) -> usize {
        self.programs.len()
    }

    /// One turn. `who` says whose a process with a pulse is, if it is still the one that connected.
    ///
    /// # Errors
    /// Where the host cannot be observed at all.
    pub(crate) fn turn(
        &mut self,
        pulses: &BTreeMap<i32, PulseSample>,
        who: impl Fn(i32) -> Option<u32>,
        acts: bool,
    ) -> Result<Vec<Deed>, Error> {
        self.meet(pulses, who);
        let of_program = |(pid, w): (&i32, &Watched)| Some((w.id, *pulses.get(pid)?));
        let pulses_by_id = self.programs.iter().filter_map(of_program).collect();
        let mut pulsed = Pulsed { machine: &mut self.machine, ways: &mut self.ways, pulses: pulses_by_id };
        let mut seen = pulsed.observe()?;
        seen.programs.retain(|p| {
            let fits = p.threads.len() <= THREADS_PER_PROGRAM_MAX;
            if !fits {
                pulsed.machine.let_go(p.id);
                let limit = format!("more than {THREADS_PER_PROGRAM_MAX} threads");
                note(&mut self.notes, format!("'{}' is not watched, because it has {limit}", p.name));
            }
            fits
        });
        let deeds = if acts { heed(&mut pulsed, &mut self.fair, &seen) } else { Vec::new() };
        deeds.iter().filter(|d| d.failed.is_some()).for_each(|d| self.fair.refused(&d.decision.action));
        self.do_without();
        self.part(pulses);
        Ok(deeds)
    }

    /// Takes back all that was done. What policies thought of it is forgotten.
    pub(crate) fn restore(&mut self) -> Restored {
        self.forget(self.fair.lever);
        self.machine.restore()
    }

    /// Goes on with this lever, and without what the policy thinks of programs.
    fn forget(&mut self, lever: Lever) {
        self.fair = fair(&self.machine, lever);
        self.fair.holds = self.ways.limit.lack().is_none();
    }

    /// What cannot be seen or done here.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.machine.notes();
        notes.extend(self.ways.notes());
        notes.extend(self.notes.iter().cloned());
        notes
    }

    /// Begins to watch those that have a pulse now.
    fn meet(&mut self, pulses: &BTreeMap<i32, PulseSample>, who: impl Fn(i32) -> Option<u32>) {
        for &pid in pulses.keys() {
            if self.programs.contains_key(&pid) || self.programs.len() >= PROGRAMS_MAX {
                continue;
            }
            let Some(owner) = who(pid) else { continue };
            if self.programs.values().filter(|w| w.uid == owner).count() >= PROGRAMS_PER_USER_MAX {
                continue;
            }
            // A process that has ended meanwhile is no error.
            let Ok(id) = self.machine.watch(pid) else { continue };
            // Its number was not given to another one before it was watched, if it has not ended by now.
            match who(pid) {
                Some(uid) if uid == owner => {
                    self.machine.set_owner(id, uid);
                    self.programs.insert(pid, Watched { id, uid, turns_left: LAST_TURNS });
                }
                _ => self.machine.unwatch(id),
            }
        }
    }

    /// Lets go of those that have no pulse any more, or have ended: a pulse is another process's then, with the same number.
    fn part(&mut self, pulses: &BTreeMap<i32, PulseSample>) {
        let machine = &mut self.machine;
        self.programs.retain(|pid, watched| {
            watched.turns_left = match pulses.contains_key(pid) {
                true => LAST_TURNS,
                false => watched.turns_left.saturating_sub(1),
            };
            let stays = watched.turns_left > 0 && machine.is_alive(watched.id);
            if !stays {
                machine.let_go(watched.id);
            }
            stays
        });
    }

    /// Where nice values cannot be had there may be weights. That one program's cannot be set is no reason.
    fn do_without(&mut self) {
        self.fair.holds = self.ways.limit.lack().is_none();
        if self.fair.lever == Lever::Nice && self.ways.nice.lack().is_some() {
            for left in self.machine.restore().left {
                note(&mut self.notes, format!("not taken back: {left}"));
            }
            self.forget(Lever::Weight);
        }
    }
}

fn note(notes: &mut Vec<String>, what: String) {
    if notes.len() < NOTES_MAX && !notes.contains(&what) {
        notes.push(what);
    }
}

fn fair(machine: &LinuxMachine, lever: Lever) -> Fair {
    let mut fair = Fair::new(machine.topology().cpus().len() as u32);
    fair.lever = lever;
    fair.remembers = true;
    fair
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn denied() -> Result<bool, Error> {
        Err(Error::Denied { what: "do this".into(), source: io::Error::from_raw_os_error(1) })
    }

    #[test]
    fn way_that_changed_nothing_has_not_worked() {
        let mut way = Way::default();
        way.heed(&Ok(false));
        assert!(way.lack().is_none(), "not tried yet");
        way.heed(&denied());
        assert!(way.lack().is_some_and(|why| why.contains("do this")));
        way.heed(&Ok(false));
        assert!(way.lack().is_some());
        // It does where it has once.
        way.heed(&Ok(true));
        way.heed(&denied());
        assert_eq!(way.lack(), None);
    }

    #[test]
    fn way_that_one_program_is_not_open_to_is_no_lack() {
        let mut way = Way::default();
        let source = io::ErrorKind::PermissionDenied.into();
        way.heed(&Err(Error::Denied { what: "act upon another user's".into(), source }));
        way.heed(&Err(Error::NoProcess { pid: 1 }));
        assert_eq!(way.lack(), None);
    }

    #[test]
    fn notes_of_ways_do_not_contradict_each_other() {
        let mut ways = Ways::default();
        assert!(ways.is_any() && ways.notes().is_empty());
        ways.nice.heed(&denied());
        assert!(ways.is_any() && ways.notes().len() == 1 && ways.notes()[0].contains("by control groups"));
        ways.weight.heed(&denied());
        assert!(!ways.is_any());
        let notes = ways.notes();
        assert!(notes.len() == 1 && notes[0].starts_with("no program is given another share"), "{notes:?}");
        ways.limit.heed(&Ok(true));
        assert!(ways.is_any());
    }
}
