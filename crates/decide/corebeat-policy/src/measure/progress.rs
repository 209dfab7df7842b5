//! Progress of a program, by the best measure that needs no cooperation of the program.

use corebeat_machine::{ProgramSample, Snapshot, ThreadSample, TimeShares};
use serde::Serialize;

/// A measure of progress, best first. Amounts of the same measure are comparable; amounts of
/// different measures are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Completed OpenMP parallel regions.
    Regions,
    /// Instructions in user mode, without the share that was spent spinning. Unknown where spinning
    /// is not detected. Where only the host is counted, the program's part is estimated by its
    /// share of the CPU time.
    Instructions,
    /// Bytes read and written by system calls.
    Bytes,
    /// CPU seconds in user mode, without the seconds known to be spent spinning. This measure
    /// reflects the cost of scheduling in the kernel but not its effect on caches.
    UserTime,
}

impl Measure {
    /// All measures, best first.
    pub const ALL: [Measure; 4] =
        [Measure::Regions, Measure::Instructions, Measure::Bytes, Measure::UserTime];

    /// Returns the smallest amount per second for which the measure is usable. Smaller amounts
    /// arrive in steps as large as the differences to be measured.
    pub fn amount_min(self) -> f64 {
        match self {
            Measure::Regions => 100.0,
            Measure::Instructions => 1e6,
            // Programs read and write in blocks of about a megabyte.
            Measure::Bytes => 64e6,
            Measure::UserTime => 0.1,
        }
    }

    /// Returns the amount of work within the span of the snapshot, if it is known.
    pub fn amount(self, program: &ProgramSample, snapshot: &Snapshot) -> Option<f64> {
        let threads = || program.threads.iter();
        match self {
            Measure::Regions => {
                program.team.as_ref().map(|t| t.regions.iter().map(|r| r.count as f64).sum::<f64>())
            }
            Measure::Instructions => nearly_all(threads().map(|t| {
                let useful = |user: f64, spin: f64| {
                    if user > 0.0 { (1.0 - spin / user).max(0.0) } else { 1.0 }
                };
                let known = t.counters.instructions.zip(t.shares.user).zip(t.shares.spin);
                (busy(t), known.map(|((i, user), spin)| i as f64 * useful(user, spin)))
            }))
            .or_else(|| estimate_from_host(program, snapshot)),
            Measure::Bytes => program.io_bytes.map(|b| b as f64),
            Measure::UserTime => nearly_all(threads().map(|t| {
                let useful = t.shares.user.map(|u| (u - t.shares.spin.unwrap_or(0.0)).max(0.0));
                (busy(t), useful.map(|u| u * t.span_ns as f64 / 1e9))
            })),
        }
    }
}

/// Work of a program, summed over snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) span_ns: u64,
    /// By [`Measure::ALL`]. An amount is invalid once a part of it was unknown.
    amounts: [f64; Measure::ALL.len()],
    unknown: [bool; Measure::ALL.len()],
}

impl Work {
    /// Adds the work of one snapshot.
    pub(crate) fn add(&mut self, p: &ProgramSample, snapshot: &Snapshot) {
        self.span_ns += snapshot.span_ns;
        for (place, measure) in Measure::ALL.into_iter().enumerate() {
            match measure.amount(p, snapshot) {
                Some(amount) => self.amounts[place] += amount,
                None => self.unknown[place] = true,
            }
        }
    }

    /// Adds time in which the program could do no work.
    pub(crate) fn add_time(&mut self, span_ns: u64) {
        self.span_ns += span_ns;
    }

    /// Adds the work of another time span.
    pub(crate) fn join(&mut self, other: &Work) {
        self.span_ns += other.span_ns;
        for place in 0..Measure::ALL.len() {
            self.amounts[place] += other.amounts[place];
            self.unknown[place] |= other.unknown[place];
        }
    }

    /// Returns the relative gain over earlier work, by the best measure that is known of both and
    /// large enough now. An earlier amount that was too small to be usable counts as the least
    /// usable amount, so the gain is a lower bound then. A program that does almost nothing now has
    /// lost what it did before, by the most general measure.
    pub(crate) fn gain_over(&self, before: &Work) -> Option<f64> {
        let known = |place: usize| {
            Some((self.speed(place)?, before.speed(place)?, Measure::ALL[place].amount_min()))
        };
        let places = 0..Measure::ALL.len();
        let usable = places.clone().filter_map(known).find(|(now, _, least)| now >= least);
        let starved = || places.rev().filter_map(known).find(|(_, before, least)| before >= least);
        let (now, before, least) = usable.or_else(starved)?;
        Some(now / before.max(least) - 1.0)
    }

    /// Returns the mean speed by the measure at a place of [`Measure::ALL`], if it is known.
    fn speed(&self, place: usize) -> Option<f64> {
        let span_s = self.span_ns.max(1) as f64 / 1e9;
        (!self.unknown[place]).then(|| self.amounts[place] / span_s)
    }

    /// Returns the mean speeds.
    pub(crate) fn speeds(&self) -> Speeds {
        Speeds(std::array::from_fn(|place| {
            self.speed(place).filter(|&speed| speed >= Measure::ALL[place].amount_min())
        }))
    }
}

/// Progress per second, by [`Measure::ALL`]; `None` where the measure is unknown or too small.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speeds([Option<f64>; Measure::ALL.len()]);

impl Speeds {
    /// Returns the relative gain over an earlier speed, by the best measure that both contain.
    pub(crate) fn gain_over(&self, before: &Speeds) -> Option<f64> {
        let mut both = self.0.iter().zip(&before.0);
        both.find_map(|(now, before)| now.zip(*before)).map(|(now, before)| now / before - 1.0)
    }
}

/// Estimates the useful instructions of a program from the instructions of the whole host.
fn estimate_from_host(program: &ProgramSample, snapshot: &Snapshot) -> Option<f64> {
    let all = snapshot.host.counters.instructions? as f64;
    let cpus_of = |program: &ProgramSample, share: fn(&TimeShares) -> Option<f64>| {
        nearly_all(
            program
                .threads
                .iter()
                .map(|t| (busy(t), share(&t.shares).map(|s| s * t.span_ns as f64))),
        )
        .map(|ns| ns / snapshot.span_ns.max(1) as f64)
    };
    let cpus = |share| cpus_of(program, share);
    let (running, user, spin) = (cpus(|s| s.running())?, cpus(|s| s.user)?, cpus(|s| s.spin)?);
    // The load of the host contains no watched program.
    let others = snapshot.programs.iter().filter(|other| other.id != program.id);
    let watched: f64 = others.filter_map(|other| cpus_of(other, |s| s.running())).sum();
    let part = running / (running + watched + snapshot.host.others_busy?);
    (running > 0.0 && user > 0.0).then(|| all * part * (1.0 - spin / user).max(0.0))
}

/// Returns the weight of a thread's amount: its CPU time in nanoseconds, or its whole time span
/// where the CPU time is unknown.
fn busy(thread: &ThreadSample) -> f64 {
    thread.shares.running().unwrap_or(1.0) * thread.span_ns as f64
}

/// Returns the sum of the known amounts, if they have at least nine tenths of the weight: a thread
/// that starts and ends between two samples must not hide the work of all others. Threads that all
/// waited have done nothing.
fn nearly_all(amounts: impl Iterator<Item = (f64, Option<f64>)>) -> Option<f64> {
    let (mut sum, mut known, mut all) = (None, 0.0, 0.0);
    for (weight, amount) in amounts {
        all += weight;
        if let Some(amount) = amount {
            *sum.get_or_insert(0.0) += amount;
            known += weight;
        }
    }
    sum.filter(|_| known >= 0.9 * all)
}

#[cfg(test)]
mod tests;
