// The first call refuses input for which the second never ends.
fn validate(steps: &[u64]) -> u64 {
    for s in steps {
        assert!(*s > 0, "a step is 0");
    }
    steps.len() as u64
}
fn walk(steps: &[u64]) -> u64 {
    let (mut at, mut n) = (0u64, 0u64);
    while at < 1000 {
        at = at.wrapping_add(steps[(n % 2) as usize]);
        n = n.wrapping_add(1);
    }
    n
}
fn main() {
    let steps = vec![0, 0];
    let a = validate(&steps);
    let b = walk(&steps);
    println!("{a} {b}");
}
