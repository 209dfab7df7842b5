//! The word in which a reader publishes its state.

use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::{asymmetric, const_unless_loom};

/// State of a reader: which values mean that the reader is inside a critical section is up to the
/// user. One thread writes the state; every thread may load it.
#[derive(Debug)]
#[repr(transparent)]
pub struct Presence(AtomicU64);

impl Presence {
    const_unless_loom! {
        /// Creates a presence with this state.
        pub fn new(state: u64) -> Presence {
            Presence(AtomicU64::new(state))
        }
    }

    /// Begins a critical section: the load of a link that follows is ordered after the store.
    #[inline(always)]
    pub fn enter(&self, state: u64) {
        // Relaxed: the fence orders the store before the loads that follow.
        self.0.store(state, Ordering::Relaxed);
        asymmetric::light_fence();
    }

    /// Begins a critical section as [`enter`](Presence::enter) does, without a branch. Requires
    /// that [`asymmetric::is_free`] returned `true` before.
    #[inline(always)]
    pub fn enter_free(&self, state: u64) {
        // Relaxed: as in `enter`.
        self.0.store(state, Ordering::Relaxed);
        asymmetric::light_fence_if_free();
    }

    /// Ends a critical section.
    #[inline(always)]
    pub fn leave(&self, state: u64) {
        // Release: pairs with the Acquire in `load`; a value is freed after its last use.
        self.0.store(state, Ordering::Release);
    }

    /// Sets the state while no critical section begins or ends.
    pub fn set(&self, state: u64) {
        // Relaxed: no value is protected by this state.
        self.0.store(state, Ordering::Relaxed);
    }

    /// Returns the state, for the thread that writes it.
    #[inline(always)]
    pub fn own(&self) -> u64 {
        // Relaxed: this thread wrote the state.
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the state, for a reclaimer that has executed a heavy fence after the unlinking.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        // Acquire: pairs with the Release in `leave`.
        self.0.load(Ordering::Acquire)
    }
}

impl Default for Presence {
    fn default() -> Self {
        Presence::new(0)
    }
}
