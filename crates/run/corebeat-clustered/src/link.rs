//! Links: references to what may be replaced and destroyed while it is used.

use crate::Event;
use crate::global::era;
use crate::limbo::{self, Dead};
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::{fmt, ptr};

/// A reference that all share, to a value that may be replaced or destroyed at any time: who found it before, in an
/// [`event`](crate::event()), has it until the event is over. No lock is taken for that, and none is needed.
///
/// (The `Link` of `corebeat-scoop` is another thing: a field of an object, which refers to one of another processor.)
///
/// ```
/// use corebeat_clustered::{Link, event};
///
/// let greeting = Link::new(String::from("good morning"));
/// event(|event| {
///     let morning = greeting.get(event).unwrap();
///     greeting.replace("good evening".into()); // from whatever thread
///     assert_eq!(morning, "good morning");
///     assert_eq!(greeting.get(event).unwrap(), "good evening");
/// }); // now the morning is over
/// assert!(greeting.destroy());
/// assert!(event(|event| greeting.get(event).is_none()));
/// ```
pub struct Link<T: Send + Sync + 'static> {
    to: AtomicPtr<Linked<T>>,
    /// It owns such values, and hands out references to them.
    values: PhantomData<T>,
}

#[repr(C)]
struct Linked<T> {
    /// The era it was made in, or a later one in which nobody could find it.
    birth: u64,
    value: T,
}

impl<T> Linked<T> {
    fn new(value: T) -> *mut Linked<T> {
        Box::into_raw(Box::new(Linked { birth: era(), value }))
    }
}

impl<T: Send + Sync + 'static> Link<T> {
    /// To a value.
    pub fn new(value: T) -> Link<T> {
        Link { to: AtomicPtr::new(Linked::new(value)), values: PhantomData }
    }

    /// To nothing yet.
    #[cfg(not(loom))]
    pub const fn empty() -> Link<T> {
        Link { to: AtomicPtr::new(ptr::null_mut()), values: PhantomData }
    }

    #[cfg(loom)]
    pub(crate) fn empty() -> Link<T> {
        Link { to: AtomicPtr::new(ptr::null_mut()), values: PhantomData }
    }

    /// The value, for as long as the event lasts. `None` if it was destroyed, or there was none yet.
    #[inline(always)]
    pub fn get<'e>(&self, event: &'e Event<'_>) -> Option<&'e T> {
        // Acquire: pairs with the Release of who put it there.
        let found = event.protect(|| self.to.load(Ordering::Acquire));
        // SAFETY: what is found in an event is freed after it (`limbo`).
        unsafe { found.as_ref() }.map(|linked| &linked.value)
    }

    /// Puts a value in the place of the one that is there, if any. That one is dropped when no event uses it any more, on
    /// whatever thread.
    pub fn replace(&self, value: T) {
        self.swap(Linked::new(value));
    }

    /// As [`replace`](Link::replace). When no event uses the old one any more, `then` gets it: it is final.
    ///
    /// ```
    /// use corebeat_clustered::{Link, reclaim};
    /// use std::sync::mpsc::channel;
    ///
    /// let (link, (old, last)) = (Link::new(1), channel());
    /// link.replace_then(2, move |one| old.send(one).unwrap());
    /// while last.try_recv() != Ok(1) { // what others do may be in an event
    ///     reclaim();
    /// }
    /// ```
    pub fn replace_then(&self, value: T, then: impl FnOnce(T) + Send + 'static) {
        // AcqRel: pairs with the Acquire in `get`, and with the Release of who put the old one there.
        let old = self.to.swap(Linked::new(value), Ordering::AcqRel);
        // SAFETY: nobody finds it any more, and it is not freed before it is in limbo.
        if let Some(linked) = unsafe { old.as_ref() } {
            limbo::put(Last { birth: linked.birth, old, then }.dead());
        }
    }

    /// Puts a value in the place of `seen`, which was found here, if that is still there.
    ///
    /// # Errors
    /// It is not: the value comes back.
    pub fn replace_if(&self, seen: &T, value: T) -> Result<(), T> {
        // Relaxed: it is compared, and only so followed. While `seen` is there, nothing else is where it is.
        let old = self.to.load(Ordering::Relaxed);
        if !ptr::addr_eq(old.wrapping_byte_add(offset_of!(Linked<T>, value)), seen) || old.is_null() {
            return Err(value);
        }
        let new = Linked::new(value);
        // AcqRel: as in `replace_then`. Relaxed: nothing is read of another one.
        match self.to.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(old) => {
                // SAFETY: nobody finds it any more.
                unsafe { retire(old) };
                Ok(())
            }
            // SAFETY: nobody has seen it.
            Err(_) => Err(unsafe { Box::from_raw(new) }.value),
        }
    }

    /// Destroys the value: nobody finds it any more, and it is dropped as with [`replace`](Link::replace). Whether there was
    /// one.
    pub fn destroy(&self) -> bool {
        self.swap(ptr::null_mut())
    }

    /// Has this, which leads to nothing and is nobody else's yet, lead where another one does.
    ///
    /// # Safety
    ///
    /// The other one [`forget`](Link::forget)s it before either is used otherwise than to look.
    pub(crate) unsafe fn alias(&self, other: &Link<T>) {
        // Relaxed: the value is in sight of this thread, and of others by what makes this one theirs.
        self.to.store(other.to.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Has this lead to nothing. The value is still in sight elsewhere.
    ///
    /// # Safety
    ///
    /// Another link has it, by [`alias`](Link::alias).
    pub(crate) unsafe fn forget(&self) {
        // Release: who finds nothing here, and looks where the other link is, finds that.
        self.to.store(ptr::null_mut(), Ordering::Release);
    }

    fn swap(&self, new: *mut Linked<T>) -> bool {
        // AcqRel: pairs with the Acquire in `get`, and with the Release of who put the old one there.
        let old = self.to.swap(new, Ordering::AcqRel);
        // SAFETY: nobody finds it any more.
        unsafe { retire(old) };
        !old.is_null()
    }
}

/// # Safety
///
/// It is null, or was in a link, and is in none any more.
unsafe fn retire<T>(old: *mut Linked<T>) {
    if !old.is_null() {
        // SAFETY: it begins with its birth, and the caller has the rest.
        limbo::put(unsafe { Dead::new(old.cast(), bury::<T>) });
    }
}

/// # Safety
///
/// It is a `Linked<T>` that nobody uses.
unsafe fn bury<T>(linked: *mut u64) {
    // SAFETY: it was boxed in `new`, and the caller has the rest.
    drop(unsafe { Box::from_raw(linked.cast::<Linked<T>>()) });
}

/// A value, and who gets it when nobody uses it.
#[repr(C)]
struct Last<T, F> {
    /// As the value's.
    birth: u64,
    old: *mut Linked<T>,
    then: F,
}

impl<T, F: FnOnce(T)> Last<T, F> {
    fn dead(self) -> Dead {
        // SAFETY: it begins with its birth, and is nowhere else. (Who calls this has put the value out of sight.)
        unsafe { Dead::new(Box::into_raw(Box::new(self)).cast(), Self::bury) }
    }

    /// # Safety
    ///
    /// It is from `dead`, and nobody uses its value.
    unsafe fn bury(last: *mut u64) {
        // SAFETY: both were boxed, and the caller has the rest.
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
        // What was found lasts as long as the event, also if the link does not.
        self.destroy();
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Link<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
