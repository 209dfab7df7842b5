//! The load of the snet benches, which is equal for all subjects, and its expected result.

use crate::lpel::load::unordered;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Records with A that precede the records with B with which they form pairs.
pub(crate) const DISTANCE: u64 = 5;
/// Successive choices of a record. With this number, streams are a small part of the cost.
pub(crate) const CHOICES: u64 = 16;
/// The lower bits of a record that contain its counter. The upper bits contain its number.
pub(crate) const COUNTER_BITS: u32 = 16;

/// The limit below which `State` outputs no primes. Its square is the largest upper limit.
pub(crate) const PRIMES_FROM: u64 = 100;

/// The kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// `count` records pass through a star. The counter of each record states the number of its
    /// stages, up to `depth` + 1.
    Replication,
    /// Records with A and B form pairs, `count` times five.
    Synchronisation,
    /// As `Synchronisation`, but the value is the largest memory.
    Memory,
    /// The primes from `PRIMES_FROM` to `count` pass through filters with state.
    State,
    /// An image of `count` by `count` points, in `depth` strips.
    Mandelbrot,
    /// `count` records of `labels` labels choose among `depth` branches, `CHOICES` times.
    Routing,
    /// `count` records pass through a box.
    Box,
    /// `count` records are read.
    Read,
    /// `count` records are written.
    Write,
}

/// The text format of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Form {
    Xml,
    Json,
}

/// The content of records that are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fields {
    /// A number, a few words, and a tag.
    Small,
    /// One text of 64 KiB.
    Text,
    /// One array of 1,000 `double`.
    Array,
}

/// A work and its size.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) work: Work,
    pub(crate) workers: usize,
    /// Records, groups of five pairs, or points of a side of an image.
    pub(crate) count: u64,
    /// Stages of a star, strips of an image, or branches.
    pub(crate) depth: u64,
    /// Labels of a record.
    pub(crate) labels: u64,
    pub(crate) form: Form,
    pub(crate) fields: Fields,
    /// Shortest measured time. Laps are repeated until it is reached.
    pub(crate) least_ms: u64,
}

/// The outcome of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// Time of a lap.
    pub(crate) seconds: f64,
    /// The text that a lap reads or writes, or its memory.
    pub(crate) bytes: u64,
    pub(crate) checksum: u64,
}

impl Load {
    pub(crate) fn least(&self) -> Duration {
        Duration::from_millis(self.least_ms)
    }

    /// The unit of [`value`](Self::value), and whether higher values are better.
    pub(crate) fn unit(work: Work) -> (&'static str, bool) {
        match work {
            Work::Replication | Work::Synchronisation | Work::State => ("ms", false),
            Work::Memory => ("KiB", false),
            Work::Mandelbrot => ("s", false),
            Work::Routing => ("ns/choice", false),
            Work::Box => ("ns/record", false),
            Work::Read | Work::Write => ("MB/s", true),
        }
    }

    /// The reported value of an outcome.
    pub(crate) fn value(&self, outcome: &Outcome) -> f64 {
        let Outcome { seconds, bytes, .. } = *outcome;
        match self.work {
            Work::Replication | Work::Synchronisation | Work::State => seconds * 1e3,
            Work::Memory => bytes as f64 / 1024.0,
            Work::Mandelbrot => seconds,
            Work::Routing => seconds * 1e9 / (self.count * CHOICES) as f64,
            Work::Box => seconds * 1e9 / self.count as f64,
            Work::Read | Work::Write => bytes as f64 / seconds / 1e6,
        }
    }

    /// The record of this number for a star: its number, and its counter.
    pub(crate) fn record(&self, number: u64) -> i32 {
        ((number << COUNTER_BITS) | (unordered(0, number) % (self.depth + 1))) as i32
    }

    /// The records that form pairs: whether a record has B, and its number.
    pub(crate) fn halves(&self) -> impl Iterator<Item = (bool, i32)> + Send + 'static {
        let of =
            |time: u64, b| (time * DISTANCE..(time + 1) * DISTANCE).map(move |i| (b, i as i32));
        (0..self.count)
            .flat_map(move |time| [false, true].into_iter().flat_map(move |b| of(time, b)))
    }

    /// The checksum of a lap. `None` if only the work itself yields the checksum.
    pub(crate) fn checksum(&self) -> Option<u64> {
        match self.work {
            Work::Replication | Work::Routing => Some((0..self.count).fold(0, unordered)),
            Work::Synchronisation | Work::Memory => {
                let pairs = (0..self.count * DISTANCE).map(|i| (i as i32, i as i32));
                Some(pairs.fold(0, paired))
            }
            Work::State => {
                let is_prime = |n: &u64| (2..PRIMES_FROM).all(|d| !n.is_multiple_of(d));
                Some((PRIMES_FROM + 1..=self.count).filter(is_prime).fold(0, unordered))
            }
            Work::Box => Some((1..=self.count).fold(0, unordered)),
            Work::Read => Some(self.count),
            Work::Mandelbrot | Work::Write => None,
        }
    }
}

/// The remaining depth of a record in a star.
pub(crate) fn counter(record: i32) -> i32 {
    record & ((1 << COUNTER_BITS) - 1)
}

/// Adds a pair to a sum that does not depend on the order of pairs.
pub(crate) fn paired(sum: u64, (a, b): (i32, i32)) -> u64 {
    unordered(sum, ((a as u64) << 32) | b as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(work: Work) -> Load {
        let (form, fields) = (Form::Xml, Fields::Array);
        Load { work, workers: 1, count: 5, depth: 7, labels: 4, form, fields, least_ms: 3 }
    }

    #[test]
    fn record_holds_its_number_and_a_counter_up_to_the_depth() {
        let load = load(Work::Replication);
        for number in [0, 1, 999, 32_767] {
            let record = load.record(number);
            assert_eq!((record >> COUNTER_BITS) as u64, number);
            assert!(counter(record) as u64 <= load.depth);
        }
    }

    #[test]
    fn halves_of_a_pair_are_a_distance_apart() {
        let halves: Vec<(bool, i32)> = load(Work::Synchronisation).halves().collect();
        assert_eq!(halves.len() as u64, 2 * 5 * DISTANCE);
        assert_eq!((halves[4], halves[5], halves[10]), ((false, 4), (true, 0), (false, 5)));
    }
}
