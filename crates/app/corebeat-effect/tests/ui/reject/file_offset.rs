// Two handles of one open file, which share its offset.
use std::fs::File;
use std::io::Read;

fn take(mut file: &File, n: usize) -> String {
    let mut taken = String::new();
    for _ in 0..n {
        let mut byte = [0];
        file.read_exact(&mut byte).unwrap();
        taken.push(char::from(byte[0]));
    }
    taken
}

fn main() {
    let one = File::open("/proc/version").unwrap();
    let two = one.try_clone().unwrap();
    let a = take(&one, 3);
    let b = take(&two, 4);
    println!("{a} {b}");
}
