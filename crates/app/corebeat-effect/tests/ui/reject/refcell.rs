// A borrow that panics, after which a caller reads what the second call has changed.
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
fn note(log: &RefCell<Vec<usize>>) -> usize {
    for i in 0..2 {
        log.borrow_mut().push(i);
    }
    2
}
fn fill(v: &mut Vec<usize>) -> usize {
    for i in 0..5 {
        v.push(i);
    }
    v.len()
}
fn run(log: &RefCell<Vec<usize>>, data: &mut Vec<usize>) -> usize {
    let a = note(log);
    let b = fill(data);
    a + b
}
fn main() {
    let log = RefCell::new(vec![]);
    let mut data = vec![];
    let held = log.borrow();
    let _ = catch_unwind(AssertUnwindSafe(|| run(&log, &mut data)));
    println!("{data:?}");
    drop(held);
}
