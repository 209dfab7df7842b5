//! FaithFul scheduling: the threads of a program do not preempt each other, and run for longer time
//! slices.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 5,
//! Algorithm 3. With more threads than CPUs, a thread that is preempted at the wrong moment loses
//! its cache contents and delays all threads that wait for its lock. The thesis gives all threads
//! of a program the same fixed priority, so that none preempts another ("backstabbing"), and a time
//! slice by the scaling factor `1 - max(miss ratio, lock time share)`. The factor is near 1 for a
//! program that computes in its caches, and near 0 for a program that waits for locks or memory. A
//! lower factor gives a longer slice. The factor is measured continuously; the slice changes only
//! when the factor leaves its band.
//!
//! # On a modern kernel
//!
//! **Equal priority.** The time-sharing class of Solaris changed priorities; the fair scheduler of
//! Linux does not. But threads preempt each other there, too: a thread that wakes up has received
//! less CPU time than its share and takes the CPU of a running thread. The class `SCHED_BATCH`
//! removes this preemption at wake-up and keeps the shares. The policy uses this class for the
//! thesis' equal priority.
//!
//! **The slice.** Under EEVDF a slice is a request between 0.1 and 100 ms, and the default is at
//! most 3 ms; the slices of Solaris were 20 to 200 ms. The policy therefore uses five times the
//! values of the thesis' table, up to 100 ms ([`SLICES_MS`]).
//!
//! **Other programs.** Beside busy programs the policy acts only on programs whose threads compute
//! nearly all the time, and sets no class. A thread that blocks and wakes up waits longer for a
//! CPU the longer its slice is, and a batch thread waits until other threads have run. (Measured on
//! two CPUs, side by side with the same program without settings: a program with barriers took 1.6
//! to 1.7 times as long, and xz took the same time with 3.5% less CPU time. With both settings,
//! four programs took up to 9% longer.) A slice that takes CPU time from the other programs counts
//! as a loss.
//!
//! **Verification.** Class and slice are set as soon as an improvement is possible: threads wait
//! for CPUs and are preempted. (On two CPUs with 8 threads, both settings together saved 21% of the
//! time of a program with barriers, 17% of xz, and 7% of pbzip2. They cost at most 1% elsewhere;
//! the book's page on slices has the figures.) Programs that spin are left alone: a longer slice
//! for a spinning thread delays the thread that it waits for. The policy then checks the effect: it
//! removes the settings for one window, ever more rarely while they help, and at once if the first
//! window with them is worse than the window before. If progress without the settings is better by
//! a margin twice in a row (the first comparison included), or once by a large margin, the policy
//! removes the settings for a long time.
//!
//! ```text
//!             threads wait for CPUs             factor left its band: new slice
//!               and are preempted                  +-----+
//!  Watching --------------------------> Holding ---+     |
//!     ^                                   |  ^  <--------+
//!     |    checks lost: rest for          |  |
//!     +---- a time that doubles ----------+  +-- one window without, after 8, 16, 32 ... windows,
//!                                                or after the first one if progress fell
//! ```
//!
//! Progress is normalised by the CPUs that other programs left free. The n-th rest lasts at least
//! 2^(n-1) times [`FaithFul::rest_ns`], so the number of changes within a time `t` is at most a
//! constant times `log t` for a program that does not benefit.
//!
//! # Failure
//!
//! Kernels before 6.12 refuse slices. The policy requests a refused setting once for each program
//! and continues with the other one. If the settings change nothing, the policy makes no further
//! requests for the program.

use crate::fixed_slice::{Fixed, FixedSlice};
use crate::one_program::{ONE_THREAD, PerProgram, ProgramPolicy, inaction};
use crate::progress::Work;
use crate::ratio::{Ratio, others_busy};
use corebeat_machine::{
    AppliedAction, Decision, Inaction, Policy, ProgramId, ProgramSample, Snapshot, TimeShares,
};
use std::collections::BTreeMap;

/// Table 5.1 times five: a scaling factor up to `.0` gives a slice of `.1` milliseconds. All rows
/// of the thesis above 10 ms are one row here, because Linux accepts slices up to 100 ms.
pub const SLICES_MS: [(f64, u32); 2] = [(0.90, 100), (1.00, 50)];

/// Returns the slice for a scaling factor, in microseconds.
pub fn slice_us(factor: f64) -> u32 {
    let row =
        SLICES_MS.iter().find(|row| factor <= row.0).unwrap_or(&SLICES_MS[SLICES_MS.len() - 1]);
    row.1 * 1000
}

/// The policy. All fields may be changed before the first snapshot.
#[derive(Debug, Clone)]
pub struct FaithFul {
    /// Number of CPUs of the machine.
    pub cpus: u32,
    /// Change of the factor that changes the slice. Default 0.10 (Algorithm 3, `range`).
    pub band: f64,
    /// Duration of a window between decisions, in nanoseconds. Default 0.5 s, half of the value in
    /// section 5.2.4, because many programs run only for seconds. Shorter snapshots are combined.
    pub window_ns: u64,
    /// Smallest share of the threads' time spent waiting for a CPU for which the policy acts.
    /// Default 0.05: longer slices do not help threads that rarely wait.
    pub wait_min: f64,
    /// Smallest rate of involuntary switches, per second of CPU time, for which the policy acts.
    /// Default 50: half a percent of the time, if filling a cold cache takes about 100 µs.
    pub involuntary_rate_min: f64,
    /// Share of the threads' time spent spinning from which programs are left alone. Default 0.05.
    pub spin_max: f64,
    /// Share of the CPUs used by other programs from which the policy acts only on programs that
    /// compute, without the batch class. At twice this share, settings of other programs, and the
    /// class, are removed. Default 0.125.
    pub others_share_max: f64,
    /// Share of the threads' time spent blocked up to which a program computes. Default 0.15: the
    /// main thread of a program with eight computing threads is blocked. At twice this share,
    /// slices beside busy programs are removed.
    pub blocked_max: f64,
    /// Relative loss of progress for which a check is lost. Default 0.02: half-second windows of a
    /// constant program differ by about that much, and one loss decides nothing.
    pub loss_min: f64,
    /// Relative loss of progress for which a single check removes the settings; a smaller loss
    /// needs a second check. Default 0.20: on a busy host half-second windows differ by that much
    /// without a cause in the program.
    pub loss_max: f64,
    /// Windows until the first check. The number doubles after each successful check, up to
    /// `check_every_max`. Default 8.
    pub check_every: u32,
    /// Largest number of windows between checks. Default 256: each check costs one window without
    /// the settings.
    pub check_every_max: u32,
    /// Duration of the first rest, in nanoseconds; each further rest lasts twice as long. Default
    /// 10 s.
    pub rest_ns: u64,
    /// Largest number of CPUs that each program may use, by a quota. The kernel accounts the time
    /// for which a quota stops a thread as time in which the thread waits for a CPU. Default
    /// `None`.
    pub quota: Option<f64>,
    /// Part of the quota from which a program counts as stopped by it. Default 0.9.
    pub quota_share_min: f64,
    programs: BTreeMap<ProgramId, State>,
}

impl FaithFul {
    /// Returns the policy with default thresholds for a machine with this number of CPUs.
    pub fn new(cpus: u32) -> Self {
        FaithFul {
            cpus: cpus.max(1),
            band: 0.10,
            window_ns: 500_000_000,
            wait_min: 0.05,
            involuntary_rate_min: 50.0,
            spin_max: 0.05,
            others_share_max: 0.125,
            blocked_max: 0.15,
            loss_min: 0.02,
            loss_max: 0.20,
            check_every: 8,
            check_every_max: 256,
            rest_ns: 10_000_000_000,
            quota: None,
            quota_share_min: 0.9,
            programs: BTreeMap::new(),
        }
    }

    /// Returns the policy for programs that a quota limits to this number of CPUs.
    pub fn under_quota(self, quota: Option<f64>) -> Self {
        FaithFul { quota, ..self }
    }
}

/// State of one program.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    window: Window,
    hold: Option<Hold>,
    rest: Option<Rest>,
    fixed: FixedSlice,
    /// Why the policy does not act.
    idle: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    until_ns: u64,
    count: u32,
}

/// Settings that are in effect, and their checks.
#[derive(Debug, Clone)]
struct Hold {
    slice_us: u32,
    /// Other programs use much of the machine, so the class is not set.
    is_shared: bool,
    /// Scaling factor that the slice was chosen by. The settings change the factor, so the first
    /// window with them measures it again.
    factor: Option<f64>,
    team: Option<u32>,
    /// Windows between checks.
    every: u32,
    /// Windows until the next check.
    left: u32,
    losses: u32,
    /// Pace before the settings, until it is compared with the first window with them.
    before: Option<Pace>,
    /// Pace in the last window with the settings.
    with: Option<Pace>,
    /// Pace in the window without them that followed.
    without: Option<Pace>,
}

/// Result of one more window.
enum Verdict {
    /// Undecided; the next window is with or without the settings.
    Open {
        with: bool,
    },
    Lost {
        gain: f64,
    },
}

/// Work, and the CPUs that other programs left free for it.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    work: Work,
    /// Free CPUs, times nanoseconds.
    free: f64,
}

impl Pace {
    /// Returns the mean number of CPUs that other programs left free.
    fn free(&self) -> f64 {
        self.free / self.work.span_ns.max(1) as f64
    }

    /// Returns both paces together.
    fn join(mut self, other: &Pace) -> Pace {
        self.work.join(&other.work);
        self.free += other.free;
        self
    }

    /// Returns the relative gain in work per second and free CPU over an earlier pace.
    fn gain_over(&self, before: &Pace) -> Option<f64> {
        let gain = self.work.speeds().gain_over(&before.work.speeds())?;
        Some((1.0 + gain) * before.free() / self.free() - 1.0)
    }

    /// Returns the same gain beside busy programs on `cpus` CPUs: less the part of the CPU time of
    /// these programs that they have lost. Unknown progress counts as equal.
    fn shared_gain_over(&self, before: &Pace, cpus: u32) -> f64 {
        let others = |pace: &Pace| f64::from(cpus) - pace.free();
        let lost = 1.0 - others(self) / others(before).max(f64::MIN_POSITIVE);
        self.gain_over(before).unwrap_or(0.0) - lost.max(0.0)
    }
}

/// Observations since the last decision.
#[derive(Debug, Clone, Default)]
struct Window {
    pace: Pace,
    /// CPU time of the program, in nanoseconds.
    cpu_ns: f64,
    lock: Ratio,
    miss: Ratio,
    /// Miss ratio of the whole host in the newest snapshot, for machines that do not count threads.
    host_miss: Option<f64>,
    wait: Ratio,
    blocked: Ratio,
    spin: Ratio,
    involuntary: Ratio,
    /// Size of the thread team, if the program has one.
    team: Option<u32>,
}

impl Window {
    fn add(&mut self, p: &ProgramSample, snapshot: &Snapshot, free: f64) {
        self.pace.work.add(p, snapshot);
        self.pace.free += free * snapshot.span_ns as f64;
        let cpus = p.cpus(snapshot.span_ns, |s| s.running());
        self.cpu_ns += cpus.unwrap_or(0.0) * snapshot.span_ns as f64;
        self.lock.add_share(p, TimeShares::lock_or_park);
        self.wait.add_share(p, |s| s.wait);
        self.blocked.add_share(p, |s| s.blocked());
        self.spin.add_share(p, |s| s.spin);
        self.involuntary.add_rate(p, |t| t.counters.involuntary_switches);
        self.miss.add_counts(p, |t| t.counters.cache_misses.zip(t.counters.cache_references));
        let host = snapshot.host.counters;
        self.host_miss = host
            .cache_misses
            .zip(host.cache_references)
            .filter(|c| c.1 > 0)
            .map(|(m, r)| m as f64 / r as f64);
        self.team = p.team.as_ref().map(|t| t.size);
    }

    /// Returns the scaling factor (section 5.2.1, equation 5.1). An unknown value is left out;
    /// `None` if both are unknown.
    fn factor(&self) -> Option<f64> {
        let miss = self.miss.get().or(self.host_miss).map(|m| m.min(1.0));
        match (miss, self.lock.get()) {
            (None, None) => None,
            (miss, lock) => Some(1.0 - miss.unwrap_or(0.0).max(lock.unwrap_or(0.0))),
        }
    }
}

impl Hold {
    fn new(slice_us: u32, is_shared: bool, window: &Window, check_every: u32) -> Hold {
        Hold {
            slice_us,
            is_shared,
            factor: None,
            team: window.team,
            every: check_every,
            left: check_every,
            losses: 0,
            before: Some(window.pace),
            with: None,
            without: None,
        }
    }

    /// Returns the settings.
    fn fixed(&self) -> Fixed {
        Fixed { slice_us: self.slice_us, is_batch: !self.is_shared }
    }

    /// Returns whether the settings were in effect in the window that has just ended.
    fn was_set(&self) -> bool {
        self.left > 0 || self.without.is_some()
    }

    /// Returns the gain of a pace over another one. Unknown progress is not a loss.
    fn gain(&self, with: &Pace, without: &Pace, policy: &FaithFul) -> f64 {
        match self.is_shared {
            true => with.shared_gain_over(without, policy.cpus),
            false => with.gain_over(without).unwrap_or(0.0),
        }
    }

    /// Evaluates one more window.
    fn add(&mut self, window: &Window, policy: &FaithFul) -> Verdict {
        let now = window.pace;
        if self.left > 0 {
            self.left -= 1;
            self.with = Some(now);
            let gain = self.before.take().map_or(0.0, |before| self.gain(&now, &before, policy));
            if gain < -policy.loss_min {
                (self.left, self.losses) = (0, 1);
            }
            return Verdict::Open { with: self.left > 0 };
        }
        let Some(without) = self.without.take() else {
            self.without = Some(now);
            return Verdict::Open { with: true };
        };
        let around = self.with.map_or(now, |with| with.join(&now));
        let gain = self.gain(&around, &without, policy);
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
}

impl State {
    /// Sets a slice, or restores the program's own settings.
    fn set(&mut self, id: ProgramId, fixed: Option<Fixed>, why: &str) -> Vec<Decision> {
        let actions = self.fixed.set(id, fixed).into_iter();
        let decision = |action| Decision { policy: "faithful", action, why: why.to_owned() };
        actions.map(decision).collect()
    }

    /// Removes the hold for a time that doubles at each call.
    fn rest(&mut self, rest_ns: u64, now_ns: u64) {
        let count = self.rest.map_or(0, |r| r.count) + 1;
        let rest_ns = rest_ns.saturating_mul(1 << (count - 1).min(20));
        self.rest = Some(Rest { until_ns: now_ns.saturating_add(rest_ns), count });
        self.hold = None;
    }
}

impl FaithFul {
    /// Returns why no improvement is possible: threads must wait for CPUs, be preempted, and not
    /// spin, and other programs must use little of the machine.
    fn obstacle(
        &self,
        state: &State,
        window: &Window,
        others_busy: f64,
        now_ns: u64,
    ) -> Option<String> {
        let Some(wait) = window.wait.get() else {
            return Some("the time that threads wait for a CPU is unknown".into());
        };
        let (involuntary, spin) = (window.involuntary.get(), window.spin.get());
        let rest_ns = state.rest.map_or(0, |rest| rest.until_ns.saturating_sub(now_ns));
        let least = self.involuntary_rate_min;
        if !state.fixed.may_request() {
            Some("the machine refuses batch scheduling and time slices".into())
        } else if wait < self.wait_min {
            Some(format!(
                "threads wait for a CPU for {:.1}% of their time; faithful needs {:.0}%",
                wait * 100.0,
                self.wait_min * 100.0
            ))
        } else if let Some((used, quota)) = self.uses_quota(window) {
            Some(format!(
                "the program uses {used:.2} CPUs of its quota of {quota:.2}: its threads wait for \
                 the quota, which no slice changes"
            ))
        } else if let Some(rate) = involuntary.filter(|&rate| rate < least) {
            Some(format!(
                "threads are preempted {rate:.0} times per second of CPU time; faithful needs \
                 {least:.0}"
            ))
        } else if self.spins(window) {
            Some(format!(
                "threads spin for {:.0}% of their time; faithful needs less than {:.0}%",
                spin.unwrap_or(0.0) * 100.0,
                self.spin_max * 100.0
            ))
        } else if others_busy >= self.others_max()
            && !(state.fixed.may_request_slice() && self.computes(window, 1.0))
        {
            Some(format!(
                "other programs keep {others_busy:.1} CPUs busy; faithful needs less than {:.2}, \
                 or threads that block for at most {:.0}% of their time (these: {})",
                self.others_max(),
                self.blocked_max * 100.0,
                window.blocked.get().map_or("unknown".into(), |b| format!("{:.0}%", b * 100.0))
            ))
        } else if rest_ns > 0 {
            Some(format!(
                "longer slices did not help; faithful tries again after {:.0} s",
                rest_ns as f64 / 1e9
            ))
        } else {
            None
        }
    }

    /// Returns the CPUs that the program uses, and its quota, if the quota stops the program.
    fn uses_quota(&self, window: &Window) -> Option<(f64, f64)> {
        let quota = self.quota.filter(|&quota| quota < f64::from(self.cpus))?;
        let used = window.cpu_ns / window.pace.work.span_ns.max(1) as f64;
        (used >= self.quota_share_min * quota).then_some((used, quota))
    }

    /// Returns whether threads are blocked for at most `times` the limit.
    fn computes(&self, window: &Window, times: f64) -> bool {
        window.blocked.get().is_some_and(|b| b <= times * self.blocked_max)
    }

    fn spins(&self, window: &Window) -> bool {
        window.spin.get().is_some_and(|s| s >= self.spin_max)
    }

    /// Returns the largest number of CPUs that other programs may use.
    fn others_max(&self) -> f64 {
        self.others_share_max * f64::from(self.cpus)
    }

    /// Decides after one window of a program.
    fn decide_window(
        &self,
        state: &mut State,
        id: ProgramId,
        window: &Window,
        now_ns: u64,
    ) -> Vec<Decision> {
        if state.fixed.is_ineffective() {
            state.hold = None;
            return vec![];
        }
        let others_busy = f64::from(self.cpus) - window.pace.free();
        let Some(mut hold) = state.hold.take() else {
            return self.start(state, id, window, others_busy, now_ns);
        };
        if window.team != hold.team || self.spins(window) {
            return state.set(
                id,
                None,
                "the program changed: it spins, or its team has another size",
            );
        }
        let was_set = hold.was_set();
        let mut decisions = Vec::new();
        if others_busy > 2.0 * self.others_max() {
            let why = format!("other programs use {others_busy:.1} CPUs");
            if !self.computes(window, 2.0) || !state.fixed.may_request_slice() {
                let undo = state.set(id, None, &why);
                state.rest(self.rest_ns, now_ns);
                return undo;
            }
            hold.is_shared = true;
            if was_set {
                decisions.extend(state.set(id, Some(hold.fixed()), &why));
            }
        }
        if was_set {
            decisions.extend(self.follow_factor(state, &mut hold, id, window));
        }
        match hold.add(window, self) {
            Verdict::Open { with } if with == was_set => {}
            Verdict::Open { with: true } => {
                decisions.extend(state.set(id, Some(hold.fixed()), "the check has ended"));
            }
            Verdict::Open { with: false } => {
                decisions.extend(state.set(id, None, "to check whether the settings help"));
            }
            Verdict::Lost { gain } => {
                let why = format!("the settings changed progress by {:+.1}%", gain * 100.0);
                decisions.extend(state.set(id, None, &why));
                state.rest(self.rest_ns, now_ns);
                return decisions;
            }
        }
        state.hold = Some(hold);
        decisions
    }

    /// Sets class and slice, if an improvement is possible.
    fn start(
        &self,
        state: &mut State,
        id: ProgramId,
        window: &Window,
        others_busy: f64,
        now_ns: u64,
    ) -> Vec<Decision> {
        let factor = match self.obstacle(state, window, others_busy, now_ns) {
            None => window.factor().ok_or("lock time and cache misses are unknown".to_owned()),
            Some(obstacle) => Err(obstacle),
        };
        let factor = match factor {
            Ok(factor) => factor,
            Err(why) => {
                state.idle = Some(why);
                return vec![];
            }
        };
        let is_shared = others_busy >= self.others_max();
        let hold = Hold::new(slice_us(factor), is_shared, window, self.check_every);
        let (wait, involuntary) = (window.wait.get(), window.involuntary.get());
        let why = format!(
            "threads wait for a CPU for {:.0}% of the time and are preempted {:.0} times per \
             second of CPU time; scaling factor {factor:.2}",
            wait.unwrap_or(0.0) * 100.0,
            involuntary.unwrap_or(0.0),
        );
        let fixed = state.hold.insert(hold).fixed();
        state.set(id, Some(fixed), &why)
    }

    /// Changes the slice, if the scaling factor has left its band.
    fn follow_factor(
        &self,
        state: &mut State,
        hold: &mut Hold,
        id: ProgramId,
        window: &Window,
    ) -> Vec<Decision> {
        let Some(factor) = window.factor() else { return vec![] };
        let before = *hold.factor.get_or_insert(factor);
        if (factor - before).abs() <= self.band {
            return vec![];
        }
        hold.factor = None;
        hold.slice_us = slice_us(factor);
        let why = format!("the scaling factor changed from {before:.2} to {factor:.2}");
        state.set(id, Some(hold.fixed()), &why)
    }
}

impl Policy for FaithFul {
    fn name(&self) -> &'static str {
        "faithful"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        self.decide_for(snapshot, &|_| true)
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        let program = applied.decision.action.program();
        let Some(state) = program.and_then(|id| self.programs.get_mut(&id)) else { return };
        state.fixed.record(applied);
        let is_refused = match &state.hold {
            // Beside busy programs the slice is the only setting.
            Some(hold) if hold.is_shared => !state.fixed.may_request_slice(),
            _ => !state.fixed.may_request(),
        };
        if is_refused {
            state.hold = None;
        }
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        inaction(self.name(), self.programs.get(&program).and_then(|state| state.idle.as_ref()))
    }
}

impl PerProgram for FaithFul {
    type State = State;

    fn states(&mut self) -> &mut BTreeMap<ProgramId, State> {
        &mut self.programs
    }

    fn step(&self, state: &mut State, p: &ProgramSample, snapshot: &Snapshot) -> Vec<Decision> {
        if p.threads.len() < 2 {
            state.idle.get_or_insert_with(|| ONE_THREAD.into());
            return vec![];
        }
        // At least a tenth of a CPU, so that the little progress of a program on a full machine is
        // not divided by zero.
        let free = f64::from(self.cpus) - others_busy(p, snapshot);
        state.window.add(p, snapshot, free.max(0.1));
        if state.window.pace.work.span_ns < self.window_ns {
            return vec![];
        }
        let window = std::mem::take(&mut state.window);
        self.decide_window(state, p.id, &window, snapshot.at_ns)
    }
}

#[cfg(test)]
mod tests;
