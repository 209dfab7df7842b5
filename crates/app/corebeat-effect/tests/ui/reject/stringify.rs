// A macro makes text of the code that it receives.
macro_rules! show {
    ($e:expr) => {
        println!("{} = {}", stringify!($e), $e)
    };
}
fn fib(n: u32) -> u64 {
    if n < 2 {
        return n as u64;
    }
    let a = fib(n - 1);
    a + slow(n - 2)
}
fn slow(n: u32) -> u64 {
    let mut s = 0;
    for i in 0..n {
        s += i as u64;
    }
    s
}
fn main() {
    show!(1 * (fib(5) + fib(6)));
    show!(fib(5) + fib(6));
}
