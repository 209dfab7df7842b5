// Fibonacci numbers by their definition: a recursion whose calls are a few instructions.

fn fib(n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    fib(n - 1) + fib(n - 2)
}

fn main() {
    let n = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(40);
    println!("fib({n}) = {}", fib(n));
}
