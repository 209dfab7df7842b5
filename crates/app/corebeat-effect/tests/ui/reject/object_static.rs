// One of the implementations behind the trait object changes a static.
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);

trait Source: Sync {
    fn number(&self) -> u64;
}

struct Fixed(u64);

struct Next;

impl Source for Fixed {
    fn number(&self) -> u64 {
        self.0
    }
}

impl Source for Next {
    fn number(&self) -> u64 {
        NEXT.fetch_add(1, Ordering::SeqCst)
    }
}

fn numbers(sources: &[&dyn Source]) -> Vec<u64> {
    let mut list = Vec::new();
    for source in sources {
        list.push(source.number());
    }
    list
}

fn main() {
    let a = numbers(&[&Next, &Fixed(7)]);
    let b = numbers(&[&Next, &Next]);
    println!("{a:?} {b:?}");
}
