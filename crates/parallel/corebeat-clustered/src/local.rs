//! The state of a thread: what it publishes about its sections, and requests of other threads.
//!
//! ```text
//!    the thread                                   reclaiming threads (registry)
//!   +-------------------------------------+      +----------------------------------+
//!   | presence OUTSIDE -> INSIDE -> ...   | ---> | load it after a heavy fence      |
//!   | control  0, or reasons for the      | <--- | add REQUEST while it is INSIDE   |
//!   |          slow path                  |      |                                  |
//!   | reach    newest era it has loaded   | <--> | use it while REQUEST is set      |
//!   +-------------------------------------+      +----------------------------------+
//! ```
//!
//! A section without a request costs two stores and three loads, all in the thread's own cache
//! line.

use crate::global::GLOBAL;
use crate::part::{Block, SLOTS};
use crate::retired::{self, RetiredList};
use corebeat_reclaim::Presence;
use corebeat_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use corebeat_sync::wait::{self, Span};
use corebeat_sync::{asymmetric, const_unless_loom, fork, thread_local};
use std::cell::{Cell, RefCell};
use std::ptr;

/// Outside of sections; the next section may begin on the fast path.
const OUTSIDE: u64 = 0;
/// Inside a section.
pub(crate) const INSIDE: u64 = 1;
/// Outside of sections; light fences are not free, so a section begins on the slow path.
const OUTSIDE_FENCED: u64 = 2;
/// Outside of sections, and not registered.
const UNREGISTERED: u64 = 3;

/// A reclaiming thread needs the reach and the end of this section.
pub(crate) const REQUEST: u32 = 1;
/// Sections are nested in the first one.
const NESTED: u32 = 2;
/// Values wait for the end of this section (`retired::work`).
pub(crate) const WORK: u32 = 4;
/// The thread is ending: it must deregister itself after this section.
const LATE: u32 = 8;
/// Light fences are not free.
const FENCED: u32 = 16;
/// All values wait for the end of this section (`retired::reclaim`).
pub(crate) const RECLAIM: u32 = 32;

/// Place of a thread that has none yet.
pub(crate) const NOWHERE: usize = usize::MAX;

/// The public state of a thread.
pub(crate) struct Public {
    /// Written by the thread.
    pub(crate) presence: Presence,
    /// Other threads add `REQUEST` (with the registry locked, if it is not set). The thread adds
    /// the other reasons, and removes all of them.
    pub(crate) control: AtomicU32,
    /// Values that were made in this era or before may be in use by this thread. Valid while
    /// `REQUEST` is set.
    pub(crate) reach: AtomicU64,
}

/// The state of a thread. It has no destructor, so that an access is one instruction.
pub(crate) struct Local {
    public: Public,
    /// Number of sections that are nested in the first one.
    nested: Cell<u32>,
    place: Cell<usize>,
    /// Number of slots in `block`; 0 while the thread has no place.
    slots: Cell<usize>,
    block: Cell<*const Block>,
}

impl Local {
    const_unless_loom! {
        fn new() -> Local {
            Local {
                public: Public {
                    presence: Presence::new(UNREGISTERED),
                    control: AtomicU32::new(0),
                    reach: AtomicU64::new(0),
                },
                nested: Cell::new(0),
                place: Cell::new(NOWHERE),
                slots: Cell::new(0),
                block: Cell::new(ptr::null()),
            }
        }
    }
}

thread_local! {
    static LOCAL: Local = const { Local::new() };
}

// Cleaned up when the thread ends.
#[cfg(not(loom))]
std::thread_local! {
    static CLEANUP: Cleanup = const { Cleanup::new() };
}
#[cfg(loom)]
corebeat_sync::loom::thread_local! {
    static CLEANUP: Cleanup = Cleanup::new();
}

struct Cleanup {
    /// Number and address under which the thread is registered.
    entry: Cell<Option<(usize, *const Local)>>,
    retired: RefCell<RetiredList>,
}

impl Cleanup {
    const fn new() -> Cleanup {
        Cleanup { entry: Cell::new(None), retired: RefCell::new(RetiredList::new()) }
    }

    fn leave(&self) {
        if let Some((number, local)) = self.entry.take() {
            // SAFETY: `Local` has no destructor, and exists as long as the thread (in models, until
            // `leave`).
            let local = unsafe { &*local };
            local.place.set(NOWHERE);
            local.slots.set(0);
            GLOBAL.registry.lock().leave(number);
            local.public.presence.set(UNREGISTERED);
        }
        self.retired.borrow_mut().abandon();
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Ends a thread of a model, where destructors would run too late.
#[cfg(all(test, loom))]
pub(crate) fn leave() {
    CLEANUP.with(Cleanup::leave);
}

/// Passes the thread's retired values to `f`, or returns `None` if they are gone already.
pub(crate) fn with_retired<T>(f: impl FnOnce(&mut RetiredList) -> T) -> Option<T> {
    CLEANUP.try_with(|cleanup| f(&mut cleanup.retired.borrow_mut())).ok()
}

#[inline(always)]
pub(crate) fn with<T>(f: impl FnOnce(&Local) -> T) -> T {
    // With a large `f`, the compiler would not inline the function of the standard library, which
    // then finds the variable by a call.
    let local = LOCAL.with(ptr::from_ref);
    // SAFETY: `Local` has no destructor, and exists as long as the thread. The result of `f` does
    // not borrow it.
    f(unsafe { &*local })
}

/// Prevents that another task of this worker runs in the section of this one, and ends or outlives
/// it.
fn forbid_waiting() {
    assert!(
        !with(Local::is_inside),
        "a task must not wait within a read-side critical section: end the section first"
    );
}

/// Deregisters the threads that do not exist in this child of fork.
fn forget_others() {
    with(|local| GLOBAL.registry.lock().forget_others(&local.public));
}

/// Arranges that each later child of fork deregisters the threads that do not exist there.
fn forget_others_in_children() {
    // Not an atomic of `corebeat_sync`, because the calls are not a part of models.
    static IS_ARRANGED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    // Relaxed: the lock of each fork orders the call, which a thread that loads `true` does not
    // repeat, with the registration of that thread. Not a `Once`: a child would find the `Once` of
    // a thread that was within the call at the fork incomplete for ever. A repeated call has no
    // effect.
    if !IS_ARRANGED.load(std::sync::atomic::Ordering::Relaxed) {
        fork::call_in_children(forget_others);
        IS_ARRANGED.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Returns whether light fences are free. The result does not change once a thread is registered,
/// because a heavy fence precedes that.
fn is_free() -> bool {
    cfg!(loom) || asymmetric::is_free()
}

impl Local {
    #[inline(always)]
    pub(crate) fn begin(&self) {
        if self.public.presence.own() != OUTSIDE {
            return self.begin_slow();
        }
        self.public.presence.enter_free(INSIDE);
    }

    #[cold]
    #[inline(never)]
    fn begin_slow(&self) {
        if self.is_inside() {
            let nested = self.nested.get().checked_add(1).expect("memory is exhausted before");
            self.nested.set(nested);
            if nested == 1 {
                self.mark(NESTED);
            }
            return;
        }
        if self.public.presence.own() == UNREGISTERED {
            self.register();
        }
        self.public.presence.enter(INSIDE);
    }

    fn register(&self) {
        if !is_free() {
            // The first heavy fence of the process selects the implementation.
            asymmetric::heavy_fence();
        }
        wait::forbid(Span::Section, forbid_waiting);
        forget_others_in_children();
        let number = GLOBAL.registry.lock().enter(ptr::from_ref(&self.public));
        let entry = Some((number, ptr::from_ref(self)));
        if CLEANUP.try_with(|cleanup| cleanup.entry.set(entry)).is_ok() {
            self.place.set(number);
            self.block.set(GLOBAL.parts.lock().block(number));
            self.slots.set(SLOTS);
        } else {
            self.place.set(NOWHERE);
            self.nested.set(0);
            // The thread finds its registration again by its address.
            self.mark(LATE);
        }
        if !is_free() {
            self.mark(FENCED);
        }
        self.public.presence.set(self.outside());
    }

    fn outside(&self) -> u64 {
        if is_free() { OUTSIDE } else { OUTSIDE_FENCED }
    }

    /// Adds one of the thread's own reasons for the slow path.
    fn mark(&self, reason: u32) {
        // Relaxed: other threads do not use these reasons.
        if self.public.control.load(Ordering::Relaxed) & reason == 0 {
            self.public.control.fetch_add(reason, Ordering::Relaxed);
        }
    }

    /// Removes a reason, and returns whether it was set.
    fn unmark(&self, reason: u32) -> bool {
        let is_set = self.public.control.load(Ordering::Relaxed) & reason != 0;
        if is_set {
            // AcqRel: actions before the request are visible here, and actions in the section are
            // visible to the thread that sets the next request.
            self.public.control.fetch_sub(reason, Ordering::AcqRel);
        }
        is_set
    }

    #[inline(always)]
    pub(crate) fn end(&self) {
        // Relaxed: if a request is missed here, the end of the next section observes it.
        if self.public.control.load(Ordering::Relaxed) != 0 {
            return self.end_slow();
        }
        self.public.presence.leave(OUTSIDE);
    }

    #[cold]
    #[inline(never)]
    fn end_slow(&self) {
        if let Some(nested) = self.nested.get().checked_sub(1) {
            self.nested.set(nested);
            if nested == 0 {
                self.unmark(NESTED);
            }
            return;
        }
        self.unmark(REQUEST);
        let (work, late, reclaim) = (self.unmark(WORK), self.unmark(LATE), self.unmark(RECLAIM));
        if late {
            GLOBAL.registry.lock().leave_by_address(&self.public);
            self.public.presence.set(UNREGISTERED);
        } else {
            self.public.presence.leave(self.outside());
        }
        if reclaim {
            retired::reclaim();
        } else if work {
            retired::work();
        }
    }

    /// Returns whether the thread is in a section.
    pub(crate) fn is_inside(&self) -> bool {
        self.public.presence.own() == INSIDE
    }

    /// Defers the action of this reason to the end of the section. Returns `false` outside of
    /// sections.
    pub(crate) fn defer(&self, reason: u32) -> bool {
        let is_inside = self.is_inside();
        if is_inside {
            self.mark(reason);
        }
        is_inside
    }

    /// Returns whether the section must publish its reach.
    #[inline(always)]
    pub(crate) fn is_requested(&self) -> bool {
        // Relaxed: the Acquire load of the link before orders this load.
        self.public.control.load(Ordering::Relaxed) & REQUEST != 0
    }

    /// Publishes that values of this era and before may be in use by this thread.
    pub(crate) fn publish_reach(&self, era: u64) {
        // Relaxed: the fence orders the store. (The fence tests whether it is free.)
        self.public.reach.store(era, Ordering::Relaxed);
        asymmetric::light_fence();
    }

    /// Adds to the thread's part of the counter with this slot. Returns `false` if one of the two
    /// does not exist.
    #[inline(always)]
    pub(crate) fn add(&self, slot: usize, n: u64) -> bool {
        if slot >= self.slots.get() {
            return false;
        }
        // SAFETY: a thread with slots has a block of that size, and blocks are never freed.
        let part = unsafe { (*self.block.get()).part_unchecked(slot) };
        // Relaxed: nothing depends on when other threads observe the number. The next thread in
        // this place gets the place under a lock.
        part.store(part.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        true
    }

    /// Returns the thread's part of the counter with this slot, or `None` if one of the two does
    /// not exist.
    pub(crate) fn part(&self, slot: usize) -> Option<&'static AtomicU64> {
        // SAFETY: as in `add`.
        (slot < self.slots.get()).then(|| unsafe { &*self.block.get() }.part(slot))
    }

    /// Returns the thread's place, or `NOWHERE`.
    #[inline(always)]
    pub(crate) fn place(&self) -> usize {
        self.place.get()
    }

    /// Returns the thread's place, and registers the thread if needed; `None` if it is ending.
    pub(crate) fn find_place(&self) -> Option<usize> {
        if self.place.get() == NOWHERE && CLEANUP.try_with(|_| ()).is_ok() {
            self.register();
        }
        Some(self.place.get()).filter(|&place| place != NOWHERE)
    }
}
