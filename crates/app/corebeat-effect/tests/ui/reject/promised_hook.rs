//@ options=no-catch,no-panic-hook
// A promise about a program covers only code that the analysis cannot follow: this program sets
// a hook, and catches a panic.
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

static SEEN: AtomicU64 = AtomicU64::new(0);

fn work(values: &[u64]) -> u64 {
    let mut sum = 0;
    for value in values {
        sum += 100 / value;
    }
    sum
}

fn change(values: &mut [u64]) -> u64 {
    let mut at = 0;
    for value in values {
        *value += 1;
        at += 100 / *value;
    }
    at
}

fn both(values: &[u64], others: &mut [u64]) -> u64 {
    let a = work(values);
    let b = change(others);
    a + b
}

fn main() {
    std::panic::set_hook(Box::new(|_| {
        SEEN.fetch_add(1, SeqCst);
    }));
    let mut others = vec![5, 6, 7];
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| both(&[0], &mut others)));
    println!("{} {others:?} {}", caught.is_err(), SEEN.load(SeqCst));
}
