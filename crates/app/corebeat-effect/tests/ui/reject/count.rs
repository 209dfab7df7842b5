// The count of an `Rc` that unsafe code shares with other threads.
use std::rc::Rc;

struct Shared(Rc<u32>);
// SAFETY: there is no reason; the test shows what the borrow checker then accepts.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn count(&self, n: usize) -> usize {
        let mut kept = 0;
        for _ in 0..n {
            std::mem::forget(Rc::clone(&self.0));
            kept = Rc::strong_count(&self.0);
        }
        kept
    }
}

fn main() {
    let shared = Shared(Rc::new(1));
    let a = shared.count(2);
    let b = shared.count(3);
    println!("{a} {b}");
}
