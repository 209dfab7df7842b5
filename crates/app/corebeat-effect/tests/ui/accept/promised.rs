//@ options=no-catch,no-panic-hook
// A program with unsafe code elsewhere, for which the user has promised that this code handles no
// panics.
fn work(values: &[u64], factor: u64) -> u64 {
    let mut sum = 0;
    for value in values {
        sum += value * factor;
    }
    sum
}

fn change(values: &mut [u64]) -> u64 {
    let mut at = 0;
    for value in values {
        *value += at;
        at += 1;
    }
    at
}

fn first(values: &[u64]) -> u64 {
    // SAFETY: the caller gives values.
    unsafe { *values.get_unchecked(0) }
}

fn both(values: &[u64], others: &mut [u64]) -> u64 {
    let a = work(values, 3);
    let b = change(others);
    a + b
}

fn main() {
    let values: Vec<u64> = (0..100).collect();
    let mut others = values.clone();
    println!("{} {}", both(&values, &mut others), first(&others));
}
