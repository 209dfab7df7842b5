// The hook reads a thread-local variable (a name of the present job), as loggers do
use std::cell::Cell;
thread_local! { static JOB: Cell<u32> = const { Cell::new(0) }; }
fn f(v: &[u64]) -> u64 {
    let mut s = 0;
    for x in v {
        s += x;
    }
    s
}
fn g(v: &[u64]) -> u64 {
    let mut s = 0;
    for i in 0..4 {
        s ^= v[i];
    }
    s
}
fn main() {
    JOB.with(|j| j.set(7));
    std::panic::set_hook(Box::new(|_| println!("panic in job {}", JOB.with(|j| j.get()))));
    let v = vec![1];
    let a = f(&v);
    let b = g(&v);
    println!("{a} {b}");
}
