//! Locks for data that is read often and written rarely.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use corebeat_sync::asymmetric::{heavy_fence, light_fence};
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::lock;
use corebeat_sync::{CachePadded, Condvar, Mutex, MutexGuard};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// Place of ending threads, of which there may be several.
const SHARED_PLACE: usize = 0;

/// No thread writes.
const NOBODY: usize = 0;

/// A reader-writer lock whose readers use one cache line per thread; a writer waits for each
/// reader.
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
/// A read costs a store at the begin and one at the end, in the thread's own cache line. A write
/// interrupts all running threads of the program (about a microsecond) and checks every place. If
/// more than one call in a thousand writes, `std::sync::RwLock` is better.
///
/// A thread may nest reads. Readers that come while a writer writes or waits are next. A panic does
/// not poison the lock. (A distributed lock as Hsieh, Weihl, *Scalable reader-writer
/// locks for parallel systems*, 1992; the fences as in Dice, Huang, Yang, *Asymmetric Dekker
/// synchronization*, 2001.)
///
/// ```text
///   reader                            writer (one at a time)
///   own count + 1                     writes = own place
///   light                             heavy
///   loads writes                      loads all counts, until each was 0
/// ```
///
/// One of the two fences comes first: either the reader observes the writer and backs off, or the
/// writer observes the reader.
///
/// # Limits
///
/// A task of LPEL must not wait while it reads or writes: another task of the same worker that
/// writes would deadlock. A guard in thread-local data may never be dropped, which blocks writers
/// forever. In destructors of thread-local data a thread must not lock the lock while it has a
/// guard: the lock cannot detect that there, and may deadlock.
pub struct BiasedLock<T> {
    readers: Clustered<Readers>,
    /// [`NOBODY`], or 1 more than the place of the thread that writes or waits for readers.
    writes: CachePadded<AtomicUsize>,
    /// Held by a thread that writes or waits for readers.
    writer: Mutex<()>,
    /// For the writer that waits for readers.
    gate: Mutex<()>,
    changed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: either several threads get `&T`, or one thread gets `&mut T`.
unsafe impl<T: Send + Sync> Sync for BiasedLock<T> {}

struct Readers;

/// Number of readers in a place.
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
    /// Adds a reader, and returns the previous number. Only `SHARED_PLACE` has several threads.
    #[inline(always)]
    fn enter(&self) -> usize {
        // Relaxed: the fence or the lock orders the store.
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
        // Release, both: pairs with the Acquire load of the writer.
        if self.place == SHARED_PLACE {
            self.count.fetch_sub(1, Ordering::Release);
        } else if self.place == Thread::here() {
            self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
        // Otherwise the thread has left its place, and another one may count there.
    }
}

impl<T> BiasedLock<T> {
    /// Creates a lock around a value.
    pub fn new(value: T) -> Self {
        BiasedLock {
            readers: Clustered::new(Readers),
            writes: CachePadded::new(AtomicUsize::new(NOBODY)),
            writer: Mutex::new(()),
            gate: Mutex::new(()),
            changed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the value for reading until the guard is dropped. Waits while another thread writes.
    ///
    /// # Panics
    /// If this thread writes, because the call would deadlock.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let readers = self.readers.here();
        let before = readers.enter();
        light_fence();
        // Acquire: pairs with the Release of the last writer. A nested read needs no check, because
        // the outer read excludes writers.
        if self.writes.load(Ordering::Acquire) != NOBODY && before == 0 {
            self.read_slow(readers);
        }
        ReadGuard { lock: self, readers, stays: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&self, readers: &Count) {
        self.leave(readers);
        assert!(
            !self.is_written_at(readers.place),
            "a thread must not read a lock that it writes: drop the WriteGuard first"
        );
        // No thread writes while this lock is held, and the next writer observes the count.
        let _writer = lock(&self.writer);
        readers.enter();
    }

    #[inline(always)]
    fn leave(&self, readers: &Count) {
        readers.leave();
        light_fence();
        // Relaxed: either the writer has observed the new count, or this load observes the writer
        // (the fences).
        if self.writes.load(Ordering::Relaxed) != NOBODY {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        let _gate = lock(&self.gate);
        self.changed.notify_all();
    }

    /// Locks the value for writing until the guard is dropped. Waits until no other thread reads or
    /// writes.
    ///
    /// # Panics
    /// If this thread reads or writes, because the call would deadlock.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let place = self.readers.here().place;
        assert!(
            !(place != SHARED_PLACE && self.is_read_here()),
            "a thread must not write a lock that it reads: drop the ReadGuard first"
        );
        assert!(
            !self.is_written_at(place),
            "a thread must not write a lock twice: drop the WriteGuard first"
        );
        let writer = lock(&self.writer);
        // Relaxed: the fence orders the store.
        self.writes.store(place + 1, Ordering::Relaxed);
        heavy_fence();
        let mut gate = lock(&self.gate);
        while self.is_read() {
            gate = self.changed.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        WriteGuard { lock: self, _writer: writer }
    }

    /// Returns whether the calling thread writes, which has this place.
    fn is_written_at(&self, place: usize) -> bool {
        // Relaxed: only the calling thread stores its place.
        place != SHARED_PLACE && self.writes.load(Ordering::Relaxed) == place + 1
    }

    fn is_read(&self) -> bool {
        // Acquire: pairs with the Release in `Count::leave`.
        self.readers
            .fold(false, |is_read, readers| is_read || readers.count.load(Ordering::Acquire) > 0)
    }

    /// Returns whether this thread reads; for an ending thread, whether it may read.
    pub(crate) fn is_read_here(&self) -> bool {
        // Relaxed: this thread writes the count.
        self.readers.here().count.load(Ordering::Relaxed) > 0
    }

    /// Returns the value: the exclusive borrow replaces the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Returns the value and drops the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// Guard of a read of a [`BiasedLock`]. It stays on its thread.
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
        // SAFETY: no thread writes while a reader is counted.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.leave(self.readers);
    }
}

/// Guard of a write of a [`BiasedLock`].
pub struct WriteGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    _writer: MutexGuard<'a, ()>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no other thread reads or writes.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no other thread reads or writes.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `read`.
        self.lock.writes.store(NOBODY, Ordering::Release);
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
