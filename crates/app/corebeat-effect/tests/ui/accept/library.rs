//@ lib options=no-panic-hook,no-catch
// The user promises that no program has a hook of panics, and that none reads what a panic leaves.
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

pub fn run(v: &[usize], data: &mut Vec<usize>) -> usize {
    let a = check(v);
    let b = fill(data);
    a + b
}

pub fn both(v: &[usize], w: &[usize]) -> usize {
    check(v) + check(w)
}

pub fn main() {
    let mut data = Vec::new();
    let sum = run(&[1, 0], &mut data);
    println!("{sum} {} {data:?}", both(&[0], &[1, 0]));
}
