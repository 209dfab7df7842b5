//@ --edition=2018
// `job.data` moves out of the box; the closure captures the whole box and drops `job.end` early.
struct Noisy(&'static str);
impl Drop for Noisy {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}
struct Job {
    data: Vec<u64>,
    end: Noisy,
}
fn sum(v: Vec<u64>) -> u64 {
    let mut s = 0;
    for x in v {
        s ^= x;
    }
    s
}
fn other(v: &[u64]) -> u64 {
    let mut s = 0;
    for x in v {
        s ^= x.rotate_left(3);
    }
    s
}
fn main() {
    let v = vec![1, 2, 3];
    let job = Job { data: vec![4, 5], end: Noisy("end") };
    let a = sum(job.data);
    let b = other(&v);
    println!("{a} {b}");
}
