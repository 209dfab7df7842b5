// A variable whose destructor panics ends where it ended.
struct Check {
    v: Vec<u64>,
    at: usize,
    out: u64,
}

impl Drop for Check {
    fn drop(&mut self) {
        self.out = self.v[self.at];
    }
}

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
    let _check = Check { v: vec![1], at: v.len(), out: 0 };
    for x in &v {
        println!("{x}");
    }
    println!("before the end: {a}");
}
