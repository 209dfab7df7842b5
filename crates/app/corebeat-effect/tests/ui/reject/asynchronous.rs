//@ lib
// Asynchronous code, and calls that wait for it.
fn sum(v: &[u64]) -> u64 {
    let mut sum = 0;
    for x in v {
        sum ^= x;
    }
    sum
}

async fn later(v: &[u64]) -> u64 {
    sum(v)
}

pub async fn both(v: &[u64], w: &[u64]) -> u64 {
    let a = sum(v);
    let b = sum(w);
    let c = later(v).await;
    let d = later(w).await;
    a ^ b ^ c ^ d
}
