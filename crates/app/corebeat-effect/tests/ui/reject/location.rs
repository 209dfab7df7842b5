// The place of a call as a value.
use std::panic::Location;
#[track_caller]
fn at(n: u64) -> (u32, u32, u64) {
    let l = Location::caller();
    let mut s = 0;
    for i in 0..n {
        s += i;
    }
    (l.line(), l.column(), s)
}
fn main() {
    let a = at(3);
    let b = at(4);
    println!("{a:?} {b:?}");
}
