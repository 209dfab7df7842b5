//! Objects that are kept to be used again.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::{fmt, ptr};

/// So many go from a place to the depot together, and so many from there to a place. A place has up to twice as many.
const BATCH: usize = if cfg!(any(loom, miri)) { 1 } else { 32 };
/// So many batches are in the depot at most.
const DEPOT_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 64 };
/// The place of threads at their very end, of which there may be several.
const SHARED_PLACE: usize = 0;

/// Objects that are costly to make, and are used again.
///
/// ```
/// use corebeat_clustered::Pool;
///
/// let buffers = Pool::new(|| Vec::<u8>::with_capacity(4096));
/// let mut buffer = buffers.get(); // one that was used before, or a new one
/// buffer.clear(); // it is as it was left
/// buffer.extend(b"hello");
/// drop(buffer); // back to this thread
/// ```
///
/// Each thread has its own, up to 64, and takes the one that it gave back last, without a lock or an atomic exchange. Where it has none,
/// it gets 32 from the depot that all share; where it has too many, it gives 32 there. The depot has room for 64 times 32; what is more is
/// dropped. What a thread leaves is there for the next one with its place. (Magazines and depot: Bonwick, Adams, *Magazines and Vmem*, 2001.)
///
/// ```text
///    thread A          thread B
///   [ o o o ]         [ o o o o o ]       each alone
///        ^                 |
///        | 32 at a time    v
///      [ batch | batch |  -  | ... ]      depot: a pointer is exchanged
/// ```
pub struct Pool<T: Send> {
    stacks: Clustered<Stacks<T>>,
    depot: Box<[AtomicPtr<Vec<T>>]>,
    make: Box<dyn Fn() -> T + Send + Sync>,
}

// SAFETY: what is in the depot is handed from one thread to another, each batch to one; the rest is `Sync` by itself.
unsafe impl<T: Send> Sync for Pool<T> {}

struct Stacks<T>(PhantomData<fn() -> T>);

/// What a place has.
struct Stack<T> {
    place: usize,
    free: UnsafeCell<Vec<T>>,
}

// SAFETY: only the thread whose place it is looks at `free`, and threads hand over places in order (`registry`).
unsafe impl<T: Send> Sync for Stack<T> {}

impl<T: Send> Root for Stacks<T> {
    type Rep = Stack<T>;

    fn miss(&self, miss: Miss<'_, Stack<T>>) -> Chosen<Stack<T>> {
        let place = miss.place();
        miss.one_per_place(Stack { place, free: UnsafeCell::new(Vec::with_capacity(2 * BATCH)) })
    }
}

impl<T: Send> Stack<T> {
    /// Runs what uses the stack, and calls no code but our own. `None` where the thread is not alone.
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut Vec<T>) -> R) -> Option<R> {
        // SAFETY: the place is this thread's, which is not within this function: `f` does not call it.
        (self.place != SHARED_PLACE).then(|| self.free.with_mut(|free| f(unsafe { &mut *free })))
    }
}

impl<T: Send> Pool<T> {
    /// Empty; `make` makes what is missing.
    pub fn new(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        let depot = (0..DEPOT_MAX).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Pool { stacks: Clustered::new(Stacks(PhantomData)), depot, make: Box::new(make) }
    }

    /// An object: the last one that this thread has given back; one that another has; or a new one.
    #[inline]
    pub fn get(&self) -> Pooled<'_, T> {
        let own = self.stacks.here().with(Vec::pop).flatten();
        let value = own.or_else(|| self.fetch()).unwrap_or_else(|| (self.make)());
        Pooled { pool: self, value: ManuallyDrop::new(value) }
    }

    /// Gets a batch from the depot, and takes one of it.
    #[cold]
    fn fetch(&self) -> Option<T> {
        // Relaxed: a hint.
        let full = self.depot.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null());
        // Acquire: pairs with the Release of who put it there.
        let batch =
            full.map(|slot| slot.swap(ptr::null_mut(), Ordering::Acquire)).find(|batch| !batch.is_null())?;
        // SAFETY: it was boxed, and nobody else has it from there.
        let mut batch = unsafe { Box::from_raw(batch) };
        let value = batch.pop();
        // A thread at its very end keeps none.
        self.stacks.here().with(|free| free.append(&mut batch));
        value
    }

    #[inline]
    fn put(&self, value: T) {
        let stack = self.stacks.here();
        let mut value = Some(value);
        let is_full = stack.with(|free| {
            if free.len() < 2 * BATCH {
                free.extend(value.take());
            }
            value.is_some()
        });
        // A thread at its very end drops it.
        if is_full == Some(true) {
            self.spill(stack, value);
        }
    }

    /// Brings a batch to the depot, of those that were used last the longest ago.
    #[cold]
    fn spill(&self, stack: &Stack<T>, value: Option<T>) {
        let mut batch = Box::new(Vec::with_capacity(BATCH));
        stack.with(|free| {
            batch.extend(free.drain(..BATCH));
            free.extend(value);
        });
        let batch = Box::into_raw(batch);
        let is_put = |slot: &AtomicPtr<Vec<T>>| {
            // Relaxed: a hint, and nothing is read of what is there. Release: pairs with the Acquire of who takes it.
            slot.load(Ordering::Relaxed).is_null()
                && slot.compare_exchange(ptr::null_mut(), batch, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if !self.depot.iter().any(is_put) {
            // SAFETY: it was boxed, and nobody has seen it.
            drop(unsafe { Box::from_raw(batch) });
        }
    }
}

impl<T: Send> Drop for Pool<T> {
    fn drop(&mut self) {
        for slot in &self.depot {
            // Acquire: pairs with the Release of who put it there.
            let batch = slot.swap(ptr::null_mut(), Ordering::Acquire);
            if !batch.is_null() {
                // SAFETY: it was boxed, and nobody else has it.
                drop(unsafe { Box::from_raw(batch) });
            }
        }
    }
}

/// An object of a [`Pool`], which goes back there in the end, to the thread that it is then with.
pub struct Pooled<'a, T: Send> {
    pool: &'a Pool<T>,
    /// It is there until the end.
    value: ManuallyDrop<T>,
}

impl<T: Send> Deref for Pooled<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Send> DerefMut for Pooled<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Send> Drop for Pooled<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: nobody looks at it after its destructor.
        self.pool.put(unsafe { ManuallyDrop::take(&mut self.value) });
    }
}

impl<T: Send> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl<T: Send + fmt::Debug> fmt::Debug for Pooled<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}
