//! List with many pushers and one taker, which takes all nodes at once. Workers use it as their
//! mailbox, and sets for their announced streams.
//!
//! The mailbox of the thesis is the two-lock queue of Michael and Scott with a tail lock and a pool
//! of message nodes (Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream
//! Processing, 2011, 4.2.2). Here the node contains the link, so that sending allocates nothing,
//! and a push is one compare-and-swap:
//!
//! ```text
//!   head --> newest --> ... --> oldest --> null        push: node.next = head; head = node
//!                                                      take: head = null; reverse the old list
//! ```
//!
//! The taker takes the whole list with one swap and never removes a single node, so there is no ABA
//! problem. A push could only succeed with a stale `next` if `head` had the same value with another
//! list behind it. The list behind a node does not change while the node is the head.

use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::ptr;

/// A node with a link for an [`Inbox`].
///
/// # Safety
///
/// `link` returns the same link each time, and no other code uses the link while the node is in an
/// inbox.
pub(crate) unsafe trait Linked: Sized {
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The list. A node is in it at most once, and lives until it is taken.
pub(crate) struct Inbox<N: Linked> {
    head: AtomicPtr<N>,
}

impl<N: Linked> Inbox<N> {
    pub(crate) fn new() -> Self {
        Inbox { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Adds a node.
    ///
    /// # Safety
    ///
    /// `node` is in no inbox and lives until it is taken out of this one.
    pub(crate) unsafe fn push(&self, node: *const N) {
        let node = node.cast_mut();
        // Relaxed: the exchange compares this guess.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller keeps the node alive. Relaxed: the exchange below publishes it.
            unsafe { (*node).link() }.store(head, Ordering::Relaxed);
            // AcqRel: releases the link and the content of the node to the acquire of the taker;
            // acquires so that a taker that observes this node also observes the nodes behind it.
            match self.head.compare_exchange_weak(head, node, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }

    /// Returns whether the list is empty. The result may miss a concurrent push: callers use
    /// fences.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint, or ordered by a fence of the caller.
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes all nodes, oldest first. Only for the one taker.
    pub(crate) fn take(&self) -> Taken<N> {
        // Acquire: pairs with the release in `push`.
        let mut node = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut oldest_first: *mut N = ptr::null_mut();
        while !node.is_null() {
            // SAFETY: nodes live until they are taken, which is now. Relaxed: ordered by the swap
            // above.
            let link = unsafe { (*node).link() };
            let next = link.load(Ordering::Relaxed);
            link.store(oldest_first, Ordering::Relaxed);
            oldest_first = node;
            node = next;
        }
        Taken { next: oldest_first }
    }
}

/// The taken nodes. A node may be used otherwise as soon as the iterator has returned it.
pub(crate) struct Taken<N: Linked> {
    next: *mut N,
}

impl<N: Linked> Iterator for Taken<N> {
    type Item = *const N;

    fn next(&mut self) -> Option<*const N> {
        let node = self.next;
        if node.is_null() {
            return None;
        }
        // SAFETY: the node was taken and not returned yet, so it is alive. Relaxed: only this
        // thread uses it.
        self.next = unsafe { (*node).link() }.load(Ordering::Relaxed);
        Some(node)
    }
}
