//! Fair: CPU shares by the distance of each program from its heart rate goal.
//!
//! Sironi et al., *Metronome: Operating System Level Performance Management via Self-Adaptive
//! Computing* (2012), section 5: the Performance-Aware Fair Scheduler. A program reports beats and
//! has a goal: a minimum and a maximum rate. Its indicator is its rate divided by the middle of
//! that window (equations 3 and 4). Within the window nothing changes. Outside, each nanosecond of
//! run time counts as a multiple on the virtual clock of the program (equation 5). The scheduler
//! runs the program whose clock lags behind, so a program that is too slow runs more, and a program
//! that is too fast runs less.
//!
//! ```text
//!   rate   0 --------- min ----- middle ----- max --------------->
//!              raise         no change            lower, then
//!         (others with goals pay)                 limit CPU time, if the program permits it
//! ```
//!
//! # On a host with its own scheduler
//!
//! A virtual clock that runs `p` times as fast corresponds to a weight divided by `p`, and a nice
//! value corresponds to a weight: 1.25 times the weight of the next nice value. So the nice value
//! of a program is the logarithm of a factor that starts at 1 ([`Means::Nice`]).
//!
//! **Control groups are the worse means.** A user can have control groups without `CAP_SYS_NICE`,
//! and their weights are finer ([`Means::Weight`]: the factor times 100 for each runnable thread,
//! because a group of weight 100 counts as *one* thread of nice 0). But the kernel divides the
//! weight of a group among the CPUs by the recent activity of its threads there, so a thread that
//! has slept returns to almost no weight. This was measured on two CPUs (Linux 6.18) with a program
//! of two threads that wait for each other at barriers, beside a pipeline of eleven threads.
//! Without changes the program has 0.65 to 0.77 CPUs, and with nice -6 it has 1.01 to 1.12. In a
//! group of weight 200 beside a group of weight 300 (the threads' own weights), the program has
//! 0.07 CPUs.
//!
//! **The paper's law does not reach its goals.** It divides the program's *own* weight by the
//! *current* indicator. But the indicator approaches 1 as the rate approaches the goal, and the
//! weight returns to its start: two programs that need CPU time as 3 to 1 settle at √3 to 1
//! (`forgetful_law_settles_at_the_root_of_the_ratio`). Reaching goals requires memory: each cycle
//! multiplies the *previous* weight by the lack of CPU time. The sum of logarithms is an integral
//! controller, which settles at the goal. The paper's law is the default; [`Fair::remembers`] is
//! the better choice.
//!
//! **The lack of CPU time** is the CPU time for the goal divided by the used CPU time. The CPU time
//! per beat, counted over about one window, hardly depends on the share of the program and is known
//! at once. A rate over a window is late by one window: with rates, two programs with goals
//! oscillate.
//!
//! Each cycle applies half of either law (in logarithms), because the effect of a nice value is not
//! exact.
//!
//! **Programs without a goal keep their share.** Weights are relative: a higher weight of one
//! program lowers the shares of all others. The weights of the programs with goals are therefore
//! scaled, and nice values rounded, so that their sum is at most the sum of their own weights
//! ([`Fair::legacy_share_min`]): programs with goals trade among each other. A program with a goal
//! keeps at least an eighth of its own share ([`INDICATOR_MIN`]; a tenth with nice values, which
//! are rounded), so no program starves, whatever the goals are.
//!
//! **A change that does not help is undone.** A program that does not wait for CPUs is not raised.
//! A raised program that is not faster after [`Fair::patience`] cycles gets its own weight again,
//! and a rest that doubles each time.
//!
//! **Without contention, weights have no effect** (section 5.2: facesim exceeds its goal as soon as
//! ferret has ended). A program that permits it is then held by a limit of CPU time (of a control
//! group, with either means): the CPU time for the middle of its goal. The limit changes when the
//! rate leaves the window, and is removed when it no longer binds. The limit is removed soon if the
//! program is too slow, because other programs run again. Otherwise each hold must last twice as
//! long as the previous one before it may end for that reason.
//!
//! # Invalid numbers
//!
//! Programs write their own goals. A bound that is not a finite number above 0 is ignored; a
//! minimum above the maximum invalidates both; without a bound there is no goal. A single bound is
//! its own middle. A rate that is not a finite number, or is below 0, is unknown and changes
//! nothing. A rate of 0 is the slowest rate, once the program has reported a beat.
//!
//! # Failure
//!
//! After the machine has refused a setting of a program, the policy continues with the last
//! accepted one and requests no other setting of that kind for [`Fair::patience`] cycles, a time
//! that doubles with each refusal.
//!
//! # Limits
//!
//! Shares are relative to siblings: programs in different control groups (two scopes of systemd,
//! for example) share CPUs by the weights of those groups, which settings of the programs within do
//! not change. A raise is then undone, and a hold still works. The weight of more than 100 threads
//! is that of 100. Threads are assumed to have nice 0: [`Means::Nice`] adds to a nice value of the
//! user, and [`Means::Weight`] ignores that value. Nice values have steps of a quarter: between two
//! programs each step changes a rate by about a ninth, and a narrower goal is met on average. No
//! goal is guaranteed.

mod goal;
mod state;

pub use goal::Goal;

use crate::one_program::inaction;
use crate::ratio;
use corebeat_machine::{
    Action, AppliedAction, Decision, Inaction, Policy, ProgramId, Snapshot, Target,
};
use state::{Cycle, Hold, Raise, Set, State};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Lower bound of indicators and factors; the inverse is the upper bound: "we impose a minimum
/// value greater than 0" (section 5.1, without a number). An eighth is our value.
pub const INDICATOR_MIN: f64 = 0.125;
/// Smallest limit of CPU time, in CPUs.
pub const QUOTA_CPUS_MIN: f64 = 0.05;
/// Weight of one thread of nice 0, in units of control groups.
const WEIGHT_OF_A_THREAD: f64 = 100.0;
/// Largest weight of a control group.
const WEIGHT_MAX: f64 = 10_000.0;
/// Ratio of the weights of successive nice values (`sched_prio_to_weight` in kernel/sched/core.c).
const NICE_STEP: f64 = 1.25;
/// Used share of a limit from which the limit binds.
const BINDING_SHARE: f64 = 0.9;
/// Largest number of doublings of rests and holds.
const DOUBLINGS_MAX: u32 = 10;

/// Means of setting a share of the CPUs. See the [module](self) for a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// [`Action::SetNice`].
    Nice,
    /// [`Action::SetWeight`].
    Weight,
}

/// The policy. All fields may be changed at any time, except [`means`](Fair::means) after the first
/// snapshot.
#[derive(Debug, Clone)]
pub struct Fair {
    /// Number of CPUs of the machine.
    pub cpus: u32,
    /// Means of setting shares. Default nice values.
    pub means: Means,
    /// Whether programs that permit it are held. Default true; false on machines without limits of
    /// CPU time.
    pub holds: bool,
    /// Whether each cycle starts from the previous weight. Default false, as in the paper; true
    /// reaches more goals.
    pub remembers: bool,
    /// Smallest part of their fair share that programs without a goal keep, from 0.01 to 1. Default
    /// 1. The paper has no such bound: 0.125 is similar.
    pub legacy_share_min: f64,
    /// Smallest relative change of a weight or a limit. Default 0.05: changes a rate by at most
    /// half as much.
    pub change_min: f64,
    /// Cycles until a raise must have helped, and until a hold that does not bind ends. Default 10.
    pub patience: u32,
    /// Cycles above the window without an effect of the weight until a program that permits it is
    /// held; and cycles below the window without an effect of the limit until it is removed.
    /// Default 3.
    pub hold_after: u32,
    /// Smallest relative gain for which a raise is kept. Default 0.03: rates of one second differ
    /// by that much.
    pub help_min: f64,
    /// Smallest share of time spent waiting for a CPU for which a higher weight helps. Default
    /// 0.02.
    pub wait_min: f64,
    programs: BTreeMap<ProgramId, State>,
}

impl Fair {
    /// Returns the policy with default thresholds for a machine with this number of CPUs.
    pub fn new(cpus: u32) -> Self {
        Fair {
            cpus: cpus.max(1),
            means: Means::Nice,
            holds: true,
            remembers: false,
            legacy_share_min: 1.0,
            change_min: 0.05,
            patience: 10,
            hold_after: 3,
            help_min: 0.03,
            wait_min: 0.02,
            programs: BTreeMap::new(),
        }
    }

    /// Returns the factor after a cycle outside the window.
    fn next_factor(&self, factor: f64, cycle: &Cycle) -> f64 {
        let whole = if self.remembers { factor * cycle.lack() } else { 1.0 / cycle.indicator };
        (factor * whole).sqrt().clamp(INDICATOR_MIN, 1.0 / INDICATOR_MIN)
    }

    fn is_small(&self, from: f64, to: f64) -> bool {
        (to - from).abs() < self.change_min * from
    }

    /// Updates the factor or the limit of a program after one cycle.
    fn step(&self, state: &mut State, cycle: &Cycle) -> Vec<Decision> {
        let place = cycle.goal.place(cycle.progress.rate);
        state.hold = state.hold.filter(|_| self.holds);
        if let Some(hold) = state.hold {
            return self.step_held(state, hold, cycle, place);
        }
        let before = state.factor;
        match place {
            Ordering::Equal => {
                (state.raise, state.rests, state.rest_left, state.over) = (None, 0, 0, 0)
            }
            Ordering::Less => {
                state.over = 0;
                self.raise(state, cycle);
            }
            Ordering::Greater => {
                state.factor = self.next_factor(state.factor, cycle);
                (state.raise, state.rests, state.rest_left) = (None, 0, 0);
                // No other program needs the CPUs, or the weight has reached its minimum.
                let is_alone = cycle.wait.is_some_and(|l| l < self.wait_min);
                state.over = if is_alone || self.is_small(before, state.factor) {
                    state.over + 1
                } else {
                    0
                };
                let may_hold =
                    cycle.progress.hold && self.holds && state.quota_refusals.may_request();
                if may_hold && state.over >= self.hold_after {
                    return self.hold(state, cycle);
                }
            }
        }
        Vec::new()
    }

    fn raise(&self, state: &mut State, cycle: &Cycle) {
        if state.rest_left > 0 {
            state.rest_left -= 1;
            return;
        }
        if cycle.wait.is_some_and(|l| l < self.wait_min) {
            return;
        }
        state.factor = self.next_factor(state.factor, cycle);
        if state.factor <= 1.0 {
            state.raise = None;
            return;
        }
        let raise = state.raise.get_or_insert(Raise { rate: cycle.progress.rate, cycles: 0 });
        raise.cycles += 1;
        if raise.cycles <= self.patience {
            return;
        }
        raise.cycles = 0;
        if cycle.progress.rate <= raise.rate * (1.0 + self.help_min) {
            state.factor = 1.0;
            state.raise = None;
            state.rest_left = self.patience.saturating_mul(1 << state.rests.min(DOUBLINGS_MAX));
            state.rests = state.rests.saturating_add(1);
        }
    }

    /// Starts to hold a program that is too fast.
    fn hold(&self, state: &mut State, cycle: &Cycle) -> Vec<Decision> {
        let cpus = cycle.need(f64::from(self.cpus)).clamp(QUOTA_CPUS_MIN, f64::from(self.cpus));
        state.hold = Some(Hold { cpus, set: cpus, accepted: None, loose: 0 });
        state.holds = state.holds.saturating_add(1);
        state.over = 0;
        let why = cycle.describe("the rate is above the maximum, and a lower share has no effect");
        vec![limit(cycle.id, Some(cpus), why)]
    }

    fn step_held(
        &self,
        state: &mut State,
        mut hold: Hold,
        cycle: &Cycle,
        place: Ordering,
    ) -> Vec<Decision> {
        let is_loose = cycle.running.is_some_and(|r| r < BINDING_SHARE * hold.cpus);
        hold.loose = if is_loose && place != Ordering::Greater { hold.loose + 1 } else { 0 };
        if place != Ordering::Equal {
            // Half of the change, as with shares.
            let half = (hold.cpus * cycle.need(hold.cpus)).sqrt();
            // A program that is too slow below its limit lacks something else. The limit rises
            // until it ends, and then the share of the program rises.
            let cpus = if place == Ordering::Less {
                half.max(hold.cpus / cycle.indicator.sqrt())
            } else {
                half
            };
            hold.cpus = cpus.clamp(QUOTA_CPUS_MIN, f64::from(self.cpus));
        }
        let loose_max = match place {
            // Other programs run again and slow the program down.
            Ordering::Less => self.hold_after,
            _ => self.patience.saturating_mul(1 << state.holds.min(DOUBLINGS_MAX)),
        };
        let why = if !cycle.progress.hold || cycle.goal.max.is_none() {
            "the program does not permit a limit any more"
        } else if hold.cpus >= f64::from(self.cpus) {
            "the limit is as large as the machine"
        } else if hold.loose >= loose_max {
            "the limit does not bind any more"
        } else {
            let may_set = state.quota_refusals.may_request();
            let is_new = may_set && !self.is_small(hold.set, hold.cpus);
            if is_new {
                hold.set = hold.cpus;
            } else if !may_set {
                hold.cpus = hold.set;
            }
            state.hold = Some(hold);
            let why = || cycle.describe("the limit is adjusted");
            return is_new.then(|| limit(cycle.id, Some(hold.cpus), why())).into_iter().collect();
        };
        state.hold = None;
        vec![limit(cycle.id, None, why.into())]
    }

    /// Scales all factors so that the sum of the weights stays within its bound and no factor is
    /// below its minimum.
    fn balance(&self, programs: &mut BTreeMap<ProgramId, State>) {
        let own: f64 = programs.values().map(State::own_weight).sum();
        let mut budget = own / self.legacy_share_min.clamp(0.01, 1.0);
        let mut free: Vec<&mut State> = programs.values_mut().collect();
        free.iter_mut().for_each(|k| k.balanced = k.factor);
        // Each round fixes at least one factor at its minimum, or is the last round.
        loop {
            let total: f64 = free.iter().map(|k| k.own_weight() * k.factor).sum();
            let scale = budget / total;
            if free.is_empty() || scale >= 1.0 {
                break;
            }
            free.iter_mut().for_each(|k| k.balanced = k.factor * scale);
            let (low, rest): (Vec<_>, Vec<_>) =
                free.into_iter().partition(|k| k.balanced < INDICATOR_MIN);
            free = rest;
            if low.is_empty() {
                break;
            }
            for state in low {
                state.balanced = INDICATOR_MIN;
                budget -= state.own_weight() * INDICATOR_MIN;
            }
        }
        // With memory, the next cycle starts from the scaled factors. Otherwise goals that cannot
        // all be met would drive all factors to their bounds, where their proportions are lost.
        if self.remembers {
            programs.values_mut().for_each(|k| k.factor = k.balanced);
        }
    }

    /// Returns the setting for a factor, if it differs from the current one.
    fn set(&self, state: &mut State, factor: f64) -> Option<Set> {
        let set = match self.means {
            Means::Weight => {
                let weight = (state.own_weight() * factor).round().clamp(1.0, WEIGHT_MAX) as u32;
                let before = match state.set {
                    Some(Set::Weight(before)) => before,
                    _ => state.own_weight().min(WEIGHT_MAX) as u32,
                };
                if self.is_small(f64::from(before), f64::from(weight)) {
                    return None;
                }
                Set::Weight(weight)
            }
            // Rounded towards the smaller weight, because a larger one would take CPU time from
            // other programs.
            Means::Nice => {
                Set::Nice((-factor.ln() / NICE_STEP.ln() - 1e-6).ceil().clamp(-20.0, 19.0) as i8)
            }
        };
        let before = state.set.unwrap_or(Set::Nice(0));
        (before != set).then(|| *state.set.insert(set))
    }

    /// Undoes the changes of a program that no longer has a goal.
    fn release(&self, id: ProgramId, mut state: State) -> Vec<Decision> {
        let why = "the program has no goal any more";
        let held = state.hold.map(|_| limit(id, None, why.into()));
        let set = state.set.and_then(|_| self.set(&mut state, 1.0));
        set.map(|set| share(id, set, why.into())).into_iter().chain(held).collect()
    }

    /// Records the outcome of a limit or a share of a program.
    fn record(&self, state: &mut State, applied: &AppliedAction) {
        let is_refused = applied.refusal().is_some();
        let refusals = match applied.decision.action {
            Action::SetQuota { cpus: Some(_), .. } => {
                state.hold = state.hold.and_then(|hold| match is_refused {
                    false => Some(Hold { accepted: Some(hold.set), ..hold }),
                    true => hold.accepted.map(|cpus| Hold { cpus, set: cpus, ..hold }),
                });
                &mut state.quota_refusals
            }
            Action::SetNice { .. } | Action::SetWeight { .. } => {
                match is_refused {
                    true => state.set = state.accepted,
                    false => state.accepted = state.set,
                }
                &mut state.share_refusals
            }
            _ => return,
        };
        if is_refused {
            refusals.add(self.patience);
        }
    }
}

fn limit(program: ProgramId, cpus: Option<f64>, why: String) -> Decision {
    Decision { policy: "fair", action: Action::SetQuota { program, cpus }, why }
}

fn share(program: ProgramId, set: Set, why: String) -> Decision {
    let action = match set {
        Set::Weight(weight) => Action::SetWeight { program, weight },
        Set::Nice(nice) => Action::SetNice { target: Target::Program(program), nice },
    };
    Decision { policy: "fair", action, why }
}

impl Policy for Fair {
    fn name(&self) -> &'static str {
        "fair"
    }

    /// Decides for one cycle. Discards the state of a program that is missing from the snapshot:
    /// the program has ended.
    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        let mut programs = std::mem::take(&mut self.programs);
        programs.retain(|id, _| snapshot.program(*id).is_some());
        programs.values_mut().for_each(State::end_cycle);
        let mut decisions = Vec::new();
        let mut whys = BTreeMap::new();
        for p in &snapshot.programs {
            let goal =
                p.progress.as_ref().and_then(|progress| Some((progress, Goal::of(progress)?)));
            let Some((progress, goal)) = goal else {
                let state = programs.remove(&p.id);
                decisions.extend(state.into_iter().flat_map(|state| self.release(p.id, state)));
                continue;
            };
            let state = programs.entry(p.id).or_insert_with(State::unchanged);
            state.count_threads(p, snapshot.span_ns);
            let Some(indicator) = goal.indicator(progress.rate).filter(|_| progress.beats > 0)
            else {
                continue;
            };
            let running = p.cpus(snapshot.span_ns, |s| s.running());
            state.count_cost(progress, running, snapshot.at_ns, snapshot.span_ns);
            let cycle = Cycle {
                id: p.id,
                progress,
                goal,
                indicator,
                running,
                needs: state.cost.and_then(|cost| cost.cpus(goal.middle())),
                wait: ratio::share(p, |s| s.wait),
            };
            decisions.extend(self.step(state, &cycle));
            whys.insert(p.id, cycle.describe("the share is adjusted"));
            state.idle = (state.factor > 1.0).then(|| {
                cycle.describe(
                    "no other program with a goal gives up CPU time, and programs without a goal \
                     keep their shares",
                )
            });
        }
        self.balance(&mut programs);
        for state in programs.values_mut().filter(|state| state.balanced > 1.0) {
            state.idle = None;
        }
        for (id, state) in &mut programs {
            if state.share_refusals.may_request()
                && let Some(set) = self.set(state, state.balanced)
            {
                let why = whys.remove(id);
                let why = why.unwrap_or_else(|| "the needs of other programs changed".into());
                decisions.push(share(*id, set, why));
            }
        }
        self.programs = programs;
        decisions
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        inaction(self.name(), self.programs.get(&program).and_then(|state| state.idle.as_ref()))
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        let Some(id) = applied.decision.action.program() else { return };
        if let Some(mut state) = self.programs.remove(&id) {
            self.record(&mut state, applied);
            self.programs.insert(id, state);
        }
    }
}

#[cfg(test)]
mod tests;
