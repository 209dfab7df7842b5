// The temporary of an operand ends after the function that receives the results.
struct Loud(u32);

impl Drop for Loud {
    fn drop(&mut self) {
        println!("dropped {}", self.0);
    }
}

fn count(loud: &Loud) -> u32 {
    (0..loud.0).map(|x| x % 3).fold(0, |a, b| a ^ b)
}

fn plain(n: u32) -> u32 {
    (0..n).map(|x| x % 5).fold(0, |a, b| a ^ b)
}

fn show(a: u32, b: u32) -> u32 {
    println!("show {a} {b}");
    a
}

fn make(n: u32) -> Loud {
    Loud((0..n).fold(1, |a, b| a ^ b))
}

fn main() {
    let first = show(count(&Loud(4)), plain(5));
    println!("{first}");
    let _ = make(3);
    let a = plain(4);
    println!("{a}");
}
