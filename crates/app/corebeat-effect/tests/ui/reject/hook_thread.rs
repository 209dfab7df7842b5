// The hook of the user shows that the thread differs
fn f(v: &[u64]) -> u64 {
    let mut s = 0;
    for x in v {
        s += x;
    }
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
    std::panic::set_hook(Box::new(|_| println!("panic in {:?}", std::thread::current().name())));
    let v = vec![1];
    let a = f(&v);
    let b = g(&v);
    println!("{a} {b}");
}
