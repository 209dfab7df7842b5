//! How much work a program has done, by the best measure that can be had without its help.

use corebeat_machine::{ProgramSample, Snapshot, ThreadSample, TimeShares};
use serde::Serialize;

/// A measure of progress, the best first. Amounts of one measure may be compared with each other, never with another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Parallel regions that ended.
    Regions,
    /// Instructions in user mode, without the share that was spent spinning. Only where spinning can be told. Where the
    /// host was counted and not its threads: the program's part of them by its part of the CPU time.
    Instructions,
    /// Bytes read and written by system calls.
    Bytes,
    /// CPU seconds in user mode, without those that are known to be spent spinning. Sees what scheduling costs in the
    /// kernel, and is blind to what it does to caches.
    UserTime,
}

impl Measure {
    /// All of them, the best first.
    pub const ALL: [Measure; 4] =
        [Measure::Regions, Measure::Instructions, Measure::Bytes, Measure::UserTime];

    /// The smallest amount in a second that makes this a measure: less comes in lumps that are no smaller than the
    /// differences to be seen.
    pub fn amount_min(self) -> f64 {
        match self {
            Measure::Regions => 100.0,
            Measure::Instructions => 1e6,
            // Programs read and write in blocks, of a megabyte or so.
            Measure::Bytes => 64e6,
            Measure::UserTime => 0.1,
        }
    }

    /// What was done within the sample's span, if this can be told.
    pub fn amount(self, program: &ProgramSample, seen: &Snapshot) -> Option<f64> {
        let threads = || program.threads.iter();
        match self {
            Measure::Regions => {
                program.team.as_ref().map(|t| t.regions.iter().map(|r| r.count as f64).sum::<f64>())
            }
            Measure::Instructions => nearly_all(threads().map(|t| {
                let useful =
                    |user: f64, spin: f64| if user > 0.0 { (1.0 - spin / user).max(0.0) } else { 1.0 };
                let known = t.counters.instructions.zip(t.shares.user).zip(t.shares.spin);
                (busy(t), known.map(|((i, user), spin)| i as f64 * useful(user, spin)))
            }))
            .or_else(|| of_the_host(program, seen)),
            Measure::Bytes => program.io_bytes.map(|b| b as f64),
            Measure::UserTime => nearly_all(threads().map(|t| {
                let useful = t.shares.user.map(|u| (u - t.shares.spin.unwrap_or(0.0)).max(0.0));
                (busy(t), useful.map(|u| u * t.span_ns as f64 / 1e9))
            })),
        }
    }
}

/// What a program has done, added up over snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Done {
    pub(crate) span_ns: u64,
    /// By [`Measure::ALL`]; an amount counts for nothing once a part of it was unknown.
    amounts: [f64; Measure::ALL.len()],
    unknown: [bool; Measure::ALL.len()],
}

impl Done {
    /// Adds what was done in one snapshot.
    pub(crate) fn add(&mut self, p: &ProgramSample, seen: &Snapshot) {
        self.span_ns += seen.span_ns;
        for (place, measure) in Measure::ALL.into_iter().enumerate() {
            match measure.amount(p, seen) {
                Some(amount) => self.amounts[place] += amount,
                None => self.unknown[place] = true,
            }
        }
    }

    /// Adds what was done in another time.
    pub(crate) fn join(&mut self, other: &Done) {
        self.span_ns += other.span_ns;
        for place in 0..Measure::ALL.len() {
            self.amounts[place] += other.amounts[place];
            self.unknown[place] |= other.unknown[place];
        }
    }

    /// How fast that was.
    pub(crate) fn speeds(&self) -> Speeds {
        let span_s = self.span_ns.max(1) as f64 / 1e9;
        let speed = |place: usize| {
            let speed = self.amounts[place] / span_s;
            (!self.unknown[place] && speed >= Measure::ALL[place].amount_min()).then_some(speed)
        };
        Speeds(std::array::from_fn(speed))
    }
}

/// Progress a second, by [`Measure::ALL`]; `None` where it is not known or comes in lumps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speeds([Option<f64>; Measure::ALL.len()]);

impl Speeds {
    /// How much faster it is than before, as a share, by the best measure that both know.
    pub(crate) fn gain_over(&self, before: &Speeds) -> Option<f64> {
        let mut both = self.0.iter().zip(&before.0);
        both.find_map(|(now, before)| now.zip(*before)).map(|(now, before)| now / before - 1.0)
    }
}

/// Of the instructions that all CPUs completed, those that the program is likely to have completed usefully.
fn of_the_host(program: &ProgramSample, seen: &Snapshot) -> Option<f64> {
    let all = seen.host.counters.instructions? as f64;
    let cpus = |share: fn(&TimeShares) -> Option<f64>| {
        nearly_all(program.threads.iter().map(|t| (busy(t), share(&t.shares).map(|s| s * t.span_ns as f64))))
            .map(|ns| ns / seen.span_ns.max(1) as f64)
    };
    let (running, user, spin) = (cpus(|s| s.running())?, cpus(|s| s.user)?, cpus(|s| s.spin)?);
    let part = running / (running + seen.host.others_busy?);
    (running > 0.0 && user > 0.0).then(|| all * part * (1.0 - spin / user).max(0.0))
}

/// How much a thread's amount weighs: its time on a CPU, in nanoseconds; all of its time where that is not known.
fn busy(thread: &ThreadSample) -> f64 {
    thread.shares.running().unwrap_or(1.0) * thread.span_ns as f64
}

/// The sum of the known amounts, if they stand for at least nine tenths of the weight. A thread that came and went
/// between two looks must not hide what all the others did.
fn nearly_all(amounts: impl Iterator<Item = (f64, Option<f64>)>) -> Option<f64> {
    let (mut sum, mut known, mut all) = (0.0, 0.0, 0.0);
    for (weight, amount) in amounts {
        all += weight;
        if let Some(amount) = amount {
            sum += amount;
            known += weight;
        }
    }
    (known > 0.0 && known >= 0.9 * all).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::sample;

    #[test]
    fn instructions_without_known_spin_are_no_measure() {
        let mut p = sample::program();
        sample::thread(&mut p, 0.5, 0.0, 0.5).counters.instructions = Some(1000);
        let mut seen = Snapshot { span_ns: 1_000_000_000, ..Snapshot::default() };
        assert_eq!(Measure::Instructions.amount(&p, &seen), None);
        p.threads[0].shares.spin = Some(0.125);
        assert_eq!(Measure::Instructions.amount(&p, &seen), Some(750.0));
        assert_eq!(Measure::UserTime.amount(&p, &seen), Some(0.375));
        assert_eq!(Measure::Regions.amount(&p, &seen), None);
        // Counted as a whole: others have half a CPU too, and a quarter of the program's user time is spinning.
        p.threads[0].counters.instructions = None;
        seen.host.counters.instructions = Some(1000);
        seen.host.others_busy = Some(0.5);
        assert_eq!(Measure::Instructions.amount(&p, &seen), Some(375.0));
    }
}
