// `Some` and `None` are variants of this program where the rewritten code would use them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Choice {
    Some(u64),
    None,
}

use Choice::*;

fn work(seed: u64) -> u64 {
    (0..1000u64).fold(seed, |sum, n| sum.wrapping_mul(31).wrapping_add(n))
}

fn main() {
    let numbers: Vec<u64> = (0..8).collect();
    let most = numbers.iter().map(|n| work(*n)).max();
    println!("{most:?} {:?}", [None, Some(1)]);
}
