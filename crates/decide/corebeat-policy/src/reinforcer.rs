//! Thread Reinforcer: how many threads should a program be run with?
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 2, Algorithm 1. The
//! program is run for a short while with growing thread counts. Each run is a trial, and gives a [`Profile`]. The
//! search compares the last trial with the best one before it, and goes on while that is an improvement:
//!
//! ```text
//!            next()                    record(n, profile)
//!  Reinforcer ------> Try(n) ... run ... ------> Reason: why it goes on or stops
//!      ^                                            |
//!      +--------------------------------------------+      next() == Done { best, reason }
//! ```
//!
//! # Where this goes beyond the thesis
//!
//! - A trial may bring a measured [`Profile::progress`]. Where both trials have one it alone decides whether the last
//!   is an improvement (Terminate), because it is what the four signs stand for: spinning threads raise CPU
//!   utilisation and get nothing done. The signs then still choose the length of the next step.
//! - Spinning counts as lock time and not as CPU utilisation: on the thesis' Solaris a thread that finds a lock taken
//!   spins a little and then blocks; on Linux many programs spin for good.
//! - Changes are measured per third of the machine's CPUs, the thesis' own step (8 threads on 24 cores), so that the
//!   thresholds hold for half steps, for other step lengths, and over counts that failed.
//! - A trial may fail: the count is left out.
//!
//! Read closely, Algorithm 1 never takes half a step: its condition for one (locks high, and lock time and switches
//! rising fast) is one on which Terminate has stopped already. With measured progress it can happen.

use crate::progress::Measure;
use crate::sign;
use corebeat_machine::{ProgramSample, Snapshot};
use serde::Serialize;
use std::fmt;

/// What a trial showed. A sign that the machine could not tell is `None` and counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Profile {
    /// CPUs kept busy, as a share of the machine's, from 0 to 1. Known spinning is left out.
    pub cpu_util: f64,
    /// Share of the threads' time spent blocked on locks, from 0 to 1.
    pub lock: Option<f64>,
    /// Share of the threads' time spent spinning, from 0 to 1.
    pub spin: Option<f64>,
    /// Voluntary context switches for each second of CPU time.
    ///
    /// Of CPU time and not of wall time, so that the rate stays the same when twice the threads do twice the work, and
    /// rises when they get more often into each other's way.
    pub voluntary_rate: Option<f64>,
    /// Migrations for each second of CPU time.
    pub migration_rate: Option<f64>,
    /// Work done per second, in any unit that does not depend on the thread count: bytes, useful instructions,
    /// heartbeats, or one over the time of a whole run.
    pub progress: Option<f64>,
}

impl Profile {
    /// What a snapshot shows of one of its programs, on a machine with `cpus` CPUs. Progress is taken from useful
    /// instructions where they are counted; whoever knows better sets it. `None` if nobody can tell what ran.
    pub fn of(program: &ProgramSample, seen: &Snapshot, cpus: u32) -> Option<Profile> {
        let span_ns = seen.span_ns;
        let useful = program.cpus(span_ns, |s| s.running().map(|r| (r - s.spin.unwrap_or(0.0)).max(0.0)))?;
        Some(Profile {
            cpu_util: (useful / f64::from(cpus.max(1))).min(1.0),
            lock: sign::share(program, |s| s.lock),
            spin: sign::share(program, |s| s.spin),
            voluntary_rate: sign::rate(program, |t| t.counters.voluntary_switches),
            migration_rate: sign::rate(program, |t| t.counters.migrations),
            progress: Measure::Instructions
                .amount(program, seen)
                .filter(|&a| a > 0.0 && span_ns > 0)
                .map(|a| a / (span_ns as f64 / 1e9)),
        })
    }

    /// Lock time as the search sees it: blocked or spinning.
    fn waiting(&self) -> Option<f64> {
        match (self.lock, self.spin) {
            (None, None) => None,
            (lock, spin) => Some(lock.unwrap_or(0.0) + spin.unwrap_or(0.0)),
        }
    }
}

/// What became of a trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// It ran, and showed this.
    Ran(Profile),
    /// The program failed with this thread count, for this reason (an exit status, a signal).
    Failed(String),
}

/// Where values count as high, and changes as rapid.
///
/// The thesis (section 2.2.2) gives no numbers. It says how they were found: from the curves of fluidanimate, facesim
/// and blackscholes, each where the value begins to rise steeply with the thread count. The defaults here were chosen
/// for this project by what each thing costs. All `_delta` fields are changes per third of the machine's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Thresholds {
    /// Less gain in CPU utilisation is low. Default 0.05: of each added thread, 0.15 CPUs. In Table 2.1's speed-ups
    /// canneal gains 0.02 and blackscholes 0.03 from 9 to 17 threads, where the thesis stops, and ferret about 0.07 up
    /// to 63, where it goes on.
    pub cpu_util_delta: f64,
    /// From here lock time is high, as a share of the threads' time. Default 0.10: a tenth of what the threads could
    /// do.
    pub lock: f64,
    /// From here lock time rises rapidly. Default 0.10.
    pub lock_delta: f64,
    /// From here the rate of voluntary switches is high, per second of CPU time. Default 1,000: at some 10 µs for
    /// blocking and waking up, 1% of the time. Algorithm 1 reads only the change, the text wants both: a change counts
    /// where the rate is high too.
    pub voluntary_rate: f64,
    /// From here it rises rapidly. Default 2,000: another 2% of the time.
    pub voluntary_rate_delta: f64,
    /// From here the rate of migrations rises rapidly, per second of CPU time. Default 200: at some 100 µs for filling
    /// a cold cache, 2% of the time.
    pub migration_rate_delta: f64,
    /// Less gain in progress, relative to the best trial, is no improvement. Default 0.03: what two short runs of the
    /// same thing differ by.
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

/// Which thread counts to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// The first count (T_min), at least 1.
    pub min: u32,
    /// The last count (T_max), at least `min`.
    pub max: u32,
    /// The machine's CPUs.
    pub cpus: u32,
    /// By how much the count grows (T_step), at least 1; half of it is used where overheads rise rapidly.
    pub step: u32,
}

impl Limits {
    /// From 1 to 4 times the CPUs, in steps of a third of the CPUs: the thesis' 8 on 24 cores, and 1, 2, 3, 4, ... on
    /// small machines. (The thesis tries up to 128 threads on 24 cores; its best count is 63.)
    pub fn of(cpus: u32) -> Self {
        let cpus = cpus.max(1);
        Limits { min: 1, max: cpus.saturating_mul(4), cpus, step: (cpus / 3).max(1) }
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Run the program with this many threads, and [`record`](Reinforcer::record) what it shows.
    Try(u32),
    /// The search is over.
    Done {
        /// The count to use; `None` if the program failed with every count.
        best: Option<u32>,
        /// Why the search stopped.
        reason: Reason,
    },
}

/// Why the search goes on or stops after a trial. Its text says so in plain words.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum Reason {
    /// Goes on: nothing to compare with yet.
    First {
        /// The count.
        threads: u32,
    },
    /// Goes on: the count is left out.
    Failed {
        /// The count.
        threads: u32,
    },
    /// Goes on: the last trial is an improvement.
    Improved {
        /// From the best trial to the last.
        change: Change,
        /// By how many threads the count grows now.
        step: u32,
        /// Overheads rise rapidly, so that this is half a step.
        careful: bool,
    },
    /// Stops: measured progress did not grow.
    NoProgress {
        /// From the best trial to the last.
        change: Change,
    },
    /// Stops: the added threads found no more parallelism.
    NoParallelism {
        /// From the best trial to the last.
        change: Change,
    },
    /// Stops: lock time is high and rose rapidly.
    Locks {
        /// From the best trial to the last.
        change: Change,
    },
    /// Stops: lock time is high and, up to the machine's CPUs, voluntary switches rose rapidly.
    Switches {
        /// From the best trial to the last.
        change: Change,
    },
    /// Stops: lock time is high and, above the machine's CPUs, migrations rose rapidly.
    Migrations {
        /// From the best trial to the last.
        change: Change,
    },
    /// Stops: no more threads are allowed.
    Limit {
        /// The largest count.
        threads: u32,
    },
    /// Stops: the program failed with every count.
    AllFailed {
        /// The last of them.
        threads: u32,
    },
}

/// The best trial before, and the last one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Threads in the best trial.
    pub from: u32,
    /// Threads in the last trial.
    pub to: u32,
    /// What the best trial showed.
    pub before: Profile,
    /// What the last trial showed.
    pub after: Profile,
}

impl Change {
    /// The relative gain in progress, where both trials measured it.
    pub fn progress_gain(&self) -> Option<f64> {
        let (before, after) = self.before.progress.zip(self.after.progress)?;
        (before > 0.0).then(|| after / before - 1.0)
    }

    /// A sign's change, per third of the machine's CPUs.
    fn delta(&self, cpus: u32, sign: impl Fn(&Profile) -> Option<f64>) -> Option<f64> {
        let added = f64::from(self.to - self.from);
        Some((sign(&self.after)? - sign(&self.before)?) * (f64::from(cpus) / 3.0) / added)
    }
}

/// The search: says what to try, takes what was seen, and never looks at anything else.
///
/// ```
/// use corebeat_policy::reinforcer::{Limits, Profile, Reinforcer, Step, Thresholds, Trial};
///
/// let mut search = Reinforcer::new(Limits::of(2), Thresholds::default());
/// let best = loop {
///     match search.next() {
///         // A program that keeps one CPU busy with each thread, up to the machine's two.
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
    /// A search that has tried nothing yet. Limits of 0 are taken as 1, and a `max` below `min` as `min`.
    pub fn new(limits: Limits, thresholds: Thresholds) -> Self {
        let min = limits.min.max(1);
        let limits =
            Limits { min, max: limits.max.max(min), cpus: limits.cpus.max(1), step: limits.step.max(1) };
        Reinforcer { limits, thresholds, best: None, state: State::Trying(min) }
    }

    /// What to do next. Counts only grow, and stay within the limits.
    pub fn next(&self) -> Step {
        match self.state {
            State::Trying(threads) => Step::Try(threads),
            State::Done(reason) => Step::Done { best: self.best.map(|(n, _)| n), reason },
        }
    }

    /// Takes what a trial showed, and says why the search goes on or stops. `threads` may be above what was asked for
    /// (a program that rounds its count up), up to the largest; a trial that nobody asked for is not taken.
    pub fn record(&mut self, threads: u32, trial: Trial) -> Reason {
        let asked = match self.state {
            State::Trying(asked) => asked,
            State::Done(reason) => return reason,
        };
        let tried = threads.clamp(asked, self.limits.max);
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

    /// Terminate, and ComputeNextT.
    fn ran(&mut self, to: u32, after: Profile) -> Reason {
        let Some((from, before)) = self.best else {
            self.best = Some((to, after));
            return match to < self.limits.max {
                true => Reason::First { threads: to },
                false => Reason::Limit { threads: to },
            };
        };
        let change = Change { from, to, before, after };
        let signs = Signs::read(&change, self.limits.cpus, &self.thresholds);
        let stop = match change.progress_gain() {
            Some(gain) if gain < self.thresholds.progress_gain => Some(Reason::NoProgress { change }),
            Some(_) => None,
            None => signs.terminate(change, self.limits.cpus),
        };
        if let Some(reason) = stop {
            return reason;
        }
        self.best = Some((to, after));
        if to >= self.limits.max {
            return Reason::Limit { threads: to };
        }
        let careful = signs.careful(to, self.limits.cpus) && self.limits.step > 1;
        let step = if careful { self.limits.step / 2 } else { self.limits.step };
        Reason::Improved { change, step, careful }
    }
}

/// The four signs as Algorithm 1 reads them: low or high.
struct Signs {
    cpu_gain_is_low: bool,
    lock_is_high: bool,
    lock_rises: bool,
    switches_rise: bool,
    migrations_rise: bool,
}

impl Signs {
    fn read(change: &Change, cpus: u32, t: &Thresholds) -> Signs {
        let rises = |sign: fn(&Profile) -> Option<f64>, limit: f64| {
            change.delta(cpus, sign).is_some_and(|d| d >= limit)
        };
        Signs {
            cpu_gain_is_low: !rises(|p| Some(p.cpu_util), t.cpu_util_delta),
            lock_is_high: change.after.waiting().is_some_and(|l| l >= t.lock),
            lock_rises: rises(Profile::waiting, t.lock_delta),
            switches_rise: rises(|p| p.voluntary_rate, t.voluntary_rate_delta)
                && change.after.voluntary_rate.is_some_and(|r| r >= t.voluntary_rate),
            migrations_rise: rises(|p| p.migration_rate, t.migration_rate_delta),
        }
    }

    /// Algorithm 1, Terminate, but for its last case (T_max).
    fn terminate(&self, change: Change, cpus: u32) -> Option<Reason> {
        if self.cpu_gain_is_low {
            return Some(Reason::NoParallelism { change });
        }
        match self.lock_is_high {
            true if self.lock_rises => Some(Reason::Locks { change }),
            true if change.to <= cpus && self.switches_rise => Some(Reason::Switches { change }),
            true if change.to > cpus && self.migrations_rise => Some(Reason::Migrations { change }),
            _ => None,
        }
    }

    /// Algorithm 1, ComputeNextT: whether overheads rise so rapidly that half a step is enough.
    fn careful(&self, threads: u32, cpus: u32) -> bool {
        let overhead_rises = if threads <= cpus { self.switches_rise } else { self.migrations_rise };
        self.lock_is_high && self.lock_rises && overhead_rises
    }
}

/// `1 thread`, `2 threads`.
fn count(threads: u32) -> String {
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
            None => write!(f, "CPU utilisation {}", points(self.before.cpu_util, self.after.cpu_util))?,
        }
        write!(f, " from {} to {}", self.from, count(self.to))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = |c: &Change| {
            let (before, after) = (c.before.waiting().unwrap_or(0.0), c.after.waiting().unwrap_or(0.0));
            format!("lock time went from {:.0}% to {:.0}%", before * 100.0, after * 100.0)
        };
        let rate = |r: Option<f64>| format!("{:.0}", r.unwrap_or(0.0));
        match self {
            Reason::First { threads } => write!(f, "the search starts with {}", count(*threads)),
            Reason::Failed { threads } => write!(f, "the program failed with {}: left out", count(*threads)),
            Reason::Improved { change, step, careful: false } => {
                write!(f, "{change}: better, going on by {step}")
            }
            Reason::Improved { change, step, careful: true } => {
                write!(f, "{change}: better, but {}: going on by only {step}", waiting(change))
            }
            Reason::NoProgress { change } => {
                write!(f, "{change}")?;
                if change.after.waiting().is_some() {
                    write!(f, " ({})", waiting(change))?;
                }
                write!(f, ": no improvement")
            }
            Reason::NoParallelism { change } => write!(f, "{change}: no more parallelism was found"),
            Reason::Locks { change } => {
                write!(
                    f,
                    "{} from {} to {}: threads wait for each other",
                    waiting(change),
                    change.from,
                    count(change.to)
                )
            }
            Reason::Switches { change } => write!(
                f,
                "voluntary switches rose from {} to {} per second of CPU time from {} to {}, and lock time is high",
                rate(change.before.voluntary_rate),
                rate(change.after.voluntary_rate),
                change.from,
                count(change.to)
            ),
            Reason::Migrations { change } => write!(
                f,
                "migrations rose from {} to {} per second of CPU time from {} to {}, and lock time is high",
                rate(change.before.migration_rate),
                rate(change.after.migration_rate),
                change.from,
                count(change.to)
            ),
            Reason::Limit { threads } => write!(f, "{} is the most that is allowed", count(*threads)),
            Reason::AllFailed { .. } => write!(f, "the program failed with every count that was tried"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::sample;
    use proptest::prelude::*;

    /// Runs a search on a model of a program; gives the best count and all that was said.
    fn search(limits: Limits, mut trial: impl FnMut(u32) -> Trial) -> (Option<u32>, Vec<(u32, Reason)>) {
        let mut search = Reinforcer::new(limits, Thresholds::default());
        let mut said = Vec::new();
        loop {
            match search.next() {
                Step::Try(n) => said.push((n, search.record(n, trial(n)))),
                Step::Done { best, .. } => return (best, said),
            }
        }
    }

    /// A program as its speed-up curve and the overheads that make it: the four signs follow from them.
    #[derive(Debug, Clone, Copy)]
    struct Model {
        cpus: u32,
        /// Share of the work that only one thread can do (Amdahl).
        serial: f64,
        /// CPUs that each thread keeps busy when alone; below 1 for threads that wait for input.
        busy: f64,
        /// From this many threads on they queue for locks ...
        lock_from: f64,
        /// ... and each more costs this share of what the others get done.
        lock_cost: f64,
        /// Waiting is spinning.
        spins: bool,
        /// Each thread above the CPUs costs this share of the speed by migrations.
        migration_cost: f64,
    }

    impl Model {
        const PLAIN: Model = Model {
            cpus: 24,
            serial: 0.0,
            busy: 1.0,
            lock_from: f64::INFINITY,
            lock_cost: 0.0,
            spins: false,
            migration_cost: 0.0,
        };

        fn threads_useful(&self, n: u32) -> f64 {
            (f64::from(n) * self.busy).min(f64::from(self.cpus))
        }

        /// Share of the threads' time lost to locks.
        fn lock(&self, n: u32) -> f64 {
            let over = (f64::from(n) - self.lock_from).max(0.0);
            1.0 - 1.0 / (1.0 + over * self.lock_cost)
        }

        fn speedup(&self, n: u32) -> f64 {
            let parallel = self.threads_useful(n) * (1.0 - self.lock(n));
            let over = f64::from(n.saturating_sub(self.cpus));
            1.0 / (self.serial + (1.0 - self.serial) / parallel) / (1.0 + over * self.migration_cost)
        }

        fn best(&self, max: u32) -> u32 {
            (1..=max).fold(1, |best, n| if self.speedup(n) > self.speedup(best) * 1.001 { n } else { best })
        }

        fn profile(&self, n: u32, measured: bool) -> Profile {
            // A serial part keeps one CPU busy while the rest waits.
            let amdahl = 1.0 / (self.serial * self.threads_useful(n) + 1.0 - self.serial);
            let over = f64::from(n.saturating_sub(self.cpus));
            let wait = self.lock(n);
            Profile {
                cpu_util: self.threads_useful(n) * amdahl * (1.0 - wait) / f64::from(self.cpus),
                lock: Some(if self.spins { 0.0 } else { wait }),
                spin: Some(if self.spins { wait } else { 0.0 }),
                voluntary_rate: Some(if self.spins { 0.0 } else { 20_000.0 * wait }),
                migration_rate: Some(50_000.0 * over * self.migration_cost * wait.max(0.02)),
                progress: measured.then(|| self.speedup(n)),
            }
        }
    }

    /// Shapes after Tables 2.1 and 2.4: name, model, the thesis' best count, and what its search finds.
    fn parsec() -> Vec<(&'static str, Model, u32)> {
        let plain = Model::PLAIN;
        vec![
            ("swaptions", Model { busy: 0.8, ..plain }, 33),
            ("ferret", Model { busy: 0.38, ..plain }, 63),
            (
                "bodytrack",
                Model { serial: 0.05, lock_from: 20.0, lock_cost: 0.03, migration_cost: 0.01, ..plain },
                25,
            ),
            ("blackscholes", Model { serial: 0.18, ..plain }, 9),
            ("canneal", Model { serial: 0.25, ..plain }, 9),
            ("fluidanimate", Model { serial: 0.02, lock_from: 20.0, lock_cost: 0.12, ..plain }, 25),
            ("facesim", Model { serial: 0.13, lock_from: 15.0, lock_cost: 0.2, ..plain }, 16),
            ("streamcluster", Model { serial: 0.15, lock_from: 16.0, lock_cost: 0.1, ..plain }, 17),
        ]
    }

    #[test]
    fn search_on_the_parsec_shapes_is_within_a_step_of_the_thesis() {
        for (name, model, thesis) in parsec() {
            let limits = Limits { max: 64, ..Limits::of(24) };
            let (best, said) = search(limits, |n| Trial::Ran(model.profile(n, false)));
            let best = best.unwrap();
            assert!(best.abs_diff(thesis) <= limits.step, "{name}: {best}, thesis {thesis}; {said:#?}");
        }
    }

    #[test]
    fn search_with_measured_progress_is_near_the_best_speedup() {
        for (name, model, _) in parsec() {
            let limits = Limits { max: 64, ..Limits::of(24) };
            let (best, _) = search(limits, |n| Trial::Ran(model.profile(n, true)));
            let (best, optimum) = (best.unwrap(), model.best(64));
            let lost = 1.0 - model.speedup(best) / model.speedup(optimum);
            assert!(
                best.abs_diff(optimum) <= limits.step || lost <= 0.05,
                "{name}: {best}, best {optimum}, {lost:.3} lost"
            );
        }
    }

    #[test]
    fn search_on_two_cpus_counts_one_by_one() {
        let model = Model { cpus: 2, ..Model::PLAIN };
        let (best, said) = search(Limits::of(2), |n| Trial::Ran(model.profile(n, false)));
        assert_eq!(said.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(best, Some(2));
        assert_eq!(
            said.last().unwrap().1.to_string(),
            "CPU utilisation did not change from 2 to 3 threads: no more parallelism was found"
        );
    }

    #[test]
    fn search_on_a_spinning_program_is_not_misled_by_utilisation() {
        // Spins from the second thread on: a bare look at the CPUs would find them all busy.
        let model = Model { cpus: 2, lock_from: 1.0, lock_cost: 2.0, spins: true, ..Model::PLAIN };
        for measured in [false, true] {
            let (best, said) = search(Limits::of(2), |n| Trial::Ran(model.profile(n, measured)));
            assert_eq!(best, Some(1), "{said:#?}");
        }
    }

    #[test]
    fn search_with_measured_progress_goes_on_where_utilisation_is_flat() {
        let (best, _) = search(Limits { max: 4, ..Limits::of(2) }, |n| {
            Trial::Ran(Profile { cpu_util: 0.5, progress: Some(f64::from(n)), ..Profile::default() })
        });
        assert_eq!(best, Some(4));
    }

    #[test]
    fn search_leaves_out_counts_that_fail() {
        // A program that takes powers of two only.
        let (best, said) = search(Limits { max: 8, ..Limits::of(4) }, |n| match n.is_power_of_two() {
            true => Trial::Ran(Profile { cpu_util: f64::from(n.min(4)) / 4.0, ..Profile::default() }),
            false => Trial::Failed("exit status 1".into()),
        });
        assert_eq!(best, Some(4));
        assert_eq!(said.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(said[2].1.to_string(), "the program failed with 3 threads: left out");
    }

    #[test]
    fn search_where_everything_fails_has_no_best() {
        let (best, said) = search(Limits::of(1), |_| Trial::Failed("signal 11".into()));
        assert_eq!((best, said.last().unwrap().1), (None, Reason::AllFailed { threads: 4 }));
    }

    #[test]
    fn search_of_one_count_tries_it_and_ends() {
        let limits = Limits { min: 3, max: 3, cpus: 2, step: 1 };
        let (best, said) = search(limits, |_| Trial::Ran(Profile::default()));
        assert_eq!((best, said.len()), (Some(3), 1));
    }

    #[test]
    fn search_takes_half_a_step_where_overheads_rise_but_progress_does_too() {
        let profile = |n: u32| Profile {
            cpu_util: 0.5,
            lock: Some(0.02 * f64::from(n)),
            voluntary_rate: Some(500.0 * f64::from(n)),
            progress: Some(f64::from(n)),
            ..Profile::default()
        };
        let (_, said) = search(Limits { max: 21, ..Limits::of(24) }, |n| Trial::Ran(profile(n)));
        assert_eq!(said.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 9, 13, 17, 21]);
        assert_eq!(
            said[1].1.to_string(),
            "progress rose by 800% from 1 to 9 threads: better, but lock time went from 2% to 18%: going on by only 4"
        );
    }

    #[test]
    fn terminate_reads_switches_up_to_the_cpus_and_migrations_above() {
        let before = Profile {
            lock: Some(0.2),
            voluntary_rate: Some(0.0),
            migration_rate: Some(0.0),
            ..Profile::default()
        };
        let after = Profile { cpu_util: 0.4, voluntary_rate: Some(9e3), migration_rate: Some(9e3), ..before };
        for (cpus, stopped_by_switches) in [(24, true), (6, false)] {
            let limits = Limits { min: 1, max: 64, cpus, step: 8 };
            let (best, said) = search(limits, |n| Trial::Ran(if n == 1 { before } else { after }));
            assert_eq!(best, Some(1));
            let by_switches = matches!(said[1].1, Reason::Switches { .. });
            assert_eq!(by_switches, stopped_by_switches, "{:?}", said[1].1);
            assert_eq!(!by_switches, matches!(said[1].1, Reason::Migrations { .. }));
        }
    }

    #[test]
    fn profile_of_a_sample_reads_all_signs() {
        let mut p = sample::program();
        sample::thread(&mut p, 0.0, 1.0, 0.0);
        for _ in 0..2 {
            let t = sample::thread(&mut p, 0.5, 0.25, 0.25);
            t.shares.spin = Some(0.25);
            t.counters.voluntary_switches = Some(50);
            t.counters.migrations = Some(5);
            t.counters.instructions = Some(1000);
        }
        p.threads[0].shares.spin = Some(0.0);
        let seen = Snapshot { span_ns: 1_000_000_000, ..Snapshot::default() };
        let profile = Profile::of(&p, &seen, 2).unwrap();
        assert_eq!(
            profile,
            Profile {
                cpu_util: 0.25,
                lock: Some(0.25),
                spin: Some(0.25),
                voluntary_rate: Some(100.0),
                migration_rate: Some(10.0),
                progress: Some(1000.0),
            }
        );
        p.threads[1].shares.user = None;
        assert_eq!(Profile::of(&p, &seen, 2), None);
    }

    prop_compose! {
        fn any_profile()(
            cpu_util in 0.0f64..=1.0,
            signs in proptest::array::uniform4(proptest::option::of(0.0f64..1.0)),
            progress in proptest::option::of(0.0f64..10.0),
        ) -> Profile {
            Profile {
                cpu_util,
                lock: signs[0],
                spin: signs[1],
                voluntary_rate: signs[2].map(|r| r * 1e4),
                migration_rate: signs[3].map(|r| r * 1e3),
                progress,
            }
        }
    }

    proptest! {
        #[test]
        fn search_ends_within_bounds_and_repeats_itself(
            (min, max, cpus, step) in (0u32..40, 0u32..200, 0u32..70, 0u32..30),
            profiles in proptest::collection::vec(proptest::option::of(any_profile()), 200),
        ) {
            let limits = Limits { min, max, cpus, step };
            let trial = |n: u32| match profiles[n as usize % 200] {
                Some(profile) => Trial::Ran(profile),
                None => Trial::Failed("x".into()),
            };
            let (best, said) = search(limits, trial);
            let (least, most) = (min.max(1), max.max(min).max(1));
            prop_assert!(said.iter().all(|&(n, _)| (least..=most).contains(&n)));
            prop_assert!(said.windows(2).all(|w| w[0].0 < w[1].0));
            prop_assert!(said.iter().all(|(_, reason)| !reason.to_string().is_empty()));
            prop_assert!(best.is_none_or(|b| profiles[b as usize % 200].is_some()));
            prop_assert_eq!(best.is_none(), said.iter().all(|&(n, _)| profiles[n as usize % 200].is_none()));
            prop_assert_eq!(search(limits, trial), (best, said));
        }

        #[test]
        fn search_with_progress_never_passes_the_peak_by_more_than_a_step(
            serial in 0.0f64..0.3,
            lock_from in 1.0f64..60.0,
            lock_cost in 0.0f64..0.5,
            cpus in 1u32..64,
        ) {
            let model = Model { cpus, serial, lock_from, lock_cost, migration_cost: 0.01, ..Model::PLAIN };
            let limits = Limits::of(cpus);
            let (best, said) = search(limits, |n| Trial::Ran(model.profile(n, true)));
            let (best, peak) = (best.unwrap(), model.best(limits.max));
            prop_assert!(best <= peak + limits.step);
            let last = said.last().unwrap().0;
            prop_assert!(last == best || model.speedup(last) <= model.speedup(best) * 1.03);
        }
    }
}
