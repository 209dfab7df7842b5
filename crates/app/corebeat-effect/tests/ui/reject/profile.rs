//@ -Coverflow-checks=off
// overflow-checks = false in the dev profile (or debug-assertions off), true in the release profile
use std::panic::{AssertUnwindSafe, catch_unwind};
fn add(n: u8, k: u8) -> u8 {
    let (mut s, mut i) = (0u8, 0u8);
    while i < n {
        s = s + k;
        i = i + 1;
    }
    s
}
fn fill(v: &mut [usize; 3], n: usize) -> usize {
    let mut i = 0;
    while i < n {
        *v = [i, i, i];
        i = i + 1;
    }
    3
}
fn run(n: u8, data: &mut [usize; 3]) {
    let a = add(n, 200);
    let b = fill(data, 5);
    println!("{a} {b}");
}
fn main() {
    let mut data = [0; 3];
    let _ = catch_unwind(AssertUnwindSafe(|| run(2, &mut data)));
    println!("{data:?}");
}
