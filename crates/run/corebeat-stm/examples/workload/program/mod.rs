//! The programs, and what they have in common.

mod intruder;
mod kmeans;
mod labyrinth;
mod vacation;

use std::time::Duration;

/// What a program is called, and what runs it on so many threads, with so many times as much to do as at least: how long its
/// threads took, from before the first begins to after the last has ended. It panics if its result is wrong.
pub(crate) type Program = (&'static str, fn(usize, usize) -> Duration);

pub(crate) const PROGRAMS: [Program; 4] = [
    ("kmeans", kmeans::run),
    ("vacation", vacation::run),
    ("intruder", intruder::run),
    ("labyrinth", labyrinth::run),
];

/// Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, 2014 (SplitMix64).
struct Random(u64);

impl Random {
    /// From 0 to `bound`, exclusive.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|last| items.swap(last, self.below(last + 1)));
    }
}
