//@ lib options=no-catch,no-panic-hook
// The library itself catches the panic, in a generic function.
use std::panic::{AssertUnwindSafe, catch_unwind};

fn index(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}

fn scale(data: &mut Vec<u64>) {
    for x in data.iter_mut() {
        *x ^= 5;
    }
}

fn work(data: &mut Vec<u64>, other: &[usize]) -> usize {
    let a = index(other);
    scale(data);
    a
}

pub fn guarded<T: Copy>(data: &mut Vec<u64>, other: &[usize], t: T) -> T {
    let _ = catch_unwind(AssertUnwindSafe(|| work(data, other)));
    t
}

#[cfg(run)]
fn main() {
    let mut data = vec![1, 2];
    guarded(&mut data, &[9], 1);
    println!("{data:?}");
}
