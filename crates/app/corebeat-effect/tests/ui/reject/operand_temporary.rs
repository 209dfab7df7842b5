// A temporary of an operand lives until the end of the statement.
struct Noisy(u64);
impl Drop for Noisy {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}
fn f(n: &Noisy) -> u64 {
    let mut s = 0;
    for i in 0..n.0 {
        s += i;
    }
    s
}
fn g(n: u64) -> u64 {
    let mut s = 0;
    for i in 0..n {
        s ^= i;
    }
    s
}
fn show(n: u64) {
    println!("{n}");
}
fn main() {
    show(f(&Noisy(3)) + g(20));
}
