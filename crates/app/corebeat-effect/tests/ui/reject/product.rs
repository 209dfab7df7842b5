// Whether a product overflows depends on the order.
fn cost(n: u64) -> u64 {
    let mut x = n;
    for _ in 0..5 {
        x = x.rotate_left(1);
    }
    x.rotate_right(5)
}

fn main() {
    let v = [u64::MAX, 1, 2, 0];
    let mut product = 1;
    for x in &v {
        product *= cost(*x);
    }
    println!("{product}");
}
