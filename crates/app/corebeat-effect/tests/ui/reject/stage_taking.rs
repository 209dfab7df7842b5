// Taking an item has an effect, which would come before the rest of earlier iterations.
struct Countdown(u64);

impl Iterator for Countdown {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        println!("next {}", self.0);
        self.0 = self.0.checked_sub(1)?;
        Some(self.0)
    }
}

fn cost(n: u64) -> u64 {
    (0..n % 20).fold(0, |sum, i| sum + i * i)
}

fn main() {
    for n in Countdown(3) {
        let x = cost(n);
        println!("{x}");
    }
}
