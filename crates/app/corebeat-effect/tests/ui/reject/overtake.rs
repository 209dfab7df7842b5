// The call may panic before the statements behind it print.
fn index(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}

fn main() {
    let v = vec![1, 9];
    let a = index(&v);
    for x in &v {
        println!("{x}");
    }
    println!("{a}");
}
