//! The end of a stream that is read from.

use super::{AnyStream, Core, End, Shared, leave_token, must_block, retire, spin};
use crate::current::{self, Peer, TimeLimit};
use crate::error::{TryReadError, assert_not_forked};
use crate::monitor::Direction;
use crate::recheck::Recheck;
use crate::task::{Object, Status};
use crate::waiter::{self, ARMED, EMPTY, Token};
use corebeat_sync::atomic::Ordering;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The end of a stream that is read from. As an iterator, it yields items until the writer is
/// dropped.
pub struct Reader<T: Send + 'static> {
    pub(super) end: End<T>,
}

impl<T: Send + 'static> Reader<T> {
    #[inline(always)]
    fn enter(&mut self) {
        self.end.enter(Direction::Read);
    }

    /// Reads the next item. If there is none, blocks the calling task, or the calling thread if it
    /// is no task. Returns `None` if all items were read and the writer was dropped, or if the
    /// caller must not wait because it is unwinding.
    // Not in builds for debugging, where each copy takes its own space on the stack.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn read(&mut self) -> Option<T> {
        self.enter();
        if !self.end.cursor.slot().is_full() && !self.wait() {
            return None;
        }
        // SAFETY: the slot is full, and this is the reader.
        Some(unsafe { self.take() })
    }

    /// Reads the next item, and waits for it at most for `time`.
    ///
    /// # Errors
    ///
    /// [`TryReadError::Empty`] if no item arrived in time, or if the caller must not wait because
    /// it is unwinding; [`TryReadError::Closed`] at the end of the stream.
    pub fn read_timeout(&mut self, time: Duration) -> Result<T, TryReadError> {
        self.enter();
        if !self.end.cursor.slot().is_full() {
            let limit = TimeLimit::begin(time);
            self.wait_apart();
            drop(limit);
        }
        self.try_read()
    }

    /// Reads the next item if there is one.
    ///
    /// # Errors
    ///
    /// The stream is empty, or at its end.
    #[inline(always)]
    pub fn try_read(&mut self) -> Result<T, TryReadError> {
        self.enter();
        self.check_slot()?;
        // SAFETY: the slot is full, and this is the reader.
        Ok(unsafe { self.take() })
    }

    /// Returns the next item, if there is one, and leaves it in the stream. Never waits.
    pub fn peek(&mut self) -> Option<&T> {
        self.enter();
        self.check_slot().ok()?;
        // SAFETY: the slot is full, and the borrow excludes taking the item.
        Some(unsafe { &*self.end.cursor.slot().peek() })
    }

    /// Reads up to `max` items into `items`: waits for the first one, and takes the others that are
    /// available. Returns the number of items: 0 at the end of the stream, or if `max` is 0.
    pub fn read_batch(&mut self, items: &mut Vec<T>, max: usize) -> usize {
        self.enter();
        if max == 0 || !self.end.cursor.slot().is_full() && !self.wait_apart() {
            return 0;
        }
        // Without this limit, a fast writer could keep the reader here.
        let max = max.min(self.capacity());
        let mut read = 0;
        while read < max {
            let slot = self.end.cursor.slot();
            if !slot.is_full() {
                break;
            }
            // SAFETY: the slot is full, and this is the reader.
            items.push(unsafe { slot.take() });
            self.end.cursor.advance();
            read += 1;
        }
        self.after_read(read as u64);
        read
    }

    /// Reads the next item in an async task, which holds no stack while it waits. Dropping the
    /// future loses no item.
    pub fn read_async(&mut self) -> ReadAsync<'_, T> {
        ReadAsync { reader: self, token: EMPTY }
    }

    /// # Safety
    ///
    /// The slot is full.
    #[inline(always)]
    unsafe fn take(&mut self) -> T {
        // SAFETY: by the contract of this function; this is the reader.
        let item = unsafe { self.end.cursor.slot().take() };
        self.end.cursor.advance();
        self.after_read(1);
        item
    }

    /// Wakes the writer if necessary, after a slot was emptied.
    #[inline(always)]
    fn after_read(&mut self, items: u64) {
        self.end.fence(items);
        if waiter::is_token(self.end.core().writer.peek_word()) {
            self.wake_writer();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_writer(&mut self) {
        self.end.note(|u| u.woke = true);
        self.end.core().wake_writer();
    }

    /// Checks whether there is an item. Fails if the stream is empty, or at its end.
    #[inline(always)]
    pub(crate) fn check_slot(&mut self) -> Result<(), TryReadError> {
        if self.end.cursor.slot().is_full() { Ok(()) } else { self.check_empty_slot() }
    }

    #[cold]
    #[inline(never)]
    fn check_empty_slot(&mut self) -> Result<(), TryReadError> {
        self.check_all()
    }

    #[inline(always)]
    fn check_all(&mut self) -> Result<(), TryReadError> {
        let end = &mut self.end;
        // All items that were written before the close are visible, so the slot is read again
        // afterwards.
        let closed = end.shared.core.writer.is_closed();
        while end.shared.core.growing && end.cursor.follow(&end.shared.first) {}
        match (end.cursor.slot().is_full(), closed) {
            (true, _) => Ok(()),
            (false, true) => Err(TryReadError::Closed),
            (false, false) => Err(TryReadError::Empty),
        }
    }

    /// Waits until there is an item. Returns false at the end of the stream, or if the caller must
    /// not wait.
    ///
    /// Inlined, so that no call spans the switch: see `current::suspend_blocked`.
    #[inline(always)]
    fn wait(&mut self) -> bool {
        let token = self.begin_wait();
        if token == EMPTY {
            return self.end.cursor.slot().is_full();
        }
        current::suspend_blocked(token);
        let is_full = self.end.cursor.slot().is_full();
        is_full && current::end_block_if_woken(token) || self.wait_again(token)
    }

    /// [`Reader::wait`] for code that waits rarely, in which a switch would take registers.
    #[inline(always)]
    fn wait_apart(&mut self) -> bool {
        let token = self.begin_wait();
        if token == EMPTY { self.end.cursor.slot().is_full() } else { self.suspend(token) }
    }

    /// Leaves a token of the caller, which then must suspend. Returns `EMPTY` if there is an item
    /// or the end, or if the caller must not wait.
    #[cold]
    #[inline(never)]
    fn begin_wait(&mut self) -> Token {
        while self.check_all() == Err(TryReadError::Empty) {
            if self.spin() {
                continue;
            }
            let Some(token) = current::blocking_token() else { break };
            assert_not_forked(self.core().process);
            let end = &mut self.end;
            let core = &end.shared.core;
            leave_token(&core.reader.word, token);
            if must_block(&core.writer, || Recheck::new(&end.shared, true, token, &end.cursor)) {
                end.note(|u| u.blocked = true);
                let on = Object::of_stream(core);
                if current::begin_block(&core.reader.word, token, Status::Reading, on) {
                    return token;
                }
                current::unblocked(token);
            }
        }
        EMPTY
    }

    /// Suspends the caller, whose token was left, and waits until there is an item.
    #[cold]
    #[inline(never)]
    fn suspend(&mut self, mut token: Token) -> bool {
        while token != EMPTY {
            current::suspend_blocked(token);
            token = self.end_wait(token);
        }
        self.end.cursor.slot().is_full()
    }

    /// The rest of [`Reader::wait`] in all other cases than the most frequent one.
    #[cold]
    #[inline(never)]
    fn wait_again(&mut self, token: Token) -> bool {
        let token = self.end_wait(token);
        self.suspend(token)
    }

    /// Continues after the caller has suspended, if there may be no item. Returns a token as
    /// [`Reader::begin_wait`] does.
    #[cold]
    #[inline(never)]
    fn end_wait(&mut self, token: Token) -> Token {
        current::end_block(&self.core().reader.word, token, Status::Reading);
        current::unblocked(token);
        self.begin_wait()
    }

    /// Spins for an item if the writer is on another worker. Returns whether there is an item.
    #[inline(always)]
    fn spin(&self) -> bool {
        let slot = self.end.cursor.slot();
        match current::peer(&self.end.core().writer) {
            Peer::Other(worker) => spin(worker, || slot.is_full()),
            Peer::Same | Peer::Outside => false,
        }
    }

    /// Arms the stream: its next item is announced to the set. Returns false if there is an item or
    /// the end now.
    pub(crate) fn arm(&mut self) -> bool {
        self.enter();
        if self.check_slot() != Err(TryReadError::Empty) {
            return false;
        }
        let Shared { core, .. } = &*self.end.shared;
        assert_not_forked(core.process);
        leave_token(&core.reader.word, ARMED);
        let recheck = || Recheck::new(&self.end.shared, true, ARMED, &self.end.cursor);
        must_block(&core.writer, recheck)
    }

    pub(crate) fn core(&self) -> &Core {
        self.end.core()
    }

    pub(crate) fn any(&self) -> Arc<dyn AnyStream> {
        self.end.shared.clone()
    }

    /// Declares that a thread outside the runtime reads from this end, before the first use.
    /// Without this, the runtime assumes that a task owns an unused end, and reports tasks that
    /// wait for its room as a deadlock. The next use by a task ends the declaration.
    pub fn outside(mut self) -> Self {
        self.end.mark_outside(Direction::Read);
        self
    }

    /// Names the event that this stream signals by its end or its only item, for dumps and reports
    /// of deadlocks: "waits for EVENT". For crates whose users do not create the stream. The first
    /// name counts.
    pub fn signals(self, event: &'static str) -> Self {
        self.end.core().signals.set(event);
        self
    }

    /// Returns the current capacity in items.
    pub fn capacity(&self) -> usize {
        self.end.core().capacity.load(Ordering::Relaxed)
    }

    /// Returns the number of the stream, unique in this process. Both ends return the same number.
    pub fn id(&self) -> u64 {
        self.end.core().id
    }
}

impl<T: Send + 'static> Iterator for Reader<T> {
    type Item = T;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next(&mut self) -> Option<T> {
        self.read()
    }
}

impl<T: Send + 'static> Drop for Reader<T> {
    fn drop(&mut self) {
        /// Closes the stream even if the destructor of an item panics.
        struct Close<'a, T: Send + 'static>(&'a Arc<Shared<T>>);

        impl<T: Send + 'static> Drop for Close<'_, T> {
            fn drop(&mut self) {
                self.0.core.close_reader();
                retire(self.0);
            }
        }

        // As for the writer.
        self.end.enter(Direction::Read);
        self.end.note(|u| u.closed = true);
        let shared = self.end.shared.clone();
        let _close = Close(&shared);
        // Items in the buffer would otherwise live as long as the writer, and may own ends of other
        // streams.
        for _ in 0..self.capacity() {
            if self.check_slot().is_err() {
                break;
            }
            // SAFETY: the slot is full, and this is the reader.
            let item = unsafe { self.end.cursor.slot().take() };
            self.end.cursor.advance();
            drop(item);
        }
    }
}

/// Future of the next item of a stream, from [`Reader::read_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct ReadAsync<'a, T: Send + 'static> {
    reader: &'a mut Reader<T>,
    /// Token of the last poll, if it left one. The next poll replaces it.
    token: Token,
}

// SAFETY: the token is only an address, which is compared and given back.
unsafe impl<T: Send> Send for ReadAsync<'_, T> {}

impl<T: Send + 'static> Future for ReadAsync<'_, T> {
    type Output = Option<T>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let this = self.get_mut();
        match this.reader.try_read() {
            Ok(item) => Poll::Ready(Some(item)),
            Err(TryReadError::Closed) => Poll::Ready(None),
            Err(TryReadError::Empty) => this.wait(context),
        }
    }
}

impl<T: Send + 'static> ReadAsync<'_, T> {
    /// Leaves a token, unless there is an item or the end.
    #[cold]
    #[inline(never)]
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        loop {
            match self.reader.try_read() {
                Ok(item) => return Poll::Ready(Some(item)),
                Err(TryReadError::Closed) => return Poll::Ready(None),
                Err(TryReadError::Empty) => {}
            }
            if self.reader.spin() {
                continue;
            }
            let end = &mut self.reader.end;
            let core = &end.shared.core;
            assert_not_forked(core.process);
            if self.token != EMPTY {
                waiter::withdraw(&core.reader.word, self.token);
            }
            let token = waiter::awaiting_token(context.waker());
            self.token = token;
            current::note_await(token, Object::of_stream(core));
            leave_token(&core.reader.word, token);
            if must_block(&core.writer, || Recheck::new(&end.shared, true, token, &end.cursor)) {
                end.note(|u| u.blocked = true);
                return Poll::Pending;
            }
            self.token = EMPTY;
        }
    }
}

impl<T: Send + 'static> Drop for ReadAsync<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.token != EMPTY {
            waiter::withdraw(&self.reader.end.core().reader.word, self.token);
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({})", self.id())
    }
}
