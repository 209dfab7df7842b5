// A raw pointer to a variable that a scope would move.
fn mix(v: &[u64], by: u64) -> u64 {
    let mut x = by;
    for y in v {
        x = x.rotate_left(7) ^ y;
    }
    x
}

fn main() {
    let v = [3u64, 1, 4];
    let a = mix(&v, 1);
    let mut buffer = [7u64, 8, 9];
    let p = &raw mut buffer;
    for x in &v {
        println!("{x}");
    }
    unsafe { (*p)[1] = 5 };
    println!("{a} {buffer:?}");
}
