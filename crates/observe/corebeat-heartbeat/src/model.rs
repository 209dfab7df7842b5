//! A loom model of the status page's lock: every interleaving, and every result that the memory
//! orderings permit.
//!
//! `cargo xtask ci --only loom` runs it. Planted faults show that the model detects errors.

use crate::page::Locked;
use corebeat_sync::{Arc, fault, thread};

fn check(model: impl Fn() + Sync + Send + 'static) {
    fault::model(2).check(model);
}

/// The monitor writes twice while a reader reads twice.
#[test]
fn loom_page_is_read_consistently_or_not_at_all() {
    check(|| {
        let page = Arc::new(Locked::<2>::zeroed());
        let writer = {
            let page = page.clone();
            thread::spawn(move || [1, 2].map(|n| page.write([n, n])))
        };
        let mut last = 0;
        for [first, second] in [page.read(), page.read()].into_iter().flatten() {
            assert_eq!(first, second, "the words are from different writes");
            assert!(first >= last, "a later read returned an earlier write");
            last = first;
        }
        writer.join().unwrap();
        assert_eq!(page.read(), Some([2, 2]));
    });
}

#[test]
fn loom_page_faults_are_detected() {
    let faults = fault::survey(|| {
        check(|| {
            let page = Locked::<2>::zeroed();
            page.write([1, 1]);
            assert_eq!(page.read(), Some([1, 1]));
        });
    });
    assert_eq!(faults.len(), 4, "three fences and a store: {faults:?}");
    for fault in faults {
        let model = "loom_page_is_read_consistently_or_not_at_all";
        assert!(fault::is_noticed(model, &fault.to_string()), "planted but undetected: {fault}");
    }
}
