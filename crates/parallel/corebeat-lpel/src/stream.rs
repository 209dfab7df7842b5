//! Streams: bounded queues with one writer and one reader, first in, first out.
//!
//! The buffer is in [`ring`](crate::ring). This module defines how a side that cannot continue
//! blocks, and how the other side wakes it. The thesis counts free and full slots with two counters
//! that both sides change for every item, and wakes at -1 (Prokesch, A Light-Weight Parallel
//! Execution Layer for Shared-Memory Stream Processing, 2011, 4.4.3, algorithm 8). Here each side
//! reads the state of the slot itself, and each side has a word that the other side only reads.
//! Thus an item takes no atomic addition:
//!
//! | reader | writer |
//! | --- | --- |
//! | finds its slot empty | fills the slot |
//! | leaves its token in its word | `light` |
//! | `heavy` | reads the reader's word; if it holds a token, takes the token and wakes the reader |
//! | reads the slot again; if it is full, withdraws the token | |
//!
//! One of the two fences is first. If the reader's fence is first, the writer finds the token. If
//! the writer's fence is first, the reader finds the item. Both can happen; then the exchange that
//! takes the token decides. A writer at a full slot uses the same protocol with exchanged roles.
//!
//! `heavy` takes a microsecond, so a task does not execute it each time it blocks. Instead, the
//! task defers the second read of the slot to its worker (`recheck`). The worker executes one
//! `heavy` fence for many deferred rechecks, at the latest before it sleeps, and then reads all
//! those slots again. If both sides run on one worker, there is no race: each end stores where it
//! was last used (`home`). Before an end is used at another place, it stores the new place and
//! executes a fence. A token of a task of the same worker is taken without an exchange, unless the
//! end was used elsewhere before (`take_alone`).
//!
//! The value `CLOSED` in a word means that its side was dropped. A closing side executes a full
//! fence between its store to its own word and its load of the other word.

mod reader;
mod signal;
mod writer;

pub use reader::{ReadAsync, Reader};
pub use writer::Writer;

use crate::current::{self, Peer};
use crate::inbox::Linked;
use crate::monitor::{Direction, EndUse, StreamUse};
use crate::recheck::Recheck;
use crate::retired;
use crate::ring::{Cursor, Segment};
use crate::set::{self, SetCore};
use crate::task::discard_panic;
use crate::waiter::{self, ARMED, CLOSED, EMPTY, Token, Word};
use crate::worker::{SpinLimit, Worker};
use corebeat_sync::asymmetric::{heavy_fence, is_free, light_fence};
use corebeat_sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fork::Process;
use signal::Signal;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::compiler_fence;

/// Creates a stream with room for `capacity` items.
///
/// Each end belongs to one task at a time: it can be moved into a task, or sent over another
/// stream, but not shared.
///
/// ```compile_fail,E0277
/// let (writer, _reader) = corebeat_lpel::stream::<u32>(8);
/// let (a, b) = (&writer, &writer);
/// std::thread::scope(|s| {
///     s.spawn(move || a.id());
///     s.spawn(move || b.id()); // `Writer<u32>` cannot be shared between threads
/// });
/// ```
///
/// # Panics
///
/// Panics if `capacity` is 0, or if there is no memory for that many items; an item without a size
/// takes one byte. There is no form that returns an error, as with the channels of the standard
/// library, crossbeam and Tokio: in most programs, the capacity is a constant. Compare a capacity
/// from a user or a file with a limit of the program first, because the system may grant more
/// memory than it has.
pub fn stream<T: Send + 'static>(capacity: usize) -> (Writer<T>, Reader<T>) {
    pair(capacity, Growth::Never)
}

/// Creates a stream that grows where a fixed capacity would cause a deadlock (Parks, Bounded
/// scheduling of process networks, 1995; Basten, Hoogerbrugge, Efficient execution of process
/// networks, 2001): of the full streams that block a cycle of tasks, the smallest one is doubled.
///
/// A cycle can be detected when each of its ends was used once, because an unused end may belong
/// to any task. Inside [`Runtime::run`](crate::Runtime::run), a cycle with unused ends is detected
/// as well, when all tasks wait.
///
/// # Panics
///
/// As for [`stream`].
pub fn growing_stream<T: Send + 'static>(capacity: usize) -> (Writer<T>, Reader<T>) {
    pair(capacity, Growth::AtDeadlock)
}

/// Creates a stream without a bound: [`Writer::write`] never blocks, and doubles the capacity of a
/// full stream instead; [`Writer::try_write`] returns the item of a full stream. For cycles of
/// tasks that a runtime cannot detect, because they pass through another process.
///
/// # Panics
///
/// As for [`stream`].
pub fn unbounded_stream<T: Send + 'static>(capacity: usize) -> (Writer<T>, Reader<T>) {
    pair(capacity, Growth::AtOnce)
}

/// When a full stream grows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    Never,
    /// When a cycle of tasks waits for room.
    AtDeadlock,
    /// Instead of a wait for room.
    AtOnce,
}

fn pair<T: Send + 'static>(capacity: usize, growth: Growth) -> (Writer<T>, Reader<T>) {
    assert!(capacity > 0, "a stream needs room for at least one item");
    static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let shared = Arc::new(Shared {
        core: Core {
            reader: Side::new(),
            writer: Side::new(),
            // Relaxed: numbers only have to be unique.
            id: IDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            capacity: AtomicUsize::new(capacity),
            growing: growth != Growth::Never,
            unbounded: growth == Growth::AtOnce,
            signals: Signal::new(),
            process: Process::current(),
            half_ended: AtomicBool::new(false),
            set: UnsafeCell::new(None),
            link: AtomicPtr::new(ptr::null_mut()),
        },
        first: Segment::new(capacity),
        #[cfg(loom)]
        gone: AtomicUsize::new(0),
    });
    let end = |shared: Arc<Shared<T>>| End {
        cursor: Cursor::new(&shared.first),
        shared,
        stamp: u64::MAX,
        rare: None,
        not_sync: PhantomData,
    };
    (Writer { end: end(shared.clone()) }, Reader { end: end(shared) })
}

/// State of one side that the other side reads.
#[repr(C)]
pub(crate) struct Side {
    /// Token of the side if it waits; `CLOSED` if it was dropped. The other side reads the word for
    /// every item.
    pub(crate) word: Word,
    /// Twice the home of the last user, plus 1 if there was a user with another home before; 0
    /// before the first use.
    home: AtomicU64,
    /// Number of the task that used the end last; 0 for a thread that is no task.
    pub(crate) task: AtomicU64,
}

impl Side {
    pub(crate) fn new() -> Side {
        Side { word: Word::new(EMPTY), home: AtomicU64::new(0), task: AtomicU64::new(0) }
    }

    /// Returns the home of the last user; 0 before the first use.
    #[inline(always)]
    pub(crate) fn home(&self) -> u64 {
        // Relaxed: see `End::enter_anew`.
        self.home.load(Ordering::Relaxed) >> 1
    }

    /// Stores the home of a new user. Returns whether there was a user with another home before.
    pub(crate) fn move_to(&self, home: u64) -> bool {
        // Relaxed: only this side writes the home, and moving an end synchronises its users.
        let before = self.home.load(Ordering::Relaxed);
        let has_moved = before != 0 && before >> 1 != home;
        self.home.store(home << 1 | before & 1 | u64::from(has_moved), Ordering::Relaxed);
        has_moved
    }

    /// Wakes the owner of a token that was read from the word. Only for the other side.
    /// `shares` is whether a search for cycles may take the token as well.
    #[inline(always)]
    fn wake(&self, token: Token, shares: bool) {
        match current::worker_and_home() {
            Some((worker, home)) if !shares && self.take_alone(token, home) => {
                worker.wake_task(waiter::blocked(token));
            }
            _ => {
                waiter::wake_at(&self.word, token);
            }
        }
    }

    /// Takes a token if no other thread can take it: if a task left it that is blocked on the
    /// caller's worker, whose home is `home`, and this side was never used elsewhere.
    ///
    /// Three may take a token: the other side, which is the caller; the owner; and a worker that
    /// has deferred a recheck of this side. All of them are on the caller's worker. Without the
    /// flag for former homes, the worker of a former user could still have a recheck of an equal
    /// token: that of a task whose memory the owner has reused. A search for cycles may take the
    /// token of a writer whose stream can grow: `wake` does not call this function for such a
    /// token.
    #[inline(always)]
    pub(crate) fn take_alone(&self, token: Token, home: u64) -> bool {
        // The home was written before the token: pairs with the release of `leave_token`.
        fence(Ordering::Acquire);
        let is_alone = waiter::is_blocking(token) && self.home.load(Ordering::Relaxed) == home << 1;
        if is_alone {
            // Relaxed: the next token is left on this thread, or after this side has moved.
            self.word.store(EMPTY, Ordering::Relaxed);
        }
        is_alone
    }

    /// Returns whether the side was dropped.
    #[inline(always)]
    fn is_closed(&self) -> bool {
        // Acquire: pairs with the release in `close_writer` and `close_reader`, so all earlier
        // accesses of that side to slots are visible.
        self.word.load(Ordering::Acquire) == CLOSED
    }

    /// Returns the word, for a decision that is repeated later.
    #[inline(always)]
    fn peek_word(&self) -> Token {
        // Relaxed: ordered by the fences. Code that acts on the word reads it again.
        self.word.load(Ordering::Relaxed)
    }
}

/// Membership in a set, to which items are announced.
pub(crate) struct Membership {
    pub(crate) set: Arc<SetCore>,
    pub(crate) place: usize,
}

/// Part of a stream that does not depend on the type of its items. Few fields change while items
/// flow.
#[repr(C)]
pub(crate) struct Core {
    pub(crate) reader: Side,
    pub(crate) writer: Side,
    pub(crate) id: u64,
    /// Capacity of the segment that is written to.
    pub(crate) capacity: AtomicUsize,
    /// Whether the stream has more than one segment, in the course of time.
    pub(crate) growing: bool,
    /// Whether a full stream grows at once.
    unbounded: bool,
    /// Whether one side has ended: it was closed, and accesses no slot any more.
    half_ended: AtomicBool,
    /// The process that created the stream. In a child of fork, the other end may have no user.
    pub(crate) process: Process,
    /// Event for which a reader waits, if the stream carries no items but only signals the event.
    pub(crate) signals: Signal,
    /// Written by the reader's side while the stream is neither armed nor announced. Read by the
    /// thread that takes `ARMED`.
    pub(crate) set: UnsafeCell<Option<Membership>>,
    link: AtomicPtr<Core>,
}

// SAFETY: `link` always returns the same link. Only the thread that takes `ARMED` out of the word
// announces the stream.
unsafe impl Linked for Core {
    fn link(&self) -> &AtomicPtr<Core> {
        &self.link
    }
}

impl Core {
    #[inline(always)]
    fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Read => &self.reader,
            Direction::Write => &self.writer,
        }
    }

    /// Wakes the reader, or announces the stream to its set, because there is an item or the end.
    #[inline]
    pub(crate) fn wake_reader(&self) {
        // Acquire: with ARMED, the reader's write to `set` is visible.
        let word = self.reader.word.load(Ordering::Acquire);
        if waiter::is_token(word) {
            self.reader.wake(word, false);
        } else if word == ARMED {
            set::announce(self);
        }
    }

    /// Wakes the writer if it waits, because there is room or no reader.
    #[inline]
    pub(crate) fn wake_writer(&self) {
        let word = self.writer.peek_word();
        if waiter::is_token(word) {
            self.writer.wake(word, self.growing);
        }
    }

    /// Wakes the writer with this token, if it still waits here, and lets it grow the stream.
    pub(crate) fn let_grow(&self, token: Token) -> bool {
        // AcqRel: see `waiter`.
        let taken =
            self.writer.word.compare_exchange(token, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            // SAFETY: the writer was blocked here, and this thread has its token. So the writer is
            // alive and does not run.
            unsafe {
                (*waiter::blocked(token)).grow.set(true);
                waiter::wake(token);
            }
        }
        taken.is_ok()
    }

    /// Closes the writer's side.
    fn close_writer(&self) {
        // Release: after all writes of items. The fence orders the store before the load of the
        // reader's word.
        self.writer.word.store(CLOSED, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wake_reader();
    }

    /// Closes the reader's side.
    fn close_reader(&self) {
        // AcqRel: after all reads of items; this thread owns the token of a leaked future.
        let before = self.reader.word.swap(CLOSED, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        // SAFETY: the token was taken out of its word above.
        unsafe { waiter::forget(before) };
        self.wake_writer();
    }

    /// Publishes the capacity of a stream that its writer has grown.
    fn publish_capacity(&self, capacity: usize) {
        // Release: after the link to the new segment. Pairs with the acquire in
        // `Recheck::can_proceed`.
        self.capacity.store(capacity, Ordering::Release);
    }
}

/// Shared part of a stream.
pub(crate) struct Shared<T> {
    pub(crate) core: Core,
    first: Segment<T>,
    /// Stands for the reference count of `Arc`, whose ordering loom does not model.
    #[cfg(loom)]
    gone: AtomicUsize,
}

// SAFETY: the two sides exchange slots by the rules of `ring`, and items are Send. The other fields
// are atomic, or follow the rule at the field.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Ends a side that was closed. The second side drops the items that were written while the
    /// reader was dropped. The buffer may live longer, because a worker keeps it for a recheck, or
    /// an inspection reads it; the items must not outlive the tasks that dropped the ends.
    fn end_side(&self) {
        // AcqRel: the second side observes all accesses of the first one to slots.
        if !self.core.half_ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut segment = Some(&self.first);
        while let Some(current) = segment {
            for slot in &current.slots {
                if slot.is_full() {
                    // SAFETY: this side was dropped last, and the slot is full.
                    discard_panic(|| drop(unsafe { slot.take() }));
                }
            }
            segment = current.next();
        }
    }
}

#[cfg(loom)]
impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        self.gone.fetch_add(1, Ordering::AcqRel);
    }
}

/// A stream of items of any type.
pub(crate) trait AnyStream: Send + Sync {
    fn core(&self) -> &Core;
}

impl<T: Send> AnyStream for Shared<T> {
    fn core(&self) -> &Core {
        &self.core
    }
}

/// Common part of both ends.
struct End<T> {
    shared: Arc<Shared<T>>,
    cursor: Cursor<T>,
    /// Stamp of the last user. No two users have the same stamp, so the monitor in `rare`, which
    /// may be gone when the user is, is used by this user only.
    stamp: u64,
    /// Rare work for each item: the monitor counts it, or a `light` fence is not free on this
    /// system. Normally `None`.
    rare: Option<Arc<EndUse>>,
    /// An end has one user at a time.
    not_sync: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: the cursor points into the shared part, which lives as long as the end. All unshared
// state moves with the end.
unsafe impl<T: Send> Send for End<T> {}

impl<T> End<T> {
    fn core(&self) -> &Core {
        &self.shared.core
    }

    /// Precedes each use of this end: handles the first use by a task.
    #[inline(always)]
    fn enter(&mut self, direction: Direction) {
        if self.stamp != current::current_stamp() {
            self.enter_anew(direction);
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_anew(&mut self, direction: Direction) {
        let stamp = current::make_stamp();
        let home = current::home_of(stamp);
        let side = self.core().side(direction);
        let task = current::task_id();
        // Relaxed: as in `move_to`.
        let opens = side.task.load(Ordering::Relaxed) != task;
        if opens {
            side.task.store(task, Ordering::Relaxed);
        }
        if side.move_to(home) {
            // The other side may block at the old home at this moment, and rely on this side being
            // there. The other side leaves its token, executes `light`, and reads this home. This
            // side writes its home, executes `heavy`, and reads the word later.
            heavy_fence();
        }
        self.stamp = stamp;
        let items = self.rare.take().map_or(0, |before| before.items());
        let watch = current::watch_of_streams();
        if watch.is_none() && items == 0 && is_free() {
            return;
        }
        let rare = Arc::new(EndUse::new(self.core().id, direction, items, watch));
        if let Some(watch) = watch {
            watch.add(rare.clone());
        }
        if opens {
            rare.note(|record| record.opened = true);
        }
        self.rare = Some(rare);
    }

    /// Marks the end as used by a thread that is no task.
    fn mark_outside(&mut self, direction: Direction) {
        let side = self.core().side(direction);
        // Relaxed: as in `move_to`.
        side.task.store(0, Ordering::Relaxed);
        if side.move_to(current::OUTSIDE) {
            // As in `enter_anew`.
            heavy_fence();
        }
        // The next use enters again.
        self.stamp = u64::MAX;
    }

    /// Executes a `light` fence after items passed, before the other side's word is read.
    #[inline(always)]
    fn fence(&mut self, items: u64) {
        // One read of unshared memory covers two rare cases.
        if let Some(rare) = &self.rare
            && !rare.count(items)
        {
            rare.count_first(items);
            light_fence();
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Notes an event for the monitor, if it records this end. The end must have been entered.
    #[inline(always)]
    fn note(&self, note: impl FnOnce(&mut StreamUse)) {
        if let Some(rare) = &self.rare {
            rare.note(note);
        }
    }
}

/// Spins while this worker has no other work. Returns whether `is_ready` became true.
#[inline(never)]
fn spin(worker: &Worker, is_ready: impl Fn() -> bool) -> bool {
    let mut limit = SpinLimit::new(worker);
    while limit.spin() {
        if is_ready() {
            return true;
        }
    }
    false
}

/// Leaves a token of the caller in the word of its own side.
#[inline]
pub(crate) fn leave_token(word: &Word, token: Token) {
    if word.load(Ordering::Relaxed) == EMPTY {
        // Release: pairs with the acquire of the thread that takes the token.
        word.store(token, Ordering::Release);
    } else {
        // SAFETY: the swap took the token, which belongs to a leaked future.
        unsafe { waiter::forget(word.swap(token, Ordering::AcqRel)) };
    }
}

/// Second half of the blocking protocol (see the text of this module), after the token was left.
/// `peer` is the other side. Returns true if the caller has to block, and false if the token is
/// withdrawn and the caller has to check again.
#[inline(always)]
fn must_block<'a, T: Send + 'static>(
    peer: &Side,
    recheck: impl FnOnce() -> Recheck<&'a Arc<Shared<T>>>,
) -> bool {
    light_fence();
    if matches!(current::peer(peer), Peer::Same) { true } else { must_block_apart(recheck()) }
}

#[cold]
#[inline(never)]
fn must_block_apart<T: Send + 'static>(recheck: Recheck<&Arc<Shared<T>>>) -> bool {
    let worker = current::worker();
    if worker.is_none() {
        heavy_fence();
    }
    if recheck.can_proceed() && waiter::withdraw(recheck.word(), recheck.token()) {
        return false;
    }
    if let Some(worker) = worker {
        worker.defer(recheck);
    }
    true
}

/// Retires the stream when an end is dropped: a dump may have found the stream through a task that
/// waited for it, and may still read the stream.
fn retire<T: Send + 'static>(shared: &Arc<Shared<T>>) {
    shared.end_side();
    #[cfg(loom)]
    shared.gone.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the clone keeps the stream alive. Items are Send, so any thread may drop them.
    unsafe { retired::retire(shared.clone()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// An item that calls a function when it is dropped.
    struct Item(Option<Box<dyn FnOnce() + Send>>);

    impl Drop for Item {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|f| f());
        }
    }

    #[test]
    fn items_do_not_outlive_the_ends() {
        let dropped = Arc::new(Mutex::new(0));
        let count = dropped.clone();
        let last = Item(Some(Box::new(move || *count.lock().unwrap() += 1)));
        let (writer, reader) = stream::<Item>(1);
        let writer = Arc::new(Mutex::new(writer));
        let to = writer.clone();
        // The reader drops the items of one buffer when it is dropped; the next item remains.
        let first = Item(Some(Box::new(move || drop(to.lock().unwrap().write(last)))));
        assert!(writer.lock().unwrap().write(first).is_ok());
        // As a worker that keeps the stream for a recheck.
        let buffer = reader.any();
        drop(reader);
        assert_eq!(*dropped.lock().unwrap(), 0);
        drop(writer);
        assert_eq!(*dropped.lock().unwrap(), 1);
        drop(buffer);
    }
}
