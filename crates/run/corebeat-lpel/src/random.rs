//! Reproducible chance, for deterministic runtimes.

use crate::scheduler::{Ready, Scheduler};

/// Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014 (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Another that goes its own way.
    pub(crate) fn fork(&self, number: u64) -> Random {
        Random(Random(self.0 ^ number.wrapping_mul(0xd134_2543_de82_ef95)).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `bound`, which is at least 1, exclusive.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// Any ready task may be next.
pub(crate) struct RandomOrder {
    tasks: Vec<Ready>,
    random: Random,
}

impl RandomOrder {
    pub(crate) fn new(random: Random) -> Self {
        RandomOrder { tasks: Vec::new(), random }
    }
}

impl Scheduler for RandomOrder {
    fn put(&mut self, task: Ready) {
        self.tasks.push(task);
    }

    fn fetch(&mut self) -> Option<Ready> {
        if self.tasks.is_empty() {
            return None;
        }
        let at = self.random.below(self.tasks.len());
        Some(self.tasks.swap_remove(at))
    }

    fn len(&self) -> usize {
        self.tasks.len()
    }
}
