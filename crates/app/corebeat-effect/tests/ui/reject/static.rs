// A static that both calls change.
use std::sync::atomic::{AtomicUsize, Ordering};

static NEXT: AtomicUsize = AtomicUsize::new(0);

fn names(n: usize) -> Vec<usize> {
    let mut names = Vec::new();
    for _ in 0..n {
        names.push(NEXT.fetch_add(1, Ordering::SeqCst));
    }
    names
}

fn main() {
    let a = names(2);
    let b = names(3);
    println!("{a:?} {b:?}");
}
