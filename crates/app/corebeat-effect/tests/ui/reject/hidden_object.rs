// Trait objects in a type that does not show them, called by `core`.
struct Holder(Box<dyn Iterator<Item = u64> + Send>);
struct Sources<'a>(std::slice::IterMut<'a, Holder>);
impl<'a> Iterator for Sources<'a> {
    type Item = &'a mut (dyn Iterator<Item = u64> + Send);
    fn next(&mut self) -> Option<Self::Item> {
        match self.0.next() {
            Some(h) => Some(&mut *h.0),
            None => None,
        }
    }
}
fn total(v: &mut [Holder]) -> u64 {
    let mut t = 0u64;
    for x in Sources(v.iter_mut()).flatten() {
        t = t.rotate_left(3) ^ x;
    }
    t
}
struct Loud(u64);
impl Iterator for Loud {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        println!("next of {}", self.0);
        self.0 += 1;
        if self.0 % 3 == 0 { None } else { Some(self.0) }
    }
}
fn main() {
    let mut a = vec![Holder(Box::new(Loud(0)))];
    let mut b = vec![Holder(Box::new(Loud(9)))];
    let x = total(&mut a);
    let y = total(&mut b);
    println!("{x} {y}");
}
