//@ -Cpanic=abort
// A panic of the second part would end the process before the first part has printed.
fn show(v: &[u64]) -> u64 {
    let mut n = 0u64;
    for x in v {
        println!("{x}");
        n = n.wrapping_add(1);
    }
    n
}

fn main() {
    let v = [3u64, 1, 4];
    let n = std::env::args().count();
    let a = show(&v);
    let mut t = 0;
    for x in &v {
        t ^= v[*x as usize * n];
    }
    println!("{a} {t}");
}
