//! Fair: programs that tell how fast they want to be get their share of the CPUs by how fast they are.
//!
//! Sironi et al., *Metronome: Operating System Level Performance Management via Self-Adaptive Computing* (2012), section 5:
//! the Performance-Aware Fair Scheduler. A program beats, and has a goal: a lowest and a highest rate. Its indicator is its
//! rate over the middle of that window (equations 3 and 4). Inside the window nothing changes. Outside, each nanosecond that
//! it runs counts as so many on its virtual clock (equation 5), and the clock that lags behind is served first: who is too
//! slow runs more, who is too fast runs less.
//!
//! ```text
//!   rate   0 --------- min ----- middle ----- max --------------->
//!              raise         leave alone            lower, then
//!            (others pay)                        hold, if it asks to be
//! ```
//!
//! # On a host with a scheduler of its own
//!
//! A virtual clock that runs `p` times as fast is a weight divided by `p`, and a nice value is a weight: 1.25 times as much as the
//! next one's. So a program's nice value is the logarithm of a factor, 1 at first ([`Lever::Nice`]).
//!
//! **Control groups are the worse lever.** They can be had without `CAP_SYS_NICE` where a user has some of his own, and their weights
//! are finer ([`Lever::Weight`]: 100 for each thread that runs or wants to, because a group of weight 100 counts as *one* thread of
//! nice 0, times the factor). But the kernel shares a group's weight among the CPUs by what its threads did there a moment ago: one
//! that has slept comes back to almost none. Tried on two CPUs (Linux 6.18), a program of two threads that meet at barriers beside a pipeline of
//! eleven: it has 0.65 to 0.77 CPUs as they are, 1.01 to 1.12 with nice -6, and 0.07 in a group of weight 200 beside one of
//! weight 300, which are their threads' own weights.
//!
//! **The paper's law falls short of its goals.** It divides the program's *own* weight by the *present* indicator. But the
//! indicator nears 1 as the rate nears its goal, and the weight goes back to where it was: between two programs that should have
//! CPU time as 3 to 1, it comes to rest at √3 to 1 (`forgetful_law_comes_to_rest_at_the_root_of_the_ratio`). To reach goals one
//! must remember: each turn multiplies the weight *of the turn before* by what the program lacks. The sum of logarithms is an integral
//! controller, and what it comes to rest at is the goal. The paper's law is the default; [`Fair::remembers`] is what one should
//! use.
//!
//! **What it lacks** is the CPU time that its goal takes over the CPU time that it had. A beat's cost in CPU time, counted over about a window,
//! hardly depends on how much of that it is given, so this is known at once, while a rate over a window is late by one: with
//! rates, two programs with goals swing.
//!
//! Either law is taken half of the way in each turn (in logarithms), because it is not exact what a nice value brings.
//!
//! **Programs without a goal keep their share.** Weights are relative: when one rises, all others fall. So the weights of the
//! programs with goals are scaled, and nice values rounded, such that together they are never more than their own weights together
//! ([`Fair::legacy_share_min`]): they trade among each other. Of its own share, a program with a goal keeps at least an eighth
//! ([`INDICATOR_MIN`]; a tenth with nice values, which are rounded), so nobody starves, whatever the goals are.
//!
//! **What does not help is taken back.** A program that does not wait for CPUs is not raised. One that is raised, and after
//! [`Fair::patience`] turns is no faster, gets its own weight again, and a rest that doubles each time.
//!
//! **Where there is no contention weights do nothing** (section 5.2: facesim runs past its goal as soon as ferret has ended).
//! A program that asks to be held is then given a limit of CPU time (of a control group, with either lever): what its goal's
//! middle takes.
//! It is moved when the rate leaves the window, and taken away when it no longer binds: soon where the program is too slow, for
//! then others are back; else each hold must last twice as long as the one before until it may be released for that.
//!
//! # What is not a number
//!
//! Programs write their goals themselves. A bound that is not a finite number above 0 is none; a lowest rate above the highest
//! makes both none; without a bound there is no goal. One bound alone is its own middle. A rate that is not a finite number, or
//! below 0, is not known: nothing is done. A rate of 0 is the slowest, once the program has beaten at all.
//!
//! # Limits
//!
//! Shares count among neighbours: programs in different control groups (two scopes of systemd, say) share CPUs by the weights of
//! those groups, and what is done to the programs in them changes nothing. A raise is then taken back, and a hold still works.
//! The weight of more than 100 threads is that of 100. Threads are taken to have nice 0 by themselves: what
//! [`Lever::Nice`] asks for is on top of what a user has set, and [`Lever::Weight`] does not count that. Nice values come in steps of a quarter:
//! between two programs a rate moves by about a ninth with each, and a goal that is narrower is met on average. No goal is guaranteed.

use crate::sign;
use corebeat_machine::{Action, Decision, Policy, ProgramId, ProgramSample, PulseSample, Snapshot, Target};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The indicator is never taken for less than this, nor for more than its inverse, and neither is a factor: "we impose a minimum
/// value greater than 0" (section 5.1, without a number). An eighth is ours.
pub const INDICATOR_MIN: f64 = 0.125;
/// No program is held to less, in CPUs.
pub const QUOTA_CPUS_MIN: f64 = 0.05;
/// What one thread of nice 0 weighs, as control groups count.
const WEIGHT_OF_A_THREAD: f64 = 100.0;
/// What a control group may weigh.
const WEIGHT_MAX: f64 = 10_000.0;
/// A weight is 1.25 times as much as the next nice value's (`sched_prio_to_weight` in kernel/sched/core.c).
const NICE_STEP: f64 = 1.25;
/// A limit binds where more than this share of it is used.
const BINDING_SHARE: f64 = 0.9;
/// Rests and holds double so often at most.
const DOUBLINGS_MAX: u32 = 10;

/// What a program wants: beats a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    min: Option<f64>,
    max: Option<f64>,
}

impl Goal {
    /// The goal that a pulse has, if it has one. See the [module](self) for what is none.
    pub fn of(pulse: &PulseSample) -> Option<Goal> {
        let sound = |bound: Option<f64>| bound.filter(|b| b.is_finite() && *b > 0.0);
        let (min, max) = (sound(pulse.rate_min), sound(pulse.rate_max));
        let is_goal = match (min, max) {
            (Some(min), Some(max)) => min <= max,
            (min, max) => min.is_some() || max.is_some(),
        };
        is_goal.then_some(Goal { min, max })
    }

    /// The middle of the window (equation 4), in beats a second.
    pub fn middle(&self) -> f64 {
        match (self.min, self.max) {
            // Halved first: the sum of two large ones is infinite.
            (Some(min), Some(max)) => min / 2.0 + max / 2.0,
            (bound, None) | (None, bound) => bound.unwrap_or(1.0),
        }
    }

    /// Whether a rate is below the window, in it, or above it.
    pub fn place(&self, rate: f64) -> Ordering {
        match rate {
            r if self.min.is_some_and(|min| r < min) => Ordering::Less,
            r if self.max.is_some_and(|max| r > max) => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }

    /// The indicator (equation 3), between [`INDICATOR_MIN`] and its inverse. `None` for what is no rate.
    pub fn indicator(&self, rate: f64) -> Option<f64> {
        let is_rate = rate.is_finite() && rate >= 0.0;
        // No NaN: the middle is above 0. Where it is tiny the quotient is infinite, and cut.
        is_rate.then(|| (rate / self.middle()).clamp(INDICATOR_MIN, 1.0 / INDICATOR_MIN))
    }
}

/// What a share of the CPUs is set by. See the [module](self) for which is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lever {
    /// [`Action::SetNice`].
    Nice,
    /// [`Action::SetWeight`].
    Weight,
}

/// The policy. All fields may be changed at any time.
#[derive(Debug, Clone)]
pub struct Fair {
    /// The machine's CPUs.
    pub cpus: u32,
    /// What shares are set by. Default nice values.
    pub lever: Lever,
    /// Whether programs that ask for it are held. Default yes; no where the machine has no limits.
    pub holds: bool,
    /// Whether each turn starts from the weight of the turn before. Default no, as the paper; yes reaches more goals.
    pub remembers: bool,
    /// What programs without a goal keep of their fair share at least, from 0.01 to 1. Default 1. The paper has no such bound:
    /// 0.125 comes near it.
    pub legacy_share_min: f64,
    /// A weight or a limit is changed by at least this share of it. Default 0.05: it moves a rate by half as much or less.
    pub change_min: f64,
    /// Turns until a raise must have helped, and until a hold that does not bind is released. Default 10.
    pub patience: u32,
    /// Turns above the window in which its weight could do no more, until one who asks for it is held; and turns below
    /// it in which the limit does not bind, until it is released. Default 3.
    pub hold_after: u32,
    /// By how much a raise must have made a program faster to stay. Default 0.03: rates of one second differ by that.
    pub help_min: f64,
    /// Below this share of time spent waiting for a CPU there is nothing to win by a weight. Default 0.02.
    pub latency_min: f64,
    programs: BTreeMap<ProgramId, Known>,
}

/// What is known of one program with a goal.
#[derive(Debug, Clone)]
struct Known {
    /// Threads that run or want to, rounded; at least 1.
    threads: f64,
    /// What its own weight is multiplied by.
    factor: f64,
    /// The factor, scaled with all others'.
    balanced: f64,
    /// What was asked of the machine last.
    set: Option<Set>,
    /// What its beats cost, where both were seen.
    cost: Option<Cost>,
    raise: Option<Raise>,
    rest_left: u32,
    rests: u32,
    /// Turns above the window in which its weight could do no more.
    over: u32,
    hold: Option<Hold>,
    holds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Set {
    Weight(u32),
    Nice(i8),
}

/// What a beat costs, as decaying sums over about a window. Unlike a rate it is the same whatever share of the CPUs a program
/// gets, and says at once what share it needs.
#[derive(Debug, Clone, Copy)]
struct Cost {
    cpu_ns: f64,
    beats: f64,
    /// When it was looked at last, and how many beats there were.
    at_ns: u64,
    beats_before: u64,
}

/// A weight above its own.
#[derive(Debug, Clone, Copy)]
struct Raise {
    /// How fast it was before.
    rate: f64,
    turns: u32,
}

/// A limit of CPU time.
#[derive(Debug, Clone, Copy)]
struct Hold {
    cpus: f64,
    /// What was asked of the machine last.
    set: f64,
    /// Turns in which it did not bind.
    loose: u32,
}

/// One turn of one program.
struct Turn<'a> {
    id: ProgramId,
    pulse: &'a PulseSample,
    goal: Goal,
    indicator: f64,
    /// CPUs that it used.
    running: Option<f64>,
    /// CPUs that its goal's middle takes, by what its beats cost.
    needs: Option<f64>,
    /// Share of time that it waited for CPUs.
    latency: Option<f64>,
}

impl Cost {
    /// CPUs that so many beats a second take. Without beats, more than there are.
    fn cpus(&self, rate: f64) -> Option<f64> {
        let cpus = self.cpu_ns * rate / self.beats / 1e9;
        (self.cpu_ns > 0.0 && !cpus.is_nan()).then_some(cpus)
    }
}

impl Known {
    fn new() -> Known {
        Known {
            threads: 1.0,
            factor: 1.0,
            balanced: 1.0,
            set: None,
            cost: None,
            raise: None,
            rest_left: 0,
            rests: 0,
            over: 0,
            hold: None,
            holds: 0,
        }
    }

    /// What it weighs without us.
    fn own_weight(&self) -> f64 {
        self.threads * WEIGHT_OF_A_THREAD
    }

    /// Counts what was used and done over the span of a snapshot.
    fn count_cost(&mut self, pulse: &PulseSample, running: Option<f64>, at_ns: u64, span_ns: u64) {
        let Some(running) = running else {
            self.cost = None;
            return;
        };
        // Fewer than before: they are another group's.
        if self.cost.is_some_and(|cost| cost.beats_before > pulse.beats) {
            self.cost = None;
        }
        let Some(cost) = &mut self.cost else {
            self.cost = Some(Cost { cpu_ns: 0.0, beats: 0.0, at_ns, beats_before: pulse.beats });
            return;
        };
        let is_next = cost.at_ns == at_ns.saturating_sub(span_ns);
        let beats = pulse.beats.saturating_sub(cost.beats_before) as f64;
        (cost.at_ns, cost.beats_before) = (at_ns, pulse.beats);
        // Turns between were not looked at: of their beats it is not known what they cost.
        if !is_next {
            return;
        }
        // A window of no length is a turn's.
        let kept = (-(span_ns as f64) / pulse.window_ns.max(1) as f64).exp();
        cost.cpu_ns = cost.cpu_ns * kept + running * span_ns as f64;
        cost.beats = cost.beats * kept + beats;
    }

    /// How many threads it has weight for. Not while it is held: then they wait for the limit.
    fn count_threads(&mut self, p: &ProgramSample, span_ns: u64) {
        let wanting = p.cpus(span_ns, |s| Some(s.running()? + s.latency?));
        let wanting = wanting.unwrap_or(p.threads.len() as f64);
        // A new number only where the old one is surely wrong: each costs a change.
        if self.hold.is_none() && (wanting - self.threads).abs() > 0.75 {
            self.threads = wanting.round().max(1.0);
        }
    }
}

impl Fair {
    /// The policy with all thresholds at their defaults, for a machine with this many CPUs.
    pub fn new(cpus: u32) -> Self {
        Fair {
            cpus: cpus.max(1),
            lever: Lever::Nice,
            holds: true,
            remembers: false,
            legacy_share_min: 1.0,
            change_min: 0.05,
            patience: 10,
            hold_after: 3,
            help_min: 0.03,
            latency_min: 0.02,
            programs: BTreeMap::new(),
        }
    }

    /// The factor after a turn outside the window.
    fn next_factor(&self, factor: f64, turn: &Turn) -> f64 {
        let whole = if self.remembers { factor * turn.lack() } else { 1.0 / turn.indicator };
        (factor * whole).sqrt().clamp(INDICATOR_MIN, 1.0 / INDICATOR_MIN)
    }

    fn is_small(&self, from: f64, to: f64) -> bool {
        (to - from).abs() < self.change_min * from
    }

    /// One turn of one program: moves its factor, or its limit.
    fn look(&self, known: &mut Known, turn: &Turn) -> Vec<Decision> {
        let place = turn.goal.place(turn.pulse.rate);
        known.hold = known.hold.filter(|_| self.holds);
        if let Some(hold) = known.hold {
            return self.look_held(known, hold, turn, place);
        }
        let before = known.factor;
        match place {
            Ordering::Equal => (known.raise, known.rests, known.rest_left, known.over) = (None, 0, 0, 0),
            Ordering::Less => {
                known.over = 0;
                self.raise(known, turn);
            }
            Ordering::Greater => {
                known.factor = self.next_factor(known.factor, turn);
                (known.raise, known.rests, known.rest_left) = (None, 0, 0);
                // Nobody else wants the CPUs, or the weight is as low as it gets.
                let is_alone = turn.latency.is_some_and(|l| l < self.latency_min);
                known.over = if is_alone || self.is_small(before, known.factor) { known.over + 1 } else { 0 };
                if turn.pulse.hold && self.holds && known.over >= self.hold_after {
                    return self.hold(known, turn);
                }
            }
        }
        Vec::new()
    }

    fn raise(&self, known: &mut Known, turn: &Turn) {
        if known.rest_left > 0 {
            known.rest_left -= 1;
            return;
        }
        if turn.latency.is_some_and(|l| l < self.latency_min) {
            return;
        }
        known.factor = self.next_factor(known.factor, turn);
        if known.factor <= 1.0 {
            known.raise = None;
            return;
        }
        let raise = known.raise.get_or_insert(Raise { rate: turn.pulse.rate, turns: 0 });
        raise.turns += 1;
        if raise.turns <= self.patience {
            return;
        }
        raise.turns = 0;
        if turn.pulse.rate <= raise.rate * (1.0 + self.help_min) {
            known.factor = 1.0;
            known.raise = None;
            known.rest_left = self.patience.saturating_mul(1 << known.rests.min(DOUBLINGS_MAX));
            known.rests = known.rests.saturating_add(1);
        }
    }

    /// Begins to hold a program that is too fast.
    fn hold(&self, known: &mut Known, turn: &Turn) -> Vec<Decision> {
        let cpus = turn.need(f64::from(self.cpus)).clamp(QUOTA_CPUS_MIN, f64::from(self.cpus));
        known.hold = Some(Hold { cpus, set: cpus, loose: 0 });
        known.holds = known.holds.saturating_add(1);
        known.over = 0;
        vec![limit(turn.id, Some(cpus), turn.told("past its highest, and a lower share does not help"))]
    }

    fn look_held(&self, known: &mut Known, mut hold: Hold, turn: &Turn, place: Ordering) -> Vec<Decision> {
        let is_loose = turn.running.is_some_and(|r| r < BINDING_SHARE * hold.cpus);
        hold.loose = if is_loose && place != Ordering::Greater { hold.loose + 1 } else { 0 };
        if place != Ordering::Equal {
            // Half of the way, as with shares.
            let half = (hold.cpus * turn.need(hold.cpus)).sqrt();
            // Who is too slow in spite of what it may have lacks something else: the limit goes, and its share rises.
            let cpus =
                if place == Ordering::Less { half.max(hold.cpus / turn.indicator.sqrt()) } else { half };
            hold.cpus = cpus.clamp(QUOTA_CPUS_MIN, f64::from(self.cpus));
        }
        let loose_max = match place {
            // Something else slows it down: others are back.
            Ordering::Less => self.hold_after,
            _ => self.patience.saturating_mul(1 << known.holds.min(DOUBLINGS_MAX)),
        };
        let why = if !turn.pulse.hold || turn.goal.max.is_none() {
            "it does not ask to be held any more"
        } else if hold.cpus >= f64::from(self.cpus) {
            "the limit is as large as the machine"
        } else if hold.loose >= loose_max {
            "the limit does not bind any more"
        } else {
            let is_new = !self.is_small(hold.set, hold.cpus);
            if is_new {
                hold.set = hold.cpus;
            }
            known.hold = Some(hold);
            let change = is_new.then(|| limit(turn.id, Some(hold.cpus), turn.told("held")));
            return change.into_iter().collect();
        };
        known.hold = None;
        vec![limit(turn.id, None, why.into())]
    }

    /// Scales the factors of all so that together they weigh no more than they may, and that none is below its least.
    fn balance(&self, programs: &mut BTreeMap<ProgramId, Known>) {
        let own: f64 = programs.values().map(Known::own_weight).sum();
        let mut budget = own / self.legacy_share_min.clamp(0.01, 1.0);
        let mut free: Vec<&mut Known> = programs.values_mut().collect();
        free.iter_mut().for_each(|k| k.balanced = k.factor);
        // Each round fixes at least one at its least, or is the last.
        loop {
            let wanted: f64 = free.iter().map(|k| k.own_weight() * k.factor).sum();
            let scale = budget / wanted;
            if free.is_empty() || scale >= 1.0 {
                break;
            }
            free.iter_mut().for_each(|k| k.balanced = k.factor * scale);
            let (low, rest): (Vec<_>, Vec<_>) = free.into_iter().partition(|k| k.balanced < INDICATOR_MIN);
            free = rest;
            if low.is_empty() {
                break;
            }
            for known in low {
                known.balanced = INDICATOR_MIN;
                budget -= known.own_weight() * INDICATOR_MIN;
            }
        }
        // Who remembers goes on from there: goals that cannot all be met would else drive all factors to their bounds,
        // where the proportion between them is lost.
        if self.remembers {
            programs.values_mut().for_each(|k| k.factor = k.balanced);
        }
    }

    /// What the machine is to be asked for, if it is another than before.
    fn set(&self, known: &mut Known, factor: f64) -> Option<Set> {
        let set = match self.lever {
            Lever::Weight => {
                let weight = (known.own_weight() * factor).round().clamp(1.0, WEIGHT_MAX) as u32;
                let before = match known.set {
                    Some(Set::Weight(before)) => before,
                    _ => known.own_weight().min(WEIGHT_MAX) as u32,
                };
                if self.is_small(f64::from(before), f64::from(weight)) {
                    return None;
                }
                Set::Weight(weight)
            }
            // Never more than was balanced: others would pay for it.
            Lever::Nice => Set::Nice((-factor.ln() / NICE_STEP.ln() - 1e-6).ceil().clamp(-20.0, 19.0) as i8),
        };
        let before = known.set.unwrap_or(Set::Nice(0));
        (before != set).then(|| *known.set.insert(set))
    }

    /// The machine has refused this: it was not done, and is asked for again.
    pub fn refused(&mut self, action: &Action) {
        let known = action.program().and_then(|program| self.programs.get_mut(&program));
        let Some(known) = known else { return };
        match action {
            Action::SetQuota { .. } => known.hold = None,
            Action::SetNice { .. } | Action::SetWeight { .. } => known.set = None,
            _ => {}
        }
    }

    /// Takes back what was done to a program that has no goal any more.
    fn let_go(&self, id: ProgramId, mut known: Known) -> Vec<Decision> {
        let why = "it has no goal any more";
        let held = known.hold.map(|_| limit(id, None, why.into()));
        let set = known.set.and_then(|_| self.set(&mut known, 1.0));
        set.map(|set| share(id, set, why.into())).into_iter().chain(held).collect()
    }
}

impl Turn<'_> {
    /// CPUs for its goal's middle, if its beats go on to cost what they did. Where that is not known, by how fast it is with this
    /// many.
    fn need(&self, cpus: f64) -> f64 {
        self.needs.unwrap_or_else(|| self.running.unwrap_or(cpus).min(cpus) / self.indicator)
    }

    /// How many times the CPU time that it has it needs, within the indicator's bounds.
    fn lack(&self) -> f64 {
        let lack =
            self.needs.zip(self.running).map_or(1.0 / self.indicator, |(needs, running)| needs / running);
        // In bursts a turn is not like the window. Who is too slow is not slowed down for that, nor who is too fast sped up.
        let (least, most) =
            if self.indicator < 1.0 { (1.0, 1.0 / INDICATOR_MIN) } else { (INDICATOR_MIN, 1.0) };
        if lack.is_nan() { 1.0 } else { lack.clamp(least, most) }
    }

    fn told(&self, what: &str) -> String {
        format!("{:.1} beats a second where {:.1} are the goal: {what}", self.pulse.rate, self.goal.middle())
    }
}

fn limit(program: ProgramId, cpus: Option<f64>, why: String) -> Decision {
    Decision { action: Action::SetQuota { program, cpus }, why }
}

fn share(program: ProgramId, set: Set, why: String) -> Decision {
    let action = match set {
        Set::Weight(weight) => Action::SetWeight { program, weight },
        Set::Nice(nice) => Action::SetNice { target: Target::Program(program), nice },
    };
    Decision { action, why }
}

impl Policy for Fair {
    fn name(&self) -> &'static str {
        "fair"
    }

    /// One turn. A program that is missing from the snapshot has ended, and is forgotten.
    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
        let mut programs = std::mem::take(&mut self.programs);
        programs.retain(|id, _| seen.programs.iter().any(|p| p.id == *id));
        let mut decisions = Vec::new();
        let mut turns = Vec::new();
        for p in &seen.programs {
            let Some((pulse, goal)) = p.pulse.as_ref().and_then(|pulse| Some((pulse, Goal::of(pulse)?)))
            else {
                decisions
                    .extend(programs.remove(&p.id).into_iter().flat_map(|known| self.let_go(p.id, known)));
                continue;
            };
            let known = programs.entry(p.id).or_insert_with(Known::new);
            known.count_threads(p, seen.span_ns);
            let Some(indicator) = goal.indicator(pulse.rate).filter(|_| pulse.beats > 0) else { continue };
            let running = p.cpus(seen.span_ns, |s| s.running());
            known.count_cost(pulse, running, seen.at_ns, seen.span_ns);
            turns.push(Turn {
                id: p.id,
                pulse,
                goal,
                indicator,
                running,
                needs: known.cost.and_then(|cost| cost.cpus(goal.middle())),
                latency: sign::share(p, |s| s.latency),
            });
        }
        let mut whys = BTreeMap::new();
        for turn in &turns {
            let known = programs.get_mut(&turn.id).expect("it was put there just now");
            decisions.extend(self.look(known, turn));
            whys.insert(turn.id, turn.told("a share by how fast it is"));
        }
        self.balance(&mut programs);
        for (id, known) in &mut programs {
            if let Some(set) = self.set(known, known.balanced) {
                let why = whys.remove(id).unwrap_or_else(|| "others with a goal need more or less".into());
                decisions.push(share(*id, set, why));
            }
        }
        self.programs = programs;
        decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Counters, HostSample, ThreadId, ThreadSample, TimeShares};
    use proptest::prelude::*;

    const CPUS: u32 = 4;
    /// Beats are counted: there must be many.
    const SCALE: f64 = 1e6;

    /// A program on a machine whose CPU time is a fluid that is shared by weights.
    #[derive(Debug, Clone)]
    struct Fluid {
        threads: u32,
        /// [`SCALE`] beats a second on one CPU.
        speed: f64,
        pulse: Option<PulseSample>,
        /// 100 a thread, where nobody has set one.
        weight: f64,
        quota: f64,
        /// What it got in the last turns, newest last.
        got: Vec<f64>,
    }

    impl Fluid {
        fn new(threads: u32, speed: f64, goal: Option<(f64, f64)>) -> Fluid {
            let pulse = goal.map(|(min, max)| PulseSample {
                rate_min: Some(min * SCALE),
                rate_max: Some(max * SCALE),
                window_ns: 1_000_000_000,
                ..PulseSample::default()
            });
            let weight = f64::from(threads) * 100.0;
            Fluid { threads, speed, pulse, weight, quota: f64::INFINITY, got: Vec::new() }
        }

        fn held(mut self) -> Fluid {
            self.pulse.as_mut().unwrap().hold = true;
            self
        }

        fn cap(&self) -> f64 {
            f64::from(self.threads).min(self.quota)
        }

        fn cpus(&self) -> f64 {
            *self.got.last().unwrap()
        }

        /// The rate over the last `window` turns.
        fn rate(&self, window: usize) -> f64 {
            let last = &self.got[self.got.len().saturating_sub(window)..];
            SCALE * self.speed * last.iter().sum::<f64>() / last.len() as f64
        }

        fn beats(&self) -> u64 {
            1 + (SCALE * self.speed * self.got.iter().sum::<f64>()) as u64
        }

        fn sample(&self, id: u32, window: usize) -> ProgramSample {
            let running = self.cpus() / f64::from(self.threads);
            let thread = |tid| ThreadSample {
                id: ThreadId { tid, start_ticks: 1 },
                pid: 1,
                name: "t".into(),
                cpu: None,
                span_ns: 1_000_000_000,
                shares: TimeShares {
                    user: Some(running),
                    system: Some(0.0),
                    lock: Some(0.0),
                    latency: Some(1.0 - running),
                    sleep: Some(0.0),
                    spin: None,
                },
                counters: Counters::default(),
            };
            ProgramSample {
                id: ProgramId(id),
                name: "fluid".into(),
                threads: (1..=self.threads as i32).map(thread).collect(),
                io_bytes: None,
                team: None,
                pulse: self.pulse.map(|p| PulseSample { rate: self.rate(window), beats: self.beats(), ..p }),
            }
        }
    }

    /// Shares the machine among all: by weight, and no more than somebody can use.
    fn flow(programs: &mut [Fluid]) {
        let mut left = f64::from(CPUS);
        let mut open: Vec<&mut Fluid> = programs.iter_mut().collect();
        loop {
            let weights: f64 = open.iter().map(|p| p.weight).sum();
            let (full, rest): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|p| left * p.weight / weights >= p.cap());
            if full.is_empty() {
                rest.into_iter().for_each(|p| p.got.push(left * p.weight / weights));
                return;
            }
            for p in full {
                left -= p.cap();
                p.got.push(p.cap());
            }
            open = rest;
        }
    }

    /// What is seen of the last turn, with rates over the last `window` of them.
    fn seen(programs: &[Fluid], window: usize) -> Snapshot {
        Snapshot {
            // The first one is there from the beginning.
            at_ns: programs.first().map_or(0, |p| p.got.len()) as u64 * 1_000_000_000,
            span_ns: 1_000_000_000,
            host: HostSample::default(),
            programs: programs.iter().enumerate().map(|(i, p)| p.sample(i as u32, window)).collect(),
        }
    }

    /// Runs some turns, with rates over the last `window` of them. Gives the number of decisions of each turn.
    fn run(policy: &mut Fair, programs: &mut [Fluid], turns: u64, window: usize) -> Vec<usize> {
        let turn = |_| {
            flow(programs);
            let decisions = policy.decide(&seen(programs, window));
            for decision in &decisions {
                assert!(!decision.why.is_empty());
                match decision.action {
                    Action::SetWeight { program, weight } => {
                        assert!((1..=10_000).contains(&weight));
                        programs[program.0 as usize].weight = f64::from(weight);
                    }
                    Action::SetQuota { program, cpus } => {
                        assert!(cpus.is_none_or(|c| c >= QUOTA_CPUS_MIN && c.is_finite()));
                        programs[program.0 as usize].quota = cpus.unwrap_or(f64::INFINITY);
                    }
                    Action::SetNice { target: Target::Program(program), nice } => {
                        let p = &mut programs[program.0 as usize];
                        p.weight = f64::from(p.threads) * 100.0 * NICE_STEP.powi(-i32::from(nice));
                    }
                    ref other => panic!("{other:?}"),
                }
            }
            decisions.len()
        };
        (1..=turns).map(turn).collect()
    }

    fn remembering() -> Fair {
        Fair { remembers: true, lever: Lever::Weight, ..Fair::new(CPUS) }
    }

    fn is_inside(p: &Fluid) -> bool {
        Goal::of(&p.pulse.unwrap()).unwrap().place(p.rate(1)) == Ordering::Equal
    }

    fn band(cpus: f64, speed: f64, width: f64) -> Option<(f64, f64)> {
        Some((cpus * speed * (1.0 - width), cpus * speed * (1.0 + width)))
    }

    #[test]
    fn rates_in_their_windows_are_left_alone() {
        let mut programs =
            [Fluid::new(4, 10.0, band(2.0, 10.0, 0.1)), Fluid::new(4, 3.0, band(2.0, 3.0, 0.1))];
        assert!(run(&mut Fair::new(CPUS), &mut programs, 20, 1).iter().all(|&n| n == 0));
    }

    #[test]
    fn programs_without_a_goal_are_never_touched() {
        let mut programs = [Fluid::new(4, 10.0, None), Fluid::new(4, 10.0, Some((30.0, 40.0)))];
        run(&mut remembering(), &mut programs, 50, 1);
        assert_eq!((programs[0].weight, programs[0].quota), (400.0, f64::INFINITY));
    }

    #[test]
    fn forgetful_law_comes_to_rest_at_the_root_of_the_ratio() {
        for (remembers, ratio) in [(false, 3f64.sqrt()), (true, 3.0)] {
            let mut programs =
                [Fluid::new(4, 7.0, band(3.0, 7.0, 0.0)), Fluid::new(4, 2.0, band(1.0, 2.0, 0.0))];
            let mut policy = Fair { remembers, lever: Lever::Weight, change_min: 0.0, ..Fair::new(CPUS) };
            run(&mut policy, &mut programs, 100, 2);
            let found = programs[0].cpus() / programs[1].cpus();
            // Weights are whole numbers.
            assert!((found / ratio - 1.0).abs() < 0.02, "{found} instead of {ratio}");
        }
    }

    #[test]
    fn raise_that_does_not_help_is_taken_back_and_rests() {
        // It waits for CPUs, but beats by something else.
        let mut programs = [Fluid::new(4, 0.0, Some((10.0, 20.0))), Fluid::new(4, 1.0, Some((1.0, 1.9)))];
        let mut policy = remembering();
        run(&mut policy, &mut programs, 200, 1);
        let (mut raised, mut inside) = (0, 0);
        for _ in 0..200 {
            run(&mut policy, &mut programs, 1, 1);
            raised += usize::from(programs[0].weight > 420.0);
            inside += usize::from(is_inside(&programs[1]));
        }
        assert!(inside >= 180, "the other was where it wants to be in {inside} of 200 turns");
        assert!(raised <= 30, "raised in {raised} of 200 turns");
    }

    #[test]
    fn raise_of_one_that_does_not_wait_is_not_tried() {
        let mut programs = [Fluid::new(1, 1.0, Some((10.0, 20.0)))];
        assert!(run(&mut remembering(), &mut programs, 50, 1).iter().all(|&n| n == 0));
    }

    #[test]
    fn hold_keeps_one_below_its_highest_and_rests() {
        for (mut policy, window) in [(Fair::new(CPUS), 1), (remembering(), 1), (remembering(), 3)] {
            let mut programs = [Fluid::new(2, 10.0, Some((9.0, 11.0))).held()];
            let changes = run(&mut policy, &mut programs, 200, window);
            assert!(is_inside(&programs[0]), "{}", programs[0].rate(1));
            assert_eq!(changes[50..].iter().sum::<usize>(), 0, "{changes:?}");
        }
    }

    #[test]
    fn hold_that_nobody_asked_for_does_not_happen() {
        let mut programs = [Fluid::new(2, 10.0, Some((9.0, 11.0)))];
        run(&mut remembering(), &mut programs, 50, 1);
        assert_eq!((programs[0].quota, programs[0].cpus()), (f64::INFINITY, 2.0));
    }

    #[test]
    fn hold_ends_when_others_take_the_cpus_and_begins_again_after_them() {
        let mut policy = remembering();
        let mut programs = vec![Fluid::new(4, 10.0, Some((18.0, 22.0))).held()];
        run(&mut policy, &mut programs, 40, 1);
        assert!(programs[0].quota < 2.3 && is_inside(&programs[0]));
        // Twelve threads of somebody else: a quarter of the machine is left, too little.
        programs.push(Fluid::new(12, 1.0, None));
        run(&mut policy, &mut programs, 10, 1);
        assert_eq!(programs[0].quota, f64::INFINITY);
        run(&mut policy, &mut programs, 40, 1);
        assert!(programs[0].weight >= 380.0, "it has its own share again: {}", programs[0].weight);
        programs.pop();
        run(&mut policy, &mut programs, 40, 1);
        assert!(programs[0].quota < 2.3 && is_inside(&programs[0]));
    }

    #[test]
    fn bursts_do_not_raise_who_is_too_fast() {
        // It works every other turn, and the rate is over both.
        let mut policy = Fair { lever: Lever::Weight, ..remembering() };
        let mut program = Fluid::new(2, 3.0, Some((0.9, 1.1)));
        for turn in 0..40 {
            program.got.push(f64::from(turn % 2));
            for decision in policy.decide(&seen(std::slice::from_ref(&program), 2)) {
                let Action::SetWeight { weight, .. } = decision.action else { panic!("{decision:?}") };
                program.weight = f64::from(weight);
            }
            assert!(program.weight <= 200.0, "{}", program.weight);
        }
        assert!(program.weight < 100.0, "{}", program.weight);
    }

    #[test]
    fn turns_that_nobody_decided_on_do_not_make_beats_cheap() {
        let mut policy = remembering();
        let mut programs = [Fluid::new(4, 10.0, band(2.0, 10.0, 0.1)), Fluid::new(4, 1.0, None)];
        let cpus_of_a_beat = |policy: &Fair| policy.programs[&ProgramId(0)].cost.unwrap().cpus(1.0).unwrap();
        let expected = 1.0 / (10.0 * SCALE);
        run(&mut policy, &mut programs, 5, 1);
        assert!((cpus_of_a_beat(&policy) / expected - 1.0).abs() < 1e-3);
        // Somebody watched, and did not ask the policy.
        (0..5).for_each(|_| flow(&mut programs));
        run(&mut policy, &mut programs, 1, 1);
        assert!((cpus_of_a_beat(&policy) / expected - 1.0).abs() < 1e-3, "{}", cpus_of_a_beat(&policy));
        // Nor where its rate was not known for a while.
        let rate = |program: &Fluid| PulseSample {
            beats: program.beats(),
            rate: f64::NAN,
            ..program.pulse.unwrap()
        };
        for _ in 0..5 {
            flow(&mut programs);
            let mut seen = seen(&programs, 1);
            seen.programs[0].pulse = Some(rate(&programs[0]));
            policy.decide(&seen);
        }
        run(&mut policy, &mut programs, 2, 1);
        assert!((cpus_of_a_beat(&policy) / expected - 1.0).abs() < 1e-3, "{}", cpus_of_a_beat(&policy));
    }

    #[test]
    fn what_the_machine_refused_is_asked_for_again() {
        let mut policy = remembering();
        let mut programs = [Fluid::new(2, 10.0, Some((9.0, 11.0))).held()];
        run(&mut policy, &mut programs, 40, 1);
        assert!(programs[0].quota.is_finite());
        let limit = Action::SetQuota { program: ProgramId(0), cpus: Some(1.0) };
        policy.refused(&limit);
        programs[0].quota = f64::INFINITY;
        run(&mut policy, &mut programs, 10, 1);
        assert!(programs[0].quota.is_finite());
        policy.holds = false;
        run(&mut policy, &mut programs, 1, 1);
        assert_eq!(policy.programs[&ProgramId(0)].hold.map(|hold| hold.cpus), None);
    }

    #[test]
    fn goal_taken_away_takes_back_what_was_done() {
        let mut policy = remembering();
        let mut programs =
            [Fluid::new(2, 10.0, Some((9.0, 11.0))).held(), Fluid::new(8, 1.0, Some((30.0, 40.0)))];
        run(&mut policy, &mut programs, 40, 1);
        assert!(programs[0].quota.is_finite() || programs[0].weight != 200.0);
        programs.iter_mut().for_each(|p| p.pulse = None);
        run(&mut policy, &mut programs, 1, 1);
        for p in &programs {
            let own = f64::from(p.threads) * 100.0;
            assert!(p.quota == f64::INFINITY && (p.weight - own).abs() <= 0.05 * own, "{p:?}");
        }
        assert!(policy.programs.is_empty());
    }

    #[test]
    fn nice_stands_for_weights_where_there_are_none() {
        let mut programs = [Fluid::new(4, 1.0, band(3.0, 1.0, 0.2)), Fluid::new(4, 1.0, band(1.0, 1.0, 0.2))];
        run(&mut Fair { lever: Lever::Nice, ..remembering() }, &mut programs, 40, 1);
        assert!(programs.iter().all(is_inside), "{programs:?}");
    }

    #[test]
    fn goals_that_make_no_sense_are_none() {
        let goal =
            |rate_min, rate_max| Goal::of(&PulseSample { rate_min, rate_max, ..PulseSample::default() });
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert_eq!(goal(Some(bad), None), None);
            assert_eq!(goal(Some(bad), Some(bad)), None);
            assert_eq!(goal(Some(bad), Some(5.0)), goal(None, Some(5.0)));
        }
        assert_eq!((goal(None, None), goal(Some(2.0), Some(1.0))), (None, None));
        assert_eq!(goal(Some(2.0), Some(4.0)).unwrap().middle(), 3.0);
        assert_eq!(
            (goal(Some(2.0), None).unwrap().middle(), goal(None, Some(4.0)).unwrap().middle()),
            (2.0, 4.0)
        );
        assert!(goal(Some(f64::MAX), Some(f64::MAX)).unwrap().middle().is_finite());
    }

    #[test]
    fn indicator_is_the_rate_over_the_middle_within_bounds() {
        let goal = Goal { min: Some(20.0), max: Some(30.0) };
        assert_eq!((goal.indicator(25.0), goal.indicator(50.0)), (Some(1.0), Some(2.0)));
        assert_eq!((goal.indicator(0.0), goal.indicator(1e300)), (Some(INDICATOR_MIN), Some(8.0)));
        assert!([f64::NAN, f64::INFINITY, -1.0].iter().all(|&r| goal.indicator(r).is_none()));
        let places = [19.0, 20.0, 30.0, 31.0].map(|r| goal.place(r));
        assert_eq!(places, [Ordering::Less, Ordering::Equal, Ordering::Equal, Ordering::Greater]);
    }

    fn any_float() -> impl Strategy<Value = f64> {
        prop_oneof![4 => 0.0f64..50.0, 1 => any::<f64>()]
    }

    fn any_program() -> impl Strategy<Value = Fluid> {
        let goal = proptest::option::of((any_float(), any_float()));
        (1u32..9, 0.0f64..20.0, goal, any::<bool>()).prop_map(|(threads, speed, goal, hold)| {
            let mut program = Fluid::new(threads, speed, goal);
            program.pulse.iter_mut().for_each(|p| p.hold = hold);
            program
        })
    }

    proptest! {
        /// Goals that can be met together, whatever the threads and speeds: all are met, and then nothing moves.
        #[test]
        fn feasible_goals_are_met_and_kept(
            wants in proptest::collection::vec((0.3f64..1.0, 0.1f64..100.0), 2..5),
            window in 1usize..4,
        ) {
            let sum: f64 = wants.iter().map(|w| w.0).sum();
            let program = |&(want, speed): &(f64, f64)| {
                Fluid::new(CPUS, speed, band(f64::from(CPUS) * want / sum, speed, 0.1))
            };
            let mut programs: Vec<Fluid> = wants.iter().map(program).collect();
            let changes = run(&mut remembering(), &mut programs, 80, window);
            prop_assert!(programs.iter().all(is_inside), "{programs:?}");
            prop_assert_eq!(changes[60..].iter().sum::<usize>(), 0, "{:?}", changes);
        }

        /// Nobody else is there, and it is faster than it wants to be: it is held, and then nothing moves.
        #[test]
        fn hold_settles(
            threads in 1u32..9, part in 0.1f64..0.9, speed in 0.1f64..100.0, window in 1usize..4, remembers: bool,
        ) {
            let cpus = f64::from(threads.min(CPUS)) * part;
            let mut programs = [Fluid::new(threads, speed, band(cpus, speed, 0.05)).held()];
            let changes = run(&mut Fair { remembers, ..Fair::new(CPUS) }, &mut programs, 100, window);
            prop_assert!(is_inside(&programs[0]), "{programs:?}");
            prop_assert_eq!(changes[60..].iter().sum::<usize>(), 0, "{:?}", changes);
        }

        /// The paper's law: it need not get there, but two programs with goals are never further off than without it.
        #[test]
        fn forgetful_law_brings_goals_nearer(share in 0.15f64..0.85, speed in 0.1f64..100.0) {
            let cpus = f64::from(CPUS);
            let mut programs = [
                Fluid::new(CPUS, speed, band(cpus * share, speed, 0.1)),
                Fluid::new(CPUS, 1.0, band(cpus * (1.0 - share), 1.0, 0.1)),
            ];
            run(&mut Fair::new(CPUS), &mut programs, 40, 1);
            let off = |got: f64| (got / cpus - share).abs();
            prop_assert!(off(programs[0].cpus()) <= off(cpus / 2.0) + 0.02, "{:?}", programs[0].got);
        }

        /// Whatever anybody's goal is: who has none keeps its fair share, and nobody gets less than an eighth of it.
        #[test]
        fn nobody_starves(
            programs in proptest::collection::vec(any_program(), 1..6), legacy_threads in 1u32..9, remembers: bool, nice: bool,
        ) {
            let mut programs = programs;
            programs.push(Fluid::new(legacy_threads, 1.0, None));
            let mut fair = programs.clone();
            flow(&mut fair);
            let lever = if nice { Lever::Nice } else { Lever::Weight };
            run(&mut Fair { remembers, lever, ..Fair::new(CPUS) }, &mut programs, 40, 2);
            for (p, fair) in programs.iter().zip(&fair) {
                // Weights are whole numbers, and are changed in steps of a twentieth.
                let least = match p.pulse {
                    None => fair.cpus() * 0.95,
                    // And so are nice values.
                    Some(_) => (fair.cpus() * INDICATOR_MIN * if nice { 1.0 / NICE_STEP } else { 0.9 }).min(p.quota),
                };
                prop_assert!(p.cpus() >= least * 0.99, "{} of {} CPUs: {:?}", p.cpus(), fair.cpus(), p);
            }
        }

        #[test]
        fn decide_repeats_itself(programs in proptest::collection::vec(any_program(), 0..6), remembers: bool) {
            let run = || {
                let mut programs = programs.clone();
                let changes = run(&mut Fair { remembers, ..Fair::new(CPUS) }, &mut programs, 40, 2);
                (changes, format!("{programs:?}"))
            };
            prop_assert_eq!(run(), run());
        }
    }

    #[test]
    fn goal_that_cannot_be_met_leaves_others_their_least() {
        for remembers in [false, true] {
            let mut programs = [Fluid::new(4, 1.0, Some((1e12, 1e13))), Fluid::new(4, 1.0, Some((2.0, 3.0)))];
            let mut policy = Fair { remembers, ..Fair::new(CPUS) };
            for _ in 0..100 {
                run(&mut policy, &mut programs, 1, 1);
                assert!(programs[1].cpus() >= 2.0 * INDICATOR_MIN * 0.95, "{}", programs[1].cpus());
            }
        }
    }
}
