//! Table of the fields that boxes in C hold. The table detects the use of freed fields.
//!
//! C code receives a number instead of the address of a field: the index of a slot, and the
//! generation of the slot. The table detects a box that frees a field twice, uses a freed
//! field, or passes any other number, and these errors are harmless.
//!
//! ```text
//!   handle   generation | slot        odd generation: the slot holds a field
//!            63      32 | 31   0      even: the slot is free, in a list of one thread or in SPARE
//! ```
//!
//! Generations wrap around after 2^31 uses of one slot.

use std::cell::{RefCell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::sync::{Arc, Mutex};

use crate::value::{Array, Element, Scalar, Value};

/// Fields that boxes in C can hold at the same time.
pub const FIELDS_MAX: usize = FIRST_CHUNK * ((1 << CHUNKS) - 1);

/// Slots in the first chunk; each further chunk has twice as many.
const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = 20;

/// Free slots that a thread takes or returns together. A thread keeps at most twice this number.
const BATCH: usize = 64;

struct Slot {
    generation: AtomicU32,
    data: UnsafeCell<Data>,
}

enum Data {
    Free,
    /// In a cell, because C writes to it.
    Scalar(Element, UnsafeCell<[u64; 1]>),
    /// Array or native value.
    Shared(Value),
}

/// Chunks, allocated on demand and never freed.
static TABLE: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];

struct Spare {
    /// Slots that threads have returned.
    free: Vec<u32>,
    /// First slot that was never used.
    next: usize,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare { free: Vec::new(), next: 0 });

/// Free slots of a thread.
struct ThreadSlots(Vec<u32>);

impl Drop for ThreadSlots {
    fn drop(&mut self) {
        SPARE.lock().unwrap_or_else(|e| e.into_inner()).free.append(&mut self.0);
    }
}

thread_local! {
    static THREAD_SLOTS: RefCell<ThreadSlots> = const { RefCell::new(ThreadSlots(Vec::new())) };
}

/// Chunk of a slot, and index of the slot in the chunk.
fn place(slot: usize) -> (usize, usize) {
    let shifted = slot + FIRST_CHUNK;
    let chunk = (shifted / FIRST_CHUNK).ilog2() as usize;
    (chunk, shifted - (FIRST_CHUNK << chunk))
}

fn slot(number: usize) -> Option<&'static Slot> {
    let (chunk, at) = place(number);
    let first = TABLE.get(chunk)?.load(Acquire); // pairs with the store in `refill`
    if first.is_null() {
        return None;
    }
    // SAFETY: the chunk has `FIRST_CHUNK << chunk` slots, `at` is smaller, and chunks are never
    // freed.
    Some(unsafe { &*first.add(at) })
}

/// Takes free slots. Takes none if `FIELDS_MAX` fields exist.
#[cold]
fn refill(slots: &mut Vec<u32>) {
    let mut spare = SPARE.lock().unwrap_or_else(|e| e.into_inner());
    let from = spare.free.len().saturating_sub(BATCH);
    slots.extend(spare.free.drain(from..));
    if !slots.is_empty() || spare.next == FIELDS_MAX {
        return;
    }
    // The size of every chunk is a multiple of a batch.
    let (chunk, at) = place(spare.next);
    if at == 0 {
        let empty = || Slot { generation: AtomicU32::new(0), data: UnsafeCell::new(Data::Free) };
        let chunk_slots: Vec<Slot> =
            std::iter::repeat_with(empty).take(FIRST_CHUNK << chunk).collect();
        TABLE[chunk].store(Vec::leak(chunk_slots).as_mut_ptr(), Release);
    }
    slots.extend((spare.next..spare.next + BATCH).rev().map(|slot| slot as u32));
    spare.next += BATCH;
}

/// Handle of a field for C. 0 is no field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) u64);

/// Data of a field for C.
pub(super) struct View {
    pub(super) element: Element,
    pub(super) len: usize,
    pub(super) data: *mut u8,
}

impl Handle {
    pub(super) const NONE: Handle = Handle(0);

    /// Creates a field of this value. Returns `NONE` if there are too many fields.
    pub(super) fn new(value: Value) -> Handle {
        // The list of a thread does not exist while the thread ends.
        let taken = THREAD_SLOTS.try_with(|slots| {
            let slots = &mut slots.borrow_mut().0;
            if slots.is_empty() {
                refill(slots);
            }
            slots.pop()
        });
        let Ok(Some(number)) = taken else { return Handle::NONE };
        let slot = slot(number as usize).expect("slots in lists exist");
        let data = match value {
            Value::Scalar(s) => {
                Data::Scalar(s.element(), UnsafeCell::new([u64::from_ne_bytes(s.bytes())]))
            }
            Value::Tag(n) => Data::Scalar(Element::Int, UnsafeCell::new([first(n.to_ne_bytes())])),
            shared => Data::Shared(shared),
        };
        // SAFETY: the slot is free and in no list, so nothing else accesses its data.
        unsafe { *slot.data.get() = data };
        // Relaxed: only the owner of a free slot changes its generation.
        let generation = slot.generation.load(Relaxed).wrapping_add(1);
        slot.generation.store(generation, Release); // pairs with `live`
        Handle(u64::from(generation) << 32 | u64::from(number))
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn live(self) -> Option<&'static Slot> {
        let slot = slot(self.0 as u32 as usize)?;
        let generation = slot.generation.load(Acquire); // pairs with the store in `new`
        (generation == self.generation() && generation % 2 == 1).then_some(slot)
    }

    /// Data of a live field.
    fn data(self) -> Option<*const Data> {
        Some(self.live()?.data.get())
    }

    /// Returns the data for C, or `None` if there is no such field.
    pub(super) fn view(self) -> Option<View> {
        // SAFETY: the field is live. Boxes in C must use a field on one thread at a time, which is
        // this thread.
        Some(match unsafe { &*self.data()? } {
            Data::Scalar(element, word) => {
                View { element: *element, len: 1, data: word.get().cast() }
            }
            Data::Shared(Value::Array(array)) => {
                View { element: array.element(), len: array.len(), data: array.as_ptr() }
            }
            _ => View { element: Element::Pointer, len: 0, data: null_mut() },
        })
    }

    /// Returns the value. Arrays are shared.
    pub(super) fn value(self) -> Option<Value> {
        // SAFETY: the same as in `view`, and C does not write to the scalar at the same time.
        Some(match unsafe { &*self.data()? } {
            Data::Scalar(element, word) => {
                // SAFETY: C does not write to the scalar at the same time.
                let [word] = unsafe { *word.get() };
                Value::Scalar(Scalar::new(*element, word.to_ne_bytes()))
            }
            Data::Shared(value) => value.clone(),
            Data::Free => return None,
        })
    }

    /// Returns a copy of the value that shares no memory.
    pub(super) fn deep(self) -> Option<Value> {
        Some(match self.value()? {
            Value::Array(array) => {
                Value::Array(Arc::new(Array::from_bytes(array.element(), array.bytes())))
            }
            other => other,
        })
    }

    /// Frees the field. Returns `false` if there is no such field.
    pub(super) fn free(self) -> bool {
        let Some(slot) = self.live() else { return false };
        let (now, next) = (self.generation(), self.generation().wrapping_add(1));
        // One of two concurrent calls succeeds. The exchange publishes nothing, because the slot
        // reaches its next owner through a list.
        if slot.generation.compare_exchange(now, next, Acquire, Relaxed).is_err() {
            return false;
        }
        // SAFETY: no handle has the new generation, and the slot is in no list yet.
        drop(unsafe { std::mem::replace(&mut *slot.data.get(), Data::Free) });
        let number = self.0 as u32;
        let kept = THREAD_SLOTS.try_with(|slots| {
            let slots = &mut slots.borrow_mut().0;
            slots.push(number);
            if slots.len() > 2 * BATCH {
                let mut spare = SPARE.lock().unwrap_or_else(|e| e.into_inner());
                spare.free.extend(slots.drain(..BATCH));
            }
        });
        if kept.is_err() {
            SPARE.lock().unwrap_or_else(|e| e.into_inner()).free.push(number);
        }
        true
    }
}

/// Word with four bytes at its start.
fn first(bytes: [u8; 4]) -> u64 {
    let mut word = [0; 8];
    word[..4].copy_from_slice(&bytes);
    u64::from_ne_bytes(word)
}

/// Number of live fields.
pub(super) fn count() -> usize {
    let next = SPARE.lock().unwrap_or_else(|e| e.into_inner()).next;
    (0..next).filter_map(slot).filter(|slot| slot.generation.load(Relaxed) % 2 == 1).count()
}

// SAFETY: only the owner of a slot accesses `data`: the list of a free slot, or one thread at a
// time while the slot holds a field.
unsafe impl Sync for Slot {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_unique_place_in_its_chunk() {
        let mut expected = (0, 0);
        for slot in 0..FIRST_CHUNK * 15 {
            assert_eq!(place(slot), expected);
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(place(FIELDS_MAX - 1).0, CHUNKS - 1);
        assert_eq!(place(FIELDS_MAX).0, CHUNKS);
    }

    #[test]
    fn field_keeps_its_value() {
        let values = [
            Value::from(7_i32),
            Value::from(0.1),
            Value::from("text"),
            Value::Array(Arc::new(Array::zeroed(Element::LongDouble, 1))),
        ];
        for value in values {
            let field = Handle::new(value.clone());
            assert_eq!(field.value(), Some(value.clone()));
            assert_eq!(field.deep(), Some(value));
            assert!(field.free());
        }
    }

    #[test]
    fn field_holds_the_value_that_c_writes() {
        let field = Handle::new(Value::from(1_i32));
        let data = field.view().expect("the field is live").data.cast::<i32>();
        // SAFETY: the data is one `int`.
        unsafe { *data += 1 };
        assert_eq!(field.value(), Some(Value::from(2_i32)));
        // SAFETY: the data is one `int`, which the test has read in between.
        unsafe { *data += 1 };
        assert_eq!(field.value(), Some(Value::from(3_i32)));
        assert!(field.free());

        let field = Handle::new(Value::from("abc"));
        let other = Handle::new(field.value().expect("the field is live"));
        let deep = Handle::new(field.deep().expect("the field is live"));
        // SAFETY: the data is three `char`s.
        unsafe { *field.view().expect("the field is live").data = b'x' };
        assert_eq!(other.value(), Some(Value::from("xbc")), "shallow copies share memory");
        assert_eq!(deep.value(), Some(Value::from("abc")), "deep copies share no memory");
        assert!(field.free() && other.free() && deep.free());
    }

    #[test]
    fn freed_field_is_detected() {
        let field = Handle::new(Value::from(1_i32));
        assert!(field.free());
        assert!(!field.free());
        let next = Handle::new(Value::from(2_i32));
        assert!(field.value().is_none() && field.view().is_none() && !field.free());
        assert!(next.free());
        for invalid in [0, 5, u64::MAX, 1 << 32 | u32::MAX as u64, 1 << 63] {
            assert!(!Handle(invalid).free(), "{invalid:#x}");
        }
    }

    #[test]
    fn slots_of_ended_threads_are_reused() {
        let (fields, rounds) = if cfg!(miri) { (300, 2) } else { (1000, 20) };
        let round = move || {
            std::thread::spawn(move || {
                let fields: Vec<Handle> =
                    (0..fields).map(|n| Handle::new(Value::from(n))).collect();
                // Another thread frees some of them.
                let other = fields.clone();
                std::thread::spawn(move || assert!(other[..150].iter().all(|field| field.free())))
                    .join()
                    .expect("the test's thread ends");
                assert!(fields[150..].iter().all(|field| field.free()));
            })
            .join()
            .expect("the test's thread ends");
        };
        for _ in 0..rounds {
            round();
        }
        let next = SPARE.lock().unwrap_or_else(|e| e.into_inner()).next;
        assert!(next < 10_000, "{next} slots for {fields} fields");
    }
}
