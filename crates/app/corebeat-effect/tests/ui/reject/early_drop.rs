// The temporary value in a variable of the group ends after the print.
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("end of {}", self.0);
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
    let v = [3, 1, 4];
    let a = mix(&v, 1);
    let noisy = &Noisy(v.len() as u64);
    for x in &v {
        println!("{x}");
    }
    println!("{a}");
}
