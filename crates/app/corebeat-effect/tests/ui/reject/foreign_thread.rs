// Another thread that no function of `std::thread` starts reads memory after the panic.
use std::sync::Mutex;
static DATA: Mutex<Vec<usize>> = Mutex::new(Vec::new());
unsafe extern "C" {
    fn pthread_create(
        t: *mut usize,
        a: *const u8,
        f: extern "C" fn(*mut u8) -> *mut u8,
        p: *mut u8,
    ) -> i32;
}
struct Wait(usize);
extern "C" fn watch(_: *mut u8) -> *mut u8 {
    loop {
        std::hint::spin_loop();
        let d = match DATA.lock() {
            Ok(_) => continue,
            Err(e) => e.into_inner(),
        };
        println!("{d:?}");
        std::process::exit(0)
    }
}
fn check(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}
fn fill(v: &mut Vec<usize>) -> usize {
    for i in 0..5 {
        v.push(i);
    }
    v.len()
}
fn run(v: &[usize], data: &mut Vec<usize>) -> usize {
    let a = check(v);
    let b = fill(data);
    a + b
}
fn work() {
    let mut d = DATA.lock().unwrap();
    run(&[1, 9], &mut d);
}
// Only computes: no effects.
impl Drop for Wait {
    fn drop(&mut self) {
        while self.0 < 100_000_000 {
            self.0 += 1;
        }
    }
}
fn main() {
    let mut t = 0;
    unsafe {
        pthread_create(&mut t, std::ptr::null(), watch, std::ptr::null_mut());
    }
    let _wait = Wait(0);
    work();
}
