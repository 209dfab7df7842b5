// One implementation is for many types, whose methods are not known.
trait Shown: Sync {
    fn length(&self) -> usize;
}

impl<T: std::fmt::Display + Sync> Shown for T {
    fn length(&self) -> usize {
        self.to_string().len()
    }
}

fn total(parts: &[&dyn Shown]) -> usize {
    let mut sum = 0;
    for part in parts {
        sum += part.length();
    }
    sum
}

fn main() {
    let a = total(&[&1, &"two"]);
    let b = total(&[&'3']);
    println!("{a} {b}");
}
