// The rewritten calls would be those of this module.
mod parallel {
    pub mod corebeat_future {
        pub fn join<A, B>(a: impl FnOnce() -> A, b: impl FnOnce() -> B) -> (A, B) {
            println!("mine");
            (a(), b())
        }
    }
}

use parallel::*;

fn work(seed: u64) -> u64 {
    (0..1000u64).fold(seed, |sum, n| sum.wrapping_mul(31).wrapping_add(n))
}

fn main() {
    let a = work(1);
    let b = work(2);
    println!("{a} {b}");
    corebeat_future::join(|| (), || ());
}
