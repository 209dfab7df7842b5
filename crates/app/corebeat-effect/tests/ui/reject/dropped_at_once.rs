// The result of the first call is dropped before the second call.
struct Noisy(u64);
impl Drop for Noisy {
    fn drop(&mut self) {
        println!("drop {} {}", self.0, std::thread::panicking());
    }
}
fn f(n: u64) -> Noisy {
    let mut s = 0;
    for i in 0..n {
        s += i;
    }
    Noisy(s)
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
    let _ = f(4);
    let b = g(&v);
    println!("{b}");
}
