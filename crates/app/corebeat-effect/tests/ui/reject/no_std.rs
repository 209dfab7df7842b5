//@ lib
// The runtime of futures needs threads.
#![no_std]

fn sum(v: &[u64]) -> u64 {
    let mut sum = 0;
    for x in v {
        sum ^= x;
    }
    sum
}

pub fn both(v: &[u64], w: &[u64]) -> (u64, u64) {
    let a = sum(v);
    let b = sum(w);
    (a, b)
}
