//! The load of the lpel benches, which is equal for all subjects, and its expected result.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::time::Duration;

/// Capacity of a stream between two stages of a pipeline, in records.
pub(crate) const BUFFER: usize = 10;
/// Capacity of the single stream of the works `Stream` and `Batch`, and of rings, in items.
pub(crate) const CAPACITY: usize = 1024;
/// Items per batch.
pub(crate) const BATCH: usize = 64;
/// Tasks that are spawned before the first of them is joined.
pub(crate) const GROUP: u64 = 1000;
/// A child prints this text when all its tasks are blocked.
pub(crate) const READY: &str = "ready";

const SEED: u64 = 0x636f_7265_6265_6174;

/// The kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Records pass all stages of a pipeline.
    Plain,
    /// Each stage decrements the counter of a record. A record with counter 0 leaves to a collector
    /// of all stages.
    Leave,
    /// Two tasks pass a number back and forth.
    Pingpong,
    /// One task writes to another, one item at a time.
    Stream,
    /// One task writes to another, many items at a time.
    Batch,
    /// Two threads spin, and share only the ring. One item passes at a time.
    Ring,
    /// As `Ring`, with many items at a time.
    RingBatch,
    /// Tasks are spawned and joined, in groups.
    Spawn,
    /// Tasks wait, each on its own stream.
    Memory,
    /// As `Memory`, until the input ends.
    Idle,
}

/// The monitoring of Corebeat's workers. The levels are those of Prokesch, *A Light-Weight Parallel
/// Execution Layer for Shared-Memory Stream Processing* (2011), section 5.4.3, with a listener that
/// adds figures. Two more variants write the highest level as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Watched {
    A,
    B,
    C,
    D,
    /// Level D as text. Records that arrive faster than they are written are lost.
    Text,
    /// Level D as text, for which workers wait.
    WholeText,
}

/// A work and its size.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) work: Work,
    pub(crate) workers: usize,
    /// Records, round trips, items, or tasks of a lap.
    pub(crate) count: u64,
    /// Stages of a pipeline.
    pub(crate) depth: u64,
    /// Shortest measured time. Laps are repeated until it is reached.
    pub(crate) least_ms: u64,
    pub(crate) watched: Option<Watched>,
}

impl Load {
    pub(crate) fn least(&self) -> Duration {
        Duration::from_millis(self.least_ms)
    }

    /// The record that the source of a pipeline sends. The upper half contains the number of the
    /// record, and the lower half its counter.
    pub(crate) fn record(&self, number: u64) -> u64 {
        let counter =
            if self.work == Work::Leave { mix(SEED.wrapping_add(number)) % self.depth } else { 0 };
        number << 32 | counter
    }

    /// Number of operations in a lap. The value is the time of one operation.
    pub(crate) fn operations(&self) -> u64 {
        match self.work {
            Work::Plain => self.count * self.depth,
            Work::Leave => (0..self.count).map(|i| counter(self.record(i)) + 1).sum(),
            _ => self.count,
        }
    }

    /// The checksum of a lap.
    pub(crate) fn checksum(&self) -> u64 {
        match self.work {
            Work::Plain => {
                (0..self.count).fold(0, |sum, i| ordered(sum, self.record(i) + self.depth))
            }
            // A record leaves at the stage whose number is its initial counter.
            Work::Leave => (0..self.count).fold(0, |sum, i| unordered(sum, self.record(i))),
            Work::Pingpong => self.count,
            Work::Stream | Work::Batch | Work::Ring | Work::RingBatch => {
                (0..self.count).fold(0, ordered)
            }
            Work::Spawn | Work::Memory | Work::Idle => (0..self.count).sum(),
        }
    }
}

/// The counter of a record.
pub(crate) fn counter(record: u64) -> u64 {
    record & 0xffff_ffff
}

/// Adds an item to a sum that depends on the order of items.
pub(crate) fn ordered(sum: u64, item: u64) -> u64 {
    sum.rotate_left(5) ^ item
}

/// Adds an item to a sum that does not depend on the order of items.
pub(crate) fn unordered(sum: u64, item: u64) -> u64 {
    sum.wrapping_add(mix(item))
}

/// The output function of SplitMix64: Steele, Lea and Flood, *Fast Splittable Pseudorandom Number
/// Generators* (2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Reports that the tasks are blocked, and waits until the input ends. Meanwhile the parent
/// measures CPU time.
pub(crate) fn hold() {
    println!("{READY}");
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(work: Work) -> Load {
        Load { work, workers: 1, count: 5, depth: 7, least_ms: 3, watched: Some(Watched::D) }
    }

    #[test]
    fn leave_draws_counters_below_the_depth() {
        let load = load(Work::Leave);
        let counters: Vec<u64> = (0..load.count).map(|i| counter(load.record(i))).collect();
        assert!(counters.iter().all(|&c| c < load.depth), "{counters:?}");
        assert_eq!(load.operations(), counters.iter().sum::<u64>() + load.count);
    }

    #[test]
    fn checksum_depends_on_order_only_if_order_is_kept() {
        assert_ne!(ordered(ordered(0, 1), 2), ordered(ordered(0, 2), 1));
        assert_eq!(unordered(unordered(0, 1), 2), unordered(unordered(0, 2), 1));
        assert_ne!(load(Work::Plain).checksum(), load(Work::Leave).checksum());
    }
}
