//! A list that many push to and one takes, all at once: worker mailboxes, and the ready streams of a set.
//!
//! The thesis' mailbox is the two-lock queue of Michael and Scott with a tail lock and a pool of message nodes (Prokesch,
//! A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.2.2). Here the link is in the
//! node itself, so that sending allocates nothing, and a push is one compare-and-swap:
//!
//! ```text
//!   head --> newest --> ... --> oldest --> null        push: node.next = head; head = node
//!                                                      take: head = null; walk what was there, reversed
//! ```
//!
//! The taker takes the whole list with one swap and never removes a single node, so the ABA problem does not arise: a
//! push that succeeds with a stale `next` would need `head` to have the same value with another list behind it, and the
//! list behind a node does not change while the node is head.

use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::ptr;

/// What has a link for an [`Inbox`].
///
/// # Safety
///
/// `link` returns the same link each time, and it is used by nobody else while the node is in an inbox.
pub(crate) unsafe trait Linked: Sized {
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The list. Nodes are in it at most once, and live until they are taken.
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
        // Relaxed: only a first guess, the exchange compares.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller keeps the node alive. Relaxed: published by the exchange below.
            unsafe { (*node).link() }.store(head, Ordering::Relaxed);
            // AcqRel: releases the link and what the node says to the taker's Acquire; acquires so that whoever sees
            // this node also sees those under it.
            match self.head.compare_exchange_weak(head, node, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Whether nothing is in it. What is pushed meanwhile may be missed: see the callers for their fences.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint, or after a fence of the caller.
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes all, oldest first. Only for the one taker.
    pub(crate) fn take(&self) -> Taken<N> {
        // Acquire: pairs with the release in `push`.
        let mut node = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut oldest_first: *mut N = ptr::null_mut();
        while !node.is_null() {
            // SAFETY: nodes live until they are taken out, which is now. Relaxed: ordered by the swap above.
            let link = unsafe { (*node).link() };
            let next = link.load(Ordering::Relaxed);
            link.store(oldest_first, Ordering::Relaxed);
            oldest_first = node;
            node = next;
        }
        Taken { next: oldest_first }
    }
}

/// What was taken. A node is free for other uses as soon as it was handed out.
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
        // SAFETY: taken and not yet handed out, so still ours and alive. Relaxed: only we touch it.
        self.next = unsafe { (*node).link() }.load(Ordering::Relaxed);
        Some(node)
    }
}
