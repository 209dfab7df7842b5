// A macro of the standard library makes a part of the access through a raw pointer.
fn count(p: *mut u64, n: u64) -> u64 {
    for _ in 0..n {
        // SAFETY: `p` points to a variable of `main`, and one thread runs this program.
        unsafe {
            assert_ne!(*p, 100);
            std::mem::swap(&mut *p, &mut (*p + 1));
        }
    }
    n
}

fn read(p: &Shared) -> u64 {
    let mut sum = 0;
    for _ in 0..3 {
        // SAFETY: as above.
        unsafe { assert_ne!(*p.0, 100) };
        sum += 1;
    }
    sum
}

struct Shared(*mut u64);

// SAFETY: one thread runs this program.
unsafe impl Sync for Shared {}

fn main() {
    let mut x = 98;
    let shared = Shared(&raw mut x);
    let a = read(&shared);
    let b = read(&shared);
    println!("{a} {b} {}", count(shared.0, 1));
}
