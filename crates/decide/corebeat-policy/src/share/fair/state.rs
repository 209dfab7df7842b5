//! State of the programs with goals.

use super::{DOUBLINGS_MAX, Goal, INDICATOR_MIN, WEIGHT_OF_A_THREAD};
use corebeat_machine::{ProgramId, ProgramSample, ProgressSample};

/// State of one program with a goal.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// Number of runnable threads, rounded; at least 1.
    threads: f64,
    /// Factor of the program's own weight.
    pub(super) factor: f64,
    /// The factor after scaling with the factors of all programs.
    pub(super) balanced: f64,
    /// Why a program that is too slow gets no larger share.
    pub(super) idle: Option<String>,
    /// The last requested setting.
    pub(super) set: Option<Set>,
    /// The last setting that the machine accepted.
    pub(super) accepted: Option<Set>,
    /// CPU time per beat, if known.
    pub(super) cost: Option<Cost>,
    pub(super) raise: Option<Raise>,
    pub(super) rest_left: u32,
    pub(super) rests: u32,
    /// Cycles above the window in which a lower weight had no effect.
    pub(super) over: u32,
    pub(super) hold: Option<Hold>,
    pub(super) holds: u32,
    pub(super) share_refusals: Refusals,
    pub(super) quota_refusals: Refusals,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Set {
    Weight(u32),
    Nice(i8),
}

/// CPU time per beat, as decaying sums over about one window. Unlike a rate, the cost does not
/// depend on the CPU share of a program, and shows at once which share the program needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    cpu_ns: f64,
    beats: f64,
    /// Time of the last sample.
    at_ns: u64,
    /// Number of beats in the last sample.
    beats_before: u64,
}

/// A weight above the program's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raise {
    /// Rate before the raise.
    pub(super) rate: f64,
    pub(super) cycles: u32,
}

/// A limit of CPU time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    pub(super) cpus: f64,
    /// The last requested limit.
    pub(super) set: f64,
    /// The last limit that the machine accepted.
    pub(super) accepted: Option<f64>,
    /// Successive cycles in which the limit was not binding.
    pub(super) loose: u32,
}

/// Refusals of one kind of setting. After each refusal the setting is not requested for a number of
/// cycles that doubles.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Refusals {
    count: u32,
    rest_left: u32,
}

impl Refusals {
    pub(super) fn add(&mut self, patience: u32) {
        self.rest_left = patience.saturating_mul(1 << self.count.min(DOUBLINGS_MAX));
        self.count = self.count.saturating_add(1);
    }

    pub(super) fn may_request(self) -> bool {
        self.rest_left == 0
    }

    fn end_cycle(&mut self) {
        self.rest_left = self.rest_left.saturating_sub(1);
    }
}

/// One cycle of one program.
pub(super) struct Cycle<'a> {
    pub(super) id: ProgramId,
    pub(super) progress: &'a ProgressSample,
    pub(super) goal: Goal,
    pub(super) indicator: f64,
    /// Number of CPUs that the program used.
    pub(super) running: Option<f64>,
    /// Number of CPUs for the middle of the goal, by the cost of the beats.
    pub(super) needs: Option<f64>,
    /// Share of time that the threads waited for CPUs.
    pub(super) wait: Option<f64>,
}

impl Cost {
    /// Returns the number of CPUs for a rate in beats per second. Infinite without beats.
    pub(super) fn cpus(&self, rate: f64) -> Option<f64> {
        let cpus = self.cpu_ns * rate / self.beats / 1e9;
        (self.cpu_ns > 0.0 && !cpus.is_nan()).then_some(cpus)
    }
}

impl State {
    /// Returns the state of a program without changes by the policy.
    pub(super) fn unchanged() -> State {
        State { threads: 1.0, factor: 1.0, balanced: 1.0, ..State::default() }
    }

    /// Returns the weight of the program without changes by the policy.
    pub(super) fn own_weight(&self) -> f64 {
        self.threads * WEIGHT_OF_A_THREAD
    }

    pub(super) fn end_cycle(&mut self) {
        self.share_refusals.end_cycle();
        self.quota_refusals.end_cycle();
    }

    /// Adds the CPU time and the beats in the span of a snapshot to the cost.
    pub(super) fn count_cost(
        &mut self,
        progress: &ProgressSample,
        running: Option<f64>,
        at_ns: u64,
        span_ns: u64,
    ) {
        let Some(running) = running else {
            self.cost = None;
            return;
        };
        // If the number of beats decreases, the beats are those of another group.
        if self.cost.is_some_and(|cost| cost.beats_before > progress.beats) {
            self.cost = None;
        }
        let Some(cost) = &mut self.cost else {
            self.cost = Some(Cost { cpu_ns: 0.0, beats: 0.0, at_ns, beats_before: progress.beats });
            return;
        };
        let is_next = cost.at_ns == at_ns.saturating_sub(span_ns);
        let beats = progress.beats.saturating_sub(cost.beats_before) as f64;
        (cost.at_ns, cost.beats_before) = (at_ns, progress.beats);
        // The CPU time of beats in cycles without a sample is unknown.
        if !is_next {
            return;
        }
        // A window of length 0 is treated as one cycle.
        let kept = (-(span_ns as f64) / progress.window_ns.max(1) as f64).exp();
        cost.cpu_ns = cost.cpu_ns * kept + running * span_ns as f64;
        cost.beats = cost.beats * kept + beats;
    }

    /// Counts the runnable threads. While the program is held, its threads wait for the limit, and
    /// the number stays.
    pub(super) fn count_threads(&mut self, p: &ProgramSample, span_ns: u64) {
        let runnable = p.cpus(span_ns, |s| s.runnable());
        let runnable = runnable.unwrap_or(p.threads.len() as f64);
        // The number changes only if the old one is certainly wrong, because each change of the
        // number changes a setting.
        if self.hold.is_none() && (runnable - self.threads).abs() > 0.75 {
            self.threads = runnable.round().max(1.0);
        }
    }
}

impl Cycle<'_> {
    /// Returns the number of CPUs for the middle of the goal, by the cost of the beats. If the cost
    /// is unknown, the number is estimated from the rate with `cpus` CPUs.
    pub(super) fn need(&self, cpus: f64) -> f64 {
        self.needs.unwrap_or_else(|| self.running.unwrap_or(cpus).min(cpus) / self.indicator)
    }

    /// Returns the needed CPU time relative to the used CPU time, within the bounds of the
    /// indicator.
    pub(super) fn lack(&self) -> f64 {
        let lack = self
            .needs
            .zip(self.running)
            .map_or(1.0 / self.indicator, |(needs, running)| needs / running);
        // With bursts, a cycle differs from the window. A program that is too slow must not be
        // slowed down for that reason, and a program that is too fast must not be accelerated.
        let (least, most) =
            if self.indicator < 1.0 { (1.0, 1.0 / INDICATOR_MIN) } else { (INDICATOR_MIN, 1.0) };
        if lack.is_nan() { 1.0 } else { lack.clamp(least, most) }
    }

    /// Describes the rate and the goal, followed by an explanation.
    pub(super) fn describe(&self, what: &str) -> String {
        format!(
            "the rate is {:.1} beats/s and the goal is {:.1} beats/s: {what}",
            self.progress.rate,
            self.goal.middle()
        )
    }
}
