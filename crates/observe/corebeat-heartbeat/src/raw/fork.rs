//! Keeps shared memory out of children of fork.
//!
//! A child inherits the mappings of its parent, and possibly code that continues to beat. Before
//! `fork` returns in the child, this module replaces the mappings by private memory filled with
//! zeros. The kernel's own mechanisms are unsuitable: after `MADV_DONTFORK` the child would crash
//! at its next beat, and `MADV_WIPEONFORK` works only on private memory.

use crate::Error;
use crate::monitor::lock;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::cell::RefCell;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The memory that this process writes and other processes read.
static WRITTEN: Mutex<Vec<Place>> = Mutex::new(Vec::new());

thread_local! {
    /// Held by a thread that forks, so that the child's copy of the list is consistent.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Place>>>> = const { RefCell::new(None) };
}

/// Address and size of memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    start: usize,
    bytes: usize,
}

/// Replaces this memory in children of fork, until [`forget`].
///
/// # Errors
/// [`Error::System`] if the C library cannot register handlers.
pub(super) fn keep(start: usize, bytes: usize) -> Result<(), Error> {
    static HANDLERS: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handlers may be called at any time. `dlclose` of this library removes them.
    let failed = *HANDLERS
        .get_or_init(|| unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) });
    if failed != 0 {
        return Err(Error::system(
            "cannot register handlers for fork",
            io::Error::from_raw_os_error(failed),
        ));
    }
    lock(&WRITTEN).push(Place { start, bytes });
    Ok(())
}

/// Removes memory that is about to be unmapped.
pub(super) fn forget(start: usize) {
    lock(&WRITTEN).retain(|place| place.start != start);
}

extern "C" fn prepare() {
    let written = lock(&WRITTEN);
    // A thread that is being destroyed has no thread-local data. Then the list may change while it
    // is copied.
    let _ = HELD.try_with(|held| held.replace(Some(written)));
}

extern "C" fn parent() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn child() {
    let written = HELD.try_with(RefCell::take).ok().flatten().or_else(|| WRITTEN.try_lock().ok());
    for place in written.iter().flat_map(|written| written.iter()) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: this process has created a mapping of this size, which contains only atomics, and
        // every bit pattern is valid; the child has no other thread. If the system has no memory,
        // the mapping of the parent stays, which is better than none.
        let _ = unsafe { mm::mmap_anonymous(place.start as *mut _, place.bytes, access, flags) };
    }
}
