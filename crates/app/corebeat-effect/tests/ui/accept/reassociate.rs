//@ options=reassociate
// Floating-point numbers, where the user allows another order. These sums are exact.
fn cost(n: f64) -> f64 {
    let mut x = n;
    for i in 0..5u8 {
        x += f64::from(i);
    }
    x
}

fn main() {
    let v: Vec<f64> = (0..9u8).map(f64::from).collect();
    let a: f64 = v.iter().map(|x| cost(*x)).sum();
    let b: f64 = v.iter().map(|x| cost(*x)).product();
    let mut c = 0.5;
    for x in &v {
        c += cost(*x);
    }
    println!("{a} {b} {c}");
}
