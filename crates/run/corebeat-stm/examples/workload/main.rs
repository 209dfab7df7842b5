//! Programs of the kinds that transactional memory is measured with, on two threads, with results that are checked; and how
//! often their transactions failed.
//!
//! After Cao Minh, Chung, Kozyrakis, Olukotun, *STAMP: Stanford transactional applications for multi-processing*, 2008: what
//! they do, on data made here. `cargo run --release -p corebeat-stm --example workload [-- THREADS]`.

mod intruder;
mod kmeans;
mod labyrinth;
mod vacation;

use corebeat_stm::{Counters, counters};

/// What a program is called, and what runs it on so many threads: it panics if its result is wrong.
type Workload = (&'static str, fn(usize));

const WORKLOADS: [Workload; 4] = [
    ("kmeans", kmeans::run),
    ("vacation", vacation::run),
    ("intruder", intruder::run),
    ("labyrinth", labyrinth::run),
];

fn main() {
    let threads = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 2,
        Some(Ok(threads @ 1..=64)) => threads,
        Some(_) => {
            eprintln!("workload: THREADS is a number from 1 to 64");
            std::process::exit(2);
        }
    };
    println!("{:<10} {:>10} {:>10} {:>16}", "", "commits", "aborts", "aborts / commit");
    for (name, run) in WORKLOADS {
        let before = counters();
        run(threads);
        let (commits, aborts) = since(before);
        println!("{name:<10} {commits:>10} {aborts:>10} {:>16.5}", aborts as f64 / commits as f64);
    }
}

fn since(before: Counters) -> (u64, u64) {
    let after = counters();
    (after.commits - before.commits, after.aborted() - before.aborted())
}

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

#[test]
fn workloads_give_the_right_results() {
    for (_, run) in WORKLOADS {
        run(1);
        run(3);
    }
}
