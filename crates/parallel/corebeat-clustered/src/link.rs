//! Links: references to values that may be replaced and destroyed while they are in use.

use crate::Guard;
use crate::global::era;
use crate::retired::retire;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::const_unless_loom;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::{fmt, ptr};

/// A shared reference to a value that any thread may replace or destroy at any time. A thread that
/// found the value in a [`read_section`](crate::read_section) may use it until the end of the
/// section. No lock is needed for that.
///
/// (The `Link` of `corebeat-scoop` is a different type: a field of an object that refers to an
/// object of another processor.)
///
/// ```
/// use corebeat_clustered::{Link, read_section};
///
/// let greeting = Link::new(String::from("good morning"));
/// read_section(|guard| {
///     let morning = greeting.get(guard).unwrap();
///     greeting.replace("good evening".into()); // from any thread
///     assert_eq!(morning, "good morning");
///     assert_eq!(greeting.get(guard).unwrap(), "good evening");
/// }); // from here on, "good morning" may be dropped
/// assert!(greeting.destroy());
/// assert!(read_section(|guard| greeting.get(guard).is_none()));
/// ```
pub struct Link<T: Send + Sync + 'static> {
    to: AtomicPtr<Linked<T>>,
    /// The link owns values and returns references to them.
    values: PhantomData<T>,
}

#[repr(C)]
struct Linked<T> {
    /// The era in which the value was made, or a later one before it was published.
    birth: u64,
    value: T,
}

impl<T> Linked<T> {
    fn new(value: T) -> *mut Linked<T> {
        Box::into_raw(Box::new(Linked { birth: era(), value }))
    }
}

impl<T: Send + Sync + 'static> Link<T> {
    /// Creates a link to a value.
    pub fn new(value: T) -> Link<T> {
        Link { to: AtomicPtr::new(Linked::new(value)), values: PhantomData }
    }

    const_unless_loom! {
        /// Creates a link without a value.
        pub fn empty() -> Link<T> {
            Link { to: AtomicPtr::new(ptr::null_mut()), values: PhantomData }
        }
    }

    /// Returns the value, valid until the end of the section, or `None` if the link has no value.
    #[inline(always)]
    pub fn get<'g>(&self, guard: &'g Guard<'_>) -> Option<&'g T> {
        // Acquire: pairs with the Release of the thread that stored the value.
        let found = guard.protect(|| self.to.load(Ordering::Acquire));
        // SAFETY: a value that is found in a section is freed after the section (`retired`).
        unsafe { found.as_ref() }.map(|linked| &linked.value)
    }

    /// Replaces the value, if any. The old value is dropped, on any thread, when no section uses it
    /// any more.
    pub fn replace(&self, value: T) {
        self.swap(Linked::new(value));
    }

    /// Replaces the value as [`replace`](Link::replace) does. When no section uses the old value
    /// any more, passes it to `then`: its state is final.
    ///
    /// ```
    /// use corebeat_clustered::{Link, reclaim};
    /// use std::sync::mpsc::channel;
    ///
    /// let (link, (old, last)) = (Link::new(1), channel());
    /// link.replace_then(2, move |one| old.send(one).unwrap());
    /// while last.try_recv() != Ok(1) { // other threads may be in sections
    ///     reclaim();
    /// }
    /// ```
    pub fn replace_then(&self, value: T, then: impl FnOnce(T) + Send + 'static) {
        // AcqRel: pairs with the Acquire in `get`, and with the Release of the thread that stored
        // the old value.
        let old = self.to.swap(Linked::new(value), Ordering::AcqRel);
        // SAFETY: no new section finds the value, and it is not freed before it is retired.
        if let Some(linked) = unsafe { old.as_ref() } {
            Last { birth: linked.birth, old, then }.retire();
        }
    }

    /// Replaces the value if it is still `expected`, which was found in this link.
    ///
    /// # Errors
    /// The new value, if the link has another value.
    pub fn replace_if(&self, expected: &T, value: T) -> Result<(), T> {
        // Relaxed: the pointer is only compared. While `expected` exists, no other value has its
        // address.
        let old = self.to.load(Ordering::Relaxed);
        let is_expected =
            ptr::addr_eq(old.wrapping_byte_add(offset_of!(Linked<T>, value)), expected);
        if !is_expected || old.is_null() {
            return Err(value);
        }
        let new = Linked::new(value);
        // AcqRel: as in `replace_then`. Relaxed: the value of a failed exchange is not read.
        match self.to.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(old) => {
                // SAFETY: no new section finds the value.
                unsafe { retire_linked(old) };
                Ok(())
            }
            // SAFETY: the new value was not published.
            Err(_) => Err(unsafe { Box::from_raw(new) }.value),
        }
    }

    /// Removes the value, which is dropped as by [`replace`](Link::replace). Returns whether there
    /// was one.
    pub fn destroy(&self) -> bool {
        self.swap(ptr::null_mut())
    }

    /// Replaces the value as [`replace`](Link::replace) does, without an atomic exchange.
    ///
    /// # Safety
    ///
    /// No other thread modifies the link meanwhile, and its last change is visible to this thread.
    pub(crate) unsafe fn replace_alone(&self, value: T) {
        // Relaxed: by the contract of this function.
        let old = self.to.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `get`.
        self.to.store(Linked::new(value), Ordering::Release);
        // SAFETY: no new section finds the value.
        unsafe { retire_linked(old) };
    }

    /// Makes this link, which has no value and no other user yet, refer to the value of another
    /// link.
    ///
    /// # Safety
    ///
    /// The other link [`forget`](Link::forget)s the value before either link is modified otherwise.
    pub(crate) unsafe fn alias(&self, other: &Link<T>) {
        // Relaxed: this thread has loaded the value before, and others load it after this link was
        // published.
        self.to.store(other.to.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Removes the value without retiring it: another link still refers to it.
    ///
    /// # Safety
    ///
    /// Another link refers to the value, by [`alias`](Link::alias).
    pub(crate) unsafe fn forget(&self) {
        // Release: a thread that finds no value here finds the table with the other link.
        self.to.store(ptr::null_mut(), Ordering::Release);
    }

    fn swap(&self, new: *mut Linked<T>) -> bool {
        // AcqRel: as in `replace_then`.
        let old = self.to.swap(new, Ordering::AcqRel);
        // SAFETY: no new section finds the value.
        unsafe { retire_linked(old) };
        !old.is_null()
    }
}

/// # Safety
///
/// The pointer is null, or its value was in a link and is in none any more.
unsafe fn retire_linked<T>(old: *mut Linked<T>) {
    if !old.is_null() {
        // SAFETY: the value begins with its birth, and the caller guarantees the rest.
        unsafe { retire(old.cast(), free::<T>) };
    }
}

/// # Safety
///
/// The pointer is a `Linked<T>` that nothing uses.
unsafe fn free<T>(linked: *mut ()) {
    // SAFETY: `new` boxed the value, and the caller guarantees the rest.
    drop(unsafe { Box::from_raw(linked.cast::<Linked<T>>()) });
}

/// A retired value, and the function that receives it after the grace period.
#[repr(C)]
struct Last<T, F> {
    /// The birth of the value.
    birth: u64,
    old: *mut Linked<T>,
    then: F,
}

impl<T, F: FnOnce(T)> Last<T, F> {
    /// Retires the value, which the caller has unlinked.
    fn retire(self) {
        // SAFETY: the box begins with the birth, and nothing else refers to it.
        unsafe { retire(Box::into_raw(Box::new(self)).cast(), Self::free) };
    }

    /// # Safety
    ///
    /// The pointer comes from `retire`, and nothing uses its value.
    unsafe fn free(last: *mut ()) {
        // SAFETY: both were boxed, and the caller guarantees the rest.
        let (last, old) = unsafe {
            let last = Box::from_raw(last.cast::<Self>());
            let old = Box::from_raw(last.old);
            (last, old)
        };
        (last.then)(old.value);
    }
}

impl<T: Send + Sync + 'static> Drop for Link<T> {
    fn drop(&mut self) {
        // A value that was found exists until the end of the section, even if the link does not.
        // Relaxed: no other thread has access, so its last change is visible.
        // SAFETY: the link does not exist any more.
        unsafe { retire_linked(self.to.load(Ordering::Relaxed)) };
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Link<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
