//! The fields that boxes in C hold, in a table that tells those that live from those that are gone.
//!
//! C gets no address of a field but a number: which slot, and the how-manieth use of the slot it is. A box that frees a field
//! twice, or uses one that is gone, or gives a number for a field, is so found out, and nothing breaks.
//!
//! ```text
//!   handle   generation | slot        odd generation: the slot holds a field
//!            63      32 | 31   0      even: it is free, and in a list of one thread or in SPARE
//! ```
//!
//! Generations come round after 2^31 uses of one slot.

use std::cell::{RefCell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::sync::{Arc, Mutex};

use crate::value::{Array, Element, Scalar, Value};

/// Fields that boxes in C can hold at a time.
pub const FIELDS_MAX: usize = FIRST_CHUNK * ((1 << CHUNKS) - 1);

/// Slots in the first chunk; each further chunk has twice as many.
const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = 20;

/// Free slots that a thread takes or gives back in one go, and that it keeps at most twice.
const BATCH: usize = 64;

struct Slot {
    generation: AtomicU32,
    data: UnsafeCell<Data>,
}

enum Data {
    Free,
    /// In a cell, because C writes into it.
    Scalar(Element, UnsafeCell<[u64; 1]>),
    /// An array or a native value.
    Shared(Value),
}

/// The chunks, made when they are needed, and kept.
static TABLE: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];

struct Spare {
    /// Slots that threads have given back.
    free: Vec<u32>,
    /// The first that was never used.
    next: usize,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare { free: Vec::new(), next: 0 });

/// The free slots of a thread.
struct Mine(Vec<u32>);

impl Drop for Mine {
    fn drop(&mut self) {
        SPARE.lock().unwrap_or_else(|e| e.into_inner()).free.append(&mut self.0);
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine(Vec::new())) };
}

/// The chunk of a slot, and its place there.
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
    // SAFETY: the chunk has `FIRST_CHUNK << chunk` slots, `at` is smaller, and chunks are never given back.
    Some(unsafe { &*first.add(at) })
}

/// Gets free slots; none if there are `FIELDS_MAX` fields.
#[cold]
fn refill(mine: &mut Vec<u32>) {
    let mut spare = SPARE.lock().unwrap_or_else(|e| e.into_inner());
    let from = spare.free.len().saturating_sub(BATCH);
    mine.extend(spare.free.drain(from..));
    if !mine.is_empty() || spare.next == FIELDS_MAX {
        return;
    }
    // A batch is a whole part of every chunk.
    let (chunk, at) = place(spare.next);
    if at == 0 {
        let empty = || Slot { generation: AtomicU32::new(0), data: UnsafeCell::new(Data::Free) };
        let slots: Vec<Slot> = std::iter::repeat_with(empty).take(FIRST_CHUNK << chunk).collect();
        TABLE[chunk].store(Vec::leak(slots).as_mut_ptr(), Release);
    }
    mine.extend((spare.next..spare.next + BATCH).rev().map(|slot| slot as u32));
    spare.next += BATCH;
}

/// What C knows of a field: 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) u64);

/// What C may know of a field's data.
pub(super) struct View {
    pub(super) element: Element,
    pub(super) len: usize,
    pub(super) data: *mut u8,
}

impl Handle {
    pub(super) const NONE: Handle = Handle(0);

    /// A new field of this value; `NONE` if there are too many.
    pub(super) fn new(value: Value) -> Handle {
        // While a thread ends it has no list.
        let taken = MINE.try_with(|mine| {
            let mine = &mut mine.borrow_mut().0;
            if mine.is_empty() {
                refill(mine);
            }
            mine.pop()
        });
        let Ok(Some(number)) = taken else { return Handle::NONE };
        let slot = slot(number as usize).expect("the slots in lists are there");
        let data = match value {
            Value::Scalar(s) => Data::Scalar(s.element(), UnsafeCell::new([u64::from_ne_bytes(s.bytes())])),
            Value::Tag(n) => Data::Scalar(Element::Int, UnsafeCell::new([first(n.to_ne_bytes())])),
            shared => Data::Shared(shared),
        };
        // SAFETY: the slot is free and in no list any more, so nobody else looks at its data.
        unsafe { *slot.data.get() = data };
        let generation = slot.generation.load(Relaxed).wrapping_add(1); // only the owner of a free slot changes it
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

    /// Its data, for as long as nobody takes it.
    fn data(self) -> Option<*const Data> {
        Some(self.live()?.data.get())
    }

    /// Where its data is; `None` if there is no such field.
    pub(super) fn view(self) -> Option<View> {
        // SAFETY: the field lives. It belongs to one thread at a time (what boxes in C have to keep), which is here.
        Some(match unsafe { &*self.data()? } {
            Data::Scalar(element, word) => View { element: *element, len: 1, data: word.get().cast() },
            Data::Shared(Value::Array(array)) => {
                View { element: array.element(), len: array.len(), data: array.as_ptr() }
            }
            _ => View { element: Element::Pointer, len: 0, data: null_mut() },
        })
    }

    /// Its value; an array is shared.
    pub(super) fn value(self) -> Option<Value> {
        // SAFETY: as in `view`; C does not write into the scalar meanwhile.
        Some(match unsafe { &*self.data()? } {
            Data::Scalar(element, word) => {
                // SAFETY: as above.
                let [word] = unsafe { *word.get() };
                Value::Scalar(Scalar::new(*element, word.to_ne_bytes()))
            }
            Data::Shared(value) => value.clone(),
            Data::Free => return None,
        })
    }

    /// A copy of its value that shares nothing.
    pub(super) fn deep(self) -> Option<Value> {
        Some(match self.value()? {
            Value::Array(array) => Value::Array(Arc::new(Array::from_bytes(array.element(), array.bytes()))),
            other => other,
        })
    }

    /// Ends it. `false` if there is no such field.
    pub(super) fn free(self) -> bool {
        let Some(slot) = self.live() else { return false };
        let (now, next) = (self.generation(), self.generation().wrapping_add(1));
        // Of two that free it one wins. Nothing is published by it: the slot goes to its next owner by a list.
        if slot.generation.compare_exchange(now, next, Acquire, Relaxed).is_err() {
            return false;
        }
        // SAFETY: nobody finds the data under the new generation, and the slot is in no list yet.
        drop(unsafe { std::mem::replace(&mut *slot.data.get(), Data::Free) });
        let number = self.0 as u32;
        let kept = MINE.try_with(|mine| {
            let mine = &mut mine.borrow_mut().0;
            mine.push(number);
            if mine.len() > 2 * BATCH {
                let mut spare = SPARE.lock().unwrap_or_else(|e| e.into_inner());
                spare.free.extend(mine.drain(..BATCH));
            }
        });
        if kept.is_err() {
            SPARE.lock().unwrap_or_else(|e| e.into_inner()).free.push(number);
        }
        true
    }
}

/// Four bytes at the front of a word.
fn first(bytes: [u8; 4]) -> u64 {
    let mut word = [0; 8];
    word[..4].copy_from_slice(&bytes);
    u64::from_ne_bytes(word)
}

/// How many fields live.
pub(super) fn count() -> usize {
    let next = SPARE.lock().unwrap_or_else(|e| e.into_inner()).next;
    (0..next).filter_map(slot).filter(|slot| slot.generation.load(Relaxed) % 2 == 1).count()
}

// SAFETY: `data` is looked at only by who owns the slot: the list that it is in while it is free, and one thread at a time while
// it holds a field.
unsafe impl Sync for Slot {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_of_every_slot_is_its_own_and_in_its_chunk() {
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
    fn field_comes_back_as_it_was() {
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
    fn field_that_c_writes_into_holds_what_was_written() {
        let field = Handle::new(Value::from(1_i32));
        let data = field.view().expect("it lives").data.cast::<i32>();
        // SAFETY: the data of a field of one int.
        unsafe { *data += 1 };
        assert_eq!(field.value(), Some(Value::from(2_i32)));
        // SAFETY: as above; that it was looked at in between does not matter.
        unsafe { *data += 1 };
        assert_eq!(field.value(), Some(Value::from(3_i32)));
        assert!(field.free());

        let field = Handle::new(Value::from("abc"));
        let other = Handle::new(field.value().expect("it lives"));
        let deep = Handle::new(field.deep().expect("it lives"));
        // SAFETY: the data of a field of three chars.
        unsafe { *field.view().expect("it lives").data = b'x' };
        assert_eq!(other.value(), Some(Value::from("xbc")), "shallow copies share");
        assert_eq!(deep.value(), Some(Value::from("abc")), "deep copies do not");
        assert!(field.free() && other.free() && deep.free());
    }

    #[test]
    fn field_that_is_gone_is_known_as_such() {
        let field = Handle::new(Value::from(1_i32));
        assert!(field.free());
        assert!(!field.free());
        let next = Handle::new(Value::from(2_i32));
        assert!(field.value().is_none() && field.view().is_none() && !field.free());
        assert!(next.free());
        for nonsense in [0, 5, u64::MAX, 1 << 32 | u32::MAX as u64, 1 << 63] {
            assert!(!Handle(nonsense).free(), "{nonsense:#x}");
        }
    }

    #[test]
    fn slots_of_threads_that_end_are_used_again() {
        let (fields, rounds) = if cfg!(miri) { (300, 2) } else { (1000, 20) };
        let round = move || {
            std::thread::spawn(move || {
                let fields: Vec<Handle> = (0..fields).map(|n| Handle::new(Value::from(n))).collect();
                // Half of them end on another thread.
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
