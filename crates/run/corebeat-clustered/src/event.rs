//! Portability events.

use crate::local::{self, Local};

/// The span in which the environment of clustered objects is there: see [`event`].
///
/// It stays on its thread, and does not leave its closure:
///
/// ```compile_fail
/// let kept = corebeat_clustered::event(|event| event);
/// ```
///
/// ```compile_fail
/// corebeat_clustered::event(|event| std::thread::scope(|scope| { scope.spawn(|| event); }));
/// ```
///
/// And no more does what was found in it:
///
/// ```compile_fail
/// let link = corebeat_clustered::Link::new(5);
/// let five: Option<&i32> = corebeat_clustered::event(|event| link.get(event));
/// ```
pub struct Event<'t> {
    local: &'t Local,
}

/// Runs `f` within a portability event: what it finds through a [`Link`](crate::Link) exists until it returns.
///
/// Events nest, and the innermost ones are free of effect: the outermost counts. When that ends, what was deferred for it goes on.
/// A panic ends it as well.
///
/// Within an event, a thread may do whatever it likes: it holds up nobody, and keeps no more than what there was
/// when it last looked through a link. But a task of LPEL that is to wait there, or yields, panics: other tasks of its worker
/// would be in its event.
///
/// Cost: two stores and three looks.
#[inline(always)]
pub fn event<T>(f: impl FnOnce(&Event<'_>) -> T) -> T {
    local::with(|local| {
        local.begin();
        f(&Event { local })
    })
}

impl Event<'static> {
    /// Begins an event as [`event`] does, for programs in other languages, which have no closures.
    ///
    /// # Safety
    ///
    /// What is returned, and what is found with it, stays on this thread, and ends before the thread does. Events that begin later
    /// end before.
    pub unsafe fn begin() -> Event<'static> {
        local::with(Local::begin);
        // SAFETY: it has begun, and the caller has the rest.
        unsafe { Event::under_way() }.expect("it has just begun")
    }

    /// The event in which this thread is; `None` if there is none. To drop it is to end it: who looks and does not end it keeps it from
    /// being dropped.
    ///
    /// # Safety
    ///
    /// As for [`begin`](Event::begin); and for each event that has begun, one is dropped.
    pub unsafe fn under_way() -> Option<Event<'static>> {
        local::with(|local| {
            // SAFETY: it is there as long as the thread, and the caller keeps this no longer.
            local.is_in().then(|| Event { local: unsafe { &*std::ptr::from_ref(local) } })
        })
    }
}

impl Event<'_> {
    /// What `look` finds, in such a way that it exists until the end of this event.
    #[inline(always)]
    pub(crate) fn protect<T>(&self, look: impl Fn() -> *mut T) -> *mut T {
        let found = look();
        if self.local.is_asked() { self.protect_slowly(look) } else { found }
    }

    #[cold]
    #[inline(never)]
    fn protect_slowly<T>(&self, look: impl Fn() -> *mut T) -> *mut T {
        let mut era = crate::global::era();
        // Somebody sweeps between two rounds: all together come further, also if this one does not.
        loop {
            self.local.reach(era);
            let found = look();
            // It was made in an era that we see now, or before.
            match crate::global::era() {
                now if now == era => return found,
                now => era = now,
            }
        }
    }
}

impl Drop for Event<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.local.end();
    }
}
