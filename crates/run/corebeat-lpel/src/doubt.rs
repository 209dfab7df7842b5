//! A task that blocked at a slot which the other side may have changed at that moment.

use crate::ring::Cursor;
use crate::set;
use crate::stream::{AnyStream, Core, Shared};
use crate::waiter::{self, ARMED, CLOSED, Token, Word};
use corebeat_sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// See the text of [`stream`](crate::stream): to be looked at again after a `heavy` fence.
pub(crate) struct Doubt<K> {
    /// The stream; what keeps it alive, or a borrow.
    stream: K,
    reads: bool,
    token: Token,
    /// The flag of the slot.
    flag: *const AtomicBool,
    /// The capacity of the slot's segment. The next one has more.
    capacity: usize,
}

/// One that a worker keeps.
pub(crate) type Kept = Doubt<Arc<dyn AnyStream>>;

impl<'a, T: Send + 'static> Doubt<&'a Arc<Shared<T>>> {
    /// The one with this token waits at the cursor's slot for it to become full, if it `reads`, or else empty.
    pub(crate) fn new(stream: &'a Arc<Shared<T>>, reads: bool, token: Token, cursor: &Cursor<T>) -> Self {
        Doubt { stream, reads, token, flag: cursor.slot().flag(), capacity: cursor.capacity() }
    }

    /// For a worker to keep.
    pub(crate) fn keep(self) -> Kept {
        Doubt {
            stream: self.stream.clone(),
            reads: self.reads,
            token: self.token,
            flag: self.flag,
            capacity: self.capacity,
        }
    }
}

impl<K: HasCore> Doubt<K> {
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

    /// Whether there is something to wake up for.
    pub(crate) fn is_true(&self) -> bool {
        let core = self.core();
        let other = if self.reads { &core.writer.word } else { &core.reader.word };
        // SAFETY: segments live as long as the stream. Relaxed: whoever is woken looks again, with acquire.
        let changed = unsafe { &*self.flag }.load(Ordering::Relaxed) == self.reads;
        // Acquire: pairs with the release of the writer that has grown, so that who is woken finds the next segment.
        changed
            || other.load(Ordering::Relaxed) == CLOSED
            || self.reads && core.capacity.load(Ordering::Acquire) > self.capacity
    }

    /// Looks again, and wakes. True if there is no doubt any more: the token is gone.
    pub(crate) fn resolve(&self) -> bool {
        // Relaxed: only the exchange in `announce` or `wake_at` acts on it.
        if self.word().load(Ordering::Relaxed) != self.token {
            return true;
        }
        let found = self.is_true();
        if found && self.token == ARMED {
            set::announce(self.core());
        } else if found {
            waiter::wake_at(self.word(), self.token);
        }
        found
    }
}

/// What leads to a stream's core.
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
