//! Objects of one type in one region, adjacent in memory, with two bits for each.
//!
//! ```text
//!   slots   | object | object |  free  | object | ...      of one type, no header
//!   used       1        1        0        1                the slot contains an object
//!   marked     1        0        0        1                reached: the second object is dead
//! ```

use crate::trace::{Trace, Tracer};
use std::any::Any;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum number of objects of one type in one region.
pub(crate) const OBJECTS_MAX: usize = u32::MAX as usize;
/// Number of slots per word.
const WORD: usize = u64::BITS as usize;
/// Number of free slots at the end of a pool that are kept for the next objects.
const SPARE: usize = 4 * WORD;
/// Prefetch distance: an object is prefetched while this number of earlier objects is traced (Cher,
/// Hosking, Vitek, *Software prefetching for mark-sweep garbage collection*, 2004).
const AHEAD: usize = 8;

/// Both bits of 64 slots, in one cache line.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    used: u64,
    marked: u64,
}

/// State of the slots of a pool.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    words: Vec<Word>,
    /// Marked objects in FIFO order, so that the next ones are known; untraced from `traced` on.
    pending: Vec<u32>,
    /// Number of traced entries of `pending`.
    traced: usize,
    /// Words before this one have no free slot.
    free_from: usize,
    /// Whether the first slot is reserved for a future object.
    is_first_kept: bool,
}

impl Marks {
    /// Marks an object and queues it for tracing. Returns `false` if it was marked before, or does
    /// not exist.
    #[inline(always)]
    pub(crate) fn mark(&mut self, index: u32) -> bool {
        let Some(word) = self.words.get_mut(index as usize / WORD) else { return false };
        let bit = 1 << (index as usize % WORD);
        let is_new = word.used & bit & !word.marked != 0;
        if is_new {
            word.marked |= bit;
            if self.pending.len() == self.pending.capacity() {
                self.make_room();
            }
            self.pending.push(index);
        }
        is_new
    }

    /// Removes traced entries before the queue grows, so that memory is bounded by untraced
    /// objects.
    #[cold]
    fn make_room(&mut self) {
        if self.traced > self.pending.len() / 2 {
            self.pending.drain(..self.traced);
            self.traced = 0;
        } else {
            self.pending.reserve(AHEAD);
        }
    }

    /// Returns the next object to trace, and one that follows at the prefetch distance, if any.
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

    /// Returns a free slot.
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

    /// Clears all marks.
    pub(crate) fn clear(&mut self) {
        self.forget_pending();
        self.words.iter_mut().for_each(|word| word.marked = 0);
    }
}

/// A pool of any type.
pub(crate) trait Slots: Any + Send {
    /// Returns the objects for a tracer.
    fn objects(&self) -> Objects;

    /// Drops all unmarked objects and clears all marks. Returns the number of dropped objects.
    ///
    /// # Safety
    ///
    /// The marks belong to this pool.
    unsafe fn sweep(&mut self, marks: &mut Marks) -> u64;

    /// Size of an object in bytes, without memory that it owns elsewhere.
    fn object_bytes(&self) -> usize;
}

/// The objects of a pool, for a tracer: an index leads directly to its object.
#[derive(Clone, Copy)]
pub(crate) struct Objects {
    first: *const (),
    /// Traces reached objects of a view, up to `budget`, which it decrements.
    ///
    /// # Safety
    ///
    /// `first` belongs to the pool whose marks the view has, and that pool has not changed since.
    trace: unsafe fn(first: *const (), view: usize, tracer: &mut Tracer, budget: &mut usize),
}

impl Objects {
    /// Traces reached objects of the view of this pool, up to `budget`, which it decrements.
    ///
    /// # Safety
    ///
    /// The marks of the view belong to this pool, which has not changed since `objects`.
    #[inline(always)]
    pub(crate) unsafe fn trace(self, view: usize, tracer: &mut Tracer, budget: &mut usize) {
        // SAFETY: the caller guarantees it.
        unsafe { (self.trace)(self.first, view, tracer, budget) }
    }
}

pub(crate) struct Pool<T> {
    slots: Vec<MaybeUninit<T>>,
}

/// Prefetches an object, if the processor supports that.
#[inline(always)]
fn prefetch<T>(object: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..size_of::<T>().min(128)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(object.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = object;
}

// SAFETY: all parts of an object are `Send` except handles, which are useless without their region
// (contract of `Trace`).
unsafe impl<T: Trace> Send for Pool<T> {}

impl<T: Trace> Pool<T> {
    pub(crate) fn new() -> Self {
        Pool { slots: Vec::new() }
    }

    /// Implements `trace` of [`Objects`].
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
            // SAFETY: a marked slot was used when it was marked, and no object is dropped while the
            // marks exist. So the slot contains an object, which has no other user while the marks
            // of the pool are held.
            unsafe { &*first.add(index as usize) }.trace(tracer);
        }
    }

    /// Creates a pool whose first slot is reserved for [`Pool::put_first`], and its marks.
    pub(crate) fn with_first_kept() -> (Self, Marks) {
        let marks = Marks { words: vec![Word::default()], is_first_kept: true, ..Marks::default() };
        (Pool { slots: vec![MaybeUninit::uninit()] }, marks)
    }

    /// Puts the object into the reserved first slot.
    ///
    /// # Safety
    ///
    /// The marks belong to this pool, and were created with it.
    pub(crate) unsafe fn put_first(&mut self, marks: &mut Marks, object: T, black: bool) {
        assert!(std::mem::take(&mut marks.is_first_kept), "the first slot is reserved");
        marks.free_from = 0;
        // SAFETY: the caller guarantees it. The first slot is the first free one.
        let index = unsafe { self.put(marks, object, black) };
        debug_assert_eq!(index, 0);
    }

    /// Adds an object. With `black` the object counts as marked and traced.
    ///
    /// # Safety
    ///
    /// The marks belong to this pool.
    ///
    /// # Panics
    ///
    /// If the pool has [`OBJECTS_MAX`] objects.
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
    /// The marks belong to this pool.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, marks: &Marks, index: u32) -> Option<&T> {
        // SAFETY: a used slot contains an object.
        marks
            .is_used(index)
            .then(|| unsafe { self.slots.get_unchecked(index as usize).assume_init_ref() })
    }

    /// # Safety
    ///
    /// The marks belong to this pool.
    #[inline(always)]
    pub(crate) unsafe fn get_mut(&mut self, marks: &Marks, index: u32) -> Option<&mut T> {
        // SAFETY: a used slot contains an object.
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
            // Before the destructors: a dropped slot is unused even if a destructor panics.
            *word = Word { used: word.marked, marked: 0 };
            while std::mem::needs_drop::<T>() && dead != 0 {
                let slot = &mut self.slots[n * WORD + dead.trailing_zeros() as usize];
                dead &= dead - 1;
                // SAFETY: the slot was used and is now unused, so the object is dropped once.
                let dropped = catch_unwind(AssertUnwindSafe(|| unsafe { slot.assume_init_drop() }));
                // The panic hook has reported the panic. The destructor of the payload may panic.
                let _ = dropped.map_err(std::mem::forget);
            }
        }
        let end = marks.words.iter().rposition(|word| word.used != 0).map_or(0, |n| (n + 1) * WORD);
        if self.slots.len() > end + SPARE && self.slots.capacity() > 2 * end {
            marks.words.truncate(end / WORD);
            marks.words.shrink_to_fit();
            // Unused slots need no drop.
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

    struct CountsDrops<'a>(&'a std::cell::Cell<u32>);

    impl Drop for CountsDrops<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    // SAFETY: the test has one thread.
    unsafe impl Trace for CountsDrops<'static> {
        fn trace(&self, _: &mut Tracer) {}
    }

    #[test]
    fn pool_drops_unmarked_objects_and_reuses_their_slots() {
        let dropped: &'static std::cell::Cell<u32> = Box::leak(Box::default());
        let (mut pool, mut marks) = (Pool::new(), Marks::default());
        for n in 0..200 {
            // SAFETY: pool and marks were created together.
            assert_eq!(unsafe { pool.put(&mut marks, CountsDrops(dropped), false) }, n);
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
            assert_eq!(pool.put(&mut marks, CountsDrops(dropped), true), 1);
            assert!(marks.is_marked(1) && !marks.is_marked(2));
            assert_eq!(pool.sweep(&mut marks), 100);
            assert_eq!(pool.sweep(&mut marks), 1);
        }
        assert_eq!((dropped.get(), marks.words.len(), pool.slots.len()), (201, 4, 200));
    }
}
