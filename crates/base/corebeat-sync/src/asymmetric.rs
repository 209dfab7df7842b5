//! Fences for two sides of which one is in a hurry.
//!
//! Two threads that each write a word and then read the other's need a fence between the two on both sides, or both may
//! read the old value (store buffering). Where one side does this for every item and the other only before it sleeps,
//! the first should not pay. [`light`] costs nothing and [`heavy`] makes every running thread of the process execute a
//! full fence (Linux, `membarrier` with `PRIVATE_EXPEDITED`): of a `light` and a `heavy` one is always before the other,
//! just as with two `SeqCst` fences. Where the system cannot do this, both are that fence.

#[cfg(any(loom, miri, not(target_os = "linux")))]
mod imp {
    use crate::atomic::{Ordering, fence};

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
        // ThreadSanitizer does not know what membarrier does, and a fence is always right.
        let here = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        let how = if here { MEMBARRIER } else { FENCE };
        HOW.store(how, Ordering::SeqCst);
        how
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
pub fn light() {
    imp::light();
}

/// The fence of the side that has time: about a microsecond on Linux, and a short interruption of every other thread of
/// this process that is running.
pub fn heavy() {
    imp::heavy();
}
