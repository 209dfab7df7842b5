// A closure would take a value whose destructor panics.
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

fn main() {
    let v = [3u64, 1, 4];
    let check = Check { v: vec![1], at: v.len(), out: 0 };
    for x in &v {
        println!("{x}");
        if *x == 9 {
            drop(check);
            break;
        }
    }
    let mut t = 0;
    for x in &v {
        t ^= x;
    }
    println!("{t}");
}
