// A trait of the user whose `iter` comes before that of slices.
trait Backwards {
    fn iter(&self) -> std::iter::Rev<std::slice::Iter<'_, u64>>;
}
impl Backwards for Vec<u64> {
    fn iter(&self) -> std::iter::Rev<std::slice::Iter<'_, u64>> {
        self.as_slice().iter().rev()
    }
}
fn cost(n: u64) -> u64 {
    let mut s = 0;
    for i in 0..n % 20 {
        s += i;
    }
    s
}
fn main() {
    let v: Vec<u64> = (0..6).collect();
    let c: Vec<u64> = v.iter().map(|x| cost(*x)).collect();
    println!("{c:?}");
}
