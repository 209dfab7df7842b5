//! Model of a task that reads while a detector reports the descriptor.

use super::check;
use crate::slot::Slot;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::{Arc, fault, thread};
use std::task::{Wake, Waker};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// Bytes arrive one by one, each with a report. The task reads all of them, and waits whenever the
/// system has none.
fn reads_everything(bytes: usize) {
    let slot = Arc::new(Slot::new());
    // Relaxed accesses: only the slot orders them, which is less than the system does.
    let arrived = Arc::new(AtomicUsize::new(0));
    let reporter = {
        let (slot, arrived) = (slot.clone(), arrived.clone());
        thread::spawn(move || {
            for byte in 1..=bytes {
                arrived.store(byte, Ordering::Relaxed);
                if let Some(waker) = slot.report(false) {
                    waker.wake();
                }
            }
        })
    };
    let waker = Waker::from(std::sync::Arc::new(Unpark(thread::current())));
    let mut read = 0;
    while read < bytes {
        let view = slot.view();
        if view.is_ready() {
            match arrived.load(Ordering::Relaxed) - read {
                0 if fault::omits("view") => slot.clear(slot.view()),
                0 => slot.clear(view),
                some => read += some,
            }
        } else if fault::omits("second check") {
            slot.is_ready_or_wakes(&waker);
            thread::park();
        } else if !slot.is_ready_or_wakes(&waker) {
            thread::park();
        }
    }
    reporter.join().unwrap();
    assert_eq!(read, bytes);
}

#[test]
fn loom_reading_task_misses_no_report() {
    check(|| reads_everything(2));
}

#[test]
fn loom_slot_faults_are_detected() {
    let model = "slot::loom_reading_task_misses_no_report";
    fault::assert_noticed(&[
        (model, "step view"),
        (model, "step second check"),
        (model, "release slot.rs"),
        (model, "acquire slot.rs"),
    ]);
}
