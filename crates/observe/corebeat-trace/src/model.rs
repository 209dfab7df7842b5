//! A loom model of a thread's buffers: every interleaving, and every result that the memory
//! orderings permit.
//!
//! `cargo xtask ci --only loom` runs it. Planted faults show that the model detects errors.

use crate::ring::{Memory, Ring, Taken};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::{Arc, fault, thread};

/// Number of slots, and bytes per slot.
const SLOTS: usize = 2;
const BYTES: usize = 8;

fn check(model: impl Fn() + Sync + Send + 'static) {
    fault::model(3).check(model);
}

/// Fills up to `slots` slots with two bytes each and leaves the last one open. Returns the number
/// of slots that were opened.
fn fill(ring: &Ring<u8, u8>, slots: u8) -> u8 {
    for slot in 0..slots {
        if !ring.has_room() {
            return slot;
        }
        // SAFETY: this thread is the only producer; no slot is open, and one is free.
        unsafe {
            let (start, _) = ring.open(slot);
            for n in 1..=2 {
                start.add(n - 1).write(slot);
                ring.advance(start.add(n));
            }
            if slot + 1 < slots {
                ring.close(slot);
            }
        }
    }
    slots
}

/// Waits for the next full slot, checks it and returns it.
fn take(ring: &Ring<u8, u8>, slot: &mut u8) {
    take_after(ring, slot, 0);
}

/// As [`take`], for a slot of which `seen` bytes were taken before.
fn take_after(ring: &Ring<u8, u8>, slot: &mut u8, seen: usize) {
    // SAFETY: the caller is the only consumer, and does not use a slot after it was returned.
    unsafe {
        let taken = loop {
            match ring.next() {
                Some(taken) => break taken,
                None => thread::yield_now(),
            }
        };
        check_slot(&taken, *slot, seen);
        ring.free();
    }
    *slot += 1;
}

/// Takes the contents of the open slot. Returns the number of bytes taken from it so far.
fn peek(ring: &Ring<u8, u8>, slot: u8, seen: usize) -> usize {
    // SAFETY: the caller is the only consumer, and does not use the result after this function.
    let Some(taken) = (unsafe { ring.peek() }) else { return seen };
    assert!(!taken.bytes.is_empty() && taken.closed.is_none());
    check_slot(&taken, slot, seen);
    seen + taken.bytes.len()
}

/// Checks that a slot has the expected contents and that no byte is returned twice.
fn check_slot(taken: &Taken<'_, u8, u8>, slot: u8, seen: usize) {
    assert_eq!((taken.opened, taken.is_partial), (slot, seen > 0));
    assert!(taken.bytes.iter().all(|b| *b == slot));
    match taken.closed {
        Some(closed) => assert_eq!((closed, seen + taken.bytes.len()), (slot, 2)),
        None => assert!(seen + taken.bytes.len() <= 2),
    }
}

/// One thread fills; the other takes full slots, and then the rest while the first one continues.
#[test]
fn loom_ring_returns_slots_in_order() {
    check(|| {
        let ring = Arc::new(Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES)));
        let filler = {
            let ring = ring.clone();
            thread::spawn(move || fill(&ring, 4))
        };
        let mut slot = 0;
        take(&ring, &mut slot);
        // SAFETY: as above, and this is its last call.
        for taken in unsafe { ring.take_rest() } {
            check_slot(&taken, slot, 0);
            slot += 1;
        }
        let begun = filler.join().unwrap();
        assert!(slot <= begun, "a slot was returned that was never filled");
    });
}

/// After the producer has ended, the consumer obtains every slot.
#[test]
fn loom_ring_returns_every_slot() {
    check(|| {
        let ring = Arc::new(Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES)));
        let filler = {
            let ring = ring.clone();
            thread::spawn(move || fill(&ring, 3))
        };
        let mut slot = 0;
        take(&ring, &mut slot);
        take(&ring, &mut slot);
        let begun = filler.join().unwrap();
        // SAFETY: as above, and this is its last call.
        for taken in unsafe { ring.take_rest() } {
            check_slot(&taken, slot, 0);
            slot += 1;
        }
        assert_eq!(slot, begun);
    });
}

/// One thread fills; the other takes parts of open slots, too: every byte is returned exactly once.
#[test]
fn loom_ring_open_slot_is_taken_in_parts() {
    check(|| {
        let ring = Arc::new(Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES)));
        let filler = {
            let ring = ring.clone();
            thread::spawn(move || fill(&ring, 3))
        };
        // The part of the first slot, which may be full already.
        let seen = peek(&ring, 0, 0);
        let mut slot = 0;
        take_after(&ring, &mut slot, seen);
        let seen = peek(&ring, 1, 0);
        let begun = filler.join().unwrap();
        // SAFETY: this thread is the only consumer, and this is its last call.
        for taken in unsafe { ring.take_rest() } {
            check_slot(&taken, slot, if slot == 1 { seen } else { 0 });
            slot += 1;
        }
        assert_eq!(slot, begun);
    });
}

/// The rest includes all bytes that were written before, even while their slot is being closed.
#[test]
fn loom_ring_rest_includes_a_slot_that_is_closed_meanwhile() {
    check(|| {
        let ring = Arc::new(Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES)));
        let written = Arc::new(AtomicU64::new(0));
        let filler = {
            let (ring, written) = (ring.clone(), written.clone());
            thread::spawn(move || {
                fill(&ring, 1);
                written.store(1, Ordering::Release);
                // SAFETY: this thread is the only producer.
                unsafe { ring.close(0) };
            })
        };
        while written.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        // SAFETY: this thread is the only consumer, and this is its last call.
        let rest = unsafe { ring.take_rest() };
        assert!(matches!(rest[..], [Taken { bytes: [0, 0], .. }]), "{rest:?}");
        filler.join().unwrap();
    });
}

/// A consumer that reads a loss and finds the ring drained has taken the slots before the loss.
#[test]
fn loom_ring_is_not_drained_before_a_loss() {
    check(|| {
        let ring = Arc::new(Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES)));
        let lost = Arc::new(AtomicU64::new(0));
        let filler = {
            let (ring, lost) = (ring.clone(), lost.clone());
            thread::spawn(move || {
                fill(&ring, 2);
                // Release: as in `Stream::count_lost`.
                lost.store(1, Ordering::Release);
            })
        };
        peek(&ring, 0, 0);
        // Acquire: as in `Stream::lost`.
        if lost.load(Ordering::Acquire) == 1 {
            // SAFETY: this thread is the only consumer.
            assert!(!unsafe { ring.is_drained() }, "the second slot was not taken");
        }
        filler.join().unwrap();
    });
}

#[test]
fn loom_ring_faults_are_detected() {
    let models = [
        "loom_ring_returns_slots_in_order",
        "loom_ring_returns_every_slot",
        "loom_ring_open_slot_is_taken_in_parts",
        "loom_ring_rest_includes_a_slot_that_is_closed_meanwhile",
    ];
    let detects = |fault: &str| models.iter().any(|model| fault::is_noticed(model, fault));
    let faults = fault::survey(|| {
        check(|| {
            let ring = Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES));
            fill(&ring, 2);
            // SAFETY: there is only one thread.
            unsafe {
                let taken = ring.next().expect("the first slot is full");
                check_slot(&taken, 0, 0);
                ring.free();
                let seen = peek(&ring, 1, 0);
                ring.take_rest().iter().for_each(|taken| check_slot(taken, 1, seen));
            }
        });
    });
    let undetected: Vec<_> =
        faults.iter().map(ToString::to_string).filter(|fault| !detects(fault)).collect();
    assert!(undetected.is_empty(), "planted but undetected: {undetected:?} of {faults:?}");
    assert!(!faults.is_empty());
}
