//! Loops in Rust that wait, and loops that compute: see `corpus.c`.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, RwLock};

static FLAG: AtomicBool = AtomicBool::new(false);
static NUMBER: AtomicU32 = AtomicU32::new(0);

fn flag() {
    while !FLAG.load(Ordering::Acquire) {}
}

fn try_lock() {
    let mutex = black_box(Mutex::new(1));
    let _held = mutex.lock();
    while mutex.try_lock().is_err() {}
}

fn try_lock_with_hint() {
    let mutex = black_box(Mutex::new(1));
    let _held = mutex.lock();
    while mutex.try_lock().is_err() {
        std::hint::spin_loop();
    }
}

fn try_lock_with_yield() {
    let mutex = black_box(Mutex::new(1));
    let _held = mutex.lock();
    while mutex.try_lock().is_err() {
        std::thread::yield_now();
    }
}

fn try_read() {
    let lock = black_box(RwLock::new(1));
    let _held = lock.write();
    while lock.try_read().is_err() {}
}

fn compare_exchange() {
    let ordering = Ordering::AcqRel;
    while NUMBER.compare_exchange(1, 2, ordering, Ordering::Acquire).is_err() {}
}

fn compute_map() {
    let mut map = HashMap::new();
    loop {
        for i in 0..4096_u32 {
            *map.entry(i % 512).or_insert(0_u64) += u64::from(i);
        }
        black_box(&map);
    }
}

fn compute_sort() {
    loop {
        let mut values: Vec<u32> = (0..4096_u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        values.sort();
        black_box(&values);
    }
}

fn compute_text() {
    loop {
        let text: String = (0..200).map(|i| format!("{i} ")).collect();
        black_box(text.split(' ').filter_map(|word| word.parse::<u32>().ok()).sum::<u32>());
    }
}

fn compute_locks() {
    static MUTEX: Mutex<u64> = Mutex::new(0);
    loop {
        *MUTEX.lock().expect("no thread panics") += 1;
    }
}

fn compute_steps() {
    let mut numbers = (1..20_u64).cycle();
    let mut left = black_box(1_u64 << 40);
    while let Some(number) = numbers.next() {
        left = black_box(left / number + number);
    }
}

const LOOPS: [(&str, fn()); 11] = [
    ("flag", flag),
    ("try_lock", try_lock),
    ("try_lock_with_hint", try_lock_with_hint),
    ("try_lock_with_yield", try_lock_with_yield),
    ("try_read", try_read),
    ("compare_exchange", compare_exchange),
    ("compute_map", compute_map),
    ("compute_sort", compute_sort),
    ("compute_text", compute_text),
    ("compute_locks", compute_locks),
    ("compute_steps", compute_steps),
];

fn main() {
    let name = std::env::args().nth(1).expect("the name of a loop");
    let (_, run) = LOOPS.iter().find(|(other, _)| *other == name).expect("a known loop");
    // The compiler must assume that other threads write these.
    FLAG.store(black_box(false), Ordering::Release);
    NUMBER.store(black_box(0), Ordering::Release);
    println!("ready");
    std::io::stdout().flush().expect("the reader lives");
    // The samples are those of the first thread.
    run();
}
