// A panic of the first call ends the variable that the second one changes, so that a panic that is
// caught outside does not show the change.
fn check(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}

fn fill(v: &mut Vec<usize>) -> usize {
    for i in 0..5 {
        v.push(i);
    }
    v.len()
}

fn run(v: &[usize]) -> usize {
    let mut own = Vec::new();
    let a = check(v);
    let b = fill(&mut own);
    a + b + own.len()
}

fn main() {
    println!("{:?}", std::panic::catch_unwind(|| run(&[1, 0])));
    println!("{}", std::panic::catch_unwind(|| run(&[1, 9])).is_err());
}
