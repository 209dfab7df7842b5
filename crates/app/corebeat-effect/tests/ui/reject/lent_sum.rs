// A destructor reads a part of the result through a pointer.
struct Report(*const u64);

impl Drop for Report {
    fn drop(&mut self) {
        // SAFETY: the variable outlives this value.
        println!("until now: {}", unsafe { *self.0 });
    }
}

fn cost(n: usize, v: &[usize]) -> u64 {
    let mut x = 1u64;
    for i in 0..5u64 {
        x = x.rotate_left(3) ^ i ^ v[n] as u64;
    }
    x
}

fn main() {
    let v = [1usize, 2, 9];
    let mut total = 0u64;
    let _report = Report(&raw mut total);
    for x in &v {
        total ^= cost(*x, &v);
    }
    println!("done");
}
