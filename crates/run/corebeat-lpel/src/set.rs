//! Sets of streams: sleep until any has something to read.
//!
//! The thesis' poll goes through all streams of the set each time (Prokesch, A Light-Weight Parallel Execution Layer for
//! Shared-Memory Stream Processing, 2011, 4.4.5, algorithms 9 and 10). Here a stream that was found empty is *armed*: the
//! writer of its next item announces it in the set's list, and takes the set's one token, if its owner sleeps. So the
//! cost does not depend on how many streams are in the set:
//!
//! ```text
//!   armed -- written to, or closed --> announced -- collected --> in line -- found empty --> armed
//! ```
//!
//! Who takes `ARMED` out of a stream's word announces it, so a stream is in the list at most once. The list and the token
//! are both changed by exchanges only: whoever announces pushes, then takes the token; the owner leaves the token, then
//! looks at the list. If the owner's token came first, it is found; if not, the exchange on the token's word has made the
//! push visible.

use crate::current::{self, Awaits};
use crate::error::TryReadError;
use crate::inbox::Inbox;
use crate::limbo;
use crate::runtime::lock;
use crate::stream::{AnyStream, Core, Membership, Reader};
use crate::waiter::{self, ARMED, NOBODY, Token, Word};
use corebeat_sync::atomic::Ordering;
use corebeat_sync::{Mutex, thread};
use slab::Slab;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

/// The part of a set that writers know.
pub(crate) struct SetCore {
    /// Streams with something to read.
    ready: Inbox<Core>,
    /// The owner's token.
    pub(crate) word: Word,
    /// For dumps and the search for deadlocks.
    pub(crate) members: Mutex<Slab<Arc<dyn AnyStream>>>,
}

/// Tells the set of an armed stream that there is something to read. Nothing, if somebody else does so.
pub(crate) fn announce(core: &Core) {
    // AcqRel: with ARMED comes the membership; the owner, who collects, sees what we did.
    let armed = core.reader.word.compare_exchange(ARMED, NOBODY, Ordering::AcqRel, Ordering::Relaxed);
    if armed.is_err() {
        return;
    }
    // SAFETY: written before ARMED was, and not again before the stream was announced and collected.
    let set = core.set.with(|m| unsafe { (*m).as_ref() }.map(|m| m.set.clone()));
    let set = set.expect("an armed stream is in a set");
    // SAFETY: it was armed, so in no list; the reader is in the set, and stays until this was collected.
    unsafe { set.ready.push(core) };
    // AcqRel: see the module's text.
    let token = set.word.swap(NOBODY, Ordering::AcqRel);
    if waiter::is_token(token) {
        // SAFETY: taken just now.
        unsafe { waiter::wake(token) };
    }
    // SAFETY: a clone; its owner keeps it until it is gone itself. A dump may have found it by its owner.
    unsafe { limbo::retire(set) };
}

/// True if the stream was armed, and not yet announced.
fn disarm<T: Send + 'static>(reader: &Reader<T>) -> bool {
    // AcqRel: as in `announce`.
    let word = &reader.core().reader.word;
    word.compare_exchange(ARMED, NOBODY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Which stream of a set: given by [`StreamSet::add`], and to no other stream, ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Unique in this process; streams are added in this order.
    number: u64,
    place: usize,
}

/// The next key.
static KEYS: AtomicU64 = AtomicU64::new(0);

/// What a set has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<T> {
    /// An item.
    Item(T),
    /// The stream is at its end and has left the set.
    End,
}

/// Readers of which one waits for any. Fair: a stream that had an item goes to the end of the line.
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
    members: Slab<Member<T>>,
    /// Who may have something to read, in the order in which they are asked.
    line: VecDeque<usize>,
    /// Where streams were armed.
    home: u64,
}

struct Member<T: Send + 'static> {
    reader: Reader<T>,
    number: u64,
    in_line: bool,
}

impl<T: Send + 'static> StreamSet<T> {
    /// A set of no streams.
    pub fn new() -> Self {
        let core = SetCore { ready: Inbox::new(), word: Word::new(NOBODY), members: Mutex::default() };
        StreamSet { core: Arc::new(core), members: Slab::new(), line: VecDeque::new(), home: 0 }
    }

    /// Takes a stream in.
    pub fn add(&mut self, reader: Reader<T>) -> Key {
        let place = {
            let mut members = lock(&self.core.members);
            members.insert(reader.any())
        };
        // SAFETY: the reader is in no set, so not armed or announced.
        reader.core().set.with_mut(|m| unsafe { *m = Some(Membership { set: self.core.clone(), place }) });
        // Relaxed: only unique.
        let number = KEYS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let member = self.members.insert(Member { reader, number, in_line: true });
        assert_eq!(member, place, "both slabs see the same insertions and removals");
        self.line.push_back(place);
        Key { number, place }
    }

    /// Gives a stream back; `None` if it is not in the set any more, because it was removed or came to its end. It takes time
    /// for each stream that has something to read.
    pub fn remove(&mut self, key: Key) -> Option<Reader<T>> {
        let Key { number, place } = key;
        self.members.get(place).filter(|m| m.number == number)?;
        self.settle(place);
        if self.members[place].in_line {
            self.line.retain(|p| *p != place);
        }
        Some(self.take_out(place))
    }

    /// Has a stream neither armed nor announced: in line, or not.
    fn settle(&mut self, place: usize) {
        if !disarm(&self.members[place].reader) {
            // Somebody may be announcing it just now.
            while !self.members[place].in_line {
                if !self.collect() {
                    thread::yield_now();
                }
            }
        }
    }

    /// For a stream that is neither armed nor announced nor in line.
    fn take_out(&mut self, place: usize) -> Reader<T> {
        let reader = self.members.remove(place).reader;
        // SAFETY: as the caller says.
        reader.core().set.with_mut(|m| unsafe { *m = None });
        let mut members = lock(&self.core.members);
        members.remove(place);
        reader
    }

    /// How many streams are in it.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether no stream is in it.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Puts announced streams in line. False if there were none.
    fn collect(&mut self) -> bool {
        let mut any = false;
        for core in self.core.ready.take() {
            // SAFETY: announced streams are members, whose readers we own; the membership is ours while it is not armed.
            let place = unsafe { (*core).set.with(|m| (*m).as_ref().map(|m| m.place)) };
            let place = place.expect("an announced stream is in the set");
            self.members[place].in_line = true;
            self.line.push_back(place);
            any = true;
        }
        any
    }

    /// The set is used elsewhere than before. Where it was, a worker may have doubts about armed streams, and no time to
    /// look. So they stand in line again, and are armed from here.
    #[cold]
    fn move_to(&mut self, home: u64) {
        self.home = home;
        for (place, member) in &mut self.members {
            if !member.in_line && disarm(&member.reader) {
                member.in_line = true;
                self.line.push_back(place);
            }
        }
    }

    /// The next event of a stream that has one now; `None` if there is none.
    pub fn try_read(&mut self) -> Option<(Key, Event<T>)> {
        let home = current::home_of(current::make_stamp());
        if self.home != home {
            self.move_to(home);
        }
        loop {
            // Each time, so that one that always has something does not hold up those that come later.
            if !self.core.ready.is_empty() {
                self.collect();
            }
            let place = self.line.pop_front()?;
            let member = &mut self.members[place];
            let key = Key { number: member.number, place };
            match member.reader.try_read() {
                Ok(item) => {
                    self.line.push_back(place);
                    return Some((key, Event::Item(item)));
                }
                Err(TryReadError::Closed) => {
                    drop(self.take_out(place));
                    return Some((key, Event::End));
                }
                Err(TryReadError::Empty) => {
                    member.in_line = false;
                    if !member.reader.arm() {
                        member.in_line = true;
                        self.line.push_back(place);
                    }
                }
            }
        }
    }

    /// The next event of any stream; waits for one. `None` if there is no stream in the set, or the caller may not wait
    /// because it is unwinding.
    pub fn read(&mut self) -> Option<(Key, Event<T>)> {
        loop {
            if let Some(event) = self.try_read() {
                return Some(event);
            }
            if self.is_empty() || !current::may_block() {
                return None;
            }
            let token = waiter::blocking_token();
            if self.leave(token) {
                current::block_on_set(&self.core, token);
            }
        }
    }

    /// As [`StreamSet::read`], without a stack, in an async task.
    pub fn read_async(&mut self) -> ReadAnyAsync<'_, T> {
        ReadAnyAsync { set: self, token: NOBODY }
    }

    /// Leaves the owner's token. False: something was announced, and the token is withdrawn.
    fn leave(&mut self, token: Token) -> bool {
        // AcqRel: see the module's text. What was there, if anything, is an older token of ours.
        let old = self.core.word.swap(token, Ordering::AcqRel);
        // SAFETY: taken just now.
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
        // Announced streams must be collected before their readers go. Those go last: destructors of items may panic.
        let places: Vec<_> = self.members.iter().map(|(place, _)| place).collect();
        places.iter().for_each(|&place| self.settle(place));
        let readers: Vec<_> = places.into_iter().map(|place| self.take_out(place)).collect();
        // SAFETY: the token of a future that was leaked.
        unsafe { waiter::forget(self.core.word.swap(NOBODY, Ordering::AcqRel)) };
        // SAFETY: its owner does not wait any more; any thread may drop it.
        unsafe { limbo::retire(self.core.clone()) };
        drop(readers);
    }
}

impl<T: Send + 'static> std::fmt::Debug for StreamSet<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamSet({} streams)", self.len())
    }
}

/// The next event of a set, when there is one: what [`StreamSet::read_async`] returns.
#[must_use = "it does nothing unless awaited"]
pub struct ReadAnyAsync<'a, T: Send + 'static> {
    set: &'a mut StreamSet<T>,
    token: Token,
}

// SAFETY: the token is only an address to compare with, and to give back.
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
            // An older token of ours has its note, which goes with it, and would take the new one along.
            if this.token != NOBODY {
                waiter::withdraw(&this.set.core.word, this.token);
            }
            this.token = waiter::awaiting_token(context.waker());
            current::note_await(this.token, Awaits::Set(&this.set.core));
            if this.set.leave(this.token) {
                return Poll::Pending;
            }
            this.token = NOBODY;
        }
    }
}

impl<T: Send + 'static> Drop for ReadAnyAsync<'_, T> {
    fn drop(&mut self) {
        if self.token != NOBODY {
            waiter::withdraw(&self.set.core.word, self.token);
        }
    }
}
