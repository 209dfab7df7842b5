// hash of an address, in safe code: `Hash for *const T`, `Ord for *const T`
use std::collections::BTreeMap;
fn place(n: u64) -> u64 {
    let x = [0u8; 16];
    let p: *const u8 = &x[0];
    let mut s = 0;
    for _ in 0..n {
        s = p.addr() as u64;
    }
    s >> 23
}
fn main() {
    let _: BTreeMap<u8, u8> = BTreeMap::new();
    let a = place(3);
    let b = place(4);
    println!("{}", a == b);
}
