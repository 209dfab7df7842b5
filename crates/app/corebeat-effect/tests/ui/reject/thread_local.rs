// A thread-local variable, which each thread initialises for itself.
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static NUMBER: u64 = NEXT.fetch_add(1, Ordering::SeqCst);
}

fn number(times: u64) -> u64 {
    let mut sum = 0;
    for _ in 0..times {
        sum += NUMBER.with(|number| *number);
    }
    sum
}

fn main() {
    let a = number(2);
    let b = number(3);
    println!("{a} {b}");
}
