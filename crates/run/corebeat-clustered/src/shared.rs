//! A count of references that are local while their owner lives.

use crate::local;
use crate::{Counter, Link, event, limbo};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// Keeps the count of those after the owner from 0 until those before are known.
const UNSETTLED: u64 = 1 << 62;

/// A value with an owner, and any number of references to it that are counted where they are made and dropped.
///
/// ```
/// use corebeat_clustered::Owner;
///
/// let owner = Owner::new(String::from("table"));
/// let (one, two) = (owner.share(), owner.share());
/// let reader = std::thread::spawn(move || two.clone().len());
/// drop(owner); // the value stays until the last reference is gone
/// assert_eq!(*one, "table");
/// assert_eq!(reader.join().unwrap(), 5);
/// ```
///
/// While the owner is there nobody asks whether there are references left: each thread adds and subtracts in its own part of a
/// [`Counter`], and no line moves. When the owner is dropped, what is cloned and dropped from then on is counted in one number, as with
/// [`Arc`](std::sync::Arc); when the events are over that still counted in parts, these are added to it. The value is dropped when that is 0. (As
/// `percpu_ref` of Linux does: Overstreet, 2013.)
///
/// So it pays where a value is referred to by many for long, and its owner knows when to begin with its end: a table, a connection,
/// a module. To drop the owner takes microseconds. If an event holds its end up ([`event`](event())), the value is dropped later: when the
/// thread that has dropped the owner retires more, ends, or calls [`reclaim`](crate::reclaim).
///
/// ```text
///            owner drops          events over       0: dropped
///   parts      |                     |                |
///   -----------+  (late ones end)    +--- sum --+     |
///   one number +--------------------------------+-----+
/// ```
pub struct Owner<T: Send + Sync + 'static> {
    inner: NonNull<Inner<T>>,
}

/// A reference to the value of an [`Owner`].
pub struct Shared<T: Send + Sync + 'static> {
    inner: NonNull<Inner<T>>,
}

struct Inner<T> {
    value: T,
    /// Whether references are counted in parts.
    has_owner: Link<bool>,
    parts: Counter,
    /// Those that are not in parts; and `UNSETTLED`, until these are in it too.
    rest: AtomicU64,
}

// SAFETY: as `Arc`: several get `&T`, and whoever is last drops `T`.
unsafe impl<T: Send + Sync + 'static> Send for Owner<T> {}
// SAFETY: the same.
unsafe impl<T: Send + Sync + 'static> Sync for Owner<T> {}
// SAFETY: the same.
unsafe impl<T: Send + Sync + 'static> Send for Shared<T> {}
// SAFETY: the same.
unsafe impl<T: Send + Sync + 'static> Sync for Shared<T> {}

impl<T: Send + Sync + 'static> Inner<T> {
    /// Counts `n` in the thread's part, and says whether that was still right. What is counted down may be gone when this returns: no
    /// reference to it is kept as long.
    ///
    /// # Safety
    ///
    /// The owner or a reference has it, which is there until `n` is counted.
    #[inline]
    unsafe fn add_part(inner: NonNull<Inner<T>>, n: i64) -> bool {
        // Within the event: who adds the parts together waits for its end.
        event(|event| {
            // SAFETY: the caller has it; and when `n` is counted, this event has.
            let inner = unsafe { inner.as_ref() };
            let has_owner = inner.has_owner.get(event).is_some_and(|has_owner| *has_owner);
            if has_owner {
                inner.parts.add(n);
            }
            has_owner
        })
    }

    /// Takes the pointer that was boxed: by one from a reference, the value could not be dropped.
    ///
    /// # Safety
    ///
    /// The owner or a reference has it, which is there until this returns.
    #[inline]
    unsafe fn share(inner: NonNull<Inner<T>>) -> Shared<T> {
        // SAFETY: the caller says so.
        unsafe {
            if !Inner::add_part(inner, 1) {
                // Relaxed: there is another one, which keeps it.
                inner.as_ref().rest.fetch_add(1, Ordering::Relaxed);
            }
        }
        Shared { inner }
    }

    /// # Safety
    ///
    /// It was boxed, and nobody has a reference.
    unsafe fn free(inner: NonNull<Inner<T>>) {
        // SAFETY: the caller says so.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}

/// What remains to be done for an owner that is gone.
struct Settlement<T>(NonNull<Inner<T>>);

// SAFETY: as for `Shared`.
unsafe impl<T: Send + Sync> Send for Settlement<T> {}

impl<T: Send + Sync + 'static> Settlement<T> {
    /// Adds the parts to the number: nobody counts there any more.
    fn settle(self) {
        // SAFETY: `UNSETTLED` keeps it.
        let inner = unsafe { self.0.as_ref() };
        let parts = (inner.parts.value() as u64).wrapping_sub(UNSETTLED);
        // AcqRel: as in the end of a reference.
        if inner.rest.fetch_add(parts, Ordering::AcqRel).wrapping_add(parts) == 0 {
            // SAFETY: no reference is left.
            unsafe { Inner::free(self.0) };
        }
    }
}

impl<T: Send + Sync + 'static> Owner<T> {
    /// Of a value.
    pub fn new(value: T) -> Owner<T> {
        let has_owner = Link::new(true);
        let inner = Inner { value, has_owner, parts: Counter::new(), rest: AtomicU64::new(UNSETTLED) };
        Owner { inner: NonNull::from(Box::leak(Box::new(inner))) }
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: it is there as long as its owner.
        unsafe { self.inner.as_ref() }
    }

    /// A reference, which may outlive the owner.
    #[inline]
    pub fn share(&self) -> Shared<T> {
        // SAFETY: this is the owner.
        unsafe { Inner::share(self.inner) }
    }

    /// How many references there are: right as long as none is made or dropped, otherwise off by those.
    pub fn count(&self) -> usize {
        usize::try_from(self.inner().parts.value()).unwrap_or(0)
    }
}

impl<T: Send + Sync + 'static> Drop for Owner<T> {
    fn drop(&mut self) {
        let settlement = Settlement(self.inner);
        // Within an event nothing is freed of what it uses.
        event(|_| self.inner().has_owner.replace_then(false, move |_| settlement.settle()));
        if !local::with(|local| local.wait_for_end(local::SWEEP)) {
            limbo::sweep();
        }
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    fn inner(&self) -> &Inner<T> {
        // SAFETY: it is there as long as a reference.
        unsafe { self.inner.as_ref() }
    }
}

impl<T: Send + Sync + 'static> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: this is a reference.
        unsafe { Inner::share(self.inner) }
    }
}

impl<T: Send + Sync + 'static> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is a reference.
        if unsafe { Inner::add_part(self.inner, -1) } {
            return;
        }
        // AcqRel: whoever is last comes after all that others did with it.
        if self.inner().rest.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: no reference is left.
            unsafe { Inner::free(self.inner) };
        }
    }
}

impl<T: Send + Sync + 'static> Deref for Owner<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: Send + Sync + 'static> Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for Owner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}
