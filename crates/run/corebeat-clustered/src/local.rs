//! A thread: what it says of its events, and what others ask of it.
//!
//! ```text
//!    the thread                                  who sweeps (registry)
//!   +------------------------------------+      +--------------------------------+
//!   | word     QUIET -> IN -> QUIET      | ---> | reads it after a heavy fence   |
//!   | control  0, or reasons to go slow  | <--- | adds REQUEST while it is IN    |
//!   | reach    the newest era it has met | <--> | believes it under a REQUEST    |
//!   +------------------------------------+      +--------------------------------+
//! ```
//!
//! An event that nobody asks about costs two stores and three looks, all in the thread's own line.

use crate::global::{GLOBAL, lock};
use crate::limbo::{self, Limbo};
use crate::part::{Block, SLOTS};
use corebeat_sync::asymmetric;
use corebeat_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use corebeat_sync::thread_local;
use std::cell::{Cell, RefCell};
use std::ptr;

/// No event, and the next one may begin the short way.
const QUIET: u32 = 0;
/// An event.
pub(crate) const IN: u32 = 1;
/// No event; where light fences are not free, the way to begin one is long.
const FENCED_QUIET: u32 = 2;
/// No event, and nobody knows this thread.
const FOREIGN: u32 = 3;

/// Who sweeps wants to know how far this event reaches, and when it is over.
pub(crate) const REQUEST: u32 = 1;
/// Events within the first.
const NESTED: u32 = 2;
/// Values wait for the end of this event (`limbo::work`).
pub(crate) const WORK: u32 = 4;
/// The thread is at its end: nobody will take its name off the list after this event.
const LATE: u32 = 8;
/// Light fences are not free.
const FENCED: u32 = 16;
/// As `WORK`, and all at once (`limbo::sweep`).
pub(crate) const SWEEP: u32 = 32;

/// The place of a thread that has none yet.
pub(crate) const NOWHERE: usize = usize::MAX;

/// What others see of a thread.
pub(crate) struct Public {
    /// Written by the thread.
    pub(crate) word: AtomicU32,
    /// Others add `REQUEST` (with the registry locked, if it is not there), the thread adds the rest, and takes out all.
    pub(crate) control: AtomicU32,
    /// Values that were made in this era or before may be in use here. It counts while there is a `REQUEST`.
    pub(crate) reach: AtomicU64,
}

/// What a thread has for itself, and `Public` in it. It has no destructor, so that a look at it is one instruction.
pub(crate) struct Local {
    public: Public,
    /// How many events there are within the first.
    nested: Cell<u32>,
    place: Cell<usize>,
    /// How many slots `block` has: none while the thread has no place.
    slots: Cell<usize>,
    block: Cell<*const Block>,
}

impl Local {
    #[cfg(not(loom))]
    const fn new() -> Local {
        let public =
            Public { word: AtomicU32::new(FOREIGN), control: AtomicU32::new(0), reach: AtomicU64::new(0) };
        Local {
            public,
            nested: Cell::new(0),
            place: Cell::new(NOWHERE),
            slots: Cell::new(0),
            block: Cell::new(ptr::null()),
        }
    }

    #[cfg(loom)]
    fn new() -> Local {
        let public =
            Public { word: AtomicU32::new(FOREIGN), control: AtomicU32::new(0), reach: AtomicU64::new(0) };
        Local {
            public,
            nested: Cell::new(0),
            place: Cell::new(NOWHERE),
            slots: Cell::new(0),
            block: Cell::new(ptr::null()),
        }
    }
}

thread_local! {
    static LOCAL: Local = const { Local::new() };
}

// What is to be cleared up when the thread ends.
#[cfg(not(loom))]
std::thread_local! {
    static KEEP: Keep = const { Keep::new() };
}
#[cfg(loom)]
corebeat_sync::loom::thread_local! {
    static KEEP: Keep = Keep::new();
}

struct Keep {
    /// Under this number others know the thread, and find this.
    entry: Cell<Option<(usize, *const Local)>>,
    limbo: RefCell<Limbo>,
}

impl Keep {
    const fn new() -> Keep {
        Keep { entry: Cell::new(None), limbo: RefCell::new(Limbo::new()) }
    }

    fn leave(&self) {
        if let Some((number, local)) = self.entry.take() {
            // SAFETY: it has no destructor, and is there as long as the thread (in models, until `leave`).
            let local = unsafe { &*local };
            local.place.set(NOWHERE);
            local.slots.set(0);
            lock(&GLOBAL.registry).leave(number);
            // Relaxed: nobody else looks any more.
            local.public.word.store(FOREIGN, Ordering::Relaxed);
        }
        self.limbo.borrow_mut().abandon();
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Does at once what else happens when the thread ends.
#[cfg(all(test, loom))]
pub(crate) fn leave() {
    KEEP.with(Keep::leave);
}

/// Lets the thread's limbo be used; `None` where it is gone already.
pub(crate) fn with_limbo<T>(f: impl FnOnce(&mut Limbo) -> T) -> Option<T> {
    KEEP.try_with(|keep| f(&mut keep.limbo.borrow_mut())).ok()
}

#[inline(always)]
pub(crate) fn with<T>(f: impl FnOnce(&Local) -> T) -> T {
    LOCAL.with(f)
}

/// Another task of this worker would be in this one's event, and end it, or have it last.
fn end_before_waiting() {
    assert!(!with(Local::is_in), "a task must not wait within a portability event: end the event first");
}

/// Whether light fences are free. It does not change once a thread is known: before that, a heavy one was made.
fn is_free() -> bool {
    cfg!(loom) || asymmetric::is_free()
}

/// A light fence, where they are known to be free.
#[inline(always)]
#[cfg_attr(loom, track_caller)]
fn free_light() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    asymmetric::light();
}

impl Local {
    #[inline(always)]
    pub(crate) fn begin(&self) {
        // Relaxed: it is the thread's own; the fence orders what follows.
        if self.public.word.load(Ordering::Relaxed) != QUIET {
            return self.begin_slowly();
        }
        self.public.word.store(IN, Ordering::Relaxed);
        free_light();
    }

    #[cold]
    #[inline(never)]
    fn begin_slowly(&self) {
        if self.public.word.load(Ordering::Relaxed) == IN {
            let nested = self.nested.get().checked_add(1).expect("memory ends before");
            self.nested.set(nested);
            if nested == 1 {
                self.mark(NESTED);
            }
            return;
        }
        if self.public.word.load(Ordering::Relaxed) == FOREIGN {
            self.enter();
        }
        // Relaxed: the fence orders it.
        self.public.word.store(IN, Ordering::Relaxed);
        asymmetric::light();
    }

    /// Has others know this thread.
    fn enter(&self) {
        if !is_free() {
            // The first of these finds out what there is.
            asymmetric::heavy();
        }
        corebeat_sync::wait::forbid(end_before_waiting);
        let number = lock(&GLOBAL.registry).enter(ptr::from_ref(&self.public));
        let kept = KEEP.try_with(|keep| keep.entry.set(Some((number, ptr::from_ref(self)))));
        if kept.is_ok() {
            self.place.set(number);
            self.block.set(lock(&GLOBAL.parts).block(number));
            self.slots.set(SLOTS);
        } else {
            self.place.set(NOWHERE);
            self.nested.set(0);
            // Where it is in the registry is remembered by its address.
            self.mark(LATE);
        }
        if !is_free() {
            self.mark(FENCED);
        }
        // Relaxed: nobody else has a use for which of the two.
        self.public.word.store(self.quiet(), Ordering::Relaxed);
    }

    fn quiet(&self) -> u32 {
        if is_free() { QUIET } else { FENCED_QUIET }
    }

    /// The reasons of the thread's own are added and taken out by itself.
    fn mark(&self, reason: u32) {
        // Relaxed: nobody else looks for them.
        if self.public.control.load(Ordering::Relaxed) & reason == 0 {
            self.public.control.fetch_add(reason, Ordering::Relaxed);
        }
    }

    /// Whether it was there.
    fn unmark(&self, reason: u32) -> bool {
        let there = self.public.control.load(Ordering::Relaxed) & reason != 0;
        if there {
            // AcqRel: what was asked for before this was is in sight, and what was done in the event before who asks next.
            self.public.control.fetch_sub(reason, Ordering::AcqRel);
        }
        there
    }

    #[inline(always)]
    pub(crate) fn end(&self) {
        // Relaxed: if what others ask is missed, the next end sees it.
        if self.public.control.load(Ordering::Relaxed) != 0 {
            return self.end_slowly();
        }
        // Release: pairs with the Acquire of who sweeps, so that memory is freed after it was used.
        self.public.word.store(QUIET, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn end_slowly(&self) {
        if let Some(nested) = self.nested.get().checked_sub(1) {
            self.nested.set(nested);
            if nested == 0 {
                self.unmark(NESTED);
            }
            return;
        }
        self.unmark(REQUEST);
        let (work, late, sweep) = (self.unmark(WORK), self.unmark(LATE), self.unmark(SWEEP));
        if late {
            lock(&GLOBAL.registry).leave_by_address(&self.public);
            // Relaxed: nobody else looks any more.
            self.public.word.store(FOREIGN, Ordering::Relaxed);
        } else {
            // Release: as above.
            self.public.word.store(self.quiet(), Ordering::Release);
        }
        if sweep {
            limbo::sweep();
        } else if work {
            limbo::work();
        }
    }

    /// Whether the thread is in an event.
    pub(crate) fn is_in(&self) -> bool {
        // Relaxed: it is the thread's own.
        self.public.word.load(Ordering::Relaxed) == IN
    }

    /// Does what the reason says when this event is over. Whether there is one.
    pub(crate) fn wait_for_end(&self, reason: u32) -> bool {
        let is_in = self.is_in();
        if is_in {
            self.mark(reason);
        }
        is_in
    }

    /// Whether the era of what is found has to be told.
    #[inline(always)]
    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: the acquire of the value that was found before orders it.
        self.public.control.load(Ordering::Relaxed) & REQUEST != 0
    }

    /// Whoever sweeps is to know that values up to this era may be in use here.
    pub(crate) fn reach(&self, era: u64) {
        // Relaxed: the fence orders it. (Asked here, a fence is not free where it was not before.)
        self.public.reach.store(era, Ordering::Relaxed);
        asymmetric::light();
    }

    /// Adds to the thread's part of the counter with this slot, if both have one. Whether it was done.
    #[inline(always)]
    pub(crate) fn add(&self, slot: usize, n: u64) -> bool {
        if slot >= self.slots.get() {
            return false;
        }
        // SAFETY: a thread that has slots has a block with so many, and blocks stay.
        let part = unsafe { &*self.block.get() }.part(slot);
        // Relaxed: it is a number, and nothing hangs on when others see it. Who has the place next has it under a lock.
        part.store(part.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        true
    }

    /// The thread's part of the counter with this slot, if both have one.
    pub(crate) fn part(&self, slot: usize) -> Option<&'static AtomicU64> {
        // SAFETY: as in `add`.
        (slot < self.slots.get()).then(|| unsafe { &*self.block.get() }.part(slot))
    }

    /// The thread's place, or `NOWHERE`.
    #[inline(always)]
    pub(crate) fn place(&self) -> usize {
        self.place.get()
    }

    /// The thread's place; `None` if it is at its end.
    pub(crate) fn find_place(&self) -> Option<usize> {
        if self.place.get() == NOWHERE && KEEP.try_with(|_| ()).is_ok() {
            self.enter();
        }
        Some(self.place.get()).filter(|&place| place != NOWHERE)
    }
}
