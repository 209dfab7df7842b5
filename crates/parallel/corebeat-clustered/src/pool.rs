//! Pools of reusable objects.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::{fmt, ptr};

/// Number of objects that move together between a place and the depot. A place has up to twice as
/// many.
const BATCH: usize = if cfg!(any(loom, miri)) { 1 } else { 32 };
/// Maximum number of batches in the depot.
const DEPOT_MAX: usize = if cfg!(any(loom, miri)) { 2 } else { 64 };
/// Place of ending threads, of which there may be several.
const SHARED_PLACE: usize = 0;

/// A pool of objects that are costly to create.
///
/// ```
/// use corebeat_clustered::Pool;
///
/// let buffers = Pool::new(|| Vec::<u8>::with_capacity(4096));
/// let mut buffer = buffers.get(); // a used one, or a new one
/// buffer.clear(); // a used object keeps its content
/// buffer.extend(b"hello");
/// drop(buffer); // back to this thread
/// ```
///
/// Each thread keeps up to 64 objects, and takes the one that it returned last, without a lock or
/// an atomic exchange. A thread without objects takes 32 from the shared depot; a thread with too
/// many moves 32 there. The depot has capacity for 64 times 32 objects; further ones are dropped.
/// Objects of an ended thread pass to the next thread in its place. (Magazines and depot: Bonwick,
/// Adams, *Magazines and Vmem*, 2001.)
///
/// ```text
///    thread A          thread B
///   [ o o o ]         [ o o o o o ]       not shared
///        ^                 |
///        | 32 at a time    v
///      [ batch | batch |  -  | ... ]      depot: exchanges of pointers
/// ```
pub struct Pool<T: Send> {
    stacks: Clustered<Stacks<T>>,
    depot: Box<[AtomicPtr<Vec<T>>]>,
    make: Box<dyn Fn() -> T + Send + Sync>,
}

// SAFETY: each batch in the depot passes from one thread to one other; all other fields are `Sync`.
unsafe impl<T: Send> Sync for Pool<T> {}

struct Stacks<T>(PhantomData<fn() -> T>);

/// The objects of a place.
struct Stack<T> {
    place: usize,
    free: UnsafeCell<Vec<T>>,
}

// SAFETY: only the thread of the place accesses `free`, and a place passes from thread to thread
// under a lock (`registry`).
unsafe impl<T: Send> Sync for Stack<T> {}

impl<T: Send> Root for Stacks<T> {
    type Rep = Stack<T>;

    fn miss(&self, miss: Miss<'_, Stack<T>>) -> Chosen<Stack<T>> {
        let place = miss.place();
        miss.one_per_place(Stack { place, free: UnsafeCell::new(Vec::with_capacity(2 * BATCH)) })
    }
}

impl<T: Send> Stack<T> {
    /// Passes the stack to `f`, which must not call user code. Returns `None` in `SHARED_PLACE`.
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut Vec<T>) -> R) -> Option<R> {
        // SAFETY: the place belongs to this thread, and `f` does not call this function.
        (self.place != SHARED_PLACE).then(|| self.free.with_mut(|free| f(unsafe { &mut *free })))
    }
}

impl<T: Send> Pool<T> {
    /// Creates an empty pool; `make` creates objects on demand.
    pub fn new(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        let depot = (0..DEPOT_MAX).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Pool { stacks: Clustered::new(Stacks(PhantomData)), depot, make: Box::new(make) }
    }

    /// Returns an object: the one that this thread returned last, one from the depot, or a new one.
    #[inline]
    pub fn get(&self) -> Pooled<'_, T> {
        let own = self.stacks.here().with(Vec::pop).flatten();
        let value = own.or_else(|| self.fetch()).unwrap_or_else(|| (self.make)());
        Pooled { pool: self, value: ManuallyDrop::new(value) }
    }

    /// Takes a batch from the depot, and returns one of its objects.
    #[cold]
    fn fetch(&self) -> Option<T> {
        // Relaxed: this is a hint.
        let full = self.depot.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null());
        // Acquire: pairs with the Release in `spill`.
        let batch = full
            .map(|slot| slot.swap(ptr::null_mut(), Ordering::Acquire))
            .find(|batch| !batch.is_null())?;
        // SAFETY: the batch was boxed, and the exchange made this thread its only user.
        let mut batch = unsafe { Box::from_raw(batch) };
        let value = batch.pop();
        // An ending thread keeps no objects.
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
        // An ending thread drops the object.
        if is_full == Some(true) {
            self.spill(stack, value);
        }
    }

    /// Moves a batch of the least recently used objects to the depot.
    #[cold]
    fn spill(&self, stack: &Stack<T>, value: Option<T>) {
        let mut batch = Box::new(Vec::with_capacity(BATCH));
        stack.with(|free| {
            batch.extend(free.drain(..BATCH));
            free.extend(value);
        });
        let batch = Box::into_raw(batch);
        let is_put = |slot: &AtomicPtr<Vec<T>>| {
            // Relaxed: a hint, and the content is not read. Release: pairs with the Acquire in
            // `fetch`.
            slot.load(Ordering::Relaxed).is_null()
                && slot
                    .compare_exchange(ptr::null_mut(), batch, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        };
        if !self.depot.iter().any(is_put) {
            // SAFETY: the batch was boxed, and was not published.
            drop(unsafe { Box::from_raw(batch) });
        }
    }
}

impl<T: Send> Drop for Pool<T> {
    fn drop(&mut self) {
        for slot in &self.depot {
            // Acquire: pairs with the Release in `spill`.
            let batch = slot.swap(ptr::null_mut(), Ordering::Acquire);
            if !batch.is_null() {
                // SAFETY: the batch was boxed, and this is its only user.
                drop(unsafe { Box::from_raw(batch) });
            }
        }
    }
}

/// An object of a [`Pool`]. Its destructor returns the object to the pool, to the current thread.
pub struct Pooled<'a, T: Send> {
    pool: &'a Pool<T>,
    /// Taken only by the destructor.
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
        // SAFETY: the value is not used after the destructor.
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
