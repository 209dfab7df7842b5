// Names that mean another variable outside of the loop, or behind the statements.
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("end of {}", self.0);
    }
}

fn cost(n: u64) -> u64 {
    let mut x = n;
    for i in 0..n % 20 {
        x = x.rotate_left(3) ^ i;
    }
    x
}

fn main() {
    let mut x = 1u64;
    for mut x in 0..5u64 {
        x ^= cost(3);
    }
    println!("{x}");
    x ^= 1;
    let a = cost(5);
    let held = Noisy(a.count_ones() as u64);
    println!("{a} {x}");
    let b = cost(6);
    let held = Noisy(7);
    let held = cost(8);
    println!("{b} {held}");
}
