// The order of lines on standard output.
fn list(name: &str, n: u32) -> u32 {
    for i in 0..n {
        println!("{name} {i}");
    }
    n
}

fn main() {
    let a = list("a", 2);
    let b = list("b", 2);
    println!("{}", a + b);
}
