// The first call may refuse the number that gives the time of the second one.
fn checked(n: u64) -> u64 {
    assert!(n < 1000, "too many");
    let mut sum = 0;
    for i in 0..n {
        sum += i;
    }
    sum
}

fn folded(n: u64) -> u64 {
    let mut all = 0;
    for i in 0..n {
        all ^= i * i;
    }
    all
}

fn main() {
    let n = 100;
    let a = checked(n);
    let b = folded(n);
    println!("{a} {b}");
}
