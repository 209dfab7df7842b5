//! Deferred second read of a slot: a task blocked there while the other side may have changed the
//! slot. See the protocol in [`stream`](crate::stream).

use crate::ring::Cursor;
use crate::set;
use crate::stream::{AnyStream, Core, Shared};
use crate::waiter::{self, ARMED, CLOSED, Token, Word};
use corebeat_sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A slot that must be read again after a `heavy` fence.
pub(crate) struct Recheck<K> {
    /// The stream, borrowed or kept alive.
    stream: K,
    /// Whether the reader waits; else the writer.
    reads: bool,
    token: Token,
    /// Flag of the slot.
    flag: *const AtomicBool,
    /// Capacity of the segment of the slot. The next segment has more.
    capacity: usize,
}

/// A recheck that a worker keeps.
pub(crate) type Deferred = Recheck<Arc<dyn AnyStream>>;

impl<'a, T: Send + 'static> Recheck<&'a Arc<Shared<T>>> {
    /// The owner of `token` waits at the slot of `cursor` until the slot is full (if `reads`) or
    /// empty.
    pub(crate) fn new(
        stream: &'a Arc<Shared<T>>,
        reads: bool,
        token: Token,
        cursor: &Cursor<T>,
    ) -> Self {
        Recheck { stream, reads, token, flag: cursor.slot().flag(), capacity: cursor.capacity() }
    }

    /// Makes a recheck that a worker can keep.
    pub(crate) fn into_deferred(self) -> Deferred {
        let stream = self.stream.clone();
        let Recheck { reads, token, flag, capacity, .. } = self;
        Recheck { stream, reads, token, flag, capacity }
    }
}

impl<K: HasCore> Recheck<K> {
    pub(crate) fn core(&self) -> &Core {
        self.stream.core()
    }

    pub(crate) fn word(&self) -> &Word {
        let core = self.core();
        if self.reads { &core.reader.word } else { &core.writer.word }
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Returns whether the waiting side can proceed.
    pub(crate) fn can_proceed(&self) -> bool {
        let core = self.core();
        let other = if self.reads { &core.writer.word } else { &core.reader.word };
        // SAFETY: segments live as long as the stream. Relaxed: a woken side reads the flag again,
        // with acquire.
        let changed = unsafe { &*self.flag }.load(Ordering::Relaxed) == self.reads;
        // Acquire: pairs with the release of a writer that has grown the stream, so that a woken
        // reader finds the next segment.
        changed
            || other.load(Ordering::Relaxed) == CLOSED
            || self.reads && core.capacity.load(Ordering::Acquire) > self.capacity
    }

    /// Reads the slot again, and wakes the waiting side if it can proceed. Returns true if the
    /// recheck is obsolete, because the token is gone.
    pub(crate) fn resolve(&self) -> bool {
        // Relaxed: the exchange in `announce` or `wake_at` decides.
        if self.word().load(Ordering::Relaxed) != self.token {
            return true;
        }
        let can_proceed = self.can_proceed();
        if can_proceed && self.token == ARMED {
            set::announce(self.core());
        } else if can_proceed {
            waiter::wake_at(self.word(), self.token);
        }
        can_proceed
    }
}

/// A reference to a stream.
pub(crate) trait HasCore {
    fn core(&self) -> &Core;
}

impl<T: Send + 'static> HasCore for &Arc<Shared<T>> {
    fn core(&self) -> &Core {
        &self.core
    }
}

impl HasCore for Arc<dyn AnyStream> {
    fn core(&self) -> &Core {
        AnyStream::core(&**self)
    }
}
