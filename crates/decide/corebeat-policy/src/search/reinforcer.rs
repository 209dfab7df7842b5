//! Thread Reinforcer: the number of threads of a program, by a search over short runs.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 2,
//! Algorithm 1. The program runs for a short time with increasing numbers of threads. Each run is a
//! trial and results in a [`Profile`]. The search compares each trial with the best one before, and
//! continues while the trials improve:
//!
//! ```text
//!            next()                    record(n, profile)
//!  Reinforcer ------> Try(n) ... run ... ------> Reason for continuing or stopping
//!      ^                                            |
//!      +--------------------------------------------+      next() == Done { best, reason }
//! ```
//!
//! # Extensions of the thesis
//!
//! - A trial may contain a measured [`Profile::progress`]. If both trials have one, only progress
//!   decides whether the last trial is an improvement (Terminate), because the four indicators
//!   stand for progress: spinning threads raise CPU utilisation without any work. The indicators
//!   then still determine the next step.
//! - Spinning counts as lock time and not as CPU utilisation: on the thesis' Solaris a waiting
//!   thread spins for a short time and then blocks; on Linux many programs spin without a limit.
//! - Changes are normalised to a third of the machine's CPUs, the thesis' step (8 threads on 24
//!   cores), so that the thresholds hold for half steps, for other steps, and across failed trials.
//! - Algorithm 1 returns the trial before the one with which the overheads rose. With a step of 8
//!   of 24 cores that loses little. On 2 CPUs the trial before has half of the threads. The search
//!   therefore ends with the last trial if that did more work after the cost of its overheads.
//! - A trial may fail. The search then skips its number of threads.
//!
//! Algorithm 1 as printed never takes half a step: its condition for one (high lock time, and
//! rapidly rising lock time and switches) already ends the search in Terminate. With measured
//! progress, half steps occur.

use crate::progress::Measure;
use crate::ratio;
use corebeat_machine::{ProgramSample, Snapshot, TimeShares};
use serde::Serialize;
use std::fmt;

/// Result of a trial. An unknown indicator is `None` and has no influence.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Profile {
    /// Used share of the machine's CPUs, from 0 to 1, without detected spinning.
    pub cpu_util: f64,
    /// Share of the threads' time spent blocked on other threads (lock and park), from 0 to 1: the
    /// lock time of the thesis' Solaris.
    pub lock: Option<f64>,
    /// Share of the threads' time spent spinning, from 0 to 1.
    pub spin: Option<f64>,
    /// Voluntary context switches per second of CPU time.
    ///
    /// With CPU time instead of wall time, the rate is constant if twice the threads do twice the
    /// work, and rises if threads block each other more often.
    pub voluntary_rate: Option<f64>,
    /// Migrations per second of CPU time.
    pub migration_rate: Option<f64>,
    /// Work per second, in any unit that does not depend on the number of threads: bytes, useful
    /// instructions, heartbeats, or the inverse of the time of a complete run.
    pub progress: Option<f64>,
}

impl Profile {
    /// Returns the profile of a program in a snapshot, on a machine with `cpus` CPUs. Progress is
    /// the number of useful instructions, if known; callers with a better measure replace it.
    /// `None` if the CPU time is unknown.
    pub fn of(program: &ProgramSample, snapshot: &Snapshot, cpus: u32) -> Option<Profile> {
        let span_ns = snapshot.span_ns;
        let useful =
            program.cpus(span_ns, |s| s.running().map(|r| (r - s.spin.unwrap_or(0.0)).max(0.0)))?;
        Some(Profile {
            cpu_util: (useful / f64::from(cpus.max(1))).min(1.0),
            lock: ratio::share(program, TimeShares::lock_or_park),
            spin: ratio::share(program, |s| s.spin),
            voluntary_rate: ratio::rate(program, |t| t.counters.voluntary_switches),
            migration_rate: ratio::rate(program, |t| t.counters.migrations),
            progress: Measure::Instructions
                .amount(program, snapshot)
                .filter(|&a| a > 0.0 && span_ns > 0)
                .map(|a| a / (span_ns as f64 / 1e9)),
        })
    }

    /// Returns the estimated share of the machine's CPUs that does the work of the program: the
    /// used share without the cost of voluntary switches and migrations.
    fn work(&self) -> f64 {
        let per_s = |rate: Option<f64>, cost_s: f64| rate.unwrap_or(0.0) * cost_s;
        let overhead = per_s(self.voluntary_rate, VOLUNTARY_SWITCH_S)
            + per_s(self.migration_rate, MIGRATION_S);
        self.cpu_util * (1.0 - overhead).max(0.0)
    }

    /// Returns the profile whose indicators are the medians of the indicators of several profiles.
    /// An indicator that one of them lacks is unknown. `None` for no profiles.
    pub fn median(profiles: &[Profile]) -> Option<Profile> {
        let of = |indicator: fn(&Profile) -> Option<f64>| {
            let mut values = profiles.iter().map(indicator).collect::<Option<Vec<f64>>>()?;
            values.sort_by(f64::total_cmp);
            let upper = values.get(values.len() / 2)?;
            Some((values[(values.len() - 1) / 2] + upper) / 2.0)
        };
        Some(Profile {
            cpu_util: of(|p| Some(p.cpu_util))?,
            lock: of(|p| p.lock),
            spin: of(|p| p.spin),
            voluntary_rate: of(|p| p.voluntary_rate),
            migration_rate: of(|p| p.migration_rate),
            progress: of(|p| p.progress),
        })
    }

    /// Returns the lock time, blocked or spinning.
    fn waiting(&self) -> Option<f64> {
        match (self.lock, self.spin) {
            (None, None) => None,
            (lock, spin) => Some(lock.unwrap_or(0.0) + spin.unwrap_or(0.0)),
        }
    }
}

/// Outcome of a trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// The program ran with this profile.
    Ran(Profile),
    /// The program failed with this number of threads, for this reason (an exit status, a signal).
    Failed(String),
}

/// Our estimates of the CPU time of a voluntary switch (blocking and waking up) and of a migration
/// (filling a cold cache), in seconds.
const VOLUNTARY_SWITCH_S: f64 = 10e-6;
const MIGRATION_S: f64 = 100e-6;

/// Thresholds for high values and rapid changes.
///
/// The thesis (section 2.2.2) contains no numbers. Its thresholds come from the curves of
/// fluidanimate, facesim and blackscholes: the points where the values start to rise steeply with
/// the number of threads. The defaults here are our choices, by the cost of each event. All
/// `_delta` fields are changes per third of the machine's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Thresholds {
    /// Smallest gain in CPU utilisation that is not low. Default 0.05: 0.15 CPUs for each added
    /// thread. By the speed-ups in Table 2.1, canneal gains 0.02 and blackscholes 0.03 from 9 to 17
    /// threads, where the thesis stops, and ferret about 0.07 up to 63 threads, where the thesis
    /// continues.
    pub cpu_util_delta: f64,
    /// Smallest high lock time, as a share of the threads' time. Default 0.10.
    pub lock: f64,
    /// Smallest rapid increase of lock time. Default 0.10.
    pub lock_delta: f64,
    /// Smallest high rate of voluntary switches, per second of CPU time. Default 1,000: 1% of the
    /// time, at about 10 µs for blocking and waking up. Algorithm 1 uses only the change, but the
    /// text of the thesis requires both: a change counts only if the rate is high, too.
    pub voluntary_rate: f64,
    /// Smallest rapid increase of that rate. Default 2,000: another 2% of the time.
    pub voluntary_rate_delta: f64,
    /// Smallest rapid increase of the rate of migrations, per second of CPU time. Default 200: 2%
    /// of the time, at about 100 µs for filling a cold cache.
    pub migration_rate_delta: f64,
    /// Smallest gain in progress, relative to the best trial, that is an improvement. Default 0.03:
    /// the difference between two short runs of a constant program.
    pub progress_gain: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            cpu_util_delta: 0.05,
            lock: 0.10,
            lock_delta: 0.10,
            voluntary_rate: 1_000.0,
            voluntary_rate_delta: 2_000.0,
            migration_rate_delta: 200.0,
            progress_gain: 0.03,
        }
    }
}

/// Range of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Smallest number of threads (T_min), at least 1.
    pub min: u32,
    /// Largest number of threads (T_max), at least `min`.
    pub max: u32,
    /// Number of CPUs of the machine.
    pub cpus: u32,
    /// Increase of the number of threads (T_step), at least 1; half of it if overheads rise
    /// rapidly.
    pub step: u32,
}

impl Limits {
    /// Returns the range from 1 to 4 times the CPUs, in steps of a third of the CPUs: 8 on 24
    /// cores, as in the thesis, and 1, 2, 3, 4, ... on small machines. (The thesis tries up to 128
    /// threads on 24 cores; its best number is 63.)
    pub fn of(cpus: u32) -> Self {
        let cpus = cpus.max(1);
        Limits { min: 1, max: cpus.saturating_mul(4), cpus, step: (cpus / 3).max(1) }
    }
}

/// Next step of the search.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Run the program with this number of threads, and [`record`](Reinforcer::record) the trial.
    Try(u32),
    /// The search has ended.
    Done {
        /// The best number of threads; `None` if the program failed with every number.
        best: Option<u32>,
        /// Reason for the end.
        reason: Reason,
    },
}

/// Reason for which the search continues or stops after a trial. `Display` gives an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum Reason {
    /// Continues: this is the first trial.
    First {
        /// Number of threads.
        threads: u32,
    },
    /// Continues: the trial failed.
    Failed {
        /// Number of threads.
        threads: u32,
    },
    /// Continues: the last trial is an improvement.
    Improved {
        /// Change from the best trial to the last.
        change: Change,
        /// Increase of the number of threads.
        step: u32,
        /// Whether this is half a step because overheads rise rapidly.
        careful: bool,
    },
    /// Stops: measured progress did not increase.
    NoProgress {
        /// Change from the best trial to the last.
        change: Change,
    },
    /// Stops: the added threads found no more parallelism.
    NoParallelism {
        /// Change from the best trial to the last.
        change: Change,
    },
    /// Stops: overheads rose rapidly.
    Overhead {
        /// Change from the best trial to the last.
        change: Change,
        /// The overhead that rose.
        kind: Overhead,
        /// Whether the last trial did more work nevertheless, so that it is the best.
        is_ahead: bool,
    },
    /// Stops: the limit is reached.
    Limit {
        /// Largest number of threads.
        threads: u32,
    },
    /// Stops: the program failed with every number of threads.
    AllFailed {
        /// Number of threads in the last trial.
        threads: u32,
    },
}

/// Overhead of threads that wait for each other; lock time is high in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Overhead {
    /// Lock time rose.
    Locks,
    /// Voluntary switches rose, up to the machine's CPUs.
    Switches,
    /// Migrations rose, above the machine's CPUs.
    Migrations,
}

/// Change from the best trial to the last one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Number of threads in the best trial.
    pub from: u32,
    /// Number of threads in the last trial.
    pub to: u32,
    /// Profile of the best trial.
    pub before: Profile,
    /// Profile of the last trial.
    pub after: Profile,
}

impl Change {
    /// Returns the relative gain in progress, if both trials measured it.
    pub fn progress_gain(&self) -> Option<f64> {
        let (before, after) = self.before.progress.zip(self.after.progress)?;
        (before > 0.0).then(|| after / before - 1.0)
    }

    /// Returns the change of an indicator per third of the machine's CPUs.
    fn delta(&self, cpus: u32, indicator: impl Fn(&Profile) -> Option<f64>) -> Option<f64> {
        let added = f64::from(self.to - self.from);
        Some((indicator(&self.after)? - indicator(&self.before)?) * (f64::from(cpus) / 3.0) / added)
    }
}

/// The search: proposes trials and receives their outcomes.
///
/// ```
/// use corebeat_policy::reinforcer::{Limits, Profile, Reinforcer, Step, Thresholds, Trial};
///
/// let mut search = Reinforcer::new(Limits::of(2), Thresholds::default());
/// let best = loop {
///     match search.next() {
///         // Each thread of the program uses one CPU, up to the two CPUs of the machine.
///         Step::Try(n) => {
///             let profile = Profile { cpu_util: f64::from(n.min(2)) / 2.0, ..Profile::default() };
///             println!("{}", search.record(n, Trial::Ran(profile)));
///         }
///         Step::Done { best, .. } => break best,
///     }
/// };
/// assert_eq!(best, Some(2));
/// ```
#[derive(Debug, Clone)]
pub struct Reinforcer {
    limits: Limits,
    thresholds: Thresholds,
    best: Option<(u32, Profile)>,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Trying(u32),
    Done(Reason),
}

impl Reinforcer {
    /// Returns a search without trials. Limits of 0 are treated as 1, and a `max` below `min` as
    /// `min`.
    pub fn new(limits: Limits, thresholds: Thresholds) -> Self {
        let min = limits.min.max(1);
        let limits = Limits {
            min,
            max: limits.max.max(min),
            cpus: limits.cpus.max(1),
            step: limits.step.max(1),
        };
        Reinforcer { limits, thresholds, best: None, state: State::Trying(min) }
    }

    /// Returns the next step. The number of threads increases and stays within the limits.
    pub fn next(&self) -> Step {
        match self.state {
            State::Trying(threads) => Step::Try(threads),
            State::Done(reason) => Step::Done { best: self.best.map(|(n, _)| n), reason },
        }
    }

    /// Records the outcome of a trial, and returns the reason for continuing or stopping. `threads`
    /// may exceed the proposed number (for a program that rounds it up), up to the limit. A trial
    /// after the end of the search is ignored.
    pub fn record(&mut self, threads: u32, trial: Trial) -> Reason {
        let proposed = match self.state {
            State::Trying(proposed) => proposed,
            State::Done(reason) => return reason,
        };
        let tried = threads.clamp(proposed, self.limits.max);
        let reason = match trial {
            Trial::Failed(_) => self.failed(tried),
            Trial::Ran(profile) => self.ran(tried, profile),
        };
        self.state = match reason {
            Reason::First { .. } | Reason::Failed { .. } => {
                State::Trying(self.grown(tried, self.limits.step))
            }
            Reason::Improved { step, .. } => State::Trying(self.grown(tried, step)),
            stop => State::Done(stop),
        };
        reason
    }

    fn grown(&self, threads: u32, step: u32) -> u32 {
        threads.saturating_add(step).min(self.limits.max)
    }

    fn failed(&self, threads: u32) -> Reason {
        match self.best {
            _ if threads < self.limits.max => Reason::Failed { threads },
            Some(_) => Reason::Limit { threads },
            None => Reason::AllFailed { threads },
        }
    }

    /// Evaluates a trial (Algorithm 1, Terminate and ComputeNextT).
    fn ran(&mut self, to: u32, after: Profile) -> Reason {
        let Some((from, before)) = self.best else {
            self.best = Some((to, after));
            return match to < self.limits.max {
                true => Reason::First { threads: to },
                false => Reason::Limit { threads: to },
            };
        };
        let change = Change { from, to, before, after };
        let indicators = Indicators::read(&change, self.limits.cpus, &self.thresholds);
        let gain = change.delta(self.limits.cpus, |p| Some(p.work()));
        let is_ahead = gain.is_some_and(|gain| gain >= self.thresholds.cpu_util_delta);
        let stop = match change.progress_gain() {
            Some(gain) if gain < self.thresholds.progress_gain => {
                Some(Reason::NoProgress { change })
            }
            Some(_) => None,
            None => indicators.terminate(change, self.limits.cpus, is_ahead),
        };
        if stop.is_none_or(|reason| matches!(reason, Reason::Overhead { is_ahead: true, .. })) {
            self.best = Some((to, after));
        }
        if let Some(reason) = stop {
            return reason;
        }
        if to >= self.limits.max {
            return Reason::Limit { threads: to };
        }
        let careful = indicators.careful(to, self.limits.cpus) && self.limits.step > 1;
        let step = if careful { self.limits.step / 2 } else { self.limits.step };
        Reason::Improved { change, step, careful }
    }
}

/// The four indicators of Algorithm 1: low or high.
struct Indicators {
    cpu_gain_is_low: bool,
    lock_is_high: bool,
    lock_rises: bool,
    switches_rise: bool,
    migrations_rise: bool,
}

impl Indicators {
    fn read(change: &Change, cpus: u32, t: &Thresholds) -> Indicators {
        let rises = |indicator: fn(&Profile) -> Option<f64>, limit: f64| {
            change.delta(cpus, indicator).is_some_and(|d| d >= limit)
        };
        Indicators {
            cpu_gain_is_low: !rises(|p| Some(p.cpu_util), t.cpu_util_delta),
            lock_is_high: change.after.waiting().is_some_and(|l| l >= t.lock),
            lock_rises: rises(Profile::waiting, t.lock_delta),
            switches_rise: rises(|p| p.voluntary_rate, t.voluntary_rate_delta)
                && change.after.voluntary_rate.is_some_and(|r| r >= t.voluntary_rate),
            migrations_rise: rises(|p| p.migration_rate, t.migration_rate_delta),
        }
    }

    /// Algorithm 1, Terminate, except for its last case (T_max).
    fn terminate(&self, change: Change, cpus: u32, is_ahead: bool) -> Option<Reason> {
        if self.cpu_gain_is_low {
            return Some(Reason::NoParallelism { change });
        }
        let kind = match self.lock_is_high {
            true if self.lock_rises => Overhead::Locks,
            true if change.to <= cpus && self.switches_rise => Overhead::Switches,
            true if change.to > cpus && self.migrations_rise => Overhead::Migrations,
            _ => return None,
        };
        Some(Reason::Overhead { change, kind, is_ahead })
    }

    /// Algorithm 1, ComputeNextT: returns whether overheads rise so rapidly that the step is
    /// halved.
    fn careful(&self, threads: u32, cpus: u32) -> bool {
        let overhead_rises =
            if threads <= cpus { self.switches_rise } else { self.migrations_rise };
        self.lock_is_high && self.lock_rises && overhead_rises
    }
}

/// Returns `1 thread`, `2 threads`, and so on.
pub fn count(threads: u32) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// `rose by 3 points`, `fell by 1 point`, `did not change`.
fn points(before: f64, after: f64) -> String {
    let points = ((after - before) * 100.0).round();
    let unit = if points.abs() == 1.0 { "point" } else { "points" };
    match points {
        p if p > 0.0 => format!("rose by {p} {unit}"),
        p if p < 0.0 => format!("fell by {} {unit}", -p),
        _ => "did not change".into(),
    }
}

/// `rose by 3%`, `fell by 1%`, `did not change`.
fn percent(gain: f64) -> String {
    match (gain * 100.0).round() {
        p if p > 0.0 => format!("rose by {p}%"),
        p if p < 0.0 => format!("fell by {}%", -p),
        _ => "did not change".into(),
    }
}

impl fmt::Display for Change {
    /// `CPU utilisation rose by 3 points from 1 to 2 threads`, or progress where it was measured.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.progress_gain() {
            Some(gain) => write!(f, "progress {}", percent(gain))?,
            None => {
                write!(f, "CPU utilisation {}", points(self.before.cpu_util, self.after.cpu_util))?
            }
        }
        write!(f, " from {} to {}", self.from, count(self.to))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = |c: &Change| {
            let (before, after) =
                (c.before.waiting().unwrap_or(0.0), c.after.waiting().unwrap_or(0.0));
            format!("lock time went from {:.0}% to {:.0}%", before * 100.0, after * 100.0)
        };
        let rate = |r: Option<f64>| format!("{:.0}", r.unwrap_or(0.0));
        match self {
            Reason::First { threads } => write!(f, "the search starts with {}", count(*threads)),
            Reason::Failed { threads } => {
                write!(
                    f,
                    "the program failed with {}; the search skips this number",
                    count(*threads)
                )
            }
            Reason::Improved { change, step, careful: false } => {
                write!(f, "{change}: this is an improvement; the next step is {step}")
            }
            Reason::Improved { change, step, careful: true } => {
                write!(
                    f,
                    "{change}: this is an improvement, but {}; the next step is only {step}",
                    waiting(change)
                )
            }
            Reason::NoProgress { change } => {
                write!(f, "{change}")?;
                if change.after.waiting().is_some() {
                    write!(f, " ({})", waiting(change))?;
                }
                write!(f, ": no improvement")
            }
            Reason::NoParallelism { change } => {
                write!(f, "{change}: the added threads found no more parallelism")
            }
            Reason::Overhead { change, kind, is_ahead } => {
                let (from, to) = (change.from, count(change.to));
                match kind {
                    Overhead::Locks => write!(f, "{} from {from} to {to}", waiting(change))?,
                    Overhead::Switches => write!(
                        f,
                        "voluntary switches rose from {} to {} per second of CPU time from {from} \
                         to {to}, and lock time is high",
                        rate(change.before.voluntary_rate),
                        rate(change.after.voluntary_rate),
                    )?,
                    Overhead::Migrations => write!(
                        f,
                        "migrations rose from {} to {} per second of CPU time from {from} to {to}, \
                         and lock time is high",
                        rate(change.before.migration_rate),
                        rate(change.after.migration_rate),
                    )?,
                }
                f.write_str(": threads wait for each other")?;
                match is_ahead {
                    true => write!(f, ", but {to} still did more work"),
                    false => Ok(()),
                }
            }
            Reason::Limit { threads } => {
                write!(f, "{} is the limit of the search", count(*threads))
            }
            Reason::AllFailed { .. } => {
                write!(f, "the program failed with every number of threads that was tried")
            }
        }
    }
}

#[cfg(test)]
mod tests;
