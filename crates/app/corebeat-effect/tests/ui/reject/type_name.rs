// The name of a function in a function shows where it is.
macro_rules! function {
    () => {{
        fn f() {}
        fn name<T>(_: T) -> &'static str {
            std::any::type_name::<T>()
        }
        name(f)
    }};
}
fn note(name: &str, n: u64) -> (String, u64) {
    let mut s = 0;
    for i in 0..n {
        s += i;
    }
    (name.to_owned(), s)
}
fn main() {
    let a = note(function!(), 3);
    let b = note(function!(), 4);
    println!("{a:?} {b:?}");
}
