//! What becomes of shared memory in a child of fork: it stays the parent's alone.
//!
//! A child has the mappings of its parent, and perhaps code that goes on to beat. Before `fork` returns in the child, memory of
//! its own is put in their places: zeros that nobody else sees. The system's own ways do not do that: after `MADV_DONTFORK`
//! the child would crash at its next beat, and `MADV_WIPEONFORK` is for private memory.

use crate::Error;
use crate::monitor::lock;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::cell::RefCell;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// What this process writes and others see.
static WRITTEN: Mutex<Vec<Place>> = Mutex::new(Vec::new());

thread_local! {
    /// Of a thread that forks, so that the child's copy is whole.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Place>>>> = const { RefCell::new(None) };
}

/// Where memory is, and how much, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    start: usize,
    bytes: usize,
}

/// Keeps this from children, until [`forget`].
///
/// # Errors
/// [`Error::System`] where the C library has no room for handlers.
pub(super) fn keep(start: usize, bytes: usize) -> Result<(), Error> {
    static HANDLERS: OnceLock<i32> = OnceLock::new();
    // SAFETY: handlers that may be called at any time. They go where this library goes (`dlclose`).
    let failed =
        *HANDLERS.get_or_init(|| unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) });
    if failed != 0 {
        return Err(Error::system("no handlers for fork", io::Error::from_raw_os_error(failed)));
    }
    lock(&WRITTEN).push(Place { start, bytes });
    Ok(())
}

/// It is about to be unmapped.
pub(super) fn forget(start: usize) {
    lock(&WRITTEN).retain(|place| place.start != start);
}

extern "C" fn prepare() {
    let written = lock(&WRITTEN);
    // Without thread-local data, which a thread lacks at its very end, the list may change while it is copied.
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
        // SAFETY: a mapping of ours of this size, with atomics alone in it, which any bytes are; no other thread is in the child.
        // Where the system has no room it stays the parent's, which is better than none.
        let _ = unsafe { mm::mmap_anonymous(place.start as *mut _, place.bytes, access, flags) };
    }
}
