//! A task that blocked at a slot which the other side may have changed at that moment.

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
    grown: usize,
}

/// One that a worker keeps.
pub(crate) type Kept = Doubt<Arc<dyn AnyStream>>;

impl<'a, T: Send + 'static> Doubt<&'a Arc<Shared<T>>> {
    /// The one with this token waits for the flag to become `reads`.
    pub(crate) fn new(
        stream: &'a Arc<Shared<T>>,
        reads: bool,
        token: Token,
        flag: *const AtomicBool,
    ) -> Self {
        // Acquire: the caller has looked for a next segment before; if another is linked after that, this differs.
        let grown = stream.core.grown.load(Ordering::Acquire);
        Doubt { stream, reads, token, flag, grown }
    }

    /// For a worker to keep.
    pub(crate) fn keep(self) -> Kept {
        Doubt {
            stream: self.stream.clone(),
            reads: self.reads,
            token: self.token,
            flag: self.flag,
            grown: self.grown,
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
        changed
            || other.load(Ordering::Relaxed) == CLOSED
            || self.reads && core.grown.load(Ordering::Relaxed) != self.grown
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
