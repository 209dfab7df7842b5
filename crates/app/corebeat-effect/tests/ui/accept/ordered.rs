// The first call has effects, which keep their order. The second has none.
fn show(v: &[u64]) -> usize {
    for x in v {
        println!("{x}");
    }
    v.len()
}

fn solve(v: &[u64]) -> u64 {
    v.iter().fold(1, |a, b| a ^ b.rotate_left(3))
}

fn main() {
    let v = vec![1, 2, 3];
    let a = show(&v);
    let b = solve(&v);
    println!("{a} {b}");
}
