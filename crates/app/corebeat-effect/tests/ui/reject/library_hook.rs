//@ lib options=no-catch
// A program that uses the library has a hook that shows the thread of the second call.
fn check(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}

pub fn both(v: &[usize], w: &[usize]) -> usize {
    let a = check(v);
    let b = check(w);
    a + b
}

#[cfg(run)]
pub fn main() {
    std::panic::set_hook(Box::new(|_| println!("{:?}", std::thread::current().name())));
    println!("{}", both(&[0], &[1, 9]));
}
