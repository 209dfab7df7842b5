//! Turns for programs that spin side by side: coscheduling as a part of [`auto`](crate::auto).
//!
//! If the threads of several programs spin at barriers and locks, and together have fewer CPUs than
//! threads, a thread often spins for another one that has no CPU (Schönherr, Lutz, Richling,
//! *Non-intrusive Coscheduling for General Purpose Operating Systems*, MSEPT 2012, section 2). In
//! turns, each program has all of its threads on CPUs at the same time. Turns harm programs that
//! block, so they are tried, and kept only where all programs together do more work.
//!
//! ```text
//!            at least two programs spin
//!     apart ---------------------------> trial: two turns for each program
//!      ^ ^                                 |                  |
//!      | +-- a rest, twice as long --------+ not enough       | enough
//!      |     after each failure                               v
//!      +---- 30 s, twice as long after each success ------- turns
//! ```
//!
//! If a program in turns ends, the turns end as well, and the others are measured anew.
//!
//! Threads of programs in turns hardly spin, so spinning does not show whether turns are still
//! useful. Therefore turns end after some time, and a new trial follows if the programs spin again.
//! Programs that do not spin are never frozen.

use crate::cosched::{Coscheduling, REFUSED};
use crate::progress::Work;
use corebeat_machine::{
    AppliedAction, Decision, Policy, ProgramId, ProgramSample, Snapshot, Topology,
};
use std::collections::BTreeMap;

/// Largest number of times that a rest is doubled.
const REST_DOUBLINGS_MAX: u32 = 4;
/// Largest number of times that the time of kept turns is doubled. Meanwhile, a program may have
/// begun to block.
const KEEP_DOUBLINGS_MAX: u32 = 2;
/// Longest turn, in nanoseconds: programs with connections and watchdogs bear a pause of a second.
const TURN_MAX_NS: u64 = 1_000_000_000;

/// Number of turns that each program has in a trial.
const TURNS_PER_PROGRAM: usize = 2;

/// The state of turns. See the [module](self).
pub struct Alternation {
    /// Least share of a program's CPU time that is spent spinning. Default 0.3: turns can raise the
    /// progress by 1/(1 - 0.3), or 43%, then, and a trial costs programs that block some of their
    /// time. Two PARSEC streamcluster, which spin for 20% to 30% and block then, gain nothing.
    pub spin_min: f64,
    /// Least mean gain in progress for which programs keep taking turns, relative to their progress
    /// side by side. Default 0.1: the progress of a program varies by up to a tenth between
    /// snapshots.
    pub gain_min: f64,
    /// Largest loss of one program. Default 0.05.
    pub loss_max: f64,
    /// Number of snapshots in which the programs must spin, and that measure their progress side by
    /// side. Default 2.
    pub spans: u32,
    /// Time after the first trial without enough gain, in nanoseconds. Default 15 s.
    pub rest_ns: u64,
    /// Time after the first successful trial in which the programs take turns, in nanoseconds.
    /// Default 30 s.
    pub keep_ns: u64,
    topology: Topology,
    state: State,
    /// Earliest time of the next trial.
    trial_at_ns: u64,
    failures: u32,
    successes: u32,
    /// Reason for which the programs do not take turns.
    why: String,
}

enum State {
    /// The programs run side by side.
    Apart(Sample),
    /// The programs take turns.
    Turns { core: Coscheduling, stage: Stage },
    /// The machine has refused to freeze a program.
    Refused,
}

enum Stage {
    Trial {
        before: BTreeMap<ProgramId, Work>,
        during: Sample,
    },
    /// The turns have proved useful. They end at this time.
    Kept(u64),
}

/// Work of some programs over several snapshots.
#[derive(Default)]
struct Sample {
    works: BTreeMap<ProgramId, Work>,
    spans: u32,
}

impl Sample {
    /// Adds a snapshot; of frozen programs only the time.
    fn add(
        &mut self,
        ids: &[ProgramId],
        snapshot: &Snapshot,
        is_frozen: impl Fn(ProgramId) -> bool,
    ) {
        for &id in ids {
            let work = self.works.entry(id).or_default();
            match snapshot.program(id).filter(|_| !is_frozen(id)) {
                Some(program) => work.add(program, snapshot),
                None => work.add_time(snapshot.span_ns),
            }
        }
        self.spans += 1;
    }
}

impl Alternation {
    /// Returns the state for a machine on which all programs run side by side.
    pub fn new(topology: &Topology) -> Alternation {
        const SECOND: u64 = 1_000_000_000;
        Alternation {
            spin_min: 0.3,
            gain_min: 0.1,
            loss_max: 0.05,
            spans: 2,
            rest_ns: 15 * SECOND,
            keep_ns: 30 * SECOND,
            topology: topology.clone(),
            state: State::Apart(Sample::default()),
            trial_at_ns: 0,
            failures: 0,
            successes: 0,
            why: "no two programs spin while their threads wait for CPUs".to_owned(),
        }
    }

    /// Returns whether programs take turns.
    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Turns { .. })
    }

    /// Returns why programs do not take turns; `None` while they do.
    pub fn inaction(&self) -> Option<&str> {
        (!self.is_active()).then_some(&self.why)
    }

    /// Returns the changes to make now. Turns are only begun if `may_begin` is true: no other
    /// policy is measuring an effect.
    pub fn decide(&mut self, snapshot: &Snapshot, may_begin: bool) -> Vec<Decision> {
        match &mut self.state {
            State::Refused => vec![],
            State::Apart(_) if !may_begin || snapshot.at_ns < self.trial_at_ns => {
                self.state = State::Apart(Sample::default());
                vec![]
            }
            State::Apart(_) => self.watch(snapshot),
            State::Turns { .. } => self.alternate(snapshot),
        }
    }

    /// Receives the outcome of a decision.
    pub fn outcome(&mut self, applied: &AppliedAction) {
        if let State::Turns { core, .. } = &mut self.state {
            core.outcome(applied);
        }
    }

    /// Measures programs that run side by side, and begins a trial.
    fn watch(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        let State::Apart(sample) = &mut self.state else { return vec![] };
        let cpus = self.topology.cpus().len() as u32;
        let shares = spinning(snapshot, self.spin_min, cpus);
        let ids: Vec<ProgramId> = shares.iter().map(|&(id, _)| id).collect();
        if ids.len() < 2 || snapshot.span_ns > TURN_MAX_NS {
            *sample = Sample::default();
            return vec![];
        }
        if !sample.works.keys().eq(&ids) {
            *sample = Sample::default();
        }
        sample.add(&ids, snapshot, |_| false);
        if sample.spans < self.spans {
            return vec![];
        }
        let programs: Vec<(ProgramId, u32)> = ids.iter().map(|&id| (id, cpus)).collect();
        // A turn ends with the snapshot in which it began, even if that one comes early.
        let Ok(core) = Coscheduling::new(&self.topology, &programs, snapshot.span_ns / 2) else {
            return vec![];
        };
        let before = std::mem::take(&mut sample.works);
        let stage = Stage::Trial { before, during: Sample::default() };
        self.state = State::Turns { core, stage };
        let shares: Vec<String> =
            shares.iter().map(|(_, share)| format!("{:.0}%", share * 100.0)).collect();
        let why = format!(
            "{} of the CPU time of {} programs is spinning: they try turns",
            shares.join(" and "),
            ids.len()
        );
        let decisions = self.turn(snapshot, Some(why));
        // Programs that fit on the CPUs at the same time need no turns.
        if decisions.is_empty() {
            self.state = State::Apart(Sample::default());
        }
        decisions
    }

    /// Continues turns, or ends them.
    fn alternate(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        let State::Turns { core, stage } = &mut self.state else { return vec![] };
        let ids = core.programs();
        let is_present =
            |id: &ProgramId| snapshot.program(*id).is_some_and(|p| !p.threads.is_empty());
        if core.is_refused() {
            let thawed = self.end(REFUSED);
            self.state = State::Refused;
            return thawed;
        }
        if !ids.iter().all(is_present) {
            return self.end("a program that took turns has ended");
        }
        match stage {
            Stage::Kept(until_ns) if snapshot.at_ns >= *until_ns => {
                self.end("whether turns are still useful is measured again")
            }
            Stage::Kept(_) => self.turn(snapshot, None),
            Stage::Trial { before, during } => {
                during.add(&ids, snapshot, |id| core.is_frozen(id));
                if (during.spans as usize) < TURNS_PER_PROGRAM * ids.len() {
                    return self.turn(snapshot, None);
                }
                let gain = |id| during.works.get(id)?.gain_over(before.get(id)?);
                let gains: Option<Vec<f64>> = ids.iter().map(gain).collect();
                self.judge(snapshot, gains)
            }
        }
    }

    /// Keeps or ends the turns of a trial by the gains of the programs.
    fn judge(&mut self, snapshot: &Snapshot, gains: Option<Vec<f64>>) -> Vec<Decision> {
        let mean = gains.as_ref().map(|gains| {
            let logs = gains.iter().map(|gain| (1.0 + gain).max(1e-3).ln());
            (logs.sum::<f64>() / gains.len() as f64).exp() - 1.0
        });
        let harms = gains.iter().flatten().any(|&gain| gain < -self.loss_max);
        match mean {
            Some(mean) if mean >= self.gain_min && !harms => {
                let keep_ns = self.keep_ns << self.successes.min(KEEP_DOUBLINGS_MAX);
                (self.successes, self.failures) = (self.successes + 1, 0);
                if let State::Turns { stage, .. } = &mut self.state {
                    *stage = Stage::Kept(snapshot.at_ns.saturating_add(keep_ns));
                }
                let why = format!("turns changed the progress by {:+.0}%", mean * 100.0);
                self.turn(snapshot, Some(format!("{why}: all programs keep their turns")))
            }
            _ => {
                let rest_ns = self.rest_ns << self.failures.min(REST_DOUBLINGS_MAX);
                (self.failures, self.successes) = (self.failures + 1, 0);
                self.trial_at_ns = snapshot.at_ns.saturating_add(rest_ns);
                let why = match mean {
                    Some(_) if harms => format!(
                        "turns slowed a program down by more than {:.0}%",
                        self.loss_max * 100.0
                    ),
                    Some(mean) => format!(
                        "turns changed the progress by {:+.0}%, less than {:+.0}%",
                        mean * 100.0,
                        self.gain_min * 100.0
                    ),
                    None => "the progress of a program in turns is unknown".to_owned(),
                };
                let thawed = self.end(&format!("{why}: the turns of all programs end"));
                self.why = why;
                thawed
            }
        }
    }

    /// Ends the turns. All programs run.
    fn end(&mut self, why: &str) -> Vec<Decision> {
        why.clone_into(&mut self.why);
        match std::mem::replace(&mut self.state, State::Apart(Sample::default())) {
            State::Turns { mut core, .. } => core.end(why),
            _ => vec![],
        }
    }

    /// Gives the next program its turn. `why` replaces the reason of the first decision.
    fn turn(&mut self, snapshot: &Snapshot, why: Option<String>) -> Vec<Decision> {
        let State::Turns { core, .. } = &mut self.state else { return vec![] };
        let mut decisions = core.decide(snapshot);
        if let (Some(first), Some(why)) = (decisions.first_mut(), why) {
            first.why = why;
        }
        decisions
    }
}

/// Returns the programs that spin for at least a share of their CPU time, with that share, if their
/// threads can use more CPUs together than the machine has.
fn spinning(snapshot: &Snapshot, spin_min: f64, cpus: u32) -> Vec<(ProgramId, f64)> {
    let used = |p: &ProgramSample| p.cpus(snapshot.span_ns, |s| s.running());
    let wanted = |p: &ProgramSample| p.cpus(snapshot.span_ns, |s| s.runnable());
    let share = |p: &ProgramSample| {
        // Unknown for threads without a sample.
        let spins = p.cpus(snapshot.span_ns, |s| Some(s.spin.unwrap_or(0.0)))?;
        let share = spins / used(p)?;
        (share >= spin_min).then_some((p.id, share))
    };
    let all: f64 = snapshot.programs.iter().filter(|p| share(p).is_some()).filter_map(wanted).sum();
    match all > f64::from(cpus) {
        true => snapshot.programs.iter().filter_map(share).collect(),
        false => vec![],
    }
}

#[cfg(test)]
mod tests;
