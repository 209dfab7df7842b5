// Macros count the tokens that they receive, or select by them.
macro_rules! eval {
    ({ $($t:tt)* }) => {
        "block"
    };
    ($e:expr) => {{
        let _ = $e;
        "expression"
    }};
}
macro_rules! count { ($($t:tt)*) => { [$(stringify!($t)),*].len() } }
fn slow(n: u64) -> u64 {
    let mut s = 0;
    for i in 0..n {
        s ^= i;
    }
    s
}
macro_rules! both { ($($t:tt)*) => { ($($t)*, count!($($t)*)) } }
fn main() {
    println!("{:?}", both!((slow(3), slow(4))));
    println!("{}", eval!(slow(3) + slow(4)));
}
