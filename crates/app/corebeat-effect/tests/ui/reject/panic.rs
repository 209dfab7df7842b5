// A panic of the first call, after which a caller reads what the second one has changed.
use std::panic::{AssertUnwindSafe, catch_unwind};

fn check(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}

fn fill(v: &mut Vec<usize>) {
    for i in 0..5 {
        v.push(i);
    }
}

fn run(v: &[usize], to: &mut Vec<usize>) -> usize {
    let at = check(v);
    fill(to);
    at
}

fn main() {
    let mut to = Vec::new();
    let result = catch_unwind(AssertUnwindSafe(|| run(&[9], &mut to)));
    println!("{} {to:?}", result.is_err());
}
