// Pointers to functions behind an associated type.
struct Task(fn() -> u64);
struct Tasks<'a>(std::slice::Iter<'a, Task>);
impl<'a> Iterator for Tasks<'a> {
    type Item = fn() -> u64;
    fn next(&mut self) -> Option<fn() -> u64> {
        match self.0.next() {
            Some(t) => Some(t.0),
            None => None,
        }
    }
}
fn call<F: FnOnce() -> u64>(f: F) -> u64 {
    Some(()).map(|()| f()).unwrap_or(0)
}
fn total(v: &[Task]) -> u64 {
    let mut t = 0u64;
    let mut it = Tasks(v.iter());
    while let Some(f) = it.next() {
        t ^= Some(0).map_or_else(f, |x| x);
        t ^= None.unwrap_or_else(f);
    }
    t
}
fn loud() -> u64 {
    println!("loud");
    3
}
fn quiet() -> u64 {
    println!("quiet");
    4
}
fn main() {
    let _ = call(|| 1);
    let (x, y) = ([Task(loud)], [Task(quiet)]);
    let a = total(&x);
    let b = total(&y);
    println!("{a} {b}");
}
