//! A model of a thread's buffers, over every interleaving and every outcome that the memory orderings allow.
//!
//! `cargo xtask ci --only loom` runs it. That it would notice a mistake is shown by planted ones.

use crate::ring::{Memory, Ring, Taken};
use corebeat_sync::{Arc, fault, thread};

/// Slots of the ring, and what a slot takes.
const SLOTS: usize = 2;
const BYTES: usize = 8;

fn check(model: impl Fn() + Sync + Send + 'static) {
    fault::model(3).check(model);
}

/// Fills slots from `first` to `last`, as far as there is room, with two bytes each; the last one stays open. How many it began.
fn fill(ring: &Ring<u8, u8>, slots: u8) -> u8 {
    for slot in 0..slots {
        if !ring.has_room() {
            return slot;
        }
        // SAFETY: this thread is the only filler; no slot is open, and there is room.
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

/// Waits for the next full slot, looks at it, and gives it back. Perhaps it has seen a part of it before.
fn take(ring: &Ring<u8, u8>, slot: &mut u8) {
    take_after(ring, slot, 0);
}

/// The same, with so many bytes of it seen before.
fn take_after(ring: &Ring<u8, u8>, slot: &mut u8, seen: usize) {
    // SAFETY: the caller is the only taker, and uses nothing any more that is given back.
    unsafe {
        let taken = loop {
            match ring.next() {
                Some(taken) => break taken,
                None => thread::yield_now(),
            }
        };
        look(&taken, *slot, seen);
        ring.free();
    }
    *slot += 1;
}

/// Looks into the open slot; how many bytes of it are seen then.
fn peek(ring: &Ring<u8, u8>, slot: u8, seen: usize) -> usize {
    // SAFETY: the caller is the only taker, and uses this no longer than here.
    let Some(taken) = (unsafe { ring.peek() }) else { return seen };
    assert!(!taken.bytes.is_empty() && taken.closed.is_none());
    look(&taken, slot, seen);
    seen + taken.bytes.len()
}

/// That a slot has what was put there, and is not told twice.
fn look(taken: &Taken<'_, u8, u8>, slot: u8, seen: usize) {
    assert_eq!((taken.opened, taken.goes_on), (slot, seen > 0));
    assert!(taken.bytes.iter().all(|b| *b == slot));
    match taken.closed {
        Some(closed) => assert_eq!((closed, seen + taken.bytes.len()), (slot, 2)),
        None => assert!(seen + taken.bytes.len() <= 2),
    }
}

/// One fills; one takes what is full and gives it back, and takes the rest in the midst of it.
#[test]
fn loom_ring_gives_what_was_filled_in_order() {
    check(|| {
        let ring = Arc::new(Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES)));
        let filler = {
            let ring = ring.clone();
            thread::spawn(move || fill(&ring, 4))
        };
        let mut slot = 0;
        take(&ring, &mut slot);
        // SAFETY: as above, and this is its last call.
        for taken in unsafe { ring.rest() } {
            look(&taken, slot, 0);
            slot += 1;
        }
        let begun = filler.join().unwrap();
        assert!(slot <= begun, "something that was not there");
    });
}

/// When the filler is at its end, the taker has all.
#[test]
fn loom_ring_keeps_nothing_back() {
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
        for taken in unsafe { ring.rest() } {
            look(&taken, slot, 0);
            slot += 1;
        }
        assert_eq!(slot, begun);
    });
}

/// One fills; one takes what is in the open slot as well, then the slot, then the rest: nothing twice, nothing not at all.
#[test]
fn loom_ring_open_slot_is_taken_in_parts() {
    check(|| {
        let ring = Arc::new(Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES)));
        let filler = {
            let ring = ring.clone();
            thread::spawn(move || fill(&ring, 3))
        };
        // What is seen of the first slot, which may be full already.
        let seen = peek(&ring, 0, 0);
        let mut slot = 0;
        take_after(&ring, &mut slot, seen);
        let seen = peek(&ring, 1, 0);
        let begun = filler.join().unwrap();
        // SAFETY: this is the only taker, and its last call.
        for taken in unsafe { ring.rest() } {
            look(&taken, slot, if slot == 1 { seen } else { 0 });
            slot += 1;
        }
        assert_eq!(slot, begun);
    });
}

#[test]
fn loom_ring_faults_are_noticed() {
    let models = [
        "loom_ring_gives_what_was_filled_in_order",
        "loom_ring_keeps_nothing_back",
        "loom_ring_open_slot_is_taken_in_parts",
    ];
    let notices = |fault: &str| models.iter().any(|model| fault::is_noticed(model, fault));
    let faults = fault::survey(|| {
        check(|| {
            let ring = Ring::<u8, u8>::new(SLOTS, Memory::new(SLOTS, BYTES));
            fill(&ring, 2);
            // SAFETY: there is one thread.
            unsafe {
                let taken = ring.next().expect("the first is full");
                look(&taken, 0, 0);
                ring.free();
                let seen = peek(&ring, 1, 0);
                ring.rest().iter().for_each(|taken| look(taken, 1, seen));
            }
        });
    });
    let unnoticed: Vec<_> = faults.iter().map(ToString::to_string).filter(|fault| !notices(fault)).collect();
    assert!(unnoticed.is_empty(), "planted, and not noticed: {unnoticed:?} of {faults:?}");
    assert!(!faults.is_empty());
}
