//! Read-side critical sections.

use crate::local::{self, Local};

/// Guard of a read-side critical section, in which values found through links exist: see
/// [`read_section`].
///
/// The guard stays on its thread, and does not leave its closure:
///
/// ```compile_fail
/// let kept = corebeat_clustered::read_section(|guard| guard);
/// ```
///
/// ```compile_fail
/// corebeat_clustered::read_section(|guard| {
///     std::thread::scope(|scope| { scope.spawn(|| guard); })
/// });
/// ```
///
/// Neither do the references that were obtained with it:
///
/// ```compile_fail
/// let link = corebeat_clustered::Link::new(5);
/// let five: Option<&i32> = corebeat_clustered::read_section(|guard| link.get(guard));
/// ```
pub struct Guard<'t> {
    local: &'t Local,
}

/// Runs `f` within a read-side critical section: values that `f` finds through a
/// [`Link`](crate::Link) exist until `f` returns. (A *portability event* in Matthews, Coady,
/// Appavoo, 2006.)
///
/// Sections nest; only the outermost one has an effect. At its end, deferred destructors run. A
/// panic also ends the section.
///
/// A thread may do anything within a section: it blocks no other thread, and keeps only values that
/// existed when it last loaded a link. But a task of LPEL that waits or yields within a section
/// panics: other tasks of its worker would run in the section.
///
/// Cost: two stores and three loads.
#[inline(always)]
pub fn read_section<T>(f: impl FnOnce(&Guard<'_>) -> T) -> T {
    local::with(|local| {
        local.begin();
        f(&Guard { local })
    })
}

impl Guard<'static> {
    /// Begins a section as [`read_section`] does, for programs in languages without closures.
    ///
    /// # Safety
    ///
    /// The guard, and references that are obtained with it, stay on this thread, and end before the
    /// thread does. Sections that begin later end before this one.
    pub unsafe fn begin() -> Guard<'static> {
        local::with(Local::begin);
        // SAFETY: the section has begun, and the caller guarantees the rest.
        unsafe { Guard::current() }.expect("the section has begun")
    }

    /// Returns a guard of the section in which this thread is, or `None` outside of sections.
    /// Dropping the guard ends the section; a caller that only inspects it must prevent the drop.
    ///
    /// # Safety
    ///
    /// As for [`begin`](Guard::begin); and for each section that begins, one guard is dropped.
    pub unsafe fn current() -> Option<Guard<'static>> {
        local::with(|local| {
            // SAFETY: it lives as long as the thread, and the caller keeps the guard no longer.
            local.is_inside().then(|| Guard { local: unsafe { &*std::ptr::from_ref(local) } })
        })
    }
}

impl Guard<'_> {
    /// Returns the result of `load` such that the value exists until the end of this section.
    #[inline(always)]
    pub(crate) fn protect<T>(&self, load: impl Fn() -> *mut T) -> *mut T {
        let found = load();
        if self.local.is_requested() { self.protect_slow(load) } else { found }
    }

    #[cold]
    #[inline(never)]
    fn protect_slow<T>(&self, load: impl Fn() -> *mut T) -> *mut T {
        let mut era = crate::global::era();
        // The loop repeats only if another thread scans between two rounds, so the process as a
        // whole makes progress.
        loop {
            self.local.publish_reach(era);
            let found = load();
            // The value was made in an era not after the one that is loaded here.
            match crate::global::era() {
                now if now == era => return found,
                now => era = now,
            }
        }
    }
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.local.end();
    }
}
