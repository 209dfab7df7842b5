// The destructor of one type behind the trait object prints.
trait Part: Send + Sync {
    fn size(&self) -> u64;
}

struct Quiet(u64);

struct Noisy(u64);

impl Part for Quiet {
    fn size(&self) -> u64 {
        self.0
    }
}

impl Part for Noisy {
    fn size(&self) -> u64 {
        self.0
    }
}

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}

fn total(parts: Vec<Box<dyn Part>>) -> u64 {
    let mut sum = 0;
    for part in &parts {
        sum ^= part.size();
    }
    sum
}

fn main() {
    let (first, second): (Vec<Box<dyn Part>>, Vec<Box<dyn Part>>) =
        (vec![Box::new(Quiet(1)), Box::new(Noisy(2))], vec![Box::new(Noisy(3))]);
    let a = total(first);
    let b = total(second);
    println!("{a} {b}");
}
