// The first call sets the hook that a panic of the second one runs.
fn install(v: &[u64]) -> u64 {
    let mut s = 0;
    for x in v {
        s += x;
    }
    std::panic::set_hook(Box::new(|_| println!("my hook")));
    s
}
fn g(v: &[u64]) -> u64 {
    let mut s = 0;
    for i in 0..4 {
        s ^= v[i];
    }
    s
}
fn main() {
    let v = vec![1];
    let a = install(&v);
    let b = g(&v);
    println!("{a} {b}");
}
