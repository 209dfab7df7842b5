//! The object graph: objects, their processors, and the targets of their links. The graph is equal
//! for all subjects, because a number determines each random draw, independently of the order of
//! draws.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Full binary trees, one per processor (figure 2).
    Trees,
    /// One ring of objects on random processors, created in ring order (figure 3).
    Ring,
    /// The same ring, created in random order.
    Shuffled,
    /// Ten random links per object (figure 4).
    Links,
    /// Trees that their processors keep. All processors except the first are dropped.
    Dead,
    /// Trees, and calls during their collection.
    Pause,
    /// Actors in rows of ten, each of which refers to the next.
    Chain,
    /// Rows whose last actor refers to the first.
    Cycle,
}

pub(crate) struct Plan {
    pub(crate) work: Work,
    pub(crate) objects: usize,
    pub(crate) processors: usize,
}

/// A random number below `n` that `number` determines. Steele, Lea, Flood, *Fast splittable
/// pseudorandom number generators*, 2014.
fn draw(number: usize, n: usize) -> usize {
    let mut z = (number as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * n as u128) >> 64) as usize
}

/// The ranges of the numbers that determine draws. Each kind of draw has its own range.
const LINKS: usize = 1 << 40;
const ORDER: usize = 2 << 40;

impl Plan {
    /// The objects of each processor.
    pub(crate) fn share(&self) -> Vec<Vec<usize>> {
        let mut share = vec![Vec::new(); self.processors];
        for object in 0..self.objects {
            let processor = match self.work {
                Work::Ring | Work::Shuffled | Work::Links => draw(object, self.processors),
                _ => object * self.processors / self.objects,
            };
            share[processor].push(object);
        }
        share
    }

    /// The successor of each object in a ring.
    pub(crate) fn ring(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.objects).collect();
        if self.work == Work::Shuffled {
            (1..self.objects).rev().for_each(|n| order.swap(n, draw(ORDER + n, n + 1)));
        }
        let mut next = vec![0; self.objects];
        order.iter().zip(order.iter().cycle().skip(1)).for_each(|(from, to)| next[*from] = *to);
        next
    }

    /// The target of a random link.
    pub(crate) fn link(&self, object: usize, side: usize) -> usize {
        draw(LINKS + 16 * object + side, self.objects)
    }
}
