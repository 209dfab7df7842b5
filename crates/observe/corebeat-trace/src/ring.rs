//! A ring of buffers: one thread (the producer) fills them, one other (the consumer) takes them.
//!
//! ```text
//!            freed            filled
//!              v                v
//!   | free  | full  | full  | open  | free  |        slots, one piece of memory
//!                             ====>.
//!                                 at: bytes before it are written
//! ```
//!
//! # Protocol
//!
//! The counts `freed` and `filled` only grow. Slot number `n` is at index `n` modulo the number of
//! slots. If `filled - freed` is less than the number of slots, the producer opens slot `filled`,
//! advances `at` through it, closes it and increments `filled`. The consumer owns the slots from
//! `freed` to `filled` and increments `freed` after it has processed one. Every slot therefore
//! belongs either to the producer or to the consumer, with one exception: [`Ring::peek`] and
//! [`Ring::take_rest`] let the consumer read the part of the open slot that lies before `at`. The
//! producer does not write to that part until the slot was closed and returned. `taken_bytes`
//! records how much `peek` has returned, so that no byte is returned twice.
//!
//! The consumer must determine which slot `at` points into while the producer advances. It reads
//! `filled`, `at`, and `filled` again until both counts are equal. Then `at` is null; or it points
//! into slot `filled`, which is open; or it points to the end of slot `filled - 1`, because `close`
//! has incremented the count and not yet reset `at`. The last two cases are distinguishable,
//! because the ring has at least two slots. (If `close` reset `at` before it incremented the count,
//! a slot could be neither open nor counted. The loom model shows that reading `at` first confuses
//! the two slots.)

use corebeat_sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use corebeat_sync::cell::UnsafeCell;
use std::alloc::{self, Layout};
use std::ptr;

/// The ring. The producer's fields come first, next to the other data of the producer. `O` is
/// recorded when a slot is opened, `C` when it is closed.
#[repr(C)]
pub(crate) struct Ring<O, C> {
    /// Position of the next write in the open slot; null if no slot is open. Written by the
    /// producer.
    at: AtomicPtr<u8>,
    /// Number of closed slots. Written by the producer.
    filled: AtomicUsize,
    /// Number of returned slots. Written by the consumer.
    freed: AtomicUsize,
    /// Bytes of slot `freed` that were taken while it was open. Used only by the consumer.
    taken_bytes: UnsafeCell<usize>,
    slots: Box<[Slot<O, C>]>,
    memory: Memory,
}

struct Slot<O, C> {
    /// Written by the producer before `at` enters the slot.
    opened: UnsafeCell<O>,
    /// Written by the producer before `filled` passes the slot, with the number of bytes written.
    closed: UnsafeCell<(C, usize)>,
}

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken<'a, O, C> {
    pub(crate) opened: O,
    /// `None`: the slot is still open.
    pub(crate) closed: Option<C>,
    /// The bytes that were not taken before, while the slot was open.
    pub(crate) bytes: &'a [u8],
    /// Whether some bytes were taken before.
    pub(crate) is_partial: bool,
}

// SAFETY: the protocol assigns each slot to one thread at a time; `O` and `C` may change threads.
unsafe impl<O: Send, C: Send> Send for Ring<O, C> {}
// SAFETY: as above. Methods that only one side may call are unsafe.
unsafe impl<O: Send, C: Send> Sync for Ring<O, C> {}

impl<O: Copy + Default, C: Copy + Default> Ring<O, C> {
    /// A ring of `slots` slots in this memory, which has as many.
    pub(crate) fn new(slots: usize, memory: Memory) -> Ring<O, C> {
        let slot = || Slot {
            opened: UnsafeCell::new(O::default()),
            closed: UnsafeCell::new(Default::default()),
        };
        Ring {
            at: AtomicPtr::new(ptr::null_mut()),
            filled: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            taken_bytes: UnsafeCell::new(0),
            slots: (0..slots).map(|_| slot()).collect(),
            memory,
        }
    }

    /// Removes the memory for use by another ring. This ring must not be used afterwards.
    pub(crate) fn take_memory(&mut self) -> Memory {
        let Memory { layout, slot_bytes, .. } = self.memory;
        std::mem::replace(&mut self.memory, Memory { start: ptr::null_mut(), layout, slot_bytes })
    }

    // ---- producer

    /// Position of the next write; null if no slot is open.
    #[inline(always)]
    pub(crate) fn at(&self) -> *mut u8 {
        // Relaxed: the producer itself wrote this value.
        self.at.load(Ordering::Relaxed)
    }

    /// Publishes all bytes before `at`.
    ///
    /// # Safety
    ///
    /// Only the producer calls this, and `at` points into the open slot.
    #[inline(always)]
    pub(crate) unsafe fn advance(&self, at: *mut u8) {
        // Release: pairs with Acquire in `position`; a consumer that reads `at` reads the bytes
        // before it.
        self.at.store(at, Ordering::Release);
    }

    /// Whether a slot can be opened.
    pub(crate) fn has_room(&self) -> bool {
        // Relaxed: the producer itself wrote this value. Acquire: pairs with Release in `free`; the
        // consumer has finished reading the slot before the producer overwrites it.
        self.filled.load(Ordering::Relaxed) - self.freed.load(Ordering::Acquire) < self.slots.len()
    }

    /// Opens the next slot. Returns its begin and its end.
    ///
    /// # Safety
    ///
    /// Only the producer calls this, while no slot is open and [`Ring::has_room`] is true.
    pub(crate) unsafe fn open(&self, opened: O) -> (*mut u8, *mut u8) {
        let index = self.filled.load(Ordering::Relaxed) % self.slots.len();
        // SAFETY: the slot is free, so it belongs to the producer.
        self.slots[index].opened.with_mut(|cell| unsafe { *cell = opened });
        let start = self.memory.slot(index);
        // Release: as in `advance`, for `opened`.
        self.at.store(start, Ordering::Release);
        // SAFETY: the slot has that many bytes. Its last byte is never written, so that `at` never
        // points into the next slot.
        (start, unsafe { start.add(self.memory.slot_bytes - 1) })
    }

    /// Closes the open slot and hands it to the consumer. Does nothing if no slot is open.
    ///
    /// # Safety
    ///
    /// Only the producer calls this.
    pub(crate) unsafe fn close(&self, closed: C) {
        let at = self.at();
        if at.is_null() {
            return;
        }
        let filled = self.filled.load(Ordering::Relaxed);
        let index = filled % self.slots.len();
        let bytes = at.addr() - self.memory.slot(index).addr();
        // SAFETY: the slot is open, so it belongs to the producer; `take_rest` does not read this
        // field of an open slot.
        self.slots[index].closed.with_mut(|cell| unsafe { *cell = (closed, bytes) });
        // Release: pairs with Acquire in `next` and `take_rest`; a consumer that reads the count
        // reads the contents of the slot.
        self.filled.store(filled + 1, Ordering::Release);
        // Release: pairs with Acquire in `position`; a consumer that reads null reads the new
        // count. One that reads the old value identifies the slot by the count.
        self.at.store(ptr::null_mut(), Ordering::Release);
    }

    // ---- consumer

    /// The oldest full slot that was not returned.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this, and does not use the result after [`Ring::free`].
    pub(crate) unsafe fn next(&self) -> Option<Taken<'_, O, C>> {
        // Relaxed: the consumer itself wrote this value.
        let freed = self.freed.load(Ordering::Relaxed);
        // Acquire: pairs with Release in `close`.
        if freed == self.filled.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the slot is full, so it belongs to the consumer.
        Some(unsafe { self.full(freed) })
    }

    /// The bytes of the open slot that were not taken yet. Returns `None` if there are none, or if
    /// a slot is full.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this, and does not use the result after [`Ring::free`].
    pub(crate) unsafe fn peek(&self) -> Option<Taken<'_, O, C>> {
        let (filled, at) = self.position();
        // Relaxed: the consumer itself wrote this value.
        if filled != self.freed.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `at` and `filled` are the result of `position`.
        let taken =
            unsafe { self.open_part(filled, at) }.filter(|taken| !taken.bytes.is_empty())?;
        // SAFETY: only the consumer uses this field.
        self.taken_bytes.with_mut(|seen| unsafe { *seen += taken.bytes.len() });
        Some(taken)
    }

    /// Whether nothing is left to take.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this.
    pub(crate) unsafe fn is_drained(&self) -> bool {
        let (filled, at) = self.position();
        // Relaxed: the consumer itself wrote this value.
        filled == self.freed.load(Ordering::Relaxed)
            // SAFETY: `at` and `filled` are the result of `position`.
            && unsafe { self.open_part(filled, at) }.is_none_or(|taken| taken.bytes.is_empty())
    }

    /// Returns the slot that [`Ring::next`] returned to the producer.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this, once for each slot.
    pub(crate) unsafe fn free(&self) {
        let freed = self.freed.load(Ordering::Relaxed);
        // SAFETY: only the consumer uses this field.
        self.taken_bytes.with_mut(|seen| unsafe { *seen = 0 });
        // Release: pairs with Acquire in `has_room`.
        self.freed.store(freed + 1, Ordering::Release);
    }

    /// Takes the full slots and the written part of the open slot.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this, and calls nothing else afterwards.
    pub(crate) unsafe fn take_rest(&self) -> Vec<Taken<'_, O, C>> {
        let (filled, at) = self.position();
        let freed = self.freed.load(Ordering::Relaxed);
        // SAFETY: these slots are full, so they belong to the consumer; `at` and `filled` are the
        // result of `position`.
        unsafe {
            let mut rest: Vec<_> = (freed..filled).map(|number| self.full(number)).collect();
            if rest.len() < self.slots.len() {
                rest.extend(self.open_part(filled, at));
            }
            rest
        }
    }

    /// A consistent pair of the number of closed slots and `at`.
    fn position(&self) -> (usize, *mut u8) {
        // Acquire: pairs with Release in `close`. A consumer that reads a count reads the `at` of
        // that time, or a later one.
        let mut filled = self.filled.load(Ordering::Acquire);
        loop {
            // Acquire: pairs with Release in `advance`, `open` and `close`. A consumer that reads
            // an `at` within a slot, or null, reads that the preceding slots are full.
            let at = self.at.load(Ordering::Acquire);
            let again = self.filled.load(Ordering::Acquire);
            if again == filled {
                return (filled, at);
            }
            // A slot was closed in between. This happens at most once per slot, because no slot
            // becomes free meanwhile.
            filled = again;
        }
    }

    /// The contents of a full slot.
    ///
    /// # Safety
    ///
    /// The slot of this number is full, and the caller is the consumer.
    unsafe fn full(&self, number: usize) -> Taken<'_, O, C> {
        // SAFETY: a full slot belongs to the consumer.
        let (closed, bytes) =
            self.slots[number % self.slots.len()].closed.with(|cell| unsafe { *cell });
        // SAFETY: `bytes` bytes of the slot are written.
        unsafe { self.part(number, bytes, Some(closed)) }
    }

    /// The part of the open slot before `at`, if `at` points into that slot.
    ///
    /// # Safety
    ///
    /// The caller is the consumer, and `filled` and `at` are the result of [`Ring::position`].
    unsafe fn open_part(&self, filled: usize, at: *mut u8) -> Option<Taken<'_, O, C>> {
        let offset = at.addr().checked_sub(self.memory.start.addr())?;
        let (index, bytes) = (offset / self.memory.slot_bytes, offset % self.memory.slot_bytes);
        // `at` points into the open slot, or still into the slot that was closed last, which has
        // another index.
        // SAFETY: all bytes before `at` are written.
        (index == filled % self.slots.len()).then(|| unsafe { self.part(filled, bytes, None) })
    }

    /// The first `bytes` bytes of a slot, without those that were taken before.
    ///
    /// # Safety
    ///
    /// The caller is the consumer. The slot was opened before the `at` or `filled` that the caller
    /// has read, and `bytes` bytes of it are written.
    unsafe fn part(&self, number: usize, bytes: usize, closed: Option<C>) -> Taken<'_, O, C> {
        let index = number % self.slots.len();
        // SAFETY: the producer does not write there until the slot is returned; only the consumer
        // uses `taken_bytes`.
        unsafe {
            let opened = self.slots[index].opened.with(|cell| *cell);
            let is_first = number == self.freed.load(Ordering::Relaxed);
            let seen = if is_first { self.taken_bytes.with(|seen| *seen) } else { 0 };
            let bytes = &std::slice::from_raw_parts(self.memory.slot(index), bytes)[seen..];
            Taken { opened, closed, bytes, is_partial: seen > 0 }
        }
    }
}

/// The memory of the slots. It contains zeros at first, and old data after reuse.
pub(crate) struct Memory {
    /// Null after the memory was moved to another ring.
    start: *mut u8,
    layout: Layout,
    slot_bytes: usize,
}

// SAFETY: the memory has one owner.
unsafe impl Send for Memory {}

impl Memory {
    /// Memory for `slots` slots of `slot_bytes` bytes. Pages that are not written take no memory.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Memory {
        // A larger alignment makes the standard library write the zeros itself, which touches
        // every page.
        const ALIGN: usize = 16;
        assert!(slots > 1 && slot_bytes > 1, "a ring needs two slots of two bytes or more");
        let layout = Layout::array::<u8>(slots * slot_bytes).and_then(|l| l.align_to(ALIGN));
        let layout = layout.expect("a ring has a few megabytes at most");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        if start.is_null() {
            alloc::handle_alloc_error(layout);
        }
        #[cfg(all(target_os = "linux", not(any(miri, loom))))]
        advise_huge_pages(start, layout.size());
        Memory { start, layout, slot_bytes }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn slot(&self, index: usize) -> *mut u8 {
        debug_assert!(index * self.slot_bytes < self.layout.size());
        // SAFETY: every index is taken modulo the number of slots, so the offset is within the
        // allocation.
        unsafe { self.start.add(index * self.slot_bytes) }
    }
}

/// Requests huge pages for a large ring, whose producer would otherwise cause a page fault for each
/// page. A small ring would take more memory.
#[cfg(all(target_os = "linux", not(any(miri, loom))))]
fn advise_huge_pages(start: *mut u8, bytes: usize) {
    const PAGE: usize = 4096;
    const LARGE: usize = 32 << 20;
    if bytes >= LARGE {
        let skipped = start.addr().next_multiple_of(PAGE) - start.addr();
        let whole = bytes.saturating_sub(skipped) / PAGE * PAGE;
        // SAFETY: whole pages of the allocation; failing advice changes nothing.
        let _ = unsafe {
            rustix::mm::madvise(start.add(skipped).cast(), whole, rustix::mm::Advice::LinuxHugepage)
        };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: it was allocated with this layout.
            unsafe { alloc::dealloc(self.start, self.layout) };
        }
    }
}
