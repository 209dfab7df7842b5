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
    /// Nice values were given: they are to be had here, whatever happens with one program.
    has_nice: bool,
    /// And limits.
    has_quotas: bool,
    /// What does not work here.
    notes: Vec<String>,
}

#[derive(Debug)]
struct Watched {
    id: ProgramId,
    uid: u32,
    turns_left: u32,
}

/// The machine, with pulses filled in.
struct Pulsed<'a> {
    machine: &'a mut LinuxMachine,
    pulses: BTreeMap<ProgramId, PulseSample>,
    /// Whether a nice value was given.
    niced: bool,
    /// Whether a limit was.
    limited: bool,
    /// Why one could not be given, where that is due to the host rather than to the program.
    no_nice: Option<String>,
    /// The same of weights.
    no_weights: Option<String>,
    /// And of limits.
    no_quotas: Option<String>,
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
        let acted = self.machine.act(action);
        // A refusal without a number of the kernel's is about one program: it runs as another user.
        let why = match &acted {
            Err(Error::Denied { source, .. }) if source.raw_os_error().is_none() => None,
            Err(e @ (Error::Missing { .. } | Error::Denied { .. })) => Some(e.to_string()),
            _ => None,
        };
        match action {
            Action::SetNice { .. } => {
                self.niced |= acted.is_ok();
                self.no_nice = self.no_nice.take().or(why);
            }
            Action::SetWeight { .. } => self.no_weights = self.no_weights.take().or(why),
            Action::SetQuota { cpus, .. } => {
                self.limited |= cpus.is_some() && acted.is_ok();
                self.no_quotas = self.no_quotas.take().or(why);
            }
            _ => {}
        }
        acted
    }
}

impl Steer {
    /// Nothing is watched yet. The journal is kept in this directory.
    pub(crate) fn new(state: &Path) -> Result<Steer, Error> {
        let options = Options { never_waits: true, state_dir: Some(state.into()), ..Options::default() };
        let machine = LinuxMachine::new(options)?;
        let fair = fair(&machine, Lever::Nice);
        Ok(Steer {
            machine,
            fair,
            programs: BTreeMap::new(),
            has_nice: false,
            has_quotas: false,
            notes: Vec::new(),
        })
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
        let mut pulsed = Pulsed {
            machine: &mut self.machine,
            pulses: pulses_by_id,
            niced: false,
            limited: false,
            no_nice: None,
            no_weights: None,
            no_quotas: None,
        };
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
        let Pulsed { niced, limited, no_nice, no_weights, no_quotas, .. } = pulsed;
        self.has_nice |= niced;
        self.has_quotas |= limited;
        deeds.iter().filter(|d| d.failed.is_some()).for_each(|d| self.fair.refused(&d.decision.action));
        self.change_lever(no_nice, no_weights, no_quotas);
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
        let holds = self.fair.holds;
        self.fair = fair(&self.machine, lever);
        self.fair.holds = holds;
    }

    /// What cannot be seen or done here.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.machine.notes();
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
    fn change_lever(
        &mut self,
        no_nice: Option<String>,
        no_weights: Option<String>,
        no_quotas: Option<String>,
    ) {
        if let Some(why) = no_quotas.filter(|_| self.fair.holds && !self.has_quotas) {
            note(
                &mut self.notes,
                format!("nobody is held below a highest rate, because there are no limits: {why}"),
            );
            self.fair.holds = false;
        }
        match (self.fair.lever, no_nice, no_weights) {
            (Lever::Nice, Some(why), _) if !self.has_nice => {
                let why =
                    format!("shares are given by control groups, because nice values cannot be given: {why}");
                note(&mut self.notes, why);
                for left in self.machine.restore().left {
                    note(&mut self.notes, format!("not taken back: {left}"));
                }
                self.forget(Lever::Weight);
            }
            (Lever::Weight, _, Some(why)) => {
                note(&mut self.notes, format!("shares cannot be given, because there are no weights: {why}"));
            }
            _ => {}
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
