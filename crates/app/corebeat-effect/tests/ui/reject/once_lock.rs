// The call that initialises a value.
use std::sync::OnceLock;

fn claim(first: &OnceLock<String>, name: &str) -> usize {
    let mut length = 0;
    for _ in 0..2 {
        length += first.get_or_init(|| name.to_owned()).len();
    }
    length
}

fn main() {
    let first = OnceLock::new();
    let a = claim(&first, "first");
    let b = claim(&first, "no");
    println!("{a} {b} {:?}", first.get());
}
