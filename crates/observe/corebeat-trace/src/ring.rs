//! A thread's buffers: it fills them in a circle, and one other takes what is full.
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
//! Numbers `freed` and `filled` only grow; slot `n` of the ring is where number `n` modulo the slots is. The filler opens slot
//! `filled` where `filled - freed` is less than there are slots, moves `at` through it, closes it, and counts `filled` up. The
//! taker has slots from `freed` to `filled`, and counts `freed` up when it is done with one. So a slot is the filler's or the
//! taker's, never both's, but for one case: [`Ring::peek`] and [`Ring::rest`] let the taker see the part of the open slot that is before
//! `at`. The filler does not write there again before the slot was closed and given back. What `peek` gave (`seen`) is not given again.
//!
//! Both have to know whose slot `at` is in, while the filler goes on. They read `filled`, `at`, and `filled` again until both
//! counts are the same. Then `at` is null, or in slot `filled`, which is open; or at the end of slot `filled - 1`, where `close` has
//! counted and not yet set it to null. The two have different places, because there are two slots or more. (To set it to null before
//! counting would hide a slot that is neither open nor counted; a model found that reading `at` first takes one for the
//! other.)

use corebeat_sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use corebeat_sync::cell::UnsafeCell;
use std::alloc::{self, Layout};
use std::ptr;

/// The ring. The filler's part is at its beginning, beside what else the filler has. `O` is what is known of a slot when it is opened, `C` when it is closed.
#[repr(C)]
pub(crate) struct Ring<O, C> {
    /// Where the filler writes next, in the open slot; null while none is open. Written by the filler.
    at: AtomicPtr<u8>,
    /// Slots closed so far. Written by the filler.
    filled: AtomicUsize,
    /// Slots given back so far. Written by the taker.
    freed: AtomicUsize,
    /// Bytes of slot `freed` that were taken while it was open. The taker's alone.
    seen: UnsafeCell<usize>,
    slots: Box<[Slot<O, C>]>,
    memory: Memory,
}

struct Slot<O, C> {
    /// Written by the filler before `at` comes into the slot.
    opened: UnsafeCell<O>,
    /// Written by the filler before `filled` goes over the slot, with how many bytes are written.
    closed: UnsafeCell<(C, usize)>,
}

/// What is in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken<'a, O, C> {
    pub(crate) opened: O,
    /// `None`: the slot is still open.
    pub(crate) closed: Option<C>,
    /// Without those that were taken before, while the slot was open.
    pub(crate) bytes: &'a [u8],
    /// Whether there were any.
    pub(crate) goes_on: bool,
}

// SAFETY: the protocol says who uses which memory when; what goes from one thread to the other may.
unsafe impl<O: Send, C: Send> Send for Ring<O, C> {}
// SAFETY: as above. Methods that one side alone may call are unsafe, and say so.
unsafe impl<O: Send, C: Send> Sync for Ring<O, C> {}

impl<O: Copy + Default, C: Copy + Default> Ring<O, C> {
    /// A ring of so many slots, in memory that has as many.
    pub(crate) fn new(slots: usize, memory: Memory) -> Ring<O, C> {
        let slot =
            || Slot { opened: UnsafeCell::new(O::default()), closed: UnsafeCell::new(Default::default()) };
        Ring {
            at: AtomicPtr::new(ptr::null_mut()),
            filled: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            seen: UnsafeCell::new(0),
            slots: (0..slots).map(|_| slot()).collect(),
            memory,
        }
    }

    /// Its memory, for another one. This one is not used any more.
    pub(crate) fn take_memory(&mut self) -> Memory {
        let Memory { layout, slot_bytes, .. } = self.memory;
        std::mem::replace(&mut self.memory, Memory { start: ptr::null_mut(), layout, slot_bytes })
    }

    // ---- for the filler

    /// Where it writes next: null while no slot is open.
    #[inline(always)]
    pub(crate) fn at(&self) -> *mut u8 {
        // Relaxed: for the filler, it has written this itself.
        self.at.load(Ordering::Relaxed)
    }

    /// All before this is written.
    ///
    /// # Safety
    ///
    /// Only the filler calls this, and `at` is in the open slot.
    #[inline(always)]
    pub(crate) unsafe fn advance(&self, at: *mut u8) {
        // Release: pairs with Acquire in `rest`; who sees `at` there sees what is written before it.
        self.at.store(at, Ordering::Release);
    }

    /// Whether a slot can be opened.
    pub(crate) fn has_room(&self) -> bool {
        // Relaxed: for the filler, it has written this itself. Acquire: pairs with Release in `free`; what the taker read in
        // the slot, it has read before the filler writes there again.
        self.filled.load(Ordering::Relaxed) - self.freed.load(Ordering::Acquire) < self.slots.len()
    }

    /// Opens the next slot: from where to where it is.
    ///
    /// # Safety
    ///
    /// Only the filler calls this, where no slot is open and [`Ring::has_room`].
    pub(crate) unsafe fn open(&self, opened: O) -> (*mut u8, *mut u8) {
        let index = self.filled.load(Ordering::Relaxed) % self.slots.len();
        // SAFETY: the slot is free, which makes it the filler's.
        self.slots[index].opened.with_mut(|place| unsafe { *place = opened });
        let start = self.memory.slot(index);
        // Release: as in `advance`, for `opened`.
        self.at.store(start, Ordering::Release);
        // SAFETY: the slot has that many bytes. Its last one is never written, so that `at` never is in the next.
        (start, unsafe { start.add(self.memory.slot_bytes - 1) })
    }

    /// Closes the open slot, which becomes the taker's. Does nothing where none is open.
    ///
    /// # Safety
    ///
    /// Only the filler calls this.
    pub(crate) unsafe fn close(&self, closed: C) {
        let at = self.at();
        if at.is_null() {
            return;
        }
        let filled = self.filled.load(Ordering::Relaxed);
        let index = filled % self.slots.len();
        let bytes = at.addr() - self.memory.slot(index).addr();
        // SAFETY: the slot is open, which makes it the filler's; and of an open one `rest` does not look at this.
        self.slots[index].closed.with_mut(|place| unsafe { *place = (closed, bytes) });
        // Release: pairs with Acquire in `next` and `rest`; who sees the count sees what is in the slot.
        self.filled.store(filled + 1, Ordering::Release);
        // Relaxed: nothing is known by it. `rest` may see it later, and take the slot for what it is, by the count.
        self.at.store(ptr::null_mut(), Ordering::Relaxed);
    }

    // ---- for the taker

    /// The oldest full slot that is not given back.
    ///
    /// # Safety
    ///
    /// Only the taker calls this, and does not use what it got any more after [`Ring::free`].
    pub(crate) unsafe fn next(&self) -> Option<Taken<'_, O, C>> {
        // Relaxed: for the taker, it has written this itself.
        let freed = self.freed.load(Ordering::Relaxed);
        // Acquire: pairs with Release in `close`.
        if freed == self.filled.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the slot is full, and the taker's.
        Some(unsafe { self.full(freed) })
    }

    /// What is in the open slot so far, and was not taken yet; where no slot is full, and there is something.
    ///
    /// # Safety
    ///
    /// Only the taker calls this, and does not use what it got any more after [`Ring::free`].
    pub(crate) unsafe fn peek(&self) -> Option<Taken<'_, O, C>> {
        let (filled, at) = self.place();
        // Relaxed: for the taker, it has written this itself.
        if filled != self.freed.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `at` is as it was told.
        let taken = unsafe { self.open_part(filled, at) }.filter(|taken| !taken.bytes.is_empty())?;
        // SAFETY: the taker's.
        self.seen.with_mut(|seen| unsafe { *seen += taken.bytes.len() });
        Some(taken)
    }

    /// Gives back the slot that [`Ring::next`] told.
    ///
    /// # Safety
    ///
    /// Only the taker calls this, once for each that it was told.
    pub(crate) unsafe fn free(&self) {
        let freed = self.freed.load(Ordering::Relaxed);
        // SAFETY: the taker's.
        self.seen.with_mut(|seen| unsafe { *seen = 0 });
        // Release: pairs with Acquire in `has_room`.
        self.freed.store(freed + 1, Ordering::Release);
    }

    /// All that is there: the full slots, and the part of the open one that is written.
    ///
    /// # Safety
    ///
    /// Only the taker calls this, and nothing else of its own from here on.
    pub(crate) unsafe fn rest(&self) -> Vec<Taken<'_, O, C>> {
        let (filled, at) = self.place();
        let freed = self.freed.load(Ordering::Relaxed);
        // SAFETY: these slots are full, and the taker's; `at` is as it was told.
        unsafe {
            let mut rest: Vec<_> = (freed..filled).map(|number| self.full(number)).collect();
            if rest.len() < self.slots.len() {
                rest.extend(self.open_part(filled, at));
            }
            rest
        }
    }

    /// How many slots are full, and where `at` was then.
    fn place(&self) -> (usize, *mut u8) {
        // Acquire: pairs with Release in `close`. Who sees a count sees `at` as it was then, or later.
        let mut filled = self.filled.load(Ordering::Acquire);
        loop {
            // Acquire: pairs with Release in `advance` and `open`. Who sees it in a slot sees that those before are full.
            let at = self.at.load(Ordering::Acquire);
            let again = self.filled.load(Ordering::Acquire);
            if again == filled {
                return (filled, at);
            }
            // A slot was closed meanwhile. That happens no more often than there are slots, because none becomes free.
            filled = again;
        }
    }

    /// A full slot.
    ///
    /// # Safety
    ///
    /// The slot of this number is full, and the caller the taker.
    unsafe fn full(&self, number: usize) -> Taken<'_, O, C> {
        // SAFETY: a full slot is the taker's.
        let (closed, bytes) = self.slots[number % self.slots.len()].closed.with(|place| unsafe { *place });
        // SAFETY: so many bytes of it are written.
        unsafe { self.part(number, bytes, Some(closed)) }
    }

    /// What is before `at` in the open slot, if it is in there.
    ///
    /// # Safety
    ///
    /// The caller is the taker, and [`Ring::place`] told this.
    unsafe fn open_part(&self, filled: usize, at: *mut u8) -> Option<Taken<'_, O, C>> {
        let offset = at.addr().checked_sub(self.memory.start.addr())?;
        let (index, bytes) = (offset / self.memory.slot_bytes, offset % self.memory.slot_bytes);
        // It is in the open slot, or still in the one that was closed last, which is another.
        // SAFETY: all before `at` is written.
        (index == filled % self.slots.len()).then(|| unsafe { self.part(filled, bytes, None) })
    }

    /// So many bytes of a slot, without those that were taken before.
    ///
    /// # Safety
    ///
    /// The caller is the taker, the slot was opened before what it saw of `at` or `filled`, and so many bytes of it are written.
    unsafe fn part(&self, number: usize, bytes: usize, closed: Option<C>) -> Taken<'_, O, C> {
        let index = number % self.slots.len();
        // SAFETY: nobody writes there before the slot is given back; `seen` is the taker's.
        unsafe {
            let opened = self.slots[index].opened.with(|place| *place);
            let is_first = number == self.freed.load(Ordering::Relaxed);
            let seen = if is_first { self.seen.with(|seen| *seen) } else { 0 };
            let bytes = &std::slice::from_raw_parts(self.memory.slot(index), bytes)[seen..];
            Taken { opened, closed, bytes, goes_on: seen > 0 }
        }
    }
}

/// The slots' bytes. They hold whatever was there before, which at first is zeros.
pub(crate) struct Memory {
    /// Null where another ring has it.
    start: *mut u8,
    layout: Layout,
    slot_bytes: usize,
}

// SAFETY: bytes that nobody else has.
unsafe impl Send for Memory {}

impl Memory {
    /// For so many slots of so many bytes. What is not written yet costs next to nothing.
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Memory {
        const LINE: usize = 64;
        assert!(slots > 1 && slot_bytes > 1, "a ring has room");
        let layout = Layout::array::<u8>(slots * slot_bytes).and_then(|l| l.align_to(LINE));
        let layout = layout.expect("a ring of a few megabytes at most");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        if start.is_null() {
            alloc::handle_alloc_error(layout);
        }
        Memory { start, layout, slot_bytes }
    }

    /// How many it has.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn slot(&self, index: usize) -> *mut u8 {
        debug_assert!(index * self.slot_bytes < self.layout.size());
        // SAFETY: there are as many slots as there were said to be, which every index is taken modulo of.
        unsafe { self.start.add(index * self.slot_bytes) }
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
