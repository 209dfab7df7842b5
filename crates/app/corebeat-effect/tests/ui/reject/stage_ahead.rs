// The loop leaves items behind, which other code uses.
fn cost(n: u64) -> u64 {
    let mut sum = 0;
    for i in [n, n % 20, 3] {
        sum += i * i;
    }
    sum
}

fn main() {
    let values = [5, 6, 7, 8, 9];
    let mut rest = values.iter();
    for n in rest.by_ref() {
        let x = cost(*n);
        println!("{x}");
        if x > 50 {
            break;
        }
    }
    println!("{:?}", rest.as_slice());
}
