// Values that end with a closure.
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("end of {}", self.0);
    }
}

fn cost(n: u64, by: &Noisy) -> u64 {
    let mut x = n;
    for i in 0..n % 20 {
        x = x.rotate_left(3) ^ i ^ by.0;
    }
    x
}

fn main() {
    let v = [3u64, 1, 4];
    let noisy = Noisy(1);
    let n = v.iter().fold(0u64, move |a, x| a ^ cost(*x, &noisy));
    println!("{n}");
    let other = Noisy(2);
    let c = v.iter().filter(move |x| cost(**x, &other) % 2 == 0).count();
    println!("{c}");
}
