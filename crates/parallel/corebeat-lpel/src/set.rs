//! Sets of streams: wait until any stream of the set can be read.
//!
//! The poll operation of the thesis visits all streams of the set each time (Prokesch, A
//! Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 4.4.5,
//! algorithms 9 and 10). Here an empty stream is *armed*: the writer of its next item announces the
//! stream in the list of the set, and takes the token of the set if the owner sleeps. Thus the cost
//! does not depend on the number of streams in the set:
//!
//! ```text
//!   armed -- written, or closed --> announced -- collected --> queued -- found empty --> armed
//! ```
//!
//! The thread that takes `ARMED` out of a stream's word announces the stream, so a stream is in the
//! list at most once. Both the list and the token change by exchanges only. An announcer pushes the
//! stream, and then takes the token. The owner leaves the token, and then reads the list. If the
//! owner's token is first, the announcer finds it. If not, the exchange on the word of the token
//! makes the push visible.

use crate::current::{self, TimeLimit};
use crate::error::{TryReadError, assert_not_forked};
use crate::inbox::Inbox;
use crate::retired;
use crate::stream::{AnyStream, Core, Membership, Reader};
use crate::task::Object;
use crate::waiter::{self, ARMED, EMPTY, Token, Word};
use corebeat_sync::atomic::Ordering;
use corebeat_sync::fork::Process;
use corebeat_sync::{Mutex, lock, thread};
use slab::Slab;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;

/// Part of a set that writers use.
pub(crate) struct SetCore {
    /// Announced streams.
    ready: Inbox<Core>,
    /// Token of the owner.
    pub(crate) word: Word,
    /// For dumps and the search for deadlocks.
    pub(crate) members: Mutex<Slab<Arc<dyn AnyStream>>>,
}

/// Announces an armed stream to its set. Does nothing if another thread has taken `ARMED`.
pub(crate) fn announce(core: &Core) {
    // AcqRel: with ARMED, the membership is visible; the owner that collects the stream observes
    // the effects of this thread.
    let armed =
        core.reader.word.compare_exchange(ARMED, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
    if armed.is_err() {
        return;
    }
    // SAFETY: written before ARMED, and not again before the stream is announced and collected.
    let set = core.set.with(|m| unsafe { (*m).as_ref() }.map(|m| m.set.clone()));
    let set = set.expect("an armed stream is in a set");
    // SAFETY: an armed stream is in no list. The reader stays in the set until the stream is
    // collected.
    unsafe { set.ready.push(core) };
    // AcqRel: see the text of this module.
    let token = set.word.swap(EMPTY, Ordering::AcqRel);
    if waiter::is_token(token) {
        // SAFETY: the swap took the token.
        unsafe { waiter::wake(token) };
    }
    // SAFETY: this clone is the only use of the set by this thread. The set is retired because a
    // dump may have found it through its owner.
    unsafe { retired::retire(set) };
}

/// Disarms a stream. Returns whether it was armed, and not announced yet.
fn disarm<T: Send + 'static>(reader: &Reader<T>) -> bool {
    // AcqRel: as in `announce`.
    let word = &reader.core().reader.word;
    word.compare_exchange(ARMED, EMPTY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Identity of a stream in a set, from [`StreamSet::add`]. No other stream ever has the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Unique in this process, in the order in which streams are added.
    number: u64,
    place: usize,
}

/// Number of the next key.
static KEYS: AtomicU64 = AtomicU64::new(0);

/// Event of a stream in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<T> {
    /// An item was read.
    Item(T),
    /// The stream is at its end, and was removed from the set.
    End,
}

/// Set of readers that waits for any of them. The set is fair: after an event, a stream moves to
/// the end of the queue.
///
/// ```
/// use corebeat_lpel::{Event, Runtime, StreamSet, spawn, stream};
///
/// let sum = Runtime::new()?.run(|| {
///     let mut set = StreamSet::new();
///     for n in 1..=3 {
///         let (mut writer, reader) = stream(4);
///         set.add(reader);
///         spawn(move || writer.write(n));
///     }
///     let mut sum = 0;
///     while let Some((_, event)) = set.read() {
///         if let Event::Item(n) = event {
///             sum += n;
///         }
///     }
///     sum
/// });
/// assert_eq!(sum.unwrap(), 6);
/// # Ok::<(), corebeat_lpel::Error>(())
/// ```
pub struct StreamSet<T: Send + 'static> {
    core: Arc<SetCore>,
    /// The process that created the set. In a child of fork, the writers that would announce armed
    /// streams do not exist.
    process: Process,
    members: Slab<Member<T>>,
    /// Streams that may be readable, in the order of their reads.
    queue: VecDeque<usize>,
    /// Home at which streams were armed.
    home: u64,
}

struct Member<T: Send + 'static> {
    reader: Reader<T>,
    number: u64,
    is_queued: bool,
}

impl<T: Send + 'static> StreamSet<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        let core =
            SetCore { ready: Inbox::new(), word: Word::new(EMPTY), members: Mutex::default() };
        StreamSet {
            core: Arc::new(core),
            process: Process::current(),
            members: Slab::new(),
            queue: VecDeque::new(),
            home: 0,
        }
    }

    /// Adds a stream.
    pub fn add(&mut self, reader: Reader<T>) -> Key {
        let place = {
            let mut members = lock(&self.core.members);
            members.insert(reader.any())
        };
        // SAFETY: the reader is in no set, so it is neither armed nor announced.
        reader
            .core()
            .set
            .with_mut(|m| unsafe { *m = Some(Membership { set: self.core.clone(), place }) });
        // Relaxed: numbers only have to be unique.
        let number = KEYS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let member = self.members.insert(Member { reader, number, is_queued: true });
        assert_eq!(member, place, "both slabs have the same insertions and removals");
        self.queue.push_back(place);
        Key { number, place }
    }

    /// Removes a stream and returns its reader; `None` if the stream is not in the set any more,
    /// because it was removed or at its end. The cost is proportional to the number of readable
    /// streams.
    pub fn remove(&mut self, key: Key) -> Option<Reader<T>> {
        let Key { number, place } = key;
        self.members.get(place).filter(|m| m.number == number)?;
        self.settle(place);
        if self.members[place].is_queued {
            self.queue.retain(|p| *p != place);
        }
        Some(self.take_out(place))
    }

    /// Makes a stream neither armed nor announced. It may be queued afterwards.
    fn settle(&mut self, place: usize) {
        if !disarm(&self.members[place].reader) {
            // Another thread may be announcing the stream at this moment.
            while !self.members[place].is_queued {
                if !self.collect() {
                    thread::yield_now();
                }
            }
        }
    }

    /// Removes a stream that is neither armed, announced nor queued.
    fn take_out(&mut self, place: usize) -> Reader<T> {
        let reader = self.members.remove(place).reader;
        // SAFETY: the stream is neither armed nor announced.
        reader.core().set.with_mut(|m| unsafe { *m = None });
        let mut members = lock(&self.core.members);
        members.remove(place);
        reader
    }

    /// Returns the number of streams in the set.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether the set has no streams.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Queues announced streams. Returns false if there were none.
    fn collect(&mut self) -> bool {
        let mut any = false;
        for core in self.core.ready.take() {
            // SAFETY: announced streams are members, whose readers this set owns. This thread may
            // read the membership of a stream that is not armed.
            let place = unsafe { (*core).set.with(|m| (*m).as_ref().map(|m| m.place)) };
            let place = place.expect("an announced stream is in the set");
            self.members[place].is_queued = true;
            self.queue.push_back(place);
            any = true;
        }
        any
    }

    /// Handles a move of the set to another home. At the old home, a worker may have deferred
    /// rechecks of armed streams, and no time to execute them. So these streams are queued again,
    /// and armed at the new home.
    #[cold]
    fn move_to(&mut self, home: u64) {
        self.home = home;
        for (place, member) in &mut self.members {
            if !member.is_queued && disarm(&member.reader) {
                member.is_queued = true;
                self.queue.push_back(place);
            }
        }
    }

    /// Returns the next event of any stream; `None` if there is none now.
    pub fn try_read(&mut self) -> Option<(Key, Event<T>)> {
        let home = current::home_of(current::make_stamp());
        if self.home != home {
            self.move_to(home);
        }
        loop {
            // In each round, so that a stream that is always readable does not delay the others.
            if !self.core.ready.is_empty() {
                self.collect();
            }
            let place = self.queue.pop_front()?;
            let member = &mut self.members[place];
            let key = Key { number: member.number, place };
            match member.reader.try_read() {
                Ok(item) => {
                    self.queue.push_back(place);
                    return Some((key, Event::Item(item)));
                }
                Err(TryReadError::Closed) => {
                    drop(self.take_out(place));
                    return Some((key, Event::End));
                }
                Err(TryReadError::Empty) => {
                    member.is_queued = false;
                    if !member.reader.arm() {
                        member.is_queued = true;
                        self.queue.push_back(place);
                    }
                }
            }
        }
    }

    /// Waits for the next event of any stream and returns it; `None` if the set is empty, or if the
    /// caller must not wait because it is unwinding.
    ///
    /// # Panics
    ///
    /// If the call would wait in a child of fork that inherited the set.
    pub fn read(&mut self) -> Option<(Key, Event<T>)> {
        loop {
            if let Some(event) = self.try_read() {
                return Some(event);
            }
            if self.is_empty() {
                return None;
            }
            let token = current::blocking_token()?;
            assert_not_forked(self.process);
            if self.leave(token) {
                current::block_on_set(&self.core, token);
            }
        }
    }

    /// Waits as [`StreamSet::read`] does, at most for `time`. Returns `None` also if there was no
    /// event in time.
    ///
    /// # Panics
    ///
    /// As [`StreamSet::read`].
    pub fn read_timeout(&mut self, time: Duration) -> Option<(Key, Event<T>)> {
        let _limit = TimeLimit::begin(time);
        self.read()
    }

    /// Reads the next event in an async task, which holds no stack while it waits. The future
    /// panics where [`StreamSet::read`] does.
    pub fn read_async(&mut self) -> ReadAnyAsync<'_, T> {
        ReadAnyAsync { set: self, token: EMPTY }
    }

    /// Leaves a token of the owner. Returns false, and withdraws the token, if a stream was
    /// announced.
    fn leave(&mut self, token: Token) -> bool {
        // AcqRel: see the text of this module. The old content is an older token of this owner.
        let old = self.core.word.swap(token, Ordering::AcqRel);
        // SAFETY: the swap took the token.
        unsafe { waiter::forget(old) };
        self.core.ready.is_empty() || !waiter::withdraw(&self.core.word, token)
    }
}

impl<T: Send + 'static> Default for StreamSet<T> {
    fn default() -> Self {
        StreamSet::new()
    }
}

impl<T: Send + 'static> Drop for StreamSet<T> {
    fn drop(&mut self) {
        // Announced streams must be collected before their readers are dropped. The readers are
        // dropped last, because destructors of items may panic.
        let places: Vec<_> = self.members.iter().map(|(place, _)| place).collect();
        places.iter().for_each(|&place| self.settle(place));
        let readers: Vec<_> = places.into_iter().map(|place| self.take_out(place)).collect();
        // SAFETY: the swap took the token, which belongs to a leaked future.
        unsafe { waiter::forget(self.core.word.swap(EMPTY, Ordering::AcqRel)) };
        // SAFETY: the owner does not wait any more, and any thread may drop the set.
        unsafe { retired::retire(self.core.clone()) };
        drop(readers);
    }
}

impl<T: Send + 'static> std::fmt::Debug for StreamSet<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamSet({} streams)", self.len())
    }
}

/// Future of the next event of a set, from [`StreamSet::read_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct ReadAnyAsync<'a, T: Send + 'static> {
    set: &'a mut StreamSet<T>,
    token: Token,
}

// SAFETY: the token is only an address, which is compared and given back.
unsafe impl<T: Send> Send for ReadAnyAsync<'_, T> {}

impl<T: Send + 'static> Future for ReadAnyAsync<'_, T> {
    type Output = Option<(Key, Event<T>)>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.set.try_read() {
                return Poll::Ready(Some(event));
            }
            if this.set.is_empty() {
                return Poll::Ready(None);
            }
            assert_not_forked(this.set.process);
            // Withdrawing an older token deletes its note, so it precedes the new note.
            if this.token != EMPTY {
                waiter::withdraw(&this.set.core.word, this.token);
            }
            this.token = waiter::awaiting_token(context.waker());
            current::note_await(this.token, Object::of_set(Arc::as_ptr(&this.set.core)));
            if this.set.leave(this.token) {
                return Poll::Pending;
            }
            this.token = EMPTY;
        }
    }
}

impl<T: Send + 'static> Drop for ReadAnyAsync<'_, T> {
    fn drop(&mut self) {
        if self.token != EMPTY {
            waiter::withdraw(&self.set.core.word, self.token);
        }
    }
}
