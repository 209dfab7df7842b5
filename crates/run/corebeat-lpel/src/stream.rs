//! Streams: bounded, one writer, one reader, first in first out.
//!
//! The buffer is in [`ring`](crate::ring); here is how a side that cannot go on sleeps, and who wakes it. The thesis
//! counts free and full slots with two counters that both sides change for every item, and wakes at -1 (Prokesch, A
//! Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.4.3, algorithm 8). Here the slot
//! itself is asked, and each side has a word that the other only reads, so that an item costs no atomic addition:
//!
//! | reader | writer |
//! | --- | --- |
//! | sees its slot empty | fills the slot |
//! | leaves its token in its word | `light` |
//! | `heavy` | reads the reader's word: a token? takes it and wakes |
//! | looks at the slot again: full? withdraws the token | |
//!
//! One of the two fences is first. If the reader's is, the writer sees the token. If the writer's is, the reader sees the
//! item. Both may happen; then taking the token decides. A writer at a full slot does the same with the words exchanged.
//!
//! `heavy` costs a microsecond, so a task does not do it each time that it blocks: it leaves a *doubt* with its worker,
//! which does one `heavy` for many of them, at the latest before it sleeps, and then looks at all those slots again. And
//! where both sides run on one worker there is no race at all: each end says where it was last used (`home`), and
//! says so again, with a fence, when it is used elsewhere.
//!
//! A word that is closed says that its side is gone. Whoever closes does it with a full fence, before looking at the
//! other's word.

use crate::current::{self, Awaits, Other};
use crate::doubt::Doubt;
use crate::error::{Closed, TryReadError, TryWriteError};
use crate::inbox::Linked;
use crate::limbo;
use crate::monitor::{Direction, Touched};
use crate::ring::{Cursor, Segment};
use crate::set::{self, SetCore};
use crate::task::{Status, quietly};
use crate::waiter::{self, ARMED, CLOSED, NOBODY, Token, Word};
use crate::worker::{Hunger, Worker};
use corebeat_sync::asymmetric::{heavy, is_free, light};
use corebeat_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use corebeat_sync::cell::UnsafeCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::compiler_fence;
use std::task::{Context, Poll};

/// Makes a stream with room for `capacity` items.
///
/// Each end belongs to one task at a time: it can be moved into a task, or sent over another stream, but not shared.
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
/// If `capacity` is 0, or there is no memory for so many items.
pub fn stream<T: Send + 'static>(capacity: usize) -> (Writer<T>, Reader<T>) {
    pair(capacity, false)
}

/// Makes a stream that may get more room than `capacity`, and does where tasks would else wait for each other for ever
/// (Parks, Bounded scheduling of process networks, 1995; Basten, Hoogerbrugge, Efficient execution of process networks,
/// 2001): of the full ones that hold up such a circle, the smallest is doubled.
///
/// A circle is seen when each of its ends was used once: until then nobody knows which task has which end. Inside
/// [`Runtime::run`](crate::Runtime::run) one with unused ends is found as well, as soon as all tasks wait.
///
/// # Panics
///
/// As [`stream`].
pub fn growing_stream<T: Send + 'static>(capacity: usize) -> (Writer<T>, Reader<T>) {
    pair(capacity, true)
}

fn pair<T: Send + 'static>(capacity: usize, growing: bool) -> (Writer<T>, Reader<T>) {
    assert!(capacity > 0, "a stream needs room for at least one item");
    static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let first = Box::into_raw(Segment::new(capacity));
    let shared = Arc::new(Shared {
        core: Core {
            reader: Side::new(),
            writer: Side::new(),
            // Relaxed: only unique.
            id: IDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            capacity: AtomicUsize::new(capacity),
            growing,
            set: UnsafeCell::new(None),
            link: AtomicPtr::new(ptr::null_mut()),
        },
        first,
        #[cfg(loom)]
        gone: AtomicUsize::new(0),
    });
    let end = |shared| End {
        shared,
        cursor: Cursor::new(first),
        stamp: u64::MAX,
        items: 0,
        touched: ptr::null_mut(),
        rare: FENCES,
        alone: PhantomData,
    };
    (Writer { end: end(shared.clone()) }, Reader { end: end(shared) })
}

/// What one side of a stream shows to the other.
#[repr(C)]
pub(crate) struct Side {
    /// Its token if it waits; `CLOSED` if it is gone. Read by the other side for every item.
    pub(crate) word: Word,
    /// Where it was last used; 0 if nowhere yet.
    pub(crate) home: AtomicU64,
    /// The task that last used it; 0 if that was no task.
    pub(crate) task: AtomicU64,
}

impl Side {
    fn new() -> Side {
        Side { word: Word::new(NOBODY), home: AtomicU64::new(0), task: AtomicU64::new(0) }
    }
}

/// Membership in a set: where to announce items.
pub(crate) struct Membership {
    pub(crate) set: Arc<SetCore>,
    pub(crate) place: usize,
}

/// What is known of a stream without the type of its items: little of it changes while items flow.
#[repr(C)]
pub(crate) struct Core {
    pub(crate) reader: Side,
    pub(crate) writer: Side,
    pub(crate) id: u64,
    /// That of the segment which is written to.
    pub(crate) capacity: AtomicUsize,
    pub(crate) growing: bool,
    /// Written by the reader's side while the stream is neither armed nor announced; read by whoever takes `ARMED`.
    pub(crate) set: UnsafeCell<Option<Membership>>,
    link: AtomicPtr<Core>,
}

// SAFETY: always the same link; a stream is announced only by who takes `ARMED` out of its word.
unsafe impl Linked for Core {
    fn link(&self) -> &AtomicPtr<Core> {
        &self.link
    }
}

impl Core {
    /// Something is there to read, or the end: tells whoever waits for that.
    #[inline]
    pub(crate) fn call_reader(&self) {
        // Acquire: with ARMED comes what the reader wrote to `set`.
        let word = self.reader.word.load(Ordering::Acquire);
        if waiter::is_token(word) {
            waiter::wake_at(&self.reader.word, word);
        } else if word == ARMED {
            set::announce(self);
        }
    }

    /// There is room to write, or nobody to write for: tells the writer if it waits.
    #[inline]
    pub(crate) fn call_writer(&self) {
        // Relaxed: the exchange in `wake_at` acts on it.
        let word = self.writer.word.load(Ordering::Relaxed);
        if waiter::is_token(word) {
            waiter::wake_at(&self.writer.word, word);
        }
    }

    /// Has the writer whose token this is, if it still waits here, go on with more room.
    pub(crate) fn let_grow(&self, token: Token) -> bool {
        // AcqRel: see `waiter`.
        let taken = self.writer.word.compare_exchange(token, NOBODY, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            // SAFETY: it was blocked there, and we have its token, so it lives and does not run.
            unsafe {
                (*waiter::blocked(token)).grow.set(true);
                waiter::wake(token);
            }
        }
        taken.is_ok()
    }
}

/// The shared part of a stream.
pub(crate) struct Shared<T> {
    pub(crate) core: Core,
    first: *const Segment<T>,
    /// What the counts of `Arc` order, in models, which do not know them.
    #[cfg(loom)]
    gone: AtomicUsize,
}

// SAFETY: slots go from one side to the other by the rules of `ring`, and items are Send; the rest is atomic, or follows
// the rule at its field.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        #[cfg(loom)]
        self.gone.fetch_add(1, Ordering::AcqRel);
        let mut segment = self.first.cast_mut();
        while !segment.is_null() {
            // SAFETY: from `Box::into_raw`, here or in `Cursor::grow`; both ends are gone.
            let owned = unsafe { Box::from_raw(segment) };
            segment = owned.next.load(Ordering::Acquire);
            // What was written while the reader went is still in it.
            quietly(|| drop(owned));
        }
    }
}

/// A stream of any items.
pub(crate) trait AnyStream: Send + Sync {
    fn core(&self) -> &Core;
}

impl<T: Send> AnyStream for Shared<T> {
    fn core(&self) -> &Core {
        &self.core
    }
}

/// The monitor wants to know how many items go through.
const COUNTS: u8 = 1;
/// `light` is not free here.
const FENCES: u8 = 2;

/// What both ends are made of.
struct End<T> {
    shared: Arc<Shared<T>>,
    cursor: Cursor<T>,
    /// Who used it last.
    stamp: u64,
    /// How many items went through while somebody counted.
    items: u64,
    /// Where the monitor, if there is one, has what was done here in this dispatch: valid while the stamp is the current one.
    touched: *mut Touched,
    /// What is to be done with each item, beside moving it: `COUNTS`, `FENCES`, mostly nothing.
    rare: u8,
    /// One task at a time: not Sync.
    alone: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: the cursor points into the shared part, which is alive as long as an end is; all that is not shared moves with it.
unsafe impl<T: Send> Send for End<T> {}

impl<T> End<T> {
    fn core(&self) -> &Core {
        &self.shared.core
    }

    /// This end is used for the first time by this task (or in this dispatch, if streams are monitored).
    #[cold]
    #[inline(never)]
    fn enter(&mut self, side: fn(&Core) -> &Side, direction: Direction) {
        let stamp = current::make_stamp();
        let home = current::home_of(stamp);
        let core = &self.shared.core;
        let side = side(core);
        let task = current::task_id();
        // Relaxed: only this side writes these two, and it has come here by some synchronisation.
        let opened = side.task.load(Ordering::Relaxed) != task;
        if opened {
            side.task.store(task, Ordering::Relaxed);
        }
        let before = side.home.load(Ordering::Relaxed);
        if before != home {
            side.home.store(home, Ordering::Relaxed);
            if before != 0 {
                // The other side may be blocking at our old home at this moment, and rely on us being there. It leaves
                // its token, `light`, and reads our home; we write our home, `heavy`, and read its word later.
                heavy();
            }
        }
        self.stamp = stamp;
        self.touched = current::worker()
            .map_or(ptr::null_mut(), |worker| worker.touch(core, direction, opened, self.items));
        self.rare = if self.touched.is_null() { 0 } else { COUNTS } | if is_free() { 0 } else { FENCES };
    }

    /// The task was dispatched again, in the midst of using this end.
    #[inline(always)]
    fn resume(&mut self, side: fn(&Core) -> &Side, direction: Direction) {
        if self.stamp != current::current_stamp() {
            self.enter(side, direction);
        }
    }

    /// After items went through, before a look at the other side.
    #[inline(always)]
    fn fence(&mut self, items: u64) {
        // One look at memory of our own for two rare things.
        if self.rare == 0 {
            compiler_fence(Ordering::SeqCst);
        } else {
            self.do_rare(items);
        }
    }

    #[inline(always)]
    fn do_rare(&mut self, items: u64) {
        if self.rare & COUNTS != 0 {
            self.items += items;
            // SAFETY: entered in this dispatch, see `note`.
            let touched = unsafe { &mut *self.touched };
            (touched.items, touched.moved) = (self.items, true);
        }
        if self.rare & FENCES == 0 { compiler_fence(Ordering::SeqCst) } else { light() }
    }

    /// Tells the monitor, if there is one. The end must have been entered.
    fn note(&self, note: impl FnOnce(&mut Touched)) {
        if !self.touched.is_null() {
            // SAFETY: entered in this dispatch; nobody else has a reference to it while the task runs.
            note(unsafe { &mut *self.touched });
        }
    }
}

/// The end of a stream that is written to.
pub struct Writer<T: Send + 'static> {
    end: End<T>,
}

/// The end of a stream that is read from. As an iterator it gives one item after another, until the writer is gone.
pub struct Reader<T: Send + 'static> {
    end: End<T>,
}

impl<T: Send + 'static> Writer<T> {
    #[inline(always)]
    fn enter(&mut self) {
        if self.end.stamp != current::current_stamp() {
            self.end.enter(|core| &core.writer, Direction::Write);
        }
    }

    /// Writes an item, and waits as long as there is no room: the task blocks, or the thread if it is no task.
    ///
    /// # Errors
    ///
    /// The reader is gone, and this is the item. Also where the caller may not wait because it is unwinding.
    #[inline]
    pub fn write(&mut self, item: T) -> Result<(), Closed<T>> {
        self.enter();
        if self.end.cursor.slot().is_full() && !self.wait() {
            return Err(Closed(item));
        }
        // SAFETY: the slot was seen empty, and we are the writer.
        unsafe { self.end.cursor.slot().fill(item) };
        self.end.cursor.advance();
        self.after_write(1)
    }

    /// Writes an item if there is room.
    ///
    /// # Errors
    ///
    /// There is none now, or the reader is gone; both have the item.
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
        // SAFETY: the slot was seen empty, and we are the writer.
        unsafe { self.end.cursor.slot().fill(item) };
        self.end.cursor.advance();
        self.after_write(1).map_err(|Closed(item)| TryWriteError::Closed(item))
    }

    /// Writes all items in order, and empties the list; waits as [`Writer::write`] does. One look at the reader's side
    /// serves as many items as there is room for.
    ///
    /// # Errors
    ///
    /// The reader is gone; what was not written is left in the list.
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
                // SAFETY: the item is read once: `from` goes on, and `Rest` forgets what is before it. The slot was seen
                // empty, and we are the writer.
                unsafe { slot.fill(ptr::read(item)) };
                rest.from += 1;
                self.end.cursor.advance();
                written += 1;
            }
            if written > 0 {
                if let Err(Closed(item)) = self.after_write(written) {
                    // Only the last was taken back; the others of this round are lost with the reader, as any in the buffer.
                    rest.from -= 1;
                    // SAFETY: this place was read from, and gets its item back.
                    unsafe { ptr::write(&mut rest.items[rest.from], item) };
                    return Err(Closed(()));
                }
            } else if !self.wait() {
                return Err(Closed(()));
            }
        }
        Ok(())
    }

    /// After the slot was filled: the second half of the protocol.
    #[inline(always)]
    fn after_write(&mut self, items: u64) -> Result<(), Closed<T>> {
        self.end.fence(items);
        // Relaxed: ordered by the fences; whoever acts on it looks again.
        if self.end.core().reader.word.load(Ordering::Relaxed) == NOBODY { Ok(()) } else { self.answer() }
    }

    #[cold]
    #[inline(never)]
    fn answer(&mut self) -> Result<(), Closed<T>> {
        // Acquire: with CLOSED, the reader's slots are ours.
        if self.end.core().reader.word.load(Ordering::Acquire) == CLOSED {
            return self.take_back();
        }
        self.end.note(|t| t.woke = true);
        self.end.core().call_reader();
        Ok(())
    }

    /// The reader is gone: the item that was written last is ours again.
    #[cold]
    fn take_back(&mut self) -> Result<(), Closed<T>> {
        self.end.cursor.retreat();
        let slot = self.end.cursor.slot();
        if slot.is_full() {
            // SAFETY: the reader is gone, and it is full.
            return Err(Closed(unsafe { slot.take() }));
        }
        // It was read just before the reader went.
        self.end.cursor.advance();
        Ok(())
    }

    /// Until the slot is empty. False: the reader is gone, or we may not wait.
    #[cold]
    fn wait(&mut self) -> bool {
        loop {
            let end = &mut self.end;
            let core = &end.shared.core;
            if !end.cursor.slot().is_full() {
                return true;
            }
            // Acquire: with CLOSED.
            if core.reader.word.load(Ordering::Acquire) == CLOSED {
                return false;
            }
            if let Other::Elsewhere(worker) = current::other(&core.reader) {
                // Half of the buffer: if we went on at the first free slot, the two sides would meet at each item.
                let half = end.cursor.slot_ahead(end.cursor.capacity() / 2);
                if spin(worker, || !half.is_full()) {
                    continue;
                }
            }
            if !current::may_block() {
                return false;
            }
            let token = waiter::blocking_token();
            // SAFETY: we are that task, or thread.
            let grow = unsafe { &(*waiter::blocked(token)).grow };
            if core.growing {
                grow.set(false);
                current::count_growable(true);
            }
            leave_token(&core.writer.word, token);
            if settle(&core.reader, || Doubt::new(&end.shared, false, token, &end.cursor)) {
                end.note(|t| t.blocked = true);
                current::block(&core.writer.word, token, Status::Writing, core);
                end.resume(|core| &core.writer, Direction::Write);
            }
            let core = &end.shared.core;
            if core.growing {
                current::count_growable(false);
                // Acquire: pairs with the release of who told us.
                if grow.replace(false) && end.cursor.slot().is_full() {
                    end.cursor.grow();
                    // Release: after the link. Pairs with the acquire in `Doubt::is_true`.
                    core.capacity.store(end.cursor.capacity(), Ordering::Release);
                }
            }
            current::unblocked();
        }
    }

    /// Whether the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.end.core().reader.word.load(Ordering::Acquire) == CLOSED
    }

    /// How many items it has room for now.
    pub fn capacity(&self) -> usize {
        self.end.core().capacity.load(Ordering::Relaxed)
    }

    /// The stream's number, unique in this process; both ends have the same.
    pub fn id(&self) -> u64 {
        self.end.core().id
    }
}

/// A list of which the first items have been moved out.
struct Rest<'a, T> {
    items: &'a mut Vec<T>,
    from: usize,
}

impl<T> Drop for Rest<'_, T> {
    fn drop(&mut self) {
        let left = self.items.len() - self.from;
        // SAFETY: items from `from` on are there, those before were moved out; the length covers what is moved down.
        unsafe {
            let first = self.items.as_mut_ptr();
            self.items.set_len(0);
            ptr::copy(first.add(self.from), first, left);
            self.items.set_len(left);
        }
    }
}

/// Waits a little with the processor busy, if this worker has nothing else to do. True if it was worth it.
#[inline(never)]
fn spin(worker: &Worker, ready: impl Fn() -> bool) -> bool {
    let mut hunger = Hunger::new(worker);
    while hunger.goes_on() {
        if ready() {
            return true;
        }
    }
    false
}

/// Leaves the running waiter's token in its own side's word.
#[inline]
fn leave_token(word: &Word, token: Token) {
    if word.load(Ordering::Relaxed) == NOBODY {
        // Release: pairs with the acquire of who takes it.
        word.store(token, Ordering::Release);
    } else {
        // SAFETY: taken just now; the token of a future that was leaked.
        unsafe { waiter::forget(word.swap(token, Ordering::AcqRel)) };
    }
}

/// The second half of blocking, see the module's text. `side` is the other side. True: block. False: the token is
/// withdrawn, look again.
#[inline(always)]
fn settle<'a, T: Send + 'static>(side: &Side, doubt: impl FnOnce() -> Doubt<&'a Arc<Shared<T>>>) -> bool {
    light();
    if let Other::Here = current::other(side) { true } else { settle_elsewhere(doubt()) }
}

#[cold]
#[inline(never)]
fn settle_elsewhere<T: Send + 'static>(doubt: Doubt<&Arc<Shared<T>>>) -> bool {
    let worker = current::worker();
    if worker.is_none() {
        heavy();
    }
    if doubt.is_true() && waiter::withdraw(doubt.word(), doubt.token()) {
        return false;
    }
    if let Some(worker) = worker {
        worker.doubt(doubt);
    }
    true
}

impl<T: Send + 'static> Reader<T> {
    #[inline(always)]
    fn enter(&mut self) {
        if self.end.stamp != current::current_stamp() {
            self.end.enter(|core| &core.reader, Direction::Read);
        }
    }

    /// Reads the next item, and waits as long as there is none: the task blocks, or the thread if it is no task.
    /// `None`: all was read and the writer is gone. Also where the caller may not wait because it is unwinding.
    #[inline]
    pub fn read(&mut self) -> Option<T> {
        self.enter();
        if !self.end.cursor.slot().is_full() && !self.wait() {
            return None;
        }
        // SAFETY: seen full, and we are the reader.
        Some(unsafe { self.take() })
    }

    /// Reads the next item if there is one.
    ///
    /// # Errors
    ///
    /// There is none now, or there will be none.
    #[inline(always)]
    pub fn try_read(&mut self) -> Result<T, TryReadError> {
        self.enter();
        self.look()?;
        // SAFETY: seen full, and we are the reader.
        Ok(unsafe { self.take() })
    }

    /// The next item, if there is one; it stays in the stream. Never waits.
    pub fn peek(&mut self) -> Option<&T> {
        self.enter();
        self.look().ok()?;
        // SAFETY: seen full, and it is not taken while we are borrowed.
        Some(unsafe { &*self.end.cursor.slot().peek() })
    }

    /// Reads up to `max` items into `items`: waits for the first, and takes what is there. Returns how many: 0 at the
    /// end of the stream (or if `max` is 0).
    pub fn read_batch(&mut self, items: &mut Vec<T>, max: usize) -> usize {
        self.enter();
        if max == 0 || !self.end.cursor.slot().is_full() && !self.wait() {
            return 0;
        }
        // A writer that keeps up would keep us here.
        let max = max.min(self.capacity());
        let mut read = 0;
        while read < max {
            let slot = self.end.cursor.slot();
            if !slot.is_full() {
                break;
            }
            // SAFETY: seen full, and we are the reader.
            items.push(unsafe { slot.take() });
            self.end.cursor.advance();
            read += 1;
        }
        self.after_read(read as u64);
        read
    }

    /// As [`Reader::read`], without a stack while it waits, in an async task. Dropping the future loses no item.
    pub fn read_async(&mut self) -> ReadAsync<'_, T> {
        ReadAsync { reader: self, token: NOBODY }
    }

    /// # Safety
    ///
    /// The slot was seen full.
    #[inline(always)]
    unsafe fn take(&mut self) -> T {
        // SAFETY: the caller's word; we are the reader.
        let item = unsafe { self.end.cursor.slot().take() };
        self.end.cursor.advance();
        self.after_read(1);
        item
    }

    /// After a slot was emptied: the second half of the protocol.
    #[inline(always)]
    fn after_read(&mut self, items: u64) {
        self.end.fence(items);
        // Relaxed: ordered by the fences; whoever acts on it looks again.
        if waiter::is_token(self.end.core().writer.word.load(Ordering::Relaxed)) {
            self.answer();
        }
    }

    #[cold]
    #[inline(never)]
    fn answer(&mut self) {
        self.end.note(|t| t.woke = true);
        self.end.core().call_writer();
    }

    /// Whether there is an item, will be one, or none any more.
    #[inline(always)]
    pub(crate) fn look(&mut self) -> Result<(), TryReadError> {
        if self.end.cursor.slot().is_full() { Ok(()) } else { self.look_closely() }
    }

    #[cold]
    #[inline(never)]
    fn look_closely(&mut self) -> Result<(), TryReadError> {
        self.look_once_more()
    }

    #[inline(always)]
    fn look_once_more(&mut self) -> Result<(), TryReadError> {
        let end = &mut self.end;
        // Acquire: all that was written before is visible, so look again after.
        let closed = end.shared.core.writer.word.load(Ordering::Acquire) == CLOSED;
        while end.shared.core.growing && end.cursor.follow() {}
        match (end.cursor.slot().is_full(), closed) {
            (true, _) => Ok(()),
            (false, true) => Err(TryReadError::Closed),
            (false, false) => Err(TryReadError::Empty),
        }
    }

    /// Until there is an item. False: there will be none, or we may not wait.
    #[cold]
    #[inline(never)]
    fn wait(&mut self) -> bool {
        loop {
            match self.look_once_more() {
                Ok(()) => return true,
                Err(TryReadError::Closed) => return false,
                Err(TryReadError::Empty) => {}
            }
            let end = &mut self.end;
            let core = &end.shared.core;
            let slot = end.cursor.slot();
            if let Other::Elsewhere(worker) = current::other(&core.writer)
                && spin(worker, || slot.is_full())
            {
                continue;
            }
            if !current::may_block() {
                return false;
            }
            let token = waiter::blocking_token();
            leave_token(&core.reader.word, token);
            if settle(&core.writer, || Doubt::new(&end.shared, true, token, &end.cursor)) {
                end.note(|t| t.blocked = true);
                current::block(&core.reader.word, token, Status::Reading, core);
                end.resume(|core| &core.reader, Direction::Read);
                current::unblocked();
            }
        }
    }

    /// For a set: has the next item announced. False: there is something to read now, or the end.
    pub(crate) fn arm(&mut self) -> bool {
        self.enter();
        if self.look() != Err(TryReadError::Empty) {
            return false;
        }
        let core = &self.end.shared.core;
        leave_token(&core.reader.word, ARMED);
        settle(&core.writer, || Doubt::new(&self.end.shared, true, ARMED, &self.end.cursor))
    }

    pub(crate) fn core(&self) -> &Core {
        self.end.core()
    }

    pub(crate) fn any(&self) -> Arc<dyn AnyStream> {
        self.end.shared.clone()
    }

    /// How many items it has room for now.
    pub fn capacity(&self) -> usize {
        self.end.core().capacity.load(Ordering::Relaxed)
    }

    /// The stream's number, unique in this process; both ends have the same.
    pub fn id(&self) -> u64 {
        self.end.core().id
    }
}

impl<T: Send + 'static> Iterator for Reader<T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.read()
    }
}

impl<T: Send + 'static> Drop for Writer<T> {
    fn drop(&mut self) {
        // The other side may rely on us being where this end was last used: see `End::enter`.
        self.end.resume(|core| &core.writer, Direction::Write);
        self.end.note(|t| t.closed = true);
        let core = self.end.core();
        // Release: all that we wrote comes before. The fence orders it before our look at the reader's word.
        core.writer.word.store(CLOSED, Ordering::Release);
        fence(Ordering::SeqCst);
        core.call_reader();
        keep_for_dumps(&self.end.shared);
    }
}

impl<T: Send + 'static> Drop for Reader<T> {
    fn drop(&mut self) {
        /// Goes also if an item's destructor panics.
        struct Close<'a, T: Send + 'static>(&'a Arc<Shared<T>>);

        impl<T: Send + 'static> Drop for Close<'_, T> {
            fn drop(&mut self) {
                let core = &self.0.core;
                // AcqRel: our reads come before; the token of a future that was leaked is ours.
                let before = core.reader.word.swap(CLOSED, Ordering::AcqRel);
                fence(Ordering::SeqCst);
                // SAFETY: taken out just now.
                unsafe { waiter::forget(before) };
                core.call_writer();
                keep_for_dumps(self.0);
            }
        }

        // As in the writer's.
        self.end.resume(|core| &core.reader, Direction::Read);
        self.end.note(|t| t.closed = true);
        let shared = self.end.shared.clone();
        let _close = Close(&shared);
        // What is in the buffer would else live as long as the writer, and may hold ends of other streams.
        for _ in 0..self.capacity() {
            if self.look().is_err() {
                break;
            }
            // SAFETY: seen full, and we are the reader.
            let item = unsafe { self.end.cursor.slot().take() };
            self.end.cursor.advance();
            drop(item);
        }
    }
}

/// An end is going. A dump that found the stream by a task that waited for it may still read it.
fn keep_for_dumps<T: Send + 'static>(shared: &Arc<Shared<T>>) {
    #[cfg(loom)]
    shared.gone.fetch_add(1, Ordering::AcqRel);
    // SAFETY: a clone keeps the rest; items are Send, so any thread may drop them.
    unsafe { limbo::retire(shared.clone()) };
}

/// The next item of a stream, when there is one: what [`Reader::read_async`] returns.
#[must_use = "it does nothing unless awaited"]
pub struct ReadAsync<'a, T: Send + 'static> {
    reader: &'a mut Reader<T>,
    /// What was left, if anything; another poll replaces it.
    token: Token,
}

// SAFETY: the token is only an address to compare with, and to give back.
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
    /// Leaves a token, unless there is something now.
    #[cold]
    #[inline(never)]
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let this = self;
        loop {
            match this.reader.try_read() {
                Ok(item) => return Poll::Ready(Some(item)),
                Err(TryReadError::Closed) => return Poll::Ready(None),
                Err(TryReadError::Empty) => {}
            }
            let end = &mut this.reader.end;
            let core = &end.shared.core;
            let slot = end.cursor.slot();
            if let Other::Elsewhere(worker) = current::other(&core.writer)
                && spin(worker, || slot.is_full())
            {
                continue;
            }
            if this.token != NOBODY {
                waiter::withdraw(&core.reader.word, this.token);
            }
            this.token = waiter::awaiting_token(context.waker());
            current::note_await(this.token, Awaits::Stream(core));
            leave_token(&core.reader.word, this.token);
            let token = this.token;
            if settle(&core.writer, || Doubt::new(&end.shared, true, token, &end.cursor)) {
                end.note(|t| t.blocked = true);
                return Poll::Pending;
            }
            this.token = NOBODY;
        }
    }
}

impl<T: Send + 'static> Drop for ReadAsync<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.token != NOBODY {
            waiter::withdraw(&self.reader.end.core().reader.word, self.token);
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({})", self.id())
    }
}

impl<T: Send + 'static> std::fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({})", self.id())
    }
}
