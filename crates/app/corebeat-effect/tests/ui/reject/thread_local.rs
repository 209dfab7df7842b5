// A thread-local variable.
use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

fn deeper(by: u32) -> u32 {
    for _ in 0..by {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
    }
    DEPTH.with(|depth| depth.get())
}

fn main() {
    let a = deeper(2);
    let b = deeper(3);
    println!("{a} {b}");
}
