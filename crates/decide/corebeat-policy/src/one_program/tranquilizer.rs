//! Thread Tranquilizer: memory placement and time slices that reduce the variation of a program's
//! run time, controlled by the rates of cache misses and involuntary context switches.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 3.
//! If the run time of a program varies, the cause is usually one of two varying rates. One is the
//! rate of cache misses of a memory-intensive program, whose pages stay on the node of their first
//! access while its threads migrate. The other one is the rate of involuntary context switches
//! (ICX), where priorities change. The thesis takes ten samples of 100 ms of both rates. It spreads
//! the memory of a program with many misses over all nodes, and gives the threads of every program
//! a fixed priority and a fixed time slice. After ten more samples, it undoes a change that did not
//! reduce both the mean and the deviation of its rate. Every five seconds this procedure starts
//! again, because programs have phases (Figure 3.7).
//!
//! ```text
//!    10 samples without        10 samples with settings                at the next pass
//!       Profile ------------------> Try ------------------------> Rest -----------------> Profile
//!          |  misses > threshold:        calmer or faster: keep    ^
//!          |    spread memory, 100 ms    else: next in this order: |
//!          |  else: 20 ms                  spread -> 100 ms -> no settings
//!          +---- few preemptions and few misses -------------------+
//! ```
//!
//! # Differences from the thesis
//!
//! - **Fixed priority** is the batch class and a slice, as in [`faithful`](crate::faithful): on
//!   Linux, threads that preempt no other thread; on a time-sharing machine, the class FX.
//! - **Progress decides, too.** Fewer misses only indicate that a program is faster. If progress is
//!   measured, the policy undoes settings that reduce the variation when the program is slower by
//!   [`Tranquilizer::margin`], and keeps settings that do not reduce it when the program is faster
//!   by that margin. On machines whose miss rates do not depend on the location of memory (all
//!   machines that count misses of the last cache), only progress shows whether spreading helps.
//! - **Every setting that does not help is undone.** The thesis keeps the fixed priority of a
//!   memory-intensive program without a check; here the priority has to help by itself.
//! - **Passes become rarer.** A kept or refused setting is checked again after 1, 2, 4, ... passes,
//!   and at once when the program changes between many and few misses. The number of changes is
//!   bounded: at most seven for each check, and `log t` checks within a time `t` without such a
//!   phase change. Memory stays spread while the program misses much, because moving pages back and
//!   forth for a check would cost more than it shows.
//! - **Other programs.** Batch threads run after threads that may preempt. So the policy tries no
//!   setting under the load of other programs, and removes fixed slices when other programs start,
//!   except for a program whose memory is spread.
//!
//! The text of the thesis does not contain the threshold. The default here is one miss per thousand
//! instructions: a tenth of the time, at about 100 ns for each miss.
//!
//! # Failure
//!
//! A setting that the machine refuses is requested once for each program. The policy then continues
//! with the settings that are in effect.

use crate::fixed_slice::{Fixed, FixedSlice};
use crate::one_program::{ONE_THREAD, PerProgram, ProgramPolicy, inaction};
use crate::progress::{Speeds, Work};
use crate::ratio::{Ratio, others_busy};
use crate::refusal::Support;
use corebeat_machine::{
    Action, AppliedAction, Decision, Inaction, Policy, ProgramId, ProgramSample, Snapshot,
};
use std::collections::{BTreeMap, VecDeque};

/// Number of samples in a profile (section 3.2).
pub const SAMPLES: usize = 10;
/// Smallest number of samples with a known rate for a mean.
const KNOWN_MIN: usize = SAMPLES / 2;

/// The policy. All fields may be changed before the first snapshot.
#[derive(Debug, Clone)]
pub struct Tranquilizer {
    /// Number of CPUs of the machine.
    pub cpus: u32,
    /// Number of NUMA nodes of the machine. With one node, memory cannot be spread.
    pub nodes: u32,
    /// Duration of a sample, in nanoseconds; shorter snapshots are combined. Default 100 ms
    /// (section 3.2).
    pub sample_ns: u64,
    /// Time from one pass to the next, in nanoseconds. Default 5 s (section 3.2).
    pub pass_ns: u64,
    /// Time after a change that is not sampled, in nanoseconds, because pages are being moved.
    /// Default 0.5 s.
    pub settle_ns: u64,
    /// Cache misses per instruction from which a program is memory-intensive. Default 0.001; see
    /// above.
    pub miss_rate_min: f64,
    /// Smallest rate of involuntary switches, per second of CPU time, that the policy reduces.
    /// Default 1.
    pub involuntary_rate_min: f64,
    /// Slice of memory-intensive programs, in microseconds. Default 100 ms (section 3.2).
    pub slice_memory_us: u32,
    /// Slice of all other programs, in microseconds. Default 20 ms (section 3.2).
    pub slice_us: u32,
    /// Relative change of progress that overrides the rates. Default 0.03: one-second profiles of a
    /// constant program differ by that much.
    pub margin: f64,
    /// Share of the CPUs used by other programs from which no setting is tried; at twice this
    /// share, fixed slices are removed. Default 0.125.
    pub others_share_max: f64,
    /// Largest number of passes from one check to the next. Default 64: five minutes.
    pub passes_max: u32,
    programs: BTreeMap<ProgramId, State>,
}

impl Tranquilizer {
    /// Returns the policy with default thresholds for a machine with these numbers of CPUs and
    /// nodes.
    pub fn new(cpus: u32, nodes: u32) -> Self {
        Tranquilizer {
            cpus: cpus.max(1),
            nodes,
            sample_ns: 100_000_000,
            pass_ns: 5_000_000_000,
            settle_ns: 500_000_000,
            miss_rate_min: 0.001,
            involuntary_rate_min: 1.0,
            slice_memory_us: 100_000,
            slice_us: 20_000,
            margin: 0.03,
            others_share_max: 0.125,
            passes_max: 64,
            programs: BTreeMap::new(),
        }
    }
}

/// Settings of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Settings {
    /// The program's own settings.
    #[default]
    Plain,
    /// A fixed slice in microseconds, and the batch class.
    Fixed(u32),
    /// The same, and memory spread over all nodes.
    Spread(u32),
}

impl Settings {
    fn slice_us(self) -> Option<u32> {
        match self {
            Settings::Plain => None,
            Settings::Fixed(us) | Settings::Spread(us) => Some(us),
        }
    }

    fn is_spread(self) -> bool {
        matches!(self, Settings::Spread(_))
    }
}

/// Stage of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Stage {
    /// The next profile is of the program without settings.
    #[default]
    Profile,
    /// The next profile is of the program with settings. The stage contains the profile before.
    Try(Profile),
    /// Nothing is to be done until the next pass.
    Rest,
}

/// State of one program.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    accumulator: Accumulator,
    samples: VecDeque<Sample>,
    /// Remaining time after a change that is not sampled.
    settling_ns: u64,
    settings: Settings,
    fixed: FixedSlice,
    pages: Support,
    stage: Stage,
    /// Whether the program misses much.
    is_hungry: bool,
    next_pass_ns: u64,
    /// Passes from one check to the next.
    every: u32,
    /// Passes until the next check.
    left: u32,
    /// Why the policy does not act.
    idle: Option<String>,
}

impl State {
    /// Returns the best settings that the machine accepts.
    fn permitted(&self, settings: Settings) -> Settings {
        match settings {
            Settings::Spread(us) if !self.pages.may_request() => {
                self.permitted(Settings::Fixed(us))
            }
            Settings::Fixed(_) if !self.fixed.may_request() => Settings::Plain,
            settings => settings,
        }
    }

    /// Changes the settings.
    fn set(&mut self, program: ProgramId, after: Settings, why: &str) -> Vec<Decision> {
        let before = std::mem::replace(&mut self.settings, after);
        let mut actions = self.fixed.set(program, after.slice_us().map(Fixed::batch));
        let spread = after.is_spread();
        let is_possible = if spread { self.pages.may_request() } else { self.pages.may_be_set() };
        if spread != before.is_spread() && is_possible {
            actions.push(Action::SpreadPages { program, spread });
        }
        let decision = |action| Decision { policy: "tranquilizer", action, why: why.to_owned() };
        actions.into_iter().map(decision).collect()
    }
}

/// An incomplete sample.
#[derive(Debug, Clone, Default)]
struct Accumulator {
    work: Work,
    miss: Ratio,
    involuntary: Ratio,
    /// Miss rate of the whole host in the newest snapshot, for machines that do not count threads.
    host_miss: Option<f64>,
    others_busy: f64,
}

impl Accumulator {
    fn add(&mut self, p: &ProgramSample, snapshot: &Snapshot) {
        self.work.add(p, snapshot);
        self.miss.add_counts(p, |t| t.counters.cache_misses.zip(t.counters.instructions));
        self.involuntary.add_rate(p, |t| t.counters.involuntary_switches);
        let counters = snapshot.host.counters;
        let host = counters.cache_misses.zip(counters.instructions);
        self.host_miss = host.filter(|c| c.1 > 0).map(|(misses, all)| misses as f64 / all as f64);
        self.others_busy += others_busy(p, snapshot) * snapshot.span_ns as f64;
    }

    fn sample(&self) -> Sample {
        Sample {
            work: self.work,
            miss: self.miss.get().or(self.host_miss),
            involuntary: self.involuntary.get(),
            others_busy: self.others_busy / self.work.span_ns.max(1) as f64,
        }
    }
}

/// Rates during a tenth of a second.
#[derive(Debug, Clone, Copy)]
struct Sample {
    work: Work,
    miss: Option<f64>,
    involuntary: Option<f64>,
    others_busy: f64,
}

/// Rates over [`SAMPLES`] samples.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Profile {
    miss: Option<Rate>,
    involuntary: Option<Rate>,
    others_busy: f64,
    speeds: Speeds,
}

/// A rate over samples.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rate {
    mean: f64,
    deviation: f64,
}

impl Rate {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Option<Rate> {
        let count = values.clone().count();
        let mean = values.clone().sum::<f64>() / count as f64;
        let square = values.map(|v| (v - mean).powi(2)).sum::<f64>() / count as f64;
        (count >= KNOWN_MIN).then(|| Rate { mean, deviation: square.sqrt() })
    }

    fn is_calmer_than(&self, before: &Rate) -> bool {
        self.mean < before.mean && self.deviation < before.deviation
    }
}

impl Profile {
    fn of(samples: &VecDeque<Sample>) -> Profile {
        let mut work = Work::default();
        samples.iter().for_each(|s| work.join(&s.work));
        let others_busy =
            samples.iter().map(|s| s.others_busy).sum::<f64>() / samples.len().max(1) as f64;
        Profile {
            miss: Rate::of(samples.iter().filter_map(|s| s.miss)),
            involuntary: Rate::of(samples.iter().filter_map(|s| s.involuntary)),
            others_busy,
            speeds: work.speeds(),
        }
    }

    /// Describes what a trial of settings changed since an earlier profile.
    fn describe(&self, before: &Profile, settings: Settings) -> String {
        let (name, unit, rates) = match settings.is_spread() {
            true => ("cache misses per 1000 instructions", 1e3, self.miss.zip(before.miss)),
            false => ("preemptions per second", 1.0, self.involuntary.zip(before.involuntary)),
        };
        let rates = rates.map_or_else(String::new, |(after, before)| {
            format!("; {name} from {:.2} to {:.2}", before.mean * unit, after.mean * unit)
        });
        let gain = self.speeds.gain_over(&before.speeds);
        let progress = gain.map_or_else(
            || "the change of progress is unknown".into(),
            |gain| format!("progress changed by {:+.1}%", gain * 100.0),
        );
        progress + &rates
    }
}

impl Tranquilizer {
    /// Returns whether the program misses much. An earlier result changes only if the rate crosses
    /// the threshold by more than one deviation.
    fn is_hungry(&self, profile: &Profile, before: Option<bool>) -> bool {
        let Some(miss) = profile.miss else { return before.unwrap_or(false) };
        match before {
            None => miss.mean > self.miss_rate_min,
            Some(true) => miss.mean + miss.deviation > self.miss_rate_min,
            Some(false) => miss.mean - miss.deviation > self.miss_rate_min,
        }
    }

    /// Returns the largest number of CPUs that other programs may use.
    fn others_max(&self) -> f64 {
        self.others_share_max * f64::from(self.cpus)
    }

    /// Returns the settings to try first, if an improvement is possible.
    fn first_settings(&self, is_hungry: bool, profile: &Profile) -> Option<Settings> {
        let is_calm = profile.involuntary.is_some_and(|i| i.mean < self.involuntary_rate_min);
        match (is_hungry, is_calm) {
            _ if profile.others_busy > self.others_max() => None,
            (true, _) if self.nodes > 1 => Some(Settings::Spread(self.slice_memory_us)),
            (_, true) => None,
            (true, false) => Some(Settings::Fixed(self.slice_memory_us)),
            (false, false) => Some(Settings::Fixed(self.slice_us)),
        }
    }

    /// Returns why no settings are tried.
    fn obstacle(&self, profile: &Profile) -> String {
        let (others_max, least) = (self.others_max(), self.involuntary_rate_min);
        match profile.involuntary {
            _ if profile.others_busy > others_max => format!(
                "other programs keep {:.1} CPUs busy; tranquilizer needs at most {others_max:.2}",
                profile.others_busy
            ),
            Some(rate) if rate.mean < least => format!(
                "threads are preempted {:.1} times per second of CPU time; tranquilizer needs \
                 {least:.0}",
                rate.mean
            ),
            _ => "the machine refuses the settings".into(),
        }
    }

    /// Returns whether settings are kept: not if the program is slower, always if the program is
    /// faster, and otherwise if the mean and the deviation of the rate are lower.
    fn is_better(&self, settings: Settings, after: &Profile, before: &Profile) -> bool {
        let rate = |p: &Profile| if settings.is_spread() { p.miss } else { p.involuntary };
        let rates = rate(after).zip(rate(before));
        let is_calmer = rates.is_some_and(|(after, before)| after.is_calmer_than(&before));
        match after.speeds.gain_over(&before.speeds) {
            Some(gain) if gain < -self.margin => false,
            Some(gain) if gain > self.margin => true,
            _ => is_calmer,
        }
    }

    /// Decides after one more sample of a program.
    fn decide_sample(&self, state: &mut State, id: ProgramId, now_ns: u64) -> Vec<Decision> {
        if state.samples.len() < SAMPLES {
            return vec![];
        }
        let profile = Profile::of(&state.samples);
        match state.stage {
            Stage::Profile => self.start(state, id, &profile),
            Stage::Try(before) => {
                if self.is_better(state.settings, &profile, &before) {
                    state.stage = Stage::Rest;
                    return vec![];
                }
                let result = profile.describe(&before, state.settings);
                let next = match state.settings {
                    Settings::Spread(us) => state.permitted(Settings::Fixed(us)),
                    _ => Settings::Plain,
                };
                let stage = if next == Settings::Plain { Stage::Rest } else { Stage::Try(before) };
                let why = format!("the settings did not help: {result}");
                self.change(state, id, next, stage, &why)
            }
            Stage::Rest if now_ns >= state.next_pass_ns => {
                while state.next_pass_ns <= now_ns {
                    state.next_pass_ns += self.pass_ns.max(1);
                }
                self.pass(state, id, &profile)
            }
            Stage::Rest => vec![],
        }
    }

    /// Starts a pass and decides whether the program is profiled again.
    fn pass(&self, state: &mut State, id: ProgramId, profile: &Profile) -> Vec<Decision> {
        let is_crowded = profile.others_busy > 2.0 * self.others_max();
        let has_changed = self.is_hungry(profile, Some(state.is_hungry)) != state.is_hungry;
        let is_spread = state.settings.is_spread();
        if has_changed {
            state.every = 1;
        } else if is_crowded && state.settings.slice_us().is_some() && !is_spread {
            let why = format!(
                "other programs use {:.1} CPUs and would run before batch threads",
                profile.others_busy
            );
            return self.change(state, id, Settings::Plain, Stage::Rest, &why);
        } else if state.left > 1 || is_spread {
            state.left = state.left.saturating_sub(1);
            return vec![];
        } else {
            state.every = state.every.saturating_mul(2).min(self.passes_max);
        }
        state.left = state.every;
        let why = match (state.settings, has_changed) {
            (Settings::Plain, _) => return self.start(state, id, profile),
            (_, false) => "to profile the program without the settings",
            (_, true) => {
                state.is_hungry = !state.is_hungry;
                match state.is_hungry {
                    true => "the program now has many cache misses",
                    false => "the program now has few cache misses",
                }
            }
        };
        self.change(state, id, Settings::Plain, Stage::Profile, why)
    }

    /// Decides after a profile of the program without settings.
    fn start(&self, state: &mut State, id: ProgramId, profile: &Profile) -> Vec<Decision> {
        state.is_hungry = self.is_hungry(profile, None);
        let settings = self.first_settings(state.is_hungry, profile);
        let settings = settings.map(|settings| state.permitted(settings));
        let Some(settings) = settings.filter(|&settings| settings != Settings::Plain) else {
            state.stage = Stage::Rest;
            state.idle = Some(self.obstacle(profile));
            return vec![];
        };
        let preemptions = profile.involuntary.map_or_else(
            || "an unknown number of times".into(),
            |i| format!("{:.0} times (deviation {:.0})", i.mean, i.deviation),
        );
        let misses = profile.miss.map_or_else(
            || "an unknown number of cache misses".into(),
            |m| format!("{:.2} (deviation {:.2}) cache misses", m.mean * 1e3, m.deviation * 1e3),
        );
        let why = format!(
            "threads are preempted {preemptions} per second of CPU time; \
             {misses} per 1000 instructions"
        );
        self.change(state, id, settings, Stage::Try(*profile), &why)
    }

    /// Changes the settings and discards the samples with the old ones.
    fn change(
        &self,
        state: &mut State,
        id: ProgramId,
        settings: Settings,
        stage: Stage,
        why: &str,
    ) -> Vec<Decision> {
        state.stage = stage;
        state.samples.clear();
        state.settling_ns = self.settle_ns;
        state.set(id, settings, why)
    }
}

impl Policy for Tranquilizer {
    fn name(&self) -> &'static str {
        "tranquilizer"
    }

    /// A program with a single thread gets no fixed slices.
    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        self.decide_for(snapshot, &|_| true)
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        let program = applied.decision.action.program();
        let Some(state) = program.and_then(|id| self.programs.get_mut(&id)) else { return };
        match applied.decision.action {
            Action::SpreadPages { spread: true, .. } => state.pages.record(applied),
            _ => state.fixed.record(applied),
        }
        // Only the settings that are in effect are tried and undone.
        state.settings = state.permitted(state.settings);
        if state.settings == Settings::Plain && matches!(state.stage, Stage::Try(_)) {
            state.stage = Stage::Rest;
        }
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        inaction(self.name(), self.programs.get(&program).and_then(|state| state.idle.as_ref()))
    }
}

impl PerProgram for Tranquilizer {
    type State = State;

    fn states(&mut self) -> &mut BTreeMap<ProgramId, State> {
        &mut self.programs
    }

    fn new_state(&self, snapshot: &Snapshot) -> State {
        let first_ns = snapshot.at_ns.saturating_sub(snapshot.span_ns);
        let next_pass_ns = first_ns.saturating_add(self.pass_ns);
        State { next_pass_ns, every: 1, left: 1, ..State::default() }
    }

    fn step(&self, state: &mut State, p: &ProgramSample, snapshot: &Snapshot) -> Vec<Decision> {
        if p.threads.len() < 2 {
            state.idle.get_or_insert_with(|| ONE_THREAD.into());
            return vec![];
        }
        if state.settling_ns > 0 {
            state.settling_ns = state.settling_ns.saturating_sub(snapshot.span_ns);
            return vec![];
        }
        state.accumulator.add(p, snapshot);
        if state.accumulator.work.span_ns < self.sample_ns {
            return vec![];
        }
        state.samples.push_back(std::mem::take(&mut state.accumulator).sample());
        if state.samples.len() > SAMPLES {
            state.samples.pop_front();
        }
        self.decide_sample(state, p.id, snapshot.at_ns)
    }
}

#[cfg(test)]
mod tests;
