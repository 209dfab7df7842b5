//! FaithFul scheduling: the threads of a program do not throw each other off the CPU, and run longer at a stretch.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 5, Algorithm 3. Where there
//! are more threads than CPUs, a thread that loses its CPU at the wrong moment loses its caches, and all who wait for its
//! lock. The thesis gives all threads of a program the same fixed priority, so that none preempts another ("backstabbing"),
//! and a time slice by its scaling factor `1 - max(miss ratio, lock time share)`: near 1 for a program that computes in its
//! caches, near 0 for one that waits for locks or memory. The lower it is, the longer the slice. It is read again all the
//! time, and the slice is changed only when the factor has left its band.
//!
//! # On a modern kernel
//!
//! **One priority.** Solaris' time-sharing class moved priorities about; Linux' fair scheduler does not. But its threads
//! backstab too: one that wakes up has slept, is owed time, and takes the CPU from whoever runs. The class `SCHED_BATCH`
//! takes just this away: its threads run by the same shares, and preempt nobody when they wake up. So this is what one
//! priority means here.
//!
//! **The slice.** Under EEVDF a slice is a request between 0.1 and 100 ms, and the system's own is 3 ms or less, where that
//! of Solaris was 20 to 200 ms. So the thesis' table is taken five times, up to those 100 ms ([`SLICES_MS`]).
//!
//! **Others.** Both are set only while other programs leave the machine alone. Among their load the class would mean to come last
//! each time; and whoever wants a CPU that somebody else's long turn holds waits for its end, at four programs with two
//! threads each several tenths of a second. (Measured on two CPUs, four programs of which each had slices of its own: they
//! took up to 9% longer.)
//!
//! **Whether it helps.** Both are set as soon as there is something to win: threads wait for CPUs and are thrown off them.
//! (Measured on two CPUs with 8 threads, both together saved 21% of the time of a program with barriers, 17% of xz', 7% of
//! pbzip2's, and cost nowhere more than 1%; the book's page on slices has the figures.) Programs that spin are left alone:
//! a longer slice for who spins is a longer wait for who is waited for. And what is set has to prove itself: now and then
//! it is taken away for one window, ever more rarely while it wins, and at once if the first window with it is worse than the one
//! before. If the window without is better by a margin twice in a row, that first time included, or once by much, it is taken back
//! for a good while.
//!
//! ```text
//!             threads wait for CPUs             factor left its band: another slice
//!            and are thrown off them               +-----+
//!  Watching --------------------------> Holding ---+     |
//!     ^                                   |  ^  <--------+
//!     |    checks lost: refused for       |  |
//!     +---- a while that doubles ---------+  +-- a window without, after 8, 16, 32 ... windows, or after
//!                                                the first one if that was worse
//! ```
//!
//! Progress is counted per CPU that the program could have had, so that other programs' load is taken out. The n-th refusal
//! holds for at least 2^(n-1) [`FaithFul::rest_ns`], so that the changes within a time `t` are at most a constant times
//! `log t` for a program that it does not help.

use crate::progress::Measure;
use crate::sign::{Ratio, others_busy};
use corebeat_machine::{Action, Class, Decision, Policy, ProgramId, ProgramSample, Snapshot, Target};
use std::collections::BTreeMap;

/// Table 5.1, five times: for a scaling factor up to `.0`, a slice of `.1` milliseconds. All rows of the thesis above 10 ms
/// are one here: Linux takes requests up to 100 ms.
pub const SLICES_MS: [(f64, u32); 2] = [(0.90, 100), (1.00, 50)];

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
    /// Below this share of the threads' time spent waiting for a CPU there is nothing to win. Default 0.05: somebody
    /// who need not wait cannot be helped by taking longer turns.
    pub latency_min: f64,
    /// Below this rate of involuntary switches, per second of CPU time, there is nothing to win. Default 50: at some
    /// 100 µs to fill a cold cache, half a per cent.
    pub involuntary_rate_min: f64,
    /// From this share of the threads' time spent spinning on, programs are left alone. Default 0.05.
    pub spin_max: f64,
    /// While others keep this share of the CPUs busy, programs are left alone; what is set is given back at twice as much. Default 0.125.
    pub others_share_max: f64,
    /// A check is lost if progress without is better by this much. Default 0.02: half-second windows of the same thing
    /// differ by about that much, and one loss decides nothing.
    pub loss_min: f64,
    /// A check that is lost by this much ends it at once; one that is lost by less has a second chance. Default 0.20:
    /// on a busy host windows of half a second differ by that much for nothing.
    pub loss_max: f64,
    /// Windows until the first check; twice as many after each that it wins, up to `check_every_max`. Default 8.
    pub check_every: u32,
    /// Default 256: a check costs one window without.
    pub check_every_max: u32,
    /// How long the first refusal holds, in nanoseconds; each further one twice as long. Default 10 s.
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
            latency_min: 0.05,
            involuntary_rate_min: 50.0,
            spin_max: 0.05,
            others_share_max: 0.125,
            loss_min: 0.02,
            loss_max: 0.20,
            check_every: 8,
            check_every_max: 256,
            rest_ns: 10_000_000_000,
            programs: BTreeMap::new(),
        }
    }
}

/// What is known of one program.
#[derive(Debug, Clone, Default)]
struct Known {
    window: Window,
    held: Option<Hold>,
    refusal: Option<Refusal>,
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    until_ns: u64,
    count: u32,
}

/// What is set, and how it does.
#[derive(Debug, Clone)]
struct Hold {
    slice_us: u32,
    /// The scaling factor that the slice was chosen by. What is set changes it too, so it is read anew in the first window.
    factor: Option<f64>,
    measure: Option<Measure>,
    team: Option<u32>,
    /// Windows between checks, and until the next.
    every: u32,
    left: u32,
    losses: u32,
    /// The window before it was set, until it is compared with the first one with it.
    before: Option<Window>,
    /// Progress in the last window with, and in the one without that followed.
    with: Option<f64>,
    without: Option<f64>,
}

/// What one window more says about what is held.
enum Verdict {
    /// Not decided; the next window is with it or without.
    Open {
        with: bool,
    },
    Lost {
        gain: f64,
    },
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
        self.miss.add_counts(p, |t| t.counters.cache_misses.zip(t.counters.cache_references));
        let host = seen.host.counters;
        self.host_miss = host
            .cache_misses
            .zip(host.cache_references)
            .filter(|c| c.1 > 0)
            .map(|(m, r)| m as f64 / r as f64);
        self.team = p.team.as_ref().map(|t| t.size);
    }

    /// CPUs that others left, on average.
    fn free(&self) -> f64 {
        self.free / self.span_ns.max(1) as f64
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

impl Hold {
    /// Whether it was set in the window that has just ended.
    fn was_set(&self) -> bool {
        self.left > 0 || self.without.is_some()
    }

    /// One window more.
    fn add(&mut self, window: &Window, policy: &FaithFul) -> Verdict {
        let measure = *self.measure.get_or_insert_with(|| window.measure().unwrap_or(Measure::UserTime));
        let now = window.progress(measure);
        if self.left > 0 {
            self.left -= 1;
            self.with = now;
            let before = self.before.take().and_then(|before| before.progress(measure));
            if before.zip(now).is_some_and(|(before, now)| now < before * (1.0 - policy.loss_min)) {
                (self.left, self.losses) = (0, 1);
            }
            return Verdict::Open { with: self.left > 0 };
        }
        let Some(without) = self.without.take() else {
            // What cannot be told is no loss.
            self.without = Some(now.unwrap_or(0.0));
            return Verdict::Open { with: true };
        };
        let beside = self.with.zip(now).map(|(before, after)| (before + after) / 2.0);
        let gain = beside.filter(|_| without > 0.0).map_or(0.0, |b| b / without - 1.0);
        self.losses = if gain < -policy.loss_min { self.losses + 1 } else { 0 };
        if self.losses > 1 || gain < -policy.loss_max {
            return Verdict::Lost { gain };
        }
        if self.losses == 0 {
            self.every = self.every.saturating_mul(2).min(policy.check_every_max);
        }
        self.left = if self.losses == 0 { self.every } else { 1 };
        Verdict::Open { with: true }
    }

    /// Sets it.
    fn on(&self, id: ProgramId, why: &str) -> Vec<Decision> {
        self.decisions(id, Some(Class::Batch), Some(self.slice_us), why)
    }

    /// Gives back what was before.
    fn off(&self, id: ProgramId, why: &str) -> Vec<Decision> {
        self.decisions(id, None, None, why)
    }

    fn decisions(
        &self,
        id: ProgramId,
        class: Option<Class>,
        slice_us: Option<u32>,
        why: &str,
    ) -> Vec<Decision> {
        let target = Target::Program(id);
        let actions = [Action::SetClass { target, class }, Action::SetSlice { target, slice_us }];
        actions.map(|action| Decision { action, why: why.to_owned() }).into()
    }
}

impl FaithFul {
    /// Whether threads wait for CPUs, are thrown off them, and do not spin.
    fn is_worth_trying(&self, window: &Window) -> bool {
        window.latency.get().is_some_and(|l| l >= self.latency_min)
            && window.involuntary.get().is_none_or(|r| r >= self.involuntary_rate_min)
            && !self.spins(window)
    }

    fn spins(&self, window: &Window) -> bool {
        window.spin.get().is_some_and(|s| s >= self.spin_max)
    }

    /// One window of one program: what to change now.
    fn look(&self, known: &mut Known, id: ProgramId, window: &Window, now_ns: u64) -> Vec<Decision> {
        let others_busy = f64::from(self.cpus) - window.free();
        let others_max = self.others_share_max * f64::from(self.cpus);
        let Some(hold) = &mut known.held else {
            let refused = known.refusal.is_some_and(|r| now_ns < r.until_ns);
            let is_open = !refused && others_busy < others_max && self.is_worth_trying(window);
            let Some(factor) = window.factor().filter(|_| is_open) else {
                return vec![];
            };
            let hold = known.held.insert(Hold {
                slice_us: slice_us(factor),
                factor: None,
                measure: None,
                team: window.team,
                every: self.check_every,
                left: self.check_every,
                losses: 0,
                before: Some(window.clone()),
                with: None,
                without: None,
            });
            let (latency, involuntary) = (window.latency.get(), window.involuntary.get());
            return hold.on(
                id,
                &format!(
                    "threads wait for a CPU {:.0}% of the time and lose it {:.0} times a second; scaling factor {factor:.2}",
                    latency.unwrap_or(0.0) * 100.0,
                    involuntary.unwrap_or(0.0),
                ),
            );
        };
        if window.team != hold.team || self.spins(window) {
            let off = hold.off(id, "the program changed: it spins, or its teams have another size");
            known.held = None;
            return off;
        }
        if others_busy > 2.0 * others_max {
            let off = hold.off(id, &format!("others keep {others_busy:.1} CPUs busy"));
            self.refuse(known, now_ns);
            return off;
        }
        let was_set = hold.was_set();
        let mut decisions = Vec::new();
        if was_set {
            let moved = window.factor().filter(|f| (f - *hold.factor.get_or_insert(*f)).abs() > self.band);
            if let Some((factor, before)) = moved.zip(hold.factor) {
                hold.factor = None;
                if slice_us(factor) != hold.slice_us {
                    hold.slice_us = slice_us(factor);
                    let (target, slice_us) = (Target::Program(id), Some(hold.slice_us));
                    let why = format!("scaling factor went from {before:.2} to {factor:.2}");
                    decisions.push(Decision { action: Action::SetSlice { target, slice_us }, why });
                }
            }
        }
        match hold.add(window, self) {
            Verdict::Open { with } if with == was_set => {}
            Verdict::Open { with: true } => decisions.extend(hold.on(id, "checked")),
            Verdict::Open { with: false } => decisions.extend(hold.off(id, "for a check")),
            Verdict::Lost { gain } => {
                decisions.extend(hold.off(id, &format!("it changed progress by {:+.1}%", gain * 100.0)));
                self.refuse(known, now_ns);
            }
        }
        decisions
    }

    /// Holds nothing for a while that doubles each time.
    fn refuse(&self, known: &mut Known, now_ns: u64) {
        let count = known.refusal.map_or(0, |r| r.count) + 1;
        let rest_ns = self.rest_ns.saturating_mul(1 << (count - 1).min(20));
        known.refusal = Some(Refusal { until_ns: now_ns.saturating_add(rest_ns), count });
        known.held = None;
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
        for p in seen.programs.iter().filter(|p| p.threads.len() > 1) {
            let known = programs.entry(p.id).or_default();
            // At least a tenth of a CPU: where others take all, what little was done is not divided by nothing.
            let free = f64::from(self.cpus) - others_busy(p, seen);
            known.window.add(p, seen, free.max(0.1));
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
        others_busy: f64,
    }

    const BUSY: Second =
        Second { lock: 0.3, latency: 0.4, spin: 0.0, instructions: 4_000_000_000, others_busy: 0.0 };

    fn snapshot(at_s: u64, threads: u32, second: Second) -> Snapshot {
        let mut p = sample::program();
        for _ in 0..threads {
            let t = sample::thread(&mut p, 1.0 - second.lock - second.latency, second.lock, second.latency);
            t.shares.spin = Some(second.spin);
            t.counters.voluntary_switches = Some(100);
            t.counters.involuntary_switches = Some(200);
            t.counters.instructions = Some(second.instructions / u64::from(threads));
        }
        let mut seen = Snapshot {
            at_ns: at_s * 1_000_000_000,
            span_ns: 1_000_000_000,
            programs: vec![p],
            ..Snapshot::default()
        };
        seen.host.others_busy = Some(second.others_busy);
        seen
    }

    /// What is set for a program: its slice, and whether it is in the batch class.
    type Set = (Option<u32>, bool);

    const NOTHING: Set = (None, false);

    /// Runs the policy against a program that answers to what is set; gives each change, and when.
    fn run(policy: &mut FaithFul, seconds: u64, program: impl Fn(u64, Set) -> Second) -> Vec<(u64, Set)> {
        let mut changes = Vec::new();
        let mut set = NOTHING;
        for at in 1..=seconds {
            let before = set;
            for decision in policy.decide(&snapshot(at, 8, program(at, set))) {
                assert!(!decision.why.is_empty());
                match decision.action {
                    Action::SetSlice { target: Target::Program(_), slice_us } => set.0 = slice_us,
                    Action::SetClass { target: Target::Program(_), class } => {
                        set.1 = class == Some(Class::Batch)
                    }
                    other => panic!("{other:?}"),
                }
            }
            if set != before {
                changes.push((at, set));
            }
        }
        changes
    }

    /// Faster by this share with something set.
    fn gains(gain: f64) -> impl Fn(u64, Set) -> Second {
        move |_, set| {
            let faster = if set == NOTHING { 1.0 } else { 1.0 + gain };
            Second { instructions: (BUSY.instructions as f64 * faster) as u64, ..BUSY }
        }
    }

    const HELD: Set = (Some(100_000), true);

    #[test]
    fn slice_is_five_times_the_table_up_to_100_ms() {
        for (factor, ms) in [(0.0, 100), (0.05, 100), (0.5, 100), (0.88, 100), (0.95, 50), (1.0, 50)] {
            assert_eq!(slice_us(factor), ms * 1000, "{factor}");
        }
    }

    #[test]
    fn decide_where_it_helps_sets_it_at_once_and_checks_it_ever_more_rarely() {
        for gain in [0.0, 0.08, -0.015] {
            let changes = run(&mut FaithFul::new(8), 100, gains(gain));
            assert_eq!(changes[0], (1, HELD));
            // 8 windows, one without, one; then 16, 32, ...
            assert_eq!(changes[1..3], [(9, NOTHING), (10, HELD)]);
            assert_eq!(changes.len(), 1 + 2 * 3, "{gain}: {changes:?}");
            assert_eq!(changes.last().unwrap().1, HELD);
        }
    }

    #[test]
    fn decide_where_it_hurts_takes_it_back_and_rests() {
        let much = run(&mut FaithFul::new(8), 13, gains(-0.3));
        assert_eq!(much, [(1, HELD), (2, NOTHING), (3, HELD), (4, NOTHING)]);
        let little = run(&mut FaithFul::new(8), 13, gains(-0.03));
        assert_eq!(little, [(1, HELD), (2, NOTHING), (3, HELD), (4, NOTHING)]);
        // From the fifth second on.
        let late = |gain| move |at, set| gains(if at < 5 { 0.0 } else { gain })(at, set);
        let much = run(&mut FaithFul::new(8), 20, late(-0.3));
        assert_eq!(much, [(1, HELD), (9, NOTHING), (10, HELD), (11, NOTHING)]);
        let some = run(&mut FaithFul::new(8), 20, late(-0.1));
        assert_eq!(some[..4], [(1, HELD), (9, NOTHING), (10, HELD), (12, NOTHING)], "a second chance");
        assert_eq!(some[4..], [(13, HELD), (14, NOTHING)]);
        let long = run(&mut FaithFul::new(8), 1000, gains(-0.3));
        assert!(long.len() <= 4 * 7, "10, 20, 40, ... seconds between tries: {}", long.len());
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
        assert_eq!(FaithFul::new(8).decide(&snapshot(1, 1, BUSY)), [], "one thread alone");
    }

    #[test]
    fn decide_beside_others_does_nothing() {
        let beside = |_, _| Second { others_busy: 4.0, ..BUSY };
        assert_eq!(run(&mut FaithFul::new(8), 5, beside), []);
        let a_while = |at, _| Second { others_busy: if (4..6).contains(&at) { 4.0 } else { 0.1 }, ..BUSY };
        assert_eq!(run(&mut FaithFul::new(8), 20, a_while), [(1, HELD), (4, NOTHING), (14, HELD)]);
        // Nor beside one that is watched, too.
        let mut both = snapshot(1, 8, BUSY);
        assert!(!FaithFul::new(8).decide(&both).is_empty());
        both.programs.push(ProgramSample { id: ProgramId(9), ..both.programs[0].clone() });
        assert_eq!(FaithFul::new(8).decide(&both), []);
    }

    #[test]
    fn decide_others_load_is_no_loss() {
        // Others take a quarter of the machine whenever something is set, and progress falls by as much: not its fault.
        let program = |_, set: Set| match set {
            NOTHING => BUSY,
            _ => Second { instructions: BUSY.instructions / 4 * 3, others_busy: 0.5, ..BUSY },
        };
        let changes = run(&mut FaithFul::new(2), 40, program);
        assert!(changes.last().unwrap().1.0.is_some(), "{changes:?}");
    }

    #[test]
    fn decide_when_the_factor_leaves_its_band_changes_the_slice_alone() {
        // ammp's two phases (section 5.3.3), the second a little lower in lock time: 84%, then 2%.
        let phases = |at: u64, _| Second { lock: if at <= 4 { 0.84 } else { 0.02 }, latency: 0.1, ..BUSY };
        let changes = run(&mut FaithFul::new(8), 7, phases);
        assert_eq!(changes, [(1, HELD), (5, (Some(50_000), true))]);
    }

    #[test]
    fn decide_when_the_program_begins_to_spin_lets_go() {
        let program = |at: u64, _| Second { spin: if at < 3 { 0.0 } else { 0.3 }, ..BUSY };
        assert_eq!(run(&mut FaithFul::new(8), 9, program), [(1, HELD), (3, NOTHING)]);
    }

    #[test]
    fn decide_puts_short_snapshots_together() {
        let mut policy = FaithFul::new(8);
        let first = (1..=60u64).find(|tenth| {
            let mut seen = snapshot(0, 8, BUSY);
            seen.at_ns = tenth * 100_000_000;
            seen.span_ns = 100_000_000;
            for t in &mut seen.programs[0].threads {
                t.span_ns = seen.span_ns;
                t.counters.involuntary_switches = Some(20);
            }
            !policy.decide(&seen).is_empty()
        });
        assert_eq!(first, Some(5));
    }

    #[test]
    fn decide_forgets_programs_that_ended() {
        let mut policy = FaithFul::new(8);
        run(&mut policy, 20, gains(0.1));
        policy.decide(&Snapshot::default());
        assert!(policy.programs.is_empty());
    }

    fn any_second() -> impl Strategy<Value = Second> {
        (0.0f64..0.5, 0.0f64..0.5, 0.0f64..0.06, 0u64..10_000_000_000, 0.0f64..9.0).prop_map(
            |(lock, latency, spin, instructions, others_busy)| Second {
                lock,
                latency,
                spin,
                instructions,
                others_busy,
            },
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
            noise in proptest::collection::vec(0.95f64..1.05, 997),
        ) {
            // A program of changing phases whom it costs a third. Refusals hold for 10, 20, 40, ... s.
            let program = |at: u64, set: Set| {
                let slower = if set == NOTHING { 1.0 } else { 0.66 };
                let instructions = (4e9 * slower * noise[at as usize % 997]) as u64;
                Second { lock: factors[at as usize / 20 % 7], instructions, ..BUSY }
            };
            let changes = run(&mut FaithFul::new(8), 400, program);
            prop_assert!(changes.len() <= 6 * 6, "{} changes", changes.len());
        }
    }
}
