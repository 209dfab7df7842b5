// The current directory.
use std::path::PathBuf;

fn go(folder: &str) -> u32 {
    let mut steps = 0;
    for _ in 0..1 {
        std::env::set_current_dir(folder).unwrap();
        steps += 1;
    }
    steps
}

fn stay(n: u32) -> PathBuf {
    let mut path = PathBuf::new();
    for _ in 0..n {
        path = std::env::current_dir().unwrap();
    }
    path
}

fn main() {
    std::env::set_current_dir("/proc").unwrap();
    let a = go("/");
    let b = stay(1);
    println!("{a} {b:?}");
}
