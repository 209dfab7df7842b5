//! FaithFul scheduling: one time slice for all threads of a program, from its lock time and its cache misses, and
//! proof that it helps.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 5, Algorithm 3. The
//! scaling factor is `1 - max(miss ratio, lock time share)`: near 1 for a program that computes in its caches, near 0
//! for one that waits for locks or memory. The lower it is, the longer should a thread run at a stretch, so that who
//! holds a lock gives it back, and who filled a cache uses it. It is read every second, and the slice is changed only
//! when the factor has left its band.
//!
//! # What is different on a modern kernel
//!
//! **One priority.** Solaris' time-sharing class moved priorities about, and the threads of one program threw each
//! other off the CPU. Linux' fair scheduler never changes a nice value by itself, so that threads of a program differ
//! only where the program wants it. Nothing is done about it here.
//!
//! **The slice.** Under EEVDF a slice is a request between 0.1 and 100 ms; the system's own is about 3 ms or less. The
//! thesis' table is taken as it stands, with 100 ms for all that is longer ([`SLICES_MS`]).
//!
//! **Whether it helps.** The gains of the thesis come from involuntary switches that were its scheduler's own doing.
//! Here a longer slice helps some programs, does nothing for most, and hurts those that spin. So a slice has to prove
//! itself, in windows of half a second each that alternate between the system's slice (A) and its own (B):
//!
//! ```text
//!  workers   +0.5 s                                        each B must beat the mean
//!  appear                                                  of the two As beside it
//!    |---------|---A---|---B---|---A---|---B---|---A---| ...
//!    settling   factor,     gain 1          gain 2
//!               is there anything to win?
//! ```
//!
//! The first B that does not win ends the experiment, right after an A, so that there is nothing to take back. Noise
//! wins four times in a row once in 16; a slice is kept if it does, and if the median gain is worth having. Comparing
//! with the mean of both neighbours takes out what the program itself does faster or slower as it goes on. Progress is
//! counted per CPU that the program could have had, so that other programs' load is taken out too.
//!
//! **Where the burden of proof lies.** A program whose threads hardly ever block and are thrown off the CPU all the
//! time loses its caches at every switch; there a longer slice is right until the contrary is shown. It is set at once,
//! and held. A slice that is held, so or after an experiment, is checked: one window without it now and then, ever more
//! rarely while it wins. Two checks lost in a row, or one that is lost clearly, and it is taken back.
//!
//! ```text
//!            workers          factor           every B won
//!  Settling ---------> Watching -----> Trying ------------> Holding <--+
//!                        ^  ^  |         | a B lost          |  |  |   | a window without, now and then
//!                        |  |  +---------|-- likely ---------+  |  +---+
//!                        |  +------------+ refused <------------+ checks lost
//!                        +-------------------------- factor left its band
//! ```
//!
//! A refusal holds until the factor has moved twice its band away; the n-th refusal also for at least
//! 2^(n-1) [`FaithFul::rest_ns`]. The changes within a time `t` are therefore at most a constant times `log t` for a
//! program whose slice does not help.

use crate::progress::Measure;
use crate::sign::Ratio;
use corebeat_machine::{Action, Decision, Policy, ProgramId, ProgramSample, Snapshot, Target};
use std::collections::BTreeMap;

/// Table 5.1: for a scaling factor up to `.0`, a slice of `.1` milliseconds. The thesis' last five rows from below
/// (100, 120, 150, 200 and 250 ms) are one here: Linux takes requests up to 100 ms.
pub const SLICES_MS: [(f64, u32); 6] =
    [(0.50, 100), (0.60, 80), (0.70, 50), (0.80, 30), (0.90, 20), (1.00, 10)];

/// The slice for a scaling factor, in microseconds.
pub fn slice_us(factor: f64) -> u32 {
    let row = SLICES_MS.iter().find(|row| factor <= row.0).unwrap_or(&SLICES_MS[SLICES_MS.len() - 1]);
    row.1 * 1000
}

/// The policy. All fields may be changed before it sees its first snapshot.
#[derive(Debug, Clone)]
pub struct FaithFul {
    /// The machine's CPUs.
    pub cpus: u32,
    /// How far the factor may move before the slice is changed. Default 0.10 (Algorithm 3, `range`).
    pub band: f64,
    /// How long is looked before anything is decided, in nanoseconds. Default 0.5 s, half of what section 5.2.4 has, for
    /// the sake of programs that run for seconds; snapshots that are shorter are put together.
    pub window_ns: u64,
    /// How long new worker threads are left alone, in nanoseconds. Default 0.5 s, half of what Algorithm 3 has.
    pub settle_ns: u64,
    /// Below this share of the threads' time spent waiting for a CPU there is nothing to win. Default 0.05: somebody
    /// who need not wait cannot be helped by taking longer turns.
    pub latency_min: f64,
    /// Below this rate of involuntary switches, per second of CPU time, there is nothing to win. Default 50: at some
    /// 100 µs to fill a cold cache, half a per cent.
    pub involuntary_rate_min: f64,
    /// With at least this many involuntary switches for each voluntary one, a slice is set before it is proved. Default
    /// 3: the threads of pbzip2, which gain 8% here, have some 20; those that wait for each other at barriers, which
    /// gain nothing or lose, have less than 1.
    pub likely_ratio: f64,
    /// From this share of the threads' time spent spinning on, slices are left alone. Default 0.05: a longer slice for
    /// one who spins is a longer wait for whom he waits for (measured for this project: such programs only lose).
    pub spin_max: f64,
    /// How many windows in a row must win. Default 4.
    pub proofs: u32,
    /// The median gain in progress that makes a slice worth keeping. Default 0.01.
    pub gain_min: f64,
    /// A check that is lost by this much ends it at once; one that is lost by less has a second chance. Default 0.20:
    /// on a busy host windows of half a second differ by that much for nothing.
    pub loss_max: f64,
    /// Windows until the first check of a slice that is held; twice as many after each that it wins, up to
    /// `check_every_max`. Default 2.
    pub check_every: u32,
    /// Default 64: a check costs one window without the slice.
    pub check_every_max: u32,
    /// How long the first refusal holds at least, in nanoseconds; each further one twice as long. Default 10 s.
    pub rest_ns: u64,
    programs: BTreeMap<ProgramId, Known>,
}

impl FaithFul {
    /// The policy with all thresholds at their defaults, for a machine with this many CPUs.
    pub fn new(cpus: u32) -> Self {
        FaithFul {
            cpus: cpus.max(1),
            band: 0.10,
            window_ns: 500_000_000,
            settle_ns: 500_000_000,
            latency_min: 0.05,
            involuntary_rate_min: 50.0,
            likely_ratio: 3.0,
            spin_max: 0.05,
            proofs: 4,
            gain_min: 0.01,
            loss_max: 0.20,
            check_every: 2,
            check_every_max: 64,
            rest_ns: 10_000_000_000,
            programs: BTreeMap::new(),
        }
    }
}

/// What is known of one program.
#[derive(Debug, Clone, Default)]
struct Known {
    window: Window,
    state: State,
    refusal: Option<Refusal>,
}

#[derive(Debug, Clone, Default)]
enum State {
    /// No worker threads have been seen yet.
    #[default]
    Single,
    Settling {
        until_ns: u64,
    },
    Watching,
    Trying(Experiment),
    Holding(Hold),
}

/// A slice that is set, and checked now and then.
#[derive(Debug, Clone, Copy)]
struct Hold {
    slice_us: u32,
    /// As it is with the slice, which changes it too; `None` until the first window with it is over.
    factor: Option<f64>,
    measure: Measure,
    team: Option<u32>,
    /// Windows between checks, and until the next.
    every: u32,
    left: u32,
    losses: u32,
    /// Progress in the last window with the slice, and in the one without that followed.
    with: Option<f64>,
    without: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    factor: f64,
    until_ns: u64,
    count: u32,
}

/// What was seen since the last decision.
#[derive(Debug, Clone, Default)]
struct Window {
    span_ns: u64,
    lock: Ratio,
    miss: Ratio,
    /// Of the whole host, in the newest snapshot: for where threads are not counted.
    host_miss: Option<f64>,
    latency: Ratio,
    spin: Ratio,
    involuntary: Ratio,
    voluntary: Ratio,
    /// CPUs that others left, times nanoseconds.
    free: f64,
    /// By [`Measure::ALL`]; unknown as soon as one part is.
    amounts: [Option<f64>; Measure::ALL.len()],
    /// The team's size, if it has one.
    team: Option<u32>,
}

impl Window {
    fn add(&mut self, p: &ProgramSample, seen: &Snapshot, free: f64) {
        let span_ns = seen.span_ns;
        for (amount, measure) in self.amounts.iter_mut().zip(Measure::ALL) {
            let sum = if self.span_ns == 0 { Some(0.0) } else { *amount };
            *amount = sum.zip(measure.amount(p, seen)).map(|(sum, more)| sum + more);
        }
        self.span_ns += span_ns;
        self.free += free * span_ns as f64;
        self.lock.add_share(p, |s| s.lock);
        self.latency.add_share(p, |s| s.latency);
        self.spin.add_share(p, |s| s.spin);
        self.involuntary.add_rate(p, |t| t.counters.involuntary_switches);
        self.voluntary.add_rate(p, |t| t.counters.voluntary_switches);
        self.miss.add_counts(p, |t| t.counters.cache_misses.zip(t.counters.cache_references));
        let host = seen.host.counters;
        self.host_miss = host
            .cache_misses
            .zip(host.cache_references)
            .filter(|c| c.1 > 0)
            .map(|(m, r)| m as f64 / r as f64);
        self.team = p.team.as_ref().map(|t| t.size);
    }

    /// Work done per second and CPU that others left.
    fn progress(&self, measure: Measure) -> Option<f64> {
        let i = Measure::ALL.iter().position(|&m| m == measure)?;
        self.amounts[i].map(|a| a / (self.free / 1e9))
    }

    /// The best measure that moves.
    fn measure(&self) -> Option<Measure> {
        let least = |m: Measure| m.amount_min() * self.span_ns as f64 / 1e9;
        let found = Measure::ALL.into_iter().zip(self.amounts);
        found.into_iter().find(|&(m, a)| a.is_some_and(|a| a >= least(m))).map(|(m, _)| m)
    }

    /// Section 5.2.1, equation 5.1. What is not known is left out; `None` if neither is known.
    fn factor(&self) -> Option<f64> {
        let miss = self.miss.get().or(self.host_miss).map(|m| m.min(1.0));
        match (miss, self.lock.get()) {
            (None, None) => None,
            (miss, lock) => Some(1.0 - miss.unwrap_or(0.0).max(lock.unwrap_or(0.0))),
        }
    }
}

/// A slice that has to prove itself.
#[derive(Debug, Clone)]
struct Experiment {
    slice_us: u32,
    factor: f64,
    measure: Measure,
    team: Option<u32>,
    /// Progress in the last window with the system's slice.
    without: f64,
    /// Progress in the window with the slice that followed, once it is over.
    with: Option<f64>,
    gains: Vec<f64>,
}

/// What one window more says about an experiment.
enum Verdict {
    /// Not decided; the next window is with the slice or without.
    Open {
        slice: bool,
    },
    Won {
        gain: f64,
    },
    Lost {
        gain: f64,
    },
    /// Something else changed meanwhile, or progress cannot be told any more.
    Spoilt,
}

impl Experiment {
    fn add(&mut self, window: &Window, proofs: u32, gain_min: f64) -> Verdict {
        let Some(now) = window.progress(self.measure).filter(|_| window.team == self.team) else {
            return Verdict::Spoilt;
        };
        let Some(with) = self.with.take() else {
            self.with = Some(now);
            return Verdict::Open { slice: false };
        };
        let before = std::mem::replace(&mut self.without, now);
        let beside = (before + now) / 2.0;
        if beside <= 0.0 {
            return Verdict::Spoilt;
        }
        let gain = with / beside - 1.0;
        self.gains.push(gain);
        if gain <= 0.0 {
            return Verdict::Lost { gain };
        }
        if self.gains.len() < proofs as usize {
            return Verdict::Open { slice: true };
        }
        let gain = median(&self.gains);
        if gain >= gain_min { Verdict::Won { gain } } else { Verdict::Lost { gain } }
    }
}

impl Hold {
    fn new(slice_us: u32, measure: Measure, team: Option<u32>, every: u32) -> Self {
        Hold {
            slice_us,
            factor: None,
            measure,
            team,
            every,
            left: every,
            losses: 0,
            with: None,
            without: None,
        }
    }

    /// One window more. `Won` is not used: a slice that wins stays open to the next check.
    fn add(&mut self, window: &Window, policy: &FaithFul) -> Verdict {
        let Some(now) = window.progress(self.measure).filter(|_| window.team == self.team) else {
            return Verdict::Spoilt;
        };
        if self.left > 0 {
            self.left -= 1;
            self.with = Some(now);
            return Verdict::Open { slice: self.left > 0 };
        }
        let (Some(with), Some(without)) = (self.with, self.without) else {
            self.without = Some(now);
            return Verdict::Open { slice: true };
        };
        self.without = None;
        if without <= 0.0 {
            return Verdict::Spoilt;
        }
        let gain = (with + now) / 2.0 / without - 1.0;
        self.losses = if gain < 0.0 { self.losses + 1 } else { 0 };
        if self.losses > 1 || gain < -policy.loss_max {
            return Verdict::Lost { gain };
        }
        if self.losses == 0 {
            self.every = self.every.saturating_mul(2).min(policy.check_every_max);
        }
        self.left = if self.losses == 0 { self.every } else { 1 };
        Verdict::Open { slice: true }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 0 => (sorted[mid - 1] + sorted[mid]) / 2.0,
        _ => sorted[mid],
    }
}

impl FaithFul {
    /// Whether a longer slice could help at all.
    fn is_worth_trying(&self, window: &Window) -> bool {
        window.latency.get().is_some_and(|l| l >= self.latency_min)
            && window.involuntary.get().is_none_or(|r| r >= self.involuntary_rate_min)
            && window.spin.get().is_none_or(|s| s < self.spin_max)
    }

    /// Whether the threads lose the CPU much more often than they give it up.
    fn is_likely(&self, window: &Window) -> bool {
        let (taken, given) = (window.involuntary.get(), window.voluntary.get());
        taken.zip(given).is_some_and(|(taken, given)| taken >= self.likely_ratio * given.max(1.0))
    }

    /// Notes that a slice did not help, so that it is not tried again soon; the reason for the report.
    fn refuse(&self, known: &mut Known, factor: f64, slice_us: u32, gain: f64, now_ns: u64) -> String {
        let count = known.refusal.map_or(0, |r| r.count) + 1;
        let rest_ns = self.rest_ns.saturating_mul(1 << (count - 1).min(20));
        known.refusal = Some(Refusal { factor, until_ns: now_ns.saturating_add(rest_ns), count });
        known.state = State::Watching;
        format!("a slice of {} ms changed progress by {:+.1}%", f64::from(slice_us) / 1e3, gain * 100.0)
    }

    /// One window of one program: what to change now.
    fn look(&self, known: &mut Known, id: ProgramId, window: &Window, now_ns: u64) -> Option<Decision> {
        let set = |slice_us: Option<u32>, why: String| {
            Some(Decision { action: Action::SetSlice { target: Target::Program(id), slice_us }, why })
        };
        match &mut known.state {
            State::Single | State::Settling { .. } => None,
            State::Watching => {
                let factor = window.factor()?;
                let refused = known
                    .refusal
                    .is_some_and(|r| now_ns < r.until_ns || (factor - r.factor).abs() <= 2.0 * self.band);
                if refused || !self.is_worth_trying(window) {
                    return None;
                }
                let measure = window.measure()?;
                let slice_us = slice_us(factor);
                if self.is_likely(window) {
                    known.state = State::Holding(Hold::new(slice_us, measure, window.team, self.check_every));
                    return set(
                        Some(slice_us),
                        format!("scaling factor {factor:.2}, and threads seldom block"),
                    );
                }
                known.state = State::Trying(Experiment {
                    slice_us,
                    factor,
                    measure,
                    team: window.team,
                    without: window.progress(measure)?,
                    with: None,
                    gains: Vec::new(),
                });
                set(Some(slice_us), format!("scaling factor {factor:.2}; to be proved"))
            }
            State::Trying(experiment) => {
                let slice_is_set = experiment.with.is_none();
                let (slice_us, factor) = (experiment.slice_us, experiment.factor);
                match experiment.add(window, self.proofs, self.gain_min) {
                    Verdict::Open { slice: true } => set(Some(slice_us), "tried once more".into()),
                    Verdict::Open { slice: false } => set(None, "for comparison".into()),
                    Verdict::Won { gain } => {
                        let (measure, team) = (experiment.measure, experiment.team);
                        known.state =
                            State::Holding(Hold::new(slice_us, measure, team, self.check_every_max));
                        set(
                            Some(slice_us),
                            format!("scaling factor {factor:.2}; progress rose by {:.1}%", gain * 100.0),
                        )
                    }
                    Verdict::Lost { gain } => {
                        // Nothing is set any more; this is for the report.
                        set(None, self.refuse(known, factor, slice_us, gain, now_ns))
                    }
                    Verdict::Spoilt => {
                        known.state = State::Settling { until_ns: now_ns.saturating_add(self.settle_ns) };
                        if slice_is_set { set(None, "the program changed meanwhile".into()) } else { None }
                    }
                }
            }
            State::Holding(hold) => {
                let (slice_us, was_set) = (hold.slice_us, hold.left > 0 || hold.without.is_some());
                if was_set {
                    let factor = window.factor()?;
                    let before = *hold.factor.get_or_insert(factor);
                    if (factor - before).abs() > self.band {
                        known.state = State::Watching;
                        return set(None, format!("scaling factor went from {before:.2} to {factor:.2}"));
                    }
                }
                let factor = hold.factor.unwrap_or(1.0);
                match hold.add(window, self) {
                    Verdict::Open { slice } if slice == was_set => None,
                    Verdict::Open { slice: true } => set(Some(slice_us), "checked".into()),
                    Verdict::Open { slice: false } => set(None, "for a check".into()),
                    Verdict::Lost { gain } => set(None, self.refuse(known, factor, slice_us, gain, now_ns)),
                    Verdict::Won { .. } | Verdict::Spoilt => {
                        known.state = State::Settling { until_ns: now_ns.saturating_add(self.settle_ns) };
                        set(None, "the program changed meanwhile".into())
                    }
                }
            }
        }
    }
}

impl Policy for FaithFul {
    fn name(&self) -> &'static str {
        "faithful"
    }

    /// A program that is missing from the snapshot has ended, and is forgotten.
    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
        let mut programs = std::mem::take(&mut self.programs);
        programs.retain(|id, _| seen.programs.iter().any(|p| p.id == *id));
        let mut decisions = Vec::new();
        for p in &seen.programs {
            let known = programs.entry(p.id).or_default();
            match known.state {
                State::Single if p.threads.len() > 1 => {
                    known.state = State::Settling { until_ns: seen.at_ns.saturating_add(self.settle_ns) };
                    continue;
                }
                State::Single => continue,
                State::Settling { until_ns } if seen.at_ns < until_ns => continue,
                State::Settling { .. } => {
                    known.state = State::Watching;
                    known.window = Window::default();
                    continue;
                }
                _ => {
                    // At least a tenth of a CPU: where others take all, what little was done is not divided by nothing.
                    let free = f64::from(self.cpus) - seen.host.others_busy.unwrap_or(0.0);
                    known.window.add(p, seen, free.max(0.1));
                }
            }
            if known.window.span_ns >= self.window_ns {
                let window = std::mem::take(&mut known.window);
                decisions.extend(self.look(known, p.id, &window, seen.at_ns));
            }
        }
        self.programs = programs;
        decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::sample;
    use proptest::prelude::*;

    /// How a program looks in one second.
    #[derive(Debug, Clone, Copy)]
    struct Second {
        lock: f64,
        latency: f64,
        spin: f64,
        instructions: u64,
        /// Voluntary switches of each thread; there are 200 others.
        voluntary: u64,
    }

    const BUSY: Second =
        Second { lock: 0.3, latency: 0.4, spin: 0.0, instructions: 4_000_000_000, voluntary: 100 };

    /// Threads that never block.
    const COMPUTES: Second = Second { lock: 0.0, voluntary: 2, ..BUSY };

    fn snapshot(at_s: u64, threads: u32, second: Second) -> Snapshot {
        let mut p = sample::program();
        for _ in 0..threads {
            let t = sample::thread(&mut p, 1.0 - second.lock - second.latency, second.lock, second.latency);
            t.shares.spin = Some(second.spin);
            t.counters.voluntary_switches = Some(second.voluntary);
            t.counters.involuntary_switches = Some(200);
            t.counters.instructions = Some(second.instructions / u64::from(threads));
        }
        Snapshot {
            at_ns: at_s * 1_000_000_000,
            span_ns: 1_000_000_000,
            programs: vec![p],
            ..Snapshot::default()
        }
    }

    /// Runs the policy against a program that answers to its slice; gives the slices that were set, and when.
    fn run(
        policy: &mut FaithFul,
        seconds: u64,
        program: impl Fn(u64, Option<u32>) -> Second,
    ) -> Vec<(u64, Option<u32>)> {
        let mut set = Vec::new();
        let mut slice = None;
        for at in 1..=seconds {
            for decision in policy.decide(&snapshot(at, 8, program(at, slice))) {
                assert!(!decision.why.is_empty());
                match decision.action {
                    Action::SetSlice { target: Target::Program(_), slice_us } => slice = slice_us,
                    other => panic!("{other:?}"),
                }
                set.push((at, slice));
            }
        }
        set
    }

    /// Faster by this share with a slice.
    fn gains(gain: f64) -> impl Fn(u64, Option<u32>) -> Second {
        move |_, slice| {
            let faster = if slice.is_some() { 1.0 + gain } else { 1.0 };
            Second { instructions: (BUSY.instructions as f64 * faster) as u64, ..BUSY }
        }
    }

    #[test]
    fn slice_is_the_table_up_to_100_ms() {
        let table =
            [(0.0, 100), (0.05, 100), (0.16, 100), (0.5, 100), (0.55, 80), (0.88, 20), (0.95, 10), (1.0, 10)];
        for (factor, ms) in table {
            assert_eq!(slice_us(factor), ms * 1000, "{factor}");
        }
    }

    #[test]
    fn decide_where_the_slice_helps_proves_and_keeps_it() {
        let set = run(&mut FaithFul::new(8), 60, gains(0.08));
        let last = *set.last().unwrap();
        assert_eq!(last.1, Some(50_000), "factor 0.7: {set:?}");
        assert_eq!(set.len(), 9, "four windows with, four without, and then for good: {set:?}");
    }

    #[test]
    fn decide_where_the_slice_does_not_help_leaves_nothing_set() {
        for gain in [0.0, -0.3, 0.005] {
            let set = run(&mut FaithFul::new(8), 100, gains(gain));
            assert_eq!(set.last().unwrap().1, None, "{gain}: {set:?}");
        }
        assert_eq!(run(&mut FaithFul::new(8), 100, gains(-0.3)).len(), 3, "tried, taken back, refused");
    }

    #[test]
    fn decide_where_there_is_nothing_to_win_does_nothing() {
        let no_wait = Second { latency: 0.0, ..BUSY };
        let spins = Second { spin: 0.2, ..BUSY };
        for second in [no_wait, spins] {
            assert_eq!(run(&mut FaithFul::new(8), 20, |_, _| second), []);
        }
        let voluntary = FaithFul { involuntary_rate_min: 1e4, ..FaithFul::new(8) };
        assert_eq!(run(&mut voluntary.clone(), 20, gains(0.1)), []);
    }

    #[test]
    fn decide_where_threads_never_block_sets_the_slice_at_once_and_checks_it() {
        let program = |at, slice| Second { instructions: gains(0.08)(at, slice).instructions, ..COMPUTES };
        let set = run(&mut FaithFul::new(8), 100, program);
        assert_eq!(set[0], (3, Some(10_000)), "{set:?}");
        // Windows 2, 4, 8, 16, 32 and two after each: five checks in a hundred seconds.
        assert_eq!(set.len(), 1 + 2 * 5, "{set:?}");
        assert_eq!(set.last().unwrap().1, Some(10_000), "{set:?}");
    }

    #[test]
    fn decide_likely_slice_that_hurts_is_taken_back_at_the_first_check() {
        let program = |at, slice| Second { instructions: gains(-0.3)(at, slice).instructions, ..COMPUTES };
        let set = run(&mut FaithFul::new(8), 100, program);
        assert_eq!(set, [(3, Some(10_000)), (5, None), (6, Some(10_000)), (7, None)]);
    }

    #[test]
    fn decide_others_load_is_no_loss() {
        // Others take half the machine in every window with the slice, and progress is halved: no slice's fault.
        let mut policy = FaithFul::new(8);
        let mut slice = None;
        for at in 1..=20 {
            let mut second = COMPUTES;
            if slice.is_some() {
                second.instructions /= 2;
            }
            let mut seen = snapshot(at, 8, second);
            seen.host.others_busy = Some(if slice.is_some() { 4.0 } else { 0.0 });
            for d in policy.decide(&seen) {
                assert!(!d.why.contains("changed progress"), "{d:?}");
                let Action::SetSlice { slice_us, .. } = d.action else { panic!("{d:?}") };
                slice = slice_us;
            }
        }
    }

    #[test]
    fn decide_waits_after_the_workers_came() {
        let mut policy = FaithFul::new(8);
        for at in 1..=5 {
            assert_eq!(policy.decide(&snapshot(at, 1, BUSY)), []);
        }
        // 6: workers; 7: settled; 8: the first window; then the slice.
        let first = (6..=9).find(|&at| !policy.decide(&snapshot(at, 8, BUSY)).is_empty());
        assert_eq!(first, Some(8));
    }

    #[test]
    fn decide_when_the_factor_leaves_its_band_starts_anew() {
        // ammp's two phases (section 5.3.3): 84% lock time, then 12%.
        let phases = |at: u64, slice: Option<u32>| {
            let lock = if at <= 30 { 0.84 } else { 0.12 };
            let faster = if slice.is_some() { 11 } else { 10 };
            Second { lock, latency: 0.1, instructions: 400_000_000 * faster, ..BUSY }
        };
        let set = run(&mut FaithFul::new(8), 60, phases);
        let kept_at = |at: u64| set.iter().rev().find(|s| s.0 <= at).unwrap().1;
        assert_eq!((kept_at(30), kept_at(60)), (Some(100_000), Some(20_000)), "{set:?}");
        assert!(set.contains(&(31, None)), "{set:?}");
    }

    #[test]
    fn decide_puts_short_snapshots_together() {
        let mut policy = FaithFul::new(8);
        let mut first = None;
        for tenth in 1..=60u64 {
            let mut seen = snapshot(0, 8, BUSY);
            seen.at_ns = tenth * 100_000_000;
            seen.span_ns = 100_000_000;
            for t in &mut seen.programs[0].threads {
                t.span_ns = seen.span_ns;
                t.counters.instructions = Some(50_000_000);
                t.counters.involuntary_switches = Some(20);
            }
            if !policy.decide(&seen).is_empty() {
                first = first.or(Some(tenth));
            }
        }
        assert_eq!(first, Some(11), "seen at 1, settled at 6, five more for a window");
    }

    #[test]
    fn decide_forgets_programs_that_ended() {
        let mut policy = FaithFul::new(8);
        run(&mut policy, 20, gains(0.1));
        policy.decide(&Snapshot::default());
        assert!(policy.programs.is_empty());
    }

    #[test]
    fn decide_when_the_team_changes_takes_the_slice_back() {
        let mut policy = FaithFul::new(8);
        let mut set = Vec::new();
        for at in 1..=5 {
            let mut seen = snapshot(at, 8, BUSY);
            let size = if at < 4 { 8 } else { 2 };
            seen.programs[0].team =
                Some(corebeat_machine::TeamSample { size_max: 8, size, fixed: false, regions: vec![] });
            set.extend(policy.decide(&seen));
        }
        let slices: Vec<_> = set
            .iter()
            .map(|d| match d.action {
                Action::SetSlice { slice_us, .. } => slice_us,
                _ => panic!("{d:?}"),
            })
            .collect();
        assert_eq!(slices, [Some(50_000), None]);
    }

    fn any_second() -> impl Strategy<Value = Second> {
        (0.0f64..0.5, 0.0f64..0.5, 0.0f64..0.06, 0u64..10_000_000_000).prop_map(
            |(lock, latency, spin, instructions)| Second { lock, latency, spin, instructions, ..BUSY },
        )
    }

    proptest! {
        #[test]
        fn decide_repeats_itself(seconds in proptest::collection::vec(any_second(), 60)) {
            let program = |at: u64, _| seconds[at as usize - 1];
            prop_assert_eq!(
                run(&mut FaithFul::new(8), 60, program),
                run(&mut FaithFul::new(8), 60, program)
            );
        }

        #[test]
        fn decide_changes_are_bounded(
            factors in proptest::collection::vec(0.0f64..0.5, 7),
            noise in proptest::collection::vec(0.9f64..1.1, 997),
        ) {
            // A program of changing phases whose slice costs a tenth. Refusals hold for 10, 20, 40, ... s, so that
            // there are at most 6 experiments.
            let program = |at: u64, slice: Option<u32>| {
                let slower = if slice.is_some() { 0.9 } else { 1.0 };
                let instructions = (4e9 * slower * noise[at as usize % 997]) as u64;
                Second { lock: factors[at as usize / 20 % 7], instructions, ..BUSY }
            };
            let set = run(&mut FaithFul::new(8), 400, program);
            prop_assert!(set.len() <= 9 * 6, "{} changes", set.len());
            prop_assert!(set.windows(2).all(|w| w[0].0 < w[1].0));
        }
    }
}
