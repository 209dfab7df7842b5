// The order in which two calls lock one mutex.
use std::sync::Mutex;

fn double(m: &Mutex<u64>) -> u64 {
    let mut last = 0;
    for _ in 0..3 {
        let mut value = m.lock().unwrap();
        *value *= 2;
        last = *value;
    }
    last
}

fn add(m: &Mutex<u64>) -> u64 {
    let mut last = 0;
    for _ in 0..3 {
        let mut value = m.lock().unwrap();
        *value += 1;
        last = *value;
    }
    last
}

fn main() {
    let m = Mutex::new(1);
    let a = double(&m);
    let b = add(&m);
    println!("{a} {b}");
}
