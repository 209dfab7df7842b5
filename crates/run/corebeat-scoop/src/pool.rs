//! Objects of one type in one region, side by side, and what is known of each: two bits.
//!
//! ```text
//!   slots   | object | object |  free  | object | ...      of one type, no header
//!   used       1        1        0        1                there is an object
//!   marked     1        0        0        1                it was reached: the second one is dead
//! ```

use crate::trace::{Trace, Tracer};
use std::any::Any;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most objects of one type in one region.
pub(crate) const OBJECTS_MAX: usize = u32::MAX as usize;
/// Slots a word.
const WORD: usize = u64::BITS as usize;
/// So many free slots at the end of a pool are kept for the next objects.
const SPARE: usize = 4 * WORD;
/// An object is fetched from memory while so many before it are traced (Cher, Hosking, Vitek, *Software prefetching for mark-sweep
/// garbage collection*, 2004).
const AHEAD: usize = 8;

/// 64 slots: both bits of each, in one cache line.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    used: u64,
    marked: u64,
}

/// What is known of the slots of a pool.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    words: Vec<Word>,
    /// Marked, and not traced yet, from `traced` on: first in, first out, so that it is known what comes next.
    pending: Vec<u32>,
    /// So many of those are traced.
    traced: usize,
    /// Words before this one have no free slot.
    free_from: usize,
    /// The first slot is kept for an object to come.
    is_first_kept: bool,
}

impl Marks {
    /// Marks an object, and has it traced later. False if it was marked, or is not there.
    #[inline(always)]
    pub(crate) fn mark(&mut self, index: u32) -> bool {
        let Some(word) = self.words.get_mut(index as usize / WORD) else { return false };
        let bit = 1 << (index as usize % WORD);
        let news = word.used & bit & !word.marked != 0;
        if news {
            word.marked |= bit;
            if self.pending.len() == self.pending.capacity() {
                self.make_room();
            }
            self.pending.push(index);
        }
        news
    }

    /// So that what waits, and not all that ever did, is what memory is for.
    #[cold]
    fn make_room(&mut self) {
        if self.traced > self.pending.len() / 2 {
            self.pending.drain(..self.traced);
            self.traced = 0;
        } else {
            self.pending.reserve(AHEAD);
        }
    }

    /// What is traced next; and one that comes soon, if any.
    #[inline(always)]
    pub(crate) fn next_pending(&mut self) -> Option<(u32, Option<u32>)> {
        let next = self.pending.get(self.traced).copied();
        self.traced += usize::from(next.is_some());
        if next.is_none() {
            self.pending.clear();
            self.traced = 0;
        }
        Some((next?, self.pending.get(self.traced + AHEAD - 1).copied()))
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.traced < self.pending.len()
    }

    fn forget_pending(&mut self) {
        self.pending = Vec::new();
        self.traced = 0;
    }

    #[inline(always)]
    fn is_used(&self, index: u32) -> bool {
        let word = self.words.get(index as usize / WORD);
        word.is_some_and(|word| word.used >> (index as usize % WORD) & 1 != 0)
    }

    #[cfg(test)]
    fn is_marked(&self, index: u32) -> bool {
        self.words[index as usize / WORD].marked >> (index as usize % WORD) & 1 != 0
    }

    pub(crate) fn objects(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.used.count_ones())).sum()
    }

    /// A slot without an object.
    fn find_free(&mut self) -> usize {
        loop {
            match self.words.get(self.free_from) {
                Some(word) => {
                    let kept = u64::from(self.is_first_kept && self.free_from == 0);
                    let used = word.used | kept;
                    if used != u64::MAX {
                        return self.free_from * WORD + used.trailing_ones() as usize;
                    }
                    self.free_from += 1;
                }
                None => self.words.push(Word::default()),
            }
        }
    }

    /// Nothing is marked.
    pub(crate) fn clear(&mut self) {
        self.forget_pending();
        self.words.iter_mut().for_each(|word| word.marked = 0);
    }
}

/// A pool of whatever type.
pub(crate) trait Slots: Any + Send {
    /// What is traced.
    fn objects(&self) -> Objects;

    /// Drops what is used and not marked; then nothing is marked.
    ///
    /// # Safety
    ///
    /// The marks are those of this pool.
    unsafe fn sweep(&mut self, marks: &mut Marks) -> u64;

    /// Bytes of an object, without what it owns elsewhere.
    fn object_bytes(&self) -> usize;
}

/// The objects of a pool, for a tracer: nothing lies between a number and its object.
#[derive(Clone, Copy)]
pub(crate) struct Objects {
    first: *const (),
    /// Traces what was reached of a view, up to so many objects, which it counts down.
    ///
    /// # Safety
    ///
    /// `first` is that of the pool whose marks the view has; and that pool has not changed since.
    trace: unsafe fn(first: *const (), view: usize, tracer: &mut Tracer, budget: &mut usize),
}

impl Objects {
    /// Traces what was reached of the view that is this pool, up to `budget` objects, which it counts down.
    ///
    /// # Safety
    ///
    /// The view's marks are those of this pool, which has not changed since this was made of it.
    #[inline(always)]
    pub(crate) unsafe fn trace(self, view: usize, tracer: &mut Tracer, budget: &mut usize) {
        // SAFETY: the caller's.
        unsafe { (self.trace)(self.first, view, tracer, budget) }
    }
}

pub(crate) struct Pool<T> {
    slots: Vec<MaybeUninit<T>>,
}

/// Has it fetched from memory, where that can be asked for.
#[inline(always)]
fn prefetch<T>(object: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..size_of::<T>().min(128)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: any address may be asked for.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(object.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = object;
}

// SAFETY: all of an object may be sent but handles, which mean nothing without their region (contract of `Trace`).
unsafe impl<T: Trace> Send for Pool<T> {}

impl<T: Trace> Pool<T> {
    pub(crate) fn new() -> Self {
        Pool { slots: Vec::new() }
    }

    /// See [`Objects`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn trace(first: *const (), view: usize, tracer: &mut Tracer, budget: &mut usize) {
        let first = first.cast::<T>();
        while *budget > 0 {
            let Some((index, soon)) = tracer.next_of(view) else { return };
            if let Some(soon) = soon {
                prefetch(first.wrapping_add(soon as usize));
            }
            *budget -= 1;
            // SAFETY: what is marked was used when it was marked, and nothing is dropped before the marks are taken away. So
            // there is an object; nobody else uses it while the pool's marks are held.
            unsafe { &*first.add(index as usize) }.trace(tracer);
        }
    }

    /// A pool whose first slot is kept for [`Pool::put_first`], with its marks.
    pub(crate) fn with_first_kept() -> (Self, Marks) {
        let marks = Marks { words: vec![Word::default()], is_first_kept: true, ..Marks::default() };
        (Pool { slots: vec![MaybeUninit::uninit()] }, marks)
    }

    /// Puts the object into the first slot that was kept for it.
    ///
    /// # Safety
    ///
    /// The marks are those of this pool, and were made with it.
    pub(crate) unsafe fn put_first(&mut self, marks: &mut Marks, object: T, black: bool) {
        assert!(std::mem::take(&mut marks.is_first_kept), "kept since the pool was made");
        marks.free_from = 0;
        // SAFETY: the caller's. It is the first one that is free.
        let index = unsafe { self.put(marks, object, black) };
        debug_assert_eq!(index, 0);
    }

    /// Puts an object there; `black`: it counts as marked and traced.
    ///
    /// # Safety
    ///
    /// The marks are those of this pool.
    ///
    /// # Panics
    ///
    /// If there are more than [`OBJECTS_MAX`].
    pub(crate) unsafe fn put(&mut self, marks: &mut Marks, object: T, black: bool) -> u32 {
        let index = marks.find_free();
        assert!(index < OBJECTS_MAX, "a processor has at most {OBJECTS_MAX} objects of one type");
        match self.slots.get_mut(index) {
            Some(slot) => *slot = MaybeUninit::new(object),
            None => {
                debug_assert_eq!(index, self.slots.len());
                self.slots.push(MaybeUninit::new(object));
            }
        }
        let (word, bit) = (&mut marks.words[index / WORD], 1 << (index % WORD));
        word.used |= bit;
        if black {
            word.marked |= bit;
        }
        index as u32
    }

    /// # Safety
    ///
    /// The marks are those of this pool.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, marks: &Marks, index: u32) -> Option<&T> {
        // SAFETY: a slot that is used has an object.
        marks.is_used(index).then(|| unsafe { self.slots.get_unchecked(index as usize).assume_init_ref() })
    }

    /// # Safety
    ///
    /// The marks are those of this pool.
    #[inline(always)]
    pub(crate) unsafe fn get_mut(&mut self, marks: &Marks, index: u32) -> Option<&mut T> {
        // SAFETY: a slot that is used has an object.
        marks
            .is_used(index)
            .then(|| unsafe { self.slots.get_unchecked_mut(index as usize).assume_init_mut() })
    }
}

impl<T: Trace> Slots for Pool<T> {
    fn objects(&self) -> Objects {
        Objects { first: self.slots.as_ptr().cast(), trace: Self::trace }
    }

    unsafe fn sweep(&mut self, marks: &mut Marks) -> u64 {
        let mut freed = 0;
        for (n, word) in marks.words.iter_mut().enumerate() {
            let mut dead = word.used & !word.marked;
            freed += u64::from(dead.count_ones());
            // What is dropped is not used any more, also if a destructor panics.
            *word = Word { used: word.marked, marked: 0 };
            while std::mem::needs_drop::<T>() && dead != 0 {
                let slot = &mut self.slots[n * WORD + dead.trailing_zeros() as usize];
                dead &= dead - 1;
                // SAFETY: it was used until just now, and is not any more, so it is dropped once.
                let dropped = catch_unwind(AssertUnwindSafe(|| unsafe { slot.assume_init_drop() }));
                // The panic was told where it happened. The payload may have a destructor that panics.
                let _ = dropped.map_err(std::mem::forget);
            }
        }
        let end = marks.words.iter().rposition(|word| word.used != 0).map_or(0, |n| (n + 1) * WORD);
        if self.slots.len() > end + SPARE && self.slots.capacity() > 2 * end {
            marks.words.truncate(end / WORD);
            marks.words.shrink_to_fit();
            // Slots that are not used need no drop.
            self.slots.truncate(end);
            self.slots.shrink_to_fit();
        }
        marks.free_from = 0;
        marks.forget_pending();
        freed
    }

    fn object_bytes(&self) -> usize {
        size_of::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tell<'a>(&'a std::cell::Cell<u32>);

    impl Drop for Tell<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    // SAFETY: of a test, which has one thread.
    unsafe impl Trace for Tell<'static> {
        fn trace(&self, _: &mut Tracer) {}
    }

    #[test]
    fn pool_drops_what_is_not_marked_and_fills_the_gaps() {
        let dropped: &'static std::cell::Cell<u32> = Box::leak(Box::default());
        let (mut pool, mut marks) = (Pool::new(), Marks::default());
        for n in 0..200 {
            // SAFETY: made for each other.
            assert_eq!(unsafe { pool.put(&mut marks, Tell(dropped), false) }, n);
        }
        (0..200).step_by(2).for_each(|n| assert!(marks.mark(n) && !marks.mark(n)));
        assert!(!marks.mark(200) && !marks.mark(1_000_000));
        while marks.next_pending().is_some() {}
        // SAFETY: as above.
        assert_eq!(unsafe { pool.sweep(&mut marks) }, 100);
        assert_eq!((dropped.get(), marks.objects()), (100, 100));
        // SAFETY: as above.
        unsafe {
            assert!(pool.get(&marks, 1).is_none() && pool.get(&marks, 2).is_some());
            assert_eq!(pool.put(&mut marks, Tell(dropped), true), 1);
            assert!(marks.is_marked(1) && !marks.is_marked(2));
            assert_eq!(pool.sweep(&mut marks), 100);
            assert_eq!(pool.sweep(&mut marks), 1);
        }
        assert_eq!((dropped.get(), marks.words.len(), pool.slots.len()), (201, 4, 200));
    }
}
