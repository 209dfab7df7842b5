// The hook of panics counts, and a later item panics before the loop ends.
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

static PANICS: AtomicU64 = AtomicU64::new(0);

fn cost(values: &[u64], n: usize) -> u64 {
    let mut sum = 0;
    for i in [values[n], 5] {
        sum += i;
    }
    sum
}

fn main() {
    std::panic::set_hook(Box::new(|_| {
        PANICS.fetch_add(1, SeqCst);
    }));
    let values = [3, 4, 5];
    for n in 0..9usize {
        let x = cost(&values, n);
        println!("{x}");
        if x == 10 {
            break;
        }
    }
    println!("{}", PANICS.load(SeqCst));
}
