//! Reference counts that are thread-local while the owner exists.

use crate::{Counter, Link, local, read_section, retired};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// Keeps the shared count above 0 until the counts of the parts were added.
const UNSETTLED: u64 = 1 << 62;

/// A value with an owner and any number of references, which are counted in the thread that clones
/// or drops them.
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
/// While the owner exists, the number of references is not needed: each thread adds and subtracts
/// in its own part of a [`Counter`], and no cache line moves. After the owner was dropped, clones
/// and drops are counted in one number, as with [`Arc`](std::sync::Arc). When the sections that
/// still counted in parts are over, the parts are added to that number. The value is dropped when
/// the number is 0. (As `percpu_ref` of Linux: Overstreet, 2013.)
///
/// This pays for values with many references for a long time, whose owner initiates their end: a
/// table, a connection, a module. Dropping the owner takes microseconds. If another
/// [`read_section`] delays the end, the value is dropped later: when the thread that has dropped
/// the owner retires more values, ends, or calls [`reclaim`](crate::reclaim).
///
/// ```text
///            owner drops          sections over     0: dropped
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
    /// References that are not counted in parts; plus `UNSETTLED` until the parts were added.
    rest: AtomicU64,
}

// SAFETY: as for `Arc`: several threads get `&T`, and the last one drops `T`.
unsafe impl<T: Send + Sync + 'static> Send for Owner<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync + 'static> Sync for Owner<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync + 'static> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync + 'static> Sync for Shared<T> {}

impl<T: Send + Sync + 'static> Inner<T> {
    /// Counts `n` in the thread's part, and returns whether the owner still existed. If `n` is
    /// negative, the value may be dropped when this function returns, so it keeps no reference.
    ///
    /// # Safety
    ///
    /// The owner or a reference keeps the value until `n` is counted.
    #[inline]
    unsafe fn add_part(inner: NonNull<Inner<T>>, n: i64) -> bool {
        // Within a section: the parts are added after its end.
        read_section(|guard| {
            // SAFETY: the caller keeps the value; after `n` was counted, this section does.
            let inner = unsafe { inner.as_ref() };
            let has_owner = inner.has_owner.get(guard).is_some_and(|has_owner| *has_owner);
            if has_owner {
                inner.parts.add(n);
            }
            has_owner
        })
    }

    /// Creates a reference. Takes the pointer of the box, because a pointer from a reference must
    /// not be used to drop the value.
    ///
    /// # Safety
    ///
    /// The owner or a reference keeps the value until this returns.
    #[inline]
    unsafe fn share(inner: NonNull<Inner<T>>) -> Shared<T> {
        // SAFETY: the caller guarantees it.
        unsafe {
            if !Inner::add_part(inner, 1) {
                // Relaxed: another reference keeps the value.
                inner.as_ref().rest.fetch_add(1, Ordering::Relaxed);
            }
        }
        Shared { inner }
    }

    /// # Safety
    ///
    /// The pointer comes from a box, and no reference exists.
    unsafe fn free(inner: NonNull<Inner<T>>) {
        // SAFETY: the caller guarantees it.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}

/// The remaining work for an owner that was dropped.
struct Settlement<T>(NonNull<Inner<T>>);

// SAFETY: as for `Shared`.
unsafe impl<T: Send + Sync> Send for Settlement<T> {}

impl<T: Send + Sync + 'static> Settlement<T> {
    /// Adds the parts to the shared count: no section counts in parts any more.
    fn settle(self) {
        // SAFETY: `UNSETTLED` keeps the value.
        let inner = unsafe { self.0.as_ref() };
        let parts = (inner.parts.value() as u64).wrapping_sub(UNSETTLED);
        // AcqRel: as in the destructor of a reference.
        if inner.rest.fetch_add(parts, Ordering::AcqRel).wrapping_add(parts) == 0 {
            // SAFETY: no reference exists any more.
            unsafe { Inner::free(self.0) };
        }
    }
}

impl<T: Send + Sync + 'static> Owner<T> {
    /// Creates the owner of a value.
    pub fn new(value: T) -> Owner<T> {
        let has_owner = Link::new(true);
        let inner =
            Inner { value, has_owner, parts: Counter::new(), rest: AtomicU64::new(UNSETTLED) };
        Owner { inner: NonNull::from(Box::leak(Box::new(inner))) }
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: the value exists as long as its owner.
        unsafe { self.inner.as_ref() }
    }

    /// Creates a reference, which may outlive the owner.
    #[inline]
    pub fn share(&self) -> Shared<T> {
        // SAFETY: this is the owner.
        unsafe { Inner::share(self.inner) }
    }

    /// Returns the number of references, in which the owner does not count: 0 if only the owner is
    /// left. The number is exact while no reference is created or dropped, otherwise off by the
    /// number of concurrent changes.
    pub fn count(&self) -> usize {
        usize::try_from(self.inner().parts.value()).unwrap_or(0)
    }
}

impl<T: Send + Sync + 'static> Drop for Owner<T> {
    fn drop(&mut self) {
        let settlement = Settlement(self.inner);
        // The section keeps the value that is used here.
        read_section(|_| self.inner().has_owner.replace_then(false, move |_| settlement.settle()));
        if !local::with(|local| local.defer(local::RECLAIM)) {
            retired::reclaim();
        }
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    fn inner(&self) -> &Inner<T> {
        // SAFETY: the value exists as long as a reference.
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
        // AcqRel: the drop of the value happens after all uses by other references.
        if self.inner().rest.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: no reference exists any more.
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
