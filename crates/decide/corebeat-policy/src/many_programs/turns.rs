//! Turns: coscheduling of programs that spin, for as long as their progress improves.
//!
//! Schönherr, Lutz, Richling, *Non-intrusive Coscheduling for General Purpose Operating Systems*
//! (MSEPT 2012), section 1: a thread that spins for a lock or a barrier wastes its CPU while the
//! thread that it waits for is preempted by another program. Programs that block gain nothing from
//! turns, and lose the CPUs that they leave idle in their turn. This policy therefore starts turns
//! only if at least two programs spin and the CPUs do not suffice for all programs, and measures
//! the effect.
//!
//! ```text
//!        programs spin, and              progress improved
//!        need more CPUs                  by `gain_min`
//!   Off ---------------------> On (first window) -------> On (8, 16, 32 ... windows)
//!    ^                          |                          |  ^
//!    |    no improvement: rest  |                          v  | turns still help
//!    +---- for a time ----------+----------------------- Check: one window without turns
//!          that doubles
//! ```
//!
//! The gain is the geometric mean over the programs of the ratio of their progress per second, so a
//! gain of one program does not hide an equal loss of another one.
//!
//! # Failure
//!
//! If the machine refuses to freeze a program, all programs continue and the policy does not start
//! turns again.

use crate::cosched::Coscheduling;
use crate::one_program::{ProgramPolicy, inaction};
use crate::progress::Work;
use crate::ratio::Ratio;
use corebeat_machine::{
    AppliedAction, Decision, Inaction, Policy, ProgramId, ProgramSample, Snapshot, Topology,
};
use std::collections::BTreeMap;

/// Snapshots of a window without turns, and of each program's part in a window with turns: two, so
/// that a snapshot with unusual values has half of the weight.
const SNAPSHOTS: u32 = 2;

/// The policy. All fields may be changed before the first snapshot.
pub struct Turns {
    topology: Topology,
    /// Share of the running time of a program's threads spent spinning, from 0 to 1, from which a
    /// program counts as spinning. Default 0.2: a turn has no effect on the remaining time.
    pub spin_min: f64,
    /// Smallest relative gain of progress for which turns continue. Default 0.1: half-second
    /// windows of a constant program differ by some percent.
    pub gain_min: f64,
    /// Least duration of a turn, in nanoseconds. Default 0.4 s: one snapshot of half a second.
    pub turn_ns: u64,
    /// Windows with turns until the first check. The number doubles after each successful check,
    /// up to `check_every_max`. Default 8.
    pub check_every: u32,
    /// Largest number of windows between checks. Default 64.
    pub check_every_max: u32,
    /// Duration of the first rest, in nanoseconds; each further rest lasts twice as long. Default
    /// 10 s.
    pub rest_ns: u64,
    /// The programs that run.
    running: Vec<ProgramId>,
    window: Window,
    state: State,
    rests: u32,
    is_refused: bool,
    /// Why the policy does not start turns.
    idle: Option<String>,
}

enum State {
    /// No turns, at least until a time.
    Off { until_ns: u64 },
    /// Programs take turns.
    On {
        turns: Box<Coscheduling>,
        /// Progress before the turns, until it is compared with the first window with turns.
        before: Option<Window>,
        /// Windows until the next check.
        left: u32,
        /// Windows between checks.
        every: u32,
    },
    /// One window without turns, after one with turns.
    Check { with: Window, every: u32 },
}

/// Observations of the programs since a time.
#[derive(Debug, Clone, Default)]
struct Window {
    snapshots: u32,
    programs: BTreeMap<ProgramId, Program>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Program {
    work: Work,
    spin: Ratio,
    /// CPUs that the threads used or waited for, times nanoseconds.
    need: f64,
}

impl Window {
    fn add(&mut self, programs: &[&ProgramSample], snapshot: &Snapshot) {
        self.snapshots += 1;
        for p in programs {
            let program = self.programs.entry(p.id).or_default();
            program.work.add(p, snapshot);
            program.spin.add_part(p, |s| s.spin, |s| s.running());
            let cpus = p.cpus(snapshot.span_ns, |s| Some(s.running()? + s.wait?));
            program.need += cpus.unwrap_or(0.0) * snapshot.span_ns as f64;
        }
    }

    /// Returns the number of CPUs that all programs together could use.
    fn need(&self) -> f64 {
        let need = |p: &Program| p.need / p.work.span_ns.max(1) as f64;
        self.programs.values().map(need).sum()
    }

    fn spinning(&self, spin_min: f64) -> usize {
        let spins = |p: &&Program| p.spin.get().is_some_and(|spin| spin >= spin_min);
        self.programs.values().filter(spins).count()
    }

    /// Returns the geometric mean of the relative gains of all programs over an earlier window.
    /// `None` if the progress of a program is unknown.
    fn gain_over(&self, before: &Window) -> Option<f64> {
        let mut logarithms = 0.0;
        for (id, now) in &self.programs {
            let before = before.programs.get(id)?;
            logarithms += now.work.speeds().gain_over(&before.work.speeds())?.ln_1p();
        }
        (!self.programs.is_empty()).then(|| (logarithms / self.programs.len() as f64).exp_m1())
    }
}

impl Turns {
    /// Returns the policy with default thresholds for a machine.
    pub fn new(topology: &Topology) -> Turns {
        Turns {
            topology: topology.clone(),
            spin_min: 0.2,
            gain_min: 0.1,
            turn_ns: 400_000_000,
            check_every: 8,
            check_every_max: 64,
            rest_ns: 10_000_000_000,
            running: vec![],
            window: Window::default(),
            state: State::Off { until_ns: 0 },
            rests: 0,
            is_refused: false,
            idle: None,
        }
    }

    fn cpus(&self) -> u32 {
        self.topology.cpus().len() as u32
    }

    /// Returns why turns would not help.
    fn obstacle(&self, programs: usize, until_ns: u64, now_ns: u64) -> Option<String> {
        let (need, cpus) = (self.window.need(), self.cpus());
        let spinning = self.window.spinning(self.spin_min);
        if self.is_refused {
            Some("the machine refuses to freeze programs".into())
        } else if programs < 2 {
            Some("no other program of this run is running".into())
        } else if now_ns < until_ns {
            let rest_s = (until_ns - now_ns) as f64 / 1e9;
            Some(format!("turns did not help; coscheduling tries again after {rest_s:.0} s"))
        } else if need <= f64::from(cpus) + 0.5 {
            Some(format!("the programs together need {need:.1} of {cpus} CPUs"))
        } else if spinning < 2 {
            Some(format!(
                "{spinning} of {programs} programs spin for at least {:.0}% of their time; \
                 coscheduling needs 2",
                self.spin_min * 100.0
            ))
        } else {
            None
        }
    }

    /// Ends the turns: every program continues.
    fn off(&mut self, until_ns: u64) -> Vec<Decision> {
        let state = std::mem::replace(&mut self.state, State::Off { until_ns });
        self.window = Window::default();
        match state {
            State::On { mut turns, .. } => turns.thaw("programs no longer take turns"),
            State::Off { .. } | State::Check { .. } => vec![],
        }
    }

    fn rest(&mut self, now_ns: u64) -> Vec<Decision> {
        let rest_ns = self.rest_ns.saturating_mul(1 << self.rests.min(20));
        self.rests += 1;
        self.off(now_ns.saturating_add(rest_ns))
    }

    /// Starts turns with a number of windows until the next check.
    fn start(
        &mut self,
        programs: &[&ProgramSample],
        every: u32,
        before: Option<Window>,
        snapshot: &Snapshot,
    ) -> Vec<Decision> {
        let sets: Vec<(ProgramId, u32)> = programs.iter().map(|p| (p.id, self.cpus())).collect();
        let Ok(turns) = Coscheduling::new(&self.topology, &sets, self.turn_ns) else {
            return self.rest(snapshot.at_ns);
        };
        let mut turns = Box::new(turns);
        let decisions = turns.decide(snapshot);
        self.state = State::On { turns, before, left: every, every };
        decisions
    }

    fn step(&mut self, programs: &[&ProgramSample], snapshot: &Snapshot) -> Vec<Decision> {
        let now_ns = snapshot.at_ns;
        let is_full = self.window.snapshots >= SNAPSHOTS;
        match &mut self.state {
            State::Off { until_ns } => {
                let until_ns = *until_ns;
                if programs.len() > 1 && !is_full {
                    return vec![];
                }
                self.idle = self.obstacle(programs.len(), until_ns, now_ns);
                let before = std::mem::take(&mut self.window);
                if self.idle.is_some() {
                    return vec![];
                }
                self.start(programs, self.check_every, Some(before), snapshot)
            }
            State::On { turns, before, left, .. } => {
                if self.window.snapshots < SNAPSHOTS * programs.len() as u32 {
                    return turns.decide(snapshot);
                }
                let gain = before.take().map(|before| self.window.gain_over(&before));
                if gain.is_some_and(|gain| gain.is_none_or(|gain| gain < self.gain_min)) {
                    return self.rest(now_ns);
                }
                *left -= 1;
                if *left > 0 {
                    self.window = Window::default();
                    return turns.decide(snapshot);
                }
                self.check()
            }
            State::Check { with, every } => {
                if !is_full {
                    return vec![];
                }
                let every = every.saturating_mul(2).min(self.check_every_max);
                let gain = with.gain_over(&self.window);
                if gain.is_none_or(|gain| gain < self.gain_min) {
                    return self.rest(now_ns);
                }
                self.window = Window::default();
                self.start(programs, every, None, snapshot)
            }
        }
    }

    /// Ends the turns for one window.
    fn check(&mut self) -> Vec<Decision> {
        let with = std::mem::take(&mut self.window);
        let off = State::Off { until_ns: 0 };
        let State::On { mut turns, every, .. } = std::mem::replace(&mut self.state, off) else {
            return vec![];
        };
        self.state = State::Check { with, every };
        turns.thaw("to check whether turns help")
    }
}

impl Policy for Turns {
    fn name(&self) -> &'static str {
        "coscheduling"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        self.decide_for(snapshot, &|_| true)
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        if let State::On { turns, .. } = &mut self.state {
            turns.outcome(applied);
            self.is_refused |= turns.is_refused();
        }
    }

    fn inactions(&self, _: ProgramId) -> Vec<Inaction> {
        inaction(self.name(), self.idle.as_ref())
    }
}

impl ProgramPolicy for Turns {
    fn decide_for(
        &mut self,
        snapshot: &Snapshot,
        is_mine: &dyn Fn(ProgramId) -> bool,
    ) -> Vec<Decision> {
        let is_active = |p: &&ProgramSample| is_mine(p.id) && !p.threads.is_empty();
        let programs: Vec<&ProgramSample> = snapshot.programs.iter().filter(is_active).collect();
        let running: Vec<ProgramId> = programs.iter().map(|p| p.id).collect();
        if self.running != running || self.is_refused && self.must_continue() {
            // Windows compare the same programs. Turns start anew for the programs that run now.
            self.running = running;
            let decisions = self.off(0);
            if !decisions.is_empty() {
                return decisions;
            }
        }
        self.window.add(&programs, snapshot);
        self.step(&programs, snapshot)
    }

    fn must_continue(&self) -> bool {
        matches!(self.state, State::On { .. } | State::Check { .. })
    }
}

#[cfg(test)]
mod tests;
