// A raw pointer in a type that may change threads.
#[derive(Clone, Copy)]
struct P(*const u64);
unsafe impl Send for P {}

fn main() {
    let v = [3u64, 1, 4];
    for x in &v {
        println!("{x}");
    }
    let t0 = 9;
    let list = [7u64, 8, t0];
    let p = P(list.as_ptr());
    let mut t = 0u64;
    for x in &v {
        t ^= x;
    }
    println!("{t}");
    println!("{}", unsafe { *p.0.add(2) });
}
