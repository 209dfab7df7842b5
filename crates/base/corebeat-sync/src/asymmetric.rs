//! Fences for two sides of which one is in a hurry.
//!
//! Two threads that each write a word and then read the other's need a fence between the two on both sides, or both may
//! read the old value (store buffering). Where one side does this for every item and the other only before it sleeps,
//! the first should not pay. [`light`] costs nothing and [`heavy`] makes every running thread of the process execute a
//! full fence (Linux, `membarrier` with `PRIVATE_EXPEDITED`): of a `light` and a `heavy` one is always before the other,
//! just as with two `SeqCst` fences. Where the system cannot do this, both are that fence.

/// What the two promise, and no more: two `light` ones order nothing, which two fences would.
///
/// Each thread has a place. `light` goes through its own, `heavy` through all: whoever comes second to a place sees what
/// the first did before. A thread gets its place at its first `light`, from a count that `heavy` goes through first: so
/// either `heavy` knows the place, or the thread, getting it later, sees what was done before `heavy`.
#[cfg(loom)]
mod imp {
    use crate::fault::{Kind, is_planted};
    use loom::sync::atomic::{AtomicUsize, Ordering, fence};
    use std::panic::Location;

    #[derive(Default)]
    struct Places {
        count: AtomicUsize,
        places: [AtomicUsize; loom::MAX_THREADS],
    }

    loom::lazy_static! {
        static ref PLACES: Places = Places::default();
    }

    loom::thread_local! {
        static MINE: usize = PLACES.count.fetch_add(1, Ordering::Acquire);
    }

    pub(super) fn is_free() -> bool {
        false
    }

    #[track_caller]
    pub(super) fn light() {
        if is_planted(Kind::Light, Location::caller()) {
            return;
        }
        let went = MINE.try_with(|&mine| PLACES.places[mine].fetch_add(1, Ordering::AcqRel));
        if went.is_err() {
            // The thread is at its end, and has no place any more.
            fence(Ordering::SeqCst);
        }
    }

    #[track_caller]
    pub(super) fn heavy() {
        if is_planted(Kind::Heavy, Location::caller()) {
            return;
        }
        let count = PLACES.count.fetch_add(0, Ordering::Release);
        for place in &PLACES.places[..count] {
            place.fetch_add(1, Ordering::AcqRel);
        }
        // Two `heavy` ones meet nowhere if nobody has a place.
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

    /// How it is done. It leaves `UNKNOWN` once, and until then `light` is a real fence, which is right in every case.
    static HOW: AtomicU8 = AtomicU8::new(UNKNOWN);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    #[cold]
    fn choose() -> u8 {
        let here = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        let how = if here { MEMBARRIER } else { FENCE };
        HOW.store(how, Ordering::SeqCst);
        how
    }

    pub(super) fn is_free() -> bool {
        HOW.load(Ordering::Relaxed) == MEMBARRIER
    }

    #[inline(always)]
    pub(super) fn light() {
        // Relaxed: whoever reads MEMBARRIER may rely on the kernel, which was asked before that was written.
        if HOW.load(Ordering::Relaxed) == MEMBARRIER {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn heavy() {
        let how = match HOW.load(Ordering::Relaxed) {
            UNKNOWN => choose(),
            how => how,
        };
        fence(Ordering::SeqCst);
        if how == MEMBARRIER && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            // It worked when we asked; that it fails now breaks what others rely on, so nothing may go on.
            std::process::abort();
        }
    }
}

/// The fence of the side that is in a hurry: free on Linux, where it only keeps the compiler from reordering.
#[inline(always)]
#[cfg_attr(loom, track_caller)]
pub fn light() {
    imp::light();
}

/// The fence of the side that has time: about a microsecond on Linux, and a short interruption of every other thread of
/// this process that is running.
#[cfg_attr(loom, track_caller)]
pub fn heavy() {
    imp::heavy();
}

/// Whether [`light`] is free in this process. Once it is, it stays so, and a compiler fence is enough in its place.
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

    /// Two threads write a word each and read the other's: whether both can miss what the other wrote.
    fn both_miss(one: fn(), other: fn()) -> bool {
        let missed = std::sync::Arc::new(Plain::new(false));
        let seen = missed.clone();
        loom::model(move || {
            heavy();
            let words = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let own = words.clone();
            let thread = thread::spawn(move || {
                own[0].store(true, Ordering::Relaxed);
                one();
                own[1].load(Ordering::Relaxed)
            });
            words[1].store(true, Ordering::Relaxed);
            other();
            let sees = words[0].load(Ordering::Relaxed);
            if !(sees | thread.join().unwrap()) {
                seen.store(true, Loose);
            }
        });
        missed.load(Loose)
    }

    #[test]
    fn loom_light_and_heavy_are_ordered() {
        assert!(!both_miss(light, heavy));
        assert!(!both_miss(heavy, heavy));
    }

    #[test]
    fn loom_two_light_ones_are_not_ordered() {
        assert!(both_miss(light, light));
    }

    #[test]
    fn loom_planted_fault_takes_a_fence_out() {
        for (fault, missed) in [("heavy asymmetric.rs", true), ("light asymmetric.rs:1", false)] {
            fault::plant(Some(fault.parse::<Fault>().unwrap()));
            assert_eq!(both_miss(light, || heavy()), missed, "{fault}");
        }
    }
}
