// The first call panics (or ends the process) before the second would overflow the stack.
fn check(next: &[usize]) -> usize {
    for (i, n) in next.iter().enumerate() {
        if *n <= i {
            println!("cycle at {i}");
            std::process::exit(3);
        }
    }
    next.len()
}
fn depth(next: &[usize], at: usize) -> usize {
    if at >= next.len() { 0 } else { 1 + depth(next, next[at]) }
}
fn main() {
    let next = vec![1, 0];
    let a = check(&next);
    let b = depth(&next, 0);
    println!("{a} {b}");
}
