//! Locks for what is read by many, and seldom written.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use crate::global::lock;
use corebeat_sync::asymmetric::{heavy, light};
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corebeat_sync::{CachePadded, Condvar, Mutex, MutexGuard};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// The place of threads at their very end, of which there may be several.
const SHARED_PLACE: usize = 0;

/// A lock that readers take in a line of their own, however many they are; who writes waits for each of them.
///
/// ```
/// use corebeat_clustered::BiasedLock;
///
/// let limits = BiasedLock::new(vec![10, 20]);
/// std::thread::scope(|scope| {
///     (0..4).for_each(|_| drop(scope.spawn(|| assert!(limits.read().len() >= 2))));
///     limits.write().push(30);
/// });
/// assert_eq!(limits.into_inner(), [10, 20, 30]);
/// ```
///
/// To read is a store at the begin and one at the end, in the thread's own line. To write interrupts all threads of the program that
/// run (about a microsecond) and looks at every place. Where more than one call in a thousand writes, `std::sync::RwLock` is better.
///
/// A thread may read again what it reads. Readers that come while somebody writes, or waits to, are next. A panic does not poison.
/// (A distributed lock as Hsieh, Weihl, *Scalable reader-writer locks for parallel systems*, 1992; the fences as in Dice, Huang, Yang, *Asymmetric
/// Dekker synchronization*, 2001.)
///
/// ```text
///   who reads                         who writes (one at a time)
///   own count + 1                     is_writing = true
///   light                             heavy
///   looks at is_writing               looks at all counts, until each was 0
/// ```
///
/// One of the two fences is first: either the one sees that somebody writes, and steps back; or the other sees that somebody reads.
///
/// # Limits
///
/// A task of LPEL must not wait while it reads or writes: another of its worker that writes would wait for it for ever. A guard that
/// is kept in thread-local data until the thread ends may stay for good, and with it who wants to write. In destructors of thread-local
/// data a thread must not read again what it reads, nor write it: nobody knows there that it does, and it may wait for itself.
pub struct BiasedLock<T> {
    readers: Clustered<Readers>,
    is_writing: CachePadded<AtomicBool>,
    /// Whoever writes, or waits to, has it.
    writer: Mutex<()>,
    /// For the one who waits for readers.
    gate: Mutex<()>,
    changed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: several get `&T` at a time, or one gets `&mut T`, on whatever thread.
unsafe impl<T: Send + Sync> Sync for BiasedLock<T> {}

struct Readers;

/// Those who read in a place.
struct Count {
    place: usize,
    count: AtomicUsize,
}

impl Root for Readers {
    type Rep = Count;

    fn miss(&self, miss: Miss<'_, Count>) -> Chosen<Count> {
        let place = miss.place();
        miss.one_per_place(Count { place, count: AtomicUsize::new(0) })
    }
}

impl Count {
    /// One more; how many there were. In all places but one a thread is alone.
    #[inline(always)]
    fn enter(&self) -> usize {
        // Relaxed: the fence, or the lock, orders it.
        if self.place == SHARED_PLACE {
            self.count.fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        count
    }

    #[inline(always)]
    fn leave(&self) {
        // Release, both: pairs with the Acquire of who writes, and finds nobody.
        if self.place == SHARED_PLACE {
            self.count.fetch_sub(1, Ordering::Release);
        } else if self.place == Thread::here() {
            self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
        // Otherwise the thread has left its place, and somebody else may count there.
    }
}

impl<T> BiasedLock<T> {
    /// Around a value.
    pub fn new(value: T) -> Self {
        BiasedLock {
            readers: Clustered::new(Readers),
            is_writing: CachePadded::new(AtomicBool::new(false)),
            writer: Mutex::new(()),
            gate: Mutex::new(()),
            changed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Lets the value be read until the guard is dropped. Waits while somebody writes; if that is this thread, for ever.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let readers = self.readers.here();
        let before = readers.enter();
        light();
        // Acquire: pairs with the Release of who has written. Who reads already keeps those out who would write.
        if self.is_writing.load(Ordering::Acquire) && before == 0 {
            self.read_slowly(readers);
        }
        ReadGuard { lock: self, readers, stays: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn read_slowly(&self, readers: &Count) {
        self.leave(readers);
        // Nobody writes while we have this; and whoever does next sees the count.
        let _writer = lock(&self.writer);
        readers.enter();
    }

    #[inline(always)]
    fn leave(&self, readers: &Count) {
        readers.leave();
        light();
        // Relaxed: who writes has seen that nobody is here, or this sees that somebody waits (the fences).
        if self.is_writing.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        let _gate = lock(&self.gate);
        self.changed.notify_all();
    }

    /// Lets the value be written until the guard is dropped. Waits until nobody reads or writes; if this thread writes, for ever.
    ///
    /// # Panics
    /// This thread is reading: it would wait for itself.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let is_mine = self.readers.here().place != SHARED_PLACE;
        assert!(
            !(is_mine && self.is_read_here()),
            "a thread must not write what it is reading: drop the ReadGuard first"
        );
        let writer = lock(&self.writer);
        // Relaxed: the fence orders it.
        self.is_writing.store(true, Ordering::Relaxed);
        heavy();
        let mut gate = lock(&self.gate);
        while self.is_read() {
            gate = self.changed.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        WriteGuard { lock: self, _writer: writer }
    }

    fn is_read(&self) -> bool {
        // Acquire: pairs with the Release of who has read.
        self.readers.fold(false, |is_read, readers| is_read || readers.count.load(Ordering::Acquire) > 0)
    }

    /// Whether this thread reads it; of one at its very end, whether it may.
    pub(crate) fn is_read_here(&self) -> bool {
        // Relaxed: it is the thread's own.
        self.readers.here().count.load(Ordering::Relaxed) > 0
    }

    /// The value: nobody else has the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// Somebody reads what is behind a [`BiasedLock`]. It stays on its thread.
///
/// ```compile_fail
/// let lock = corebeat_clustered::BiasedLock::new(1);
/// let guard = lock.read();
/// std::thread::scope(|scope| { scope.spawn(move || drop(guard)); });
/// ```
pub struct ReadGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    readers: &'a Count,
    stays: PhantomData<*const ()>,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody writes while somebody is counted.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.leave(self.readers);
    }
}

/// Somebody writes what is behind a [`BiasedLock`].
pub struct WriteGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    _writer: MutexGuard<'a, ()>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody else reads or writes.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else reads or writes.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of who reads.
        self.lock.is_writing.store(false, Ordering::Release);
    }
}

impl<T: Default> Default for BiasedLock<T> {
    fn default() -> Self {
        BiasedLock::new(T::default())
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedLock").finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}
