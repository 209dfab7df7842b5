//! Typical benchmarks of transactional memory with checked results; prints the frequency of aborts.
//!
//! After Cao Minh, Chung, Kozyrakis, Olukotun, *STAMP: Stanford transactional applications for
//! multi-processing*, 2008: the algorithms, on generated data. `cargo run --release -p corebeat-stm
//! --example workload [-- THREADS]`.

mod program;

use corebeat_stm::{Counters, counters};
use program::PROGRAMS;

fn main() {
    let threads = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 2,
        Some(Ok(threads @ 1..=64)) => threads,
        Some(_) => {
            eprintln!("workload: THREADS must be a number from 1 to 64");
            std::process::exit(2);
        }
    };
    println!("{:<10} {:>10} {:>10} {:>16}", "", "commits", "aborts", "aborts / commit");
    for (name, run) in PROGRAMS {
        let before = counters();
        run(threads, 1);
        let (commits, aborts) = since(before);
        println!("{name:<10} {commits:>10} {aborts:>10} {:>16.5}", aborts as f64 / commits as f64);
    }
}

fn since(before: Counters) -> (u64, u64) {
    let after = counters();
    (after.commits - before.commits, after.aborts.total() - before.aborts.total())
}

#[test]
fn workloads_compute_the_expected_results() {
    for (_, run) in PROGRAMS {
        run(1, 1);
        run(3, 1);
    }
}
