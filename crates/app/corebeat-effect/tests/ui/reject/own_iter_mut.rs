trait Odd {
    fn iter_mut(&mut self) -> std::iter::Skip<std::slice::IterMut<'_, u64>>;
}
impl Odd for Vec<u64> {
    fn iter_mut(&mut self) -> std::iter::Skip<std::slice::IterMut<'_, u64>> {
        self.as_mut_slice().iter_mut().skip(3)
    }
}
fn cost(n: u64) -> u64 {
    let mut s = 0;
    for i in 0..n % 20 {
        s ^= i.wrapping_mul(7);
    }
    s
}
fn change(x: &mut u64) {
    *x = cost(*x) ^ 1;
}
fn main() {
    let mut v: Vec<u64> = vec![5; 6];
    for x in v.iter_mut() {
        change(x);
    }
    println!("{v:?}");
}
