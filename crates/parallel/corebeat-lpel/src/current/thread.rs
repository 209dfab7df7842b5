//! Threads that wait as tasks do: blocking tasks, and threads that are no tasks.

use super::{stamp, with};
use crate::runtime::Inner;
use crate::scope::ScopeCore;
use crate::task::{self, Header, Kind, Object, Status, TaskRef, Vtable};
use crate::waiter::{self, Token, Word};
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::fork::Process;
use corebeat_sync::{thread, thread_local};
use std::cell::{Cell, OnceCell};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

thread_local! {
    /// Header that represents this thread when it waits.
    static THREAD: OnceCell<ThisThread> = const { OnceCell::new() };
}

/// Reference of a thread to its own header.
struct ThisThread(TaskRef);

impl Drop for ThisThread {
    fn drop(&mut self) {
        // The values are dropped here, because another thread may drop the last reference.
        self.0.header().locals.clear();
    }
}

/// The header of a thread, and the state for its wake-up.
#[repr(C)]
struct ThreadBlock {
    header: Header,
    thread: thread::Thread,
    woken: AtomicBool,
    /// Time at which the thread stops waiting. Only the thread itself uses this field.
    deadline: Cell<Option<Instant>>,
    /// Runtime of a blocking task. The runtime counts the task as active while it does not wait.
    inner: Option<Arc<Inner>>,
}

static THREAD_VTABLE: Vtable = task::thread_vtable(|header| {
    // SAFETY: `new_thread` made the header from such a box.
    drop(unsafe { Box::from_raw(header.cast::<ThreadBlock>()) });
});

fn new_thread(
    inner: Option<Arc<Inner>>,
    scope: Option<Arc<ScopeCore>>,
    name: Option<Arc<str>>,
    id: u64,
) -> TaskRef {
    let process = Process::current();
    let block = Box::new(ThreadBlock {
        header: Header::new(id, name, scope, process, Kind::Thread, &THREAD_VTABLE),
        thread: thread::current(),
        woken: AtomicBool::new(false),
        deadline: Cell::new(None),
        inner,
    });
    block.header.set_status(Status::Running);
    // SAFETY: a new header counts one reference.
    unsafe { TaskRef::from_raw(Box::into_raw(block).cast()) }
}

/// Returns the header of the calling thread; null if its thread-local data has been dropped.
#[cold]
pub(super) fn this_thread() -> *const Header {
    let header = |t: &OnceCell<ThisThread>| {
        t.get_or_init(|| ThisThread(new_thread(None, None, None, 0))).0.as_ptr()
    };
    THREAD.try_with(header).unwrap_or(ptr::null())
}

/// Returns the runtime of the calling thread, if the thread is a blocking task.
pub(super) fn runtime_of_blocking_task() -> Option<Arc<Inner>> {
    let inner = |t: &OnceCell<ThisThread>| {
        let header = t.get()?.0.as_ptr();
        // SAFETY: the header of a thread is the first field of such a block.
        unsafe { &*header.cast::<ThreadBlock>() }.inner.clone()
    };
    THREAD.try_with(inner).ok().flatten()
}

/// Makes the calling thread the blocking task that `task` describes. Dumps and the search for
/// deadlocks find the thread by the returned header.
pub(crate) fn become_blocking_task(inner: Arc<Inner>, task: &Header) -> TaskRef {
    let home = inner.blocking.home;
    let me = new_thread(Some(inner), task.scope().cloned(), task.name.clone(), task.id);
    let stamp = stamp(home, task.id);
    with(|c| c.stamp.set(stamp));
    me.header().stamp.set(stamp);
    THREAD.with(|t| {
        let _ = t.set(ThisThread(me.clone()));
    });
    me
}

/// Blocks the calling thread, whose token is in `word`, as [`super::block`] does.
#[cold]
pub(super) fn block(word: &Word, token: Token, status: Status, on: Object) {
    // SAFETY: the header of a thread is the first field of such a block.
    let block = unsafe { &*waiter::blocked(token).cast::<ThreadBlock>() };
    let me = &block.header;
    me.on.store(on);
    me.set_status(status);
    if let Some(inner) = &block.inner {
        inner.pause();
    }
    // Acquire: pairs with the release in `deliver`.
    while !block.woken.load(Ordering::Acquire) {
        let left = block.deadline.get().map(|d| d.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            me.expire();
        }
        if me.is_interrupted() && waiter::withdraw(word, token) {
            if let Some(inner) = &block.inner {
                inner.activity.resume();
            }
            break;
        }
        match left {
            Some(left) if !left.is_zero() => thread::park_timeout(left),
            _ => thread::park(),
        }
    }
    // Relaxed: no thread wakes this one before it leaves its next token.
    block.woken.store(false, Ordering::Relaxed);
    me.on.store(Object::NONE);
    me.set_status(Status::Running);
}

/// Sets the time at which the calling thread stops waiting.
pub(super) fn set_deadline(deadline: Option<Instant>) {
    // SAFETY: the header of a thread is the first field of such a block.
    if let Some(block) = unsafe { this_thread().cast::<ThreadBlock>().as_ref() } {
        block.deadline.set(deadline);
    }
}

/// Wakes a blocked thread.
///
/// # Safety
///
/// `thread` is the header of a thread, and the caller took its token.
pub(super) unsafe fn deliver(thread: *const Header) {
    // SAFETY: the header of a thread is the first field of such a block.
    let block = unsafe { &*thread.cast::<ThreadBlock>() };
    if let Some(inner) = &block.inner {
        inner.activity.resume();
    }
    let thread = block.thread.clone();
    // Release: the effects of the caller are visible to the woken thread. From here on, the thread
    // may end, and free its block.
    block.woken.store(true, Ordering::Release);
    thread.unpark();
}

/// Makes the thread of a blocking task check whether the task is cancelled.
pub(crate) fn wake_thread(task: &TaskRef) {
    // SAFETY: the header of a thread is the first field of such a block.
    unsafe { &*task.as_ptr().cast::<ThreadBlock>() }.thread.unpark();
}
