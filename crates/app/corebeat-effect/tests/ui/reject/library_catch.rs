//@ lib options=no-panic-hook
// A program that uses the library catches a panic of the first call, and reads the data.
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

#[cfg(run)]
pub fn main() {
    let mut data = Vec::new();
    let run = std::panic::AssertUnwindSafe(|| run(&[1, 9], &mut data));
    println!("{:?}", std::panic::catch_unwind(run).is_err());
    println!("{data:?}");
}
