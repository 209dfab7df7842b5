// Two calls that read one value and write two others.
fn add(from: &[u64], to: &mut Vec<u64>) -> usize {
    for x in from {
        to.push(x.wrapping_mul(3));
    }
    to.len()
}

fn main() {
    let from: Vec<u64> = (0..10).collect();
    let (mut left, mut right) = (Vec::new(), vec![1]);
    let a = add(&from, &mut left);
    let b = add(&from, &mut right);
    println!("{a} {b} {left:?} {right:?}");
}
