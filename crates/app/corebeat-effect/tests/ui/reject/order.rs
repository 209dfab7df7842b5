// Operations that depend on the order, and loops that end early.
fn cost(n: f64) -> f64 {
    let mut x = n;
    for i in 0..5u8 {
        x += f64::from(i);
    }
    x
}

struct Total(u64);

impl std::ops::AddAssign<u64> for Total {
    fn add_assign(&mut self, other: u64) {
        self.0 = self.0 * 3 % 1009 + other;
    }
}

fn main() {
    let v: Vec<f64> = (0..9u8).map(f64::from).collect();
    let mut sum = 0.1;
    for x in &v {
        sum += cost(*x);
    }
    println!("{sum}");
    println!("{}", v.iter().any(|x| cost(*x) > 20.0));
    let mut total = Total(1);
    for x in &v {
        total += cost(*x) as u64;
    }
    println!("{}", total.0);
    let mut last = 0.0;
    for x in &v {
        last = cost(*x) - last;
    }
    println!("{last}");
    let mut seen = 1u64;
    for x in &v {
        seen ^= cost(*x) as u64 + seen % 3;
    }
    println!("{seen}");
}
