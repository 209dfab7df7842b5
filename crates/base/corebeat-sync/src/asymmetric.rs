//! Asymmetric fences: a free one for the frequent side of a protocol, a costly one for the rare
//! side.
//!
//! Two threads that each write a word and then read the other's word need a fence between the two
//! accesses on both sides, or both may read the old value (store buffering). If one side runs for
//! every item and the other side only before it sleeps, the first side should not pay for the
//! fence. [`light_fence`] costs nothing, and [`heavy_fence`] makes every running thread of the
//! process execute a full fence (Linux, `membarrier` with `PRIVATE_EXPEDITED`). A `light` fence and
//! a `heavy` fence are always ordered with each other, as two `SeqCst` fences are. On systems
//! without this call, both functions execute a `SeqCst` fence.

/// Model of the two fences. The model guarantees no more than the interface does: two `light`
/// fences are not ordered with each other, although two `SeqCst` fences are.
///
/// Each thread has a location. `light` modifies the location of its thread and `heavy` modifies the
/// locations of all threads; the second of two modifications of one location synchronizes with the
/// first. A thread gets its location at its first `light` fence, from a counter that `heavy` also
/// modifies first. So either `heavy` modifies the location, or the thread gets the location later
/// and observes what preceded `heavy`.
#[cfg(loom)]
mod imp {
    use crate::fault::{Kind, is_planted};
    use loom::sync::atomic::{AtomicUsize, Ordering, fence};
    use std::panic::Location;

    #[derive(Default)]
    struct Locations {
        count: AtomicUsize,
        by_thread: [AtomicUsize; loom::MAX_THREADS],
    }

    loom::lazy_static! {
        static ref LOCATIONS: Locations = Locations::default();
    }

    loom::thread_local! {
        static NUMBER: usize = LOCATIONS.count.fetch_add(1, Ordering::Acquire);
    }

    pub(super) fn is_free() -> bool {
        false
    }

    #[track_caller]
    pub(super) fn light() {
        if is_planted(Kind::Light, Location::caller()) {
            return;
        }
        let modify = |&number: &usize| LOCATIONS.by_thread[number].fetch_add(1, Ordering::AcqRel);
        if NUMBER.try_with(modify).is_err() {
            // The thread is ending, and its location is gone.
            fence(Ordering::SeqCst);
        }
    }

    #[track_caller]
    pub(super) fn heavy() {
        if is_planted(Kind::Heavy, Location::caller()) {
            return;
        }
        let count = LOCATIONS.count.fetch_add(0, Ordering::Release);
        for location in &LOCATIONS.by_thread[..count] {
            location.fetch_add(1, Ordering::AcqRel);
        }
        // If no thread has a location, two `heavy` fences have no location in common.
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(not(loom), any(miri, not(target_os = "linux"))))]
mod imp {
    use crate::atomic::{Ordering, fence};

    pub(super) fn is_free() -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(not(any(loom, miri, not(target_os = "linux"))))]
mod imp {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

    const UNKNOWN: u8 = 0;
    const FENCE: u8 = 1;
    const MEMBARRIER: u8 = 2;

    /// Implementation in use. It changes from `UNKNOWN` once. Until then `light` executes a real
    /// fence, which is correct with each implementation.
    static IMPLEMENTATION: AtomicU8 = AtomicU8::new(UNKNOWN);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three integers and accesses no memory of this process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Registers the process, and executes its first fence. A repeated registration has no effect.
    #[cold]
    fn register() -> bool {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    #[cold]
    fn choose() -> u8 {
        let implementation = if register() { MEMBARRIER } else { FENCE };
        IMPLEMENTATION.store(implementation, Ordering::SeqCst);
        implementation
    }

    pub(super) fn is_free() -> bool {
        IMPLEMENTATION.load(Ordering::Relaxed) == MEMBARRIER
    }

    #[inline(always)]
    pub(super) fn light() {
        // Relaxed: MEMBARRIER is stored after the kernel registered the process, and the
        // registration covers all threads.
        if IMPLEMENTATION.load(Ordering::Relaxed) == MEMBARRIER {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn heavy() {
        let implementation = match IMPLEMENTATION.load(Ordering::Relaxed) {
            UNKNOWN => choose(),
            known => known,
        };
        fence(Ordering::SeqCst);
        // A child of fork may have a copy of the variable without the registration, for example if
        // another thread chose the implementation during the fork.
        if implementation == MEMBARRIER
            && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
            && !register()
        {
            // The call succeeded when the implementation was chosen. Without it, the protocols of
            // this process are not correct, so the process must not continue.
            std::process::abort();
        }
    }
}

/// Executes the fence of the frequent side. On Linux it is free: it only prevents reordering by the
/// compiler.
#[inline(always)]
#[cfg_attr(loom, track_caller)]
pub fn light_fence() {
    imp::light();
}

/// Executes the fence of the rare side. On Linux it takes about a microsecond and interrupts every
/// other running thread of this process for a moment.
#[cfg_attr(loom, track_caller)]
pub fn heavy_fence() {
    imp::heavy();
}

/// Executes [`light_fence`] without a branch. Requires that [`is_free`] returned `true` before:
/// otherwise this function orders nothing.
#[inline(always)]
#[cfg_attr(loom, track_caller)]
pub fn light_fence_if_free() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    imp::light();
}

/// Returns whether [`light_fence`] is free in this process. Once `true`, the result does not
/// change, and [`light_fence_if_free`] may replace [`light_fence`].
pub fn is_free() -> bool {
    imp::is_free()
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::atomic::{AtomicBool, Ordering};
    use crate::fault::{self, Fault};
    use crate::{Arc, thread};
    use std::sync::atomic::{AtomicBool as Plain, Ordering::Relaxed as Loose};

    /// Two threads each write a word and read the other's word. Returns whether both can miss the
    /// other's write.
    fn both_miss(one: fn(), other: fn()) -> bool {
        let missed = std::sync::Arc::new(Plain::new(false));
        let result = missed.clone();
        loom::model(move || {
            heavy_fence();
            let words = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let own = words.clone();
            let thread = thread::spawn(move || {
                own[0].store(true, Ordering::Relaxed);
                one();
                own[1].load(Ordering::Relaxed)
            });
            words[1].store(true, Ordering::Relaxed);
            other();
            let observed = words[0].load(Ordering::Relaxed);
            if !(observed | thread.join().unwrap()) {
                result.store(true, Loose);
            }
        });
        missed.load(Loose)
    }

    #[test]
    fn loom_light_and_heavy_are_ordered() {
        assert!(!both_miss(light_fence, heavy_fence));
        assert!(!both_miss(heavy_fence, heavy_fence));
    }

    #[test]
    fn loom_two_light_fences_are_not_ordered() {
        assert!(both_miss(light_fence, light_fence));
    }

    #[test]
    fn loom_planted_fault_removes_a_fence() {
        for (fault, missed) in [("heavy asymmetric.rs", true), ("light asymmetric.rs:1", false)] {
            fault::plant(Some(fault.parse::<Fault>().unwrap()));
            assert_eq!(both_miss(light_fence, || heavy_fence()), missed, "{fault}");
        }
    }
}
