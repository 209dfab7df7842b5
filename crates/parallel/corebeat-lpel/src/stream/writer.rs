//! The end of a stream that is written to.

use super::{End, leave_token, must_block, retire, spin};
use crate::current::{self, Peer, TimeLimit};
use crate::error::{Closed, TryWriteError, assert_not_forked};
use crate::monitor::Direction;
use crate::recheck::Recheck;
use crate::task::{Object, Status};
use crate::waiter::{self, EMPTY, Token};
use corebeat_sync::atomic::Ordering;
use std::cell::Cell;
use std::ptr;
use std::time::Duration;

/// The end of a stream that is written to.
pub struct Writer<T: Send + 'static> {
    pub(super) end: End<T>,
}

impl<T: Send + 'static> Writer<T> {
    #[inline(always)]
    fn enter(&mut self) {
        self.end.enter(Direction::Write);
    }

    /// Writes an item. If there is no room, blocks the calling task, or the calling thread if it is
    /// no task.
    ///
    /// # Errors
    ///
    /// Returns the item if the reader was dropped, or if the caller must not wait because it is
    /// unwinding.
    // Not in builds for debugging, where each copy takes its own space on the stack.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn write(&mut self, item: T) -> Result<(), Closed<T>> {
        self.enter();
        if self.end.cursor.slot().is_full() && !self.wait() {
            return Err(Closed(item));
        }
        // SAFETY: the slot is empty, and this is the writer.
        unsafe { self.end.cursor.slot().fill(item) };
        self.end.cursor.advance();
        self.after_write(1)
    }

    /// Writes an item, and waits for room at most for `time`.
    ///
    /// # Errors
    ///
    /// Returns the item if there was no room in time, if the reader was dropped, or if the caller
    /// must not wait because it is unwinding.
    pub fn write_timeout(&mut self, item: T, time: Duration) -> Result<(), TryWriteError<T>> {
        self.enter();
        if self.end.cursor.slot().is_full() {
            let limit = TimeLimit::begin(time);
            self.wait_apart();
            drop(limit);
        }
        self.try_write(item)
    }

    /// Writes an item if there is room.
    ///
    /// # Errors
    ///
    /// Returns the item if there is no room, or if the reader was dropped.
    #[inline]
    pub fn try_write(&mut self, item: T) -> Result<(), TryWriteError<T>> {
        self.enter();
        if self.end.cursor.slot().is_full() {
            return Err(if self.is_closed() {
                TryWriteError::Closed(item)
            } else {
                TryWriteError::Full(item)
            });
        }
        // SAFETY: the slot is empty, and this is the writer.
        unsafe { self.end.cursor.slot().fill(item) };
        self.end.cursor.advance();
        self.after_write(1).map_err(|Closed(item)| TryWriteError::Closed(item))
    }

    /// Writes all items in order, and removes them from the list. Blocks as [`Writer::write`] does.
    /// The state of the reader is read once for all items that fit.
    ///
    /// # Errors
    ///
    /// Fails if the reader was dropped. Items that were not written remain in the list.
    pub fn write_batch(&mut self, items: &mut Vec<T>) -> Result<(), Closed<()>> {
        self.enter();
        let mut rest = Rest { items, from: 0 };
        while rest.from < rest.items.len() {
            let mut written = 0;
            while let Some(item) = rest.items.get(rest.from) {
                let slot = self.end.cursor.slot();
                if slot.is_full() {
                    break;
                }
                // SAFETY: the item is read once: `from` advances, and `Rest` drops no item before
                // `from`. The slot is empty, and this is the writer.
                unsafe { slot.fill(ptr::read(item)) };
                rest.from += 1;
                self.end.cursor.advance();
                written += 1;
            }
            if written > 0 {
                if let Err(Closed(item)) = self.after_write(written) {
                    // Only the last item was taken back. The other items of this round are lost
                    // with the reader, as all items in the buffer.
                    rest.from -= 1;
                    // SAFETY: this element was moved out, and receives its item again.
                    unsafe { ptr::write(&mut rest.items[rest.from], item) };
                    return Err(Closed(()));
                }
            } else if !self.wait_apart() {
                return Err(Closed(()));
            }
        }
        Ok(())
    }

    /// Wakes the reader if necessary, after the slot was filled.
    #[inline(always)]
    fn after_write(&mut self, items: u64) -> Result<(), Closed<T>> {
        self.end.fence(items);
        if self.end.core().reader.peek_word() == EMPTY { Ok(()) } else { self.handle_word() }
    }

    #[cold]
    #[inline(never)]
    fn handle_word(&mut self) -> Result<(), Closed<T>> {
        if self.is_closed() {
            return self.take_back();
        }
        self.end.note(|u| u.woke = true);
        self.end.core().wake_reader();
        Ok(())
    }

    /// Takes the last written item back, because the reader was dropped.
    #[cold]
    fn take_back(&mut self) -> Result<(), Closed<T>> {
        self.end.cursor.retreat();
        let slot = self.end.cursor.slot();
        if slot.is_full() {
            // SAFETY: the reader was dropped, and the slot is full.
            return Err(Closed(unsafe { slot.take() }));
        }
        // The reader read the item just before it was dropped.
        self.end.cursor.advance();
        Ok(())
    }

    /// Waits until the slot is empty. Returns false if the reader was dropped, or if the caller
    /// must not wait.
    ///
    /// Inlined, so that no call spans the switch: see `current::suspend_blocked`.
    #[inline(always)]
    fn wait(&mut self) -> bool {
        let token = self.begin_wait();
        if token == EMPTY {
            return !self.end.cursor.slot().is_full();
        }
        current::suspend_blocked(token);
        let is_free = !self.end.core().growing && !self.end.cursor.slot().is_full();
        is_free && current::end_block_if_woken(token) || self.wait_again(token)
    }

    /// [`Writer::wait`] for code that waits rarely, in which a switch would take registers.
    #[inline(always)]
    fn wait_apart(&mut self) -> bool {
        let token = self.begin_wait();
        if token == EMPTY { !self.end.cursor.slot().is_full() } else { self.suspend(token) }
    }

    /// Leaves a token of the caller, which then must suspend. Returns `EMPTY` if there is room, if
    /// the reader was dropped, or if the caller must not wait.
    #[cold]
    #[inline(never)]
    fn begin_wait(&mut self) -> Token {
        loop {
            let end = &mut self.end;
            let core = &end.shared.core;
            if !end.cursor.slot().is_full() || core.reader.is_closed() {
                return EMPTY;
            }
            if core.unbounded {
                end.cursor.grow(&end.shared.first);
                core.publish_capacity(end.cursor.capacity());
                return EMPTY;
            }
            if let Peer::Other(worker) = current::peer(&core.reader) {
                // The writer waits for half of the buffer: if it continued at the first free slot,
                // the two sides would contend for each item.
                let half = end.cursor.slot_ahead(end.cursor.capacity() / 2);
                if spin(worker, || !half.is_full()) {
                    continue;
                }
            }
            let Some(token) = current::blocking_token() else { return EMPTY };
            assert_not_forked(core.process);
            if core.growing {
                Self::grow_request(token).set(false);
                current::count_growable(true);
            }
            leave_token(&core.writer.word, token);
            if must_block(&core.reader, || Recheck::new(&end.shared, false, token, &end.cursor)) {
                end.note(|u| u.blocked = true);
                let on = Object::of_stream(core);
                if current::begin_block(&core.writer.word, token, Status::Writing, on) {
                    return token;
                }
            }
            self.unblocked(token);
        }
    }

    /// Suspends the caller, whose token was left, and waits until there is room.
    #[cold]
    #[inline(never)]
    fn suspend(&mut self, mut token: Token) -> bool {
        while token != EMPTY {
            current::suspend_blocked(token);
            token = self.end_wait(token);
        }
        !self.end.cursor.slot().is_full()
    }

    /// The rest of [`Writer::wait`] in all other cases than the most frequent one.
    #[cold]
    #[inline(never)]
    fn wait_again(&mut self, token: Token) -> bool {
        let token = self.end_wait(token);
        self.suspend(token)
    }

    /// Continues after the caller has suspended, if there may be no room. Returns a token as
    /// [`Writer::begin_wait`] does.
    #[cold]
    #[inline(never)]
    fn end_wait(&mut self, token: Token) -> Token {
        current::end_block(&self.end.core().writer.word, token, Status::Writing);
        self.unblocked(token);
        self.begin_wait()
    }

    fn unblocked(&mut self, token: Token) {
        let end = &mut self.end;
        let core = &end.shared.core;
        if core.growing {
            current::count_growable(false);
            if Self::grow_request(token).replace(false) && end.cursor.slot().is_full() {
                end.cursor.grow(&end.shared.first);
                core.publish_capacity(end.cursor.capacity());
            }
        }
        current::unblocked(token);
    }

    /// Returns the request to grow the stream, of the caller, whose token is given.
    fn grow_request<'a>(token: Token) -> &'a Cell<bool> {
        // SAFETY: the token is that of the calling task or thread.
        unsafe { &(*waiter::blocked(token)).grow }
    }

    /// Returns whether the reader was dropped.
    pub fn is_closed(&self) -> bool {
        self.end.core().reader.is_closed()
    }

    /// Declares that a thread outside the runtime writes to this end, before the first use. Without
    /// this, the runtime assumes that a task owns an unused end, and reports tasks that wait for
    /// its items as a deadlock. The next use by a task ends the declaration.
    pub fn outside(mut self) -> Self {
        self.end.mark_outside(Direction::Write);
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

/// A list whose first items have been moved out.
struct Rest<'a, T> {
    items: &'a mut Vec<T>,
    from: usize,
}

impl<T> Drop for Rest<'_, T> {
    fn drop(&mut self) {
        let left = self.items.len() - self.from;
        // SAFETY: items from `from` on are initialised, and those before were moved out. The length
        // covers exactly the items that are moved down.
        unsafe {
            let first = self.items.as_mut_ptr();
            self.items.set_len(0);
            ptr::copy(first.add(self.from), first, left);
            self.items.set_len(left);
        }
    }
}

impl<T: Send + 'static> Drop for Writer<T> {
    fn drop(&mut self) {
        // The other side may rely on this end being where it was last used: see
        // `End::enter_anew`.
        self.end.enter(Direction::Write);
        self.end.note(|u| u.closed = true);
        self.end.core().close_writer();
        retire(&self.end.shared);
    }
}

impl<T: Send + 'static> std::fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({})", self.id())
    }
}
