// A raw pointer to a variable of the group survives the group.
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
    let list = vec![7u64, 8, 9];
    let p = list.as_ptr();
    let mut t = 0;
    for x in &v {
        t ^= x;
        println!("{x}");
    }
    println!("{a} {t}");
    // Sound: `list` lives until the end of `main`.
    println!("{}", unsafe { *p.add(1) });
}
