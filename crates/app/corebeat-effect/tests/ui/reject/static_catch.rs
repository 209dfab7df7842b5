// A closure in a static catches the panic of the first call.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex};
static OUT: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let mut data = vec![7];
    let _ = catch_unwind(AssertUnwindSafe(|| run(&[1, 9], &mut data)));
    data
});
fn check(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}
fn fill(v: &mut Vec<usize>) -> usize {
    for i in 0..5 {
        v.push(i);
    }
    v.len()
}
fn run(v: &[usize], data: &mut Vec<usize>) -> usize {
    let a = check(v);
    let b = fill(data);
    a + b
}
fn main() {
    println!("{:?}", *OUT);
}
