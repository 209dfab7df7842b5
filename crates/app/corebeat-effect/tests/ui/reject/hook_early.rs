// The hook would run although the first part does not end.
fn spin(mut n: u64) -> u64 {
    while n != 1 {
        n = if n & 1 == 0 { n.wrapping_shr(1) } else { n.wrapping_mul(3).wrapping_add(1) };
    }
    n
}

fn main() {
    std::panic::set_hook(Box::new(|_| {
        println!("hook");
        std::process::exit(3);
    }));
    let v = [3usize, 1, 4];
    let n = std::env::args().count() as u64 - 1;
    let a = spin(n);
    let mut t = 0;
    for x in &v {
        t ^= v[*x];
    }
    println!("{a} {t}");
}
