// Both stages write.
fn cost(n: u64) -> u64 {
    let mut sum = 0;
    for i in 0..n % 20 {
        sum += i * i;
    }
    println!("cost of {n}");
    sum
}

fn main() {
    for n in 3..9u64 {
        let x = cost(n);
        println!("{x}");
    }
}
