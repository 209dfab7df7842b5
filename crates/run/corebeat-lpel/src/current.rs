//! Who runs on this thread: a worker and its task, or just a thread.

use crate::context;
use crate::error::Failure;
use crate::runtime::Inner;
use crate::set::SetCore;
use crate::stream::{Core, Side};
use crate::task::{self, Header, Kind, Outcome, Status, TaskRef, Unwind, Vtable};
use crate::waiter::{self, Token, Word};
use crate::worker::Worker;
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::{thread, thread_local};
use std::cell::{Cell, OnceCell};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bits of a stamp below its home.
const HOME_SHIFT: u32 = 40;

/// What is known of this thread. Its fields are constants or plain cells, so that reading one is one instruction.
pub(crate) struct Current {
    pub(crate) worker: Cell<*const Worker>,
    /// The running task; null between tasks, and on threads that are no workers.
    pub(crate) task: Cell<*const Header>,
    /// Changes whenever another task runs here, and with each dispatch while streams are monitored.
    pub(crate) stamp: Cell<u64>,
    /// How the task came back.
    pub(crate) outcome: Cell<Outcome>,
    /// How it gets back.
    pub(crate) way_back: Cell<*const ()>,
}

thread_local! {
    static CURRENT: Current = const {
        Current {
            worker: Cell::new(ptr::null()),
            task: Cell::new(ptr::null()),
            stamp: Cell::new(0),
            outcome: Cell::new(Outcome::Ended),
            way_back: Cell::new(ptr::null()),
        }
    };
    /// What stands for this thread when it waits.
    static THREAD: OnceCell<ThisThread> = const { OnceCell::new() };
}

/// A thread's own reference to what stands for it.
struct ThisThread(TaskRef);

impl Drop for ThisThread {
    fn drop(&mut self) {
        // Here, because who drops the last reference may be another thread.
        self.0.header().locals.clear();
    }
}

/// What this thread was before it turned a worker; and becomes again when this is dropped.
pub(crate) struct Before {
    worker: *const Worker,
    task: *const Header,
    stamp: u64,
    way_back: *const (),
}

impl Before {
    pub(crate) fn of(current: &Current) -> Before {
        Before {
            worker: current.worker.get(),
            task: current.task.get(),
            stamp: current.stamp.get(),
            way_back: current.way_back.get(),
        }
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        with(|c| {
            c.worker.set(self.worker);
            c.task.set(self.task);
            c.stamp.set(self.stamp);
            c.way_back.set(self.way_back);
        });
    }
}

#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&Current) -> R) -> R {
    CURRENT.with(f)
}

/// The home of all threads that are no workers or wrappers. 0 is nobody's.
const OUTSIDE: u64 = 1;

/// Homes that were given back.
static FREE_HOMES: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// A home for a worker, or for all wrappers of a runtime.
pub(crate) fn new_home() -> u64 {
    static HOMES: AtomicU64 = AtomicU64::new(OUTSIDE + 1);
    if let Some(home) = FREE_HOMES.lock().unwrap_or_else(|e| e.into_inner()).pop() {
        return home;
    }
    // Relaxed: only unique.
    let home = HOMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    assert!(home < 1 << (64 - HOME_SHIFT), "more than 16 million workers at a time");
    home
}

/// Nobody lives there any more. Ends that were last used there tell so before they are used elsewhere, as always.
pub(crate) fn give_home_back(home: u64) {
    FREE_HOMES.lock().unwrap_or_else(|e| e.into_inner()).push(home);
}

/// A stamp for a thread that is no worker: another for each thread.
fn new_stamp(home: u64) -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only unique, for the first 2^40 threads.
    stamp(home, NUMBERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// A stamp for something that runs at `home`.
pub(crate) fn stamp(home: u64, number: u64) -> u64 {
    home << HOME_SHIFT | number & ((1 << HOME_SHIFT) - 1)
}

/// Where something with this stamp runs.
pub(crate) fn home_of(stamp: u64) -> u64 {
    stamp >> HOME_SHIFT
}

/// The stamp of who runs now; 0 for a thread that has not used a stream yet.
#[inline(always)]
pub(crate) fn current_stamp() -> u64 {
    with(|c| c.stamp.get())
}

/// As [`current_stamp`], for a thread that may not have one yet.
#[inline(always)]
pub(crate) fn make_stamp() -> u64 {
    with(|c| {
        if c.stamp.get() == 0 {
            c.stamp.set(new_stamp(OUTSIDE));
        }
        c.stamp.get()
    })
}

/// The worker of this thread, if it is one.
#[inline]
pub(crate) fn worker() -> Option<&'static Worker> {
    let worker = with(|c| c.worker.get());
    // SAFETY: set by the worker's thread while it runs, and nothing that runs there keeps it for longer than that.
    unsafe { worker.as_ref() }
}

/// What waits when this waits: the running task, or the thread. Null for a thread of which even thread-local data is gone.
#[inline]
pub(crate) fn waiter() -> *const Header {
    let task = with(|c| c.task.get());
    if task.is_null() { this_thread() } else { task }
}

#[cold]
fn this_thread() -> *const Header {
    let block = |t: &OnceCell<ThisThread>| t.get_or_init(|| ThisThread(new_thread(None, None, 0))).0.as_ptr();
    THREAD.try_with(block).unwrap_or(ptr::null())
}

/// The task's number; 0 for a thread that is no wrapper.
#[inline(always)]
pub(crate) fn task_id() -> u64 {
    // SAFETY: whoever runs is alive.
    unsafe { waiter().as_ref() }.map_or(0, |waiter| waiter.id)
}

/// Whether whoever runs may wait now. Not if it is unwinding: its worker would run others in the midst of a panic. Not if it
/// is a worker's own loop. If it is to end early, this is where it does; and if it is where it must not wait, it panics.
#[inline(always)]
pub(crate) fn may_block() -> bool {
    if std::thread::panicking() {
        return false;
    }
    let task = with(|c| c.task.get());
    // SAFETY: whoever runs is alive.
    match unsafe { task.as_ref() } {
        Some(task) if task.is_cancelled() => unwind(),
        Some(_) => {
            corebeat_sync::wait::check();
            true
        }
        None => may_block_outside(),
    }
}

/// Where whoever was blocked goes on: not if it is to end early, although there may be news for it. Those who end before
/// it close their streams.
#[inline(always)]
pub(crate) fn unblocked() {
    let task = with(|c| c.task.get());
    // SAFETY: whoever runs is alive.
    match unsafe { task.as_ref() } {
        Some(task) if task.is_cancelled() => unwind(),
        Some(_) => {}
        None => {
            may_block_outside();
        }
    }
}

#[cold]
fn may_block_outside() -> bool {
    // A worker between two tasks runs what others left behind, such as destructors: it cannot wait for its own tasks.
    if worker().is_some() {
        return false;
    }
    // SAFETY: this thread's own block.
    match unsafe { waiter().as_ref() } {
        Some(thread) if thread.is_cancelled() => unwind(),
        // A wrapper that has ended runs destructors of its thread's data, and is not counted any more. One that is about to wait
        // may look for deadlocks first, and run what that has left.
        Some(thread) => thread.status() == Status::Running,
        None => false,
    }
}

#[cold]
fn unwind() -> ! {
    std::panic::resume_unwind(Box::new(Unwind::Cancel));
}

/// Suspends whoever runs, whose token is in `word`, until it was taken and so woken; or until it is to end early, and
/// then the token is not in the word any more.
///
/// All on the way from a stream's `read` to the switch is inlined: each call on it would return after the switch, where
/// the processor cannot predict it.
#[inline(always)]
pub(crate) fn block(word: &Word, token: Token, status: Status, on: *const Core) {
    let task = with(|c| c.task.get());
    // SAFETY: whoever runs is alive.
    let Some(me) = (unsafe { task.as_ref() }) else { return block_thread(word, token, status, on) };
    // Release: pairs with the acquire of a dump that follows the pointer.
    me.on.store(on.cast_mut(), Ordering::Release);
    me.last_on.set(on);
    loop {
        suspend(me, status);
        if me.delivered.replace(false) || waiter::withdraw(word, token) {
            break;
        }
        // To end early, but somebody has taken the token: what it delivers has to arrive first.
    }
    me.on.store(ptr::null_mut(), Ordering::Release);
}

/// As [`block`], for who waits for the end of a task.
pub(crate) fn block_on_task(word: &Word, token: Token, task: u64) {
    // SAFETY: whoever runs is alive.
    unsafe { &(*waiter()).on_task }.store(task, Ordering::Relaxed);
    block(word, token, Status::Joining, ptr::null());
    // SAFETY: as above.
    unsafe { &(*waiter()).on_task }.store(0, Ordering::Relaxed);
    unblocked();
}

/// As [`block`], for the owner of a set.
pub(crate) fn block_on_set(set: &Arc<SetCore>, token: Token) {
    // SAFETY: whoever runs is alive.
    let on_set = unsafe { &(*waiter()).on_set };
    // Release: pairs with the acquire of a dump that follows the pointer.
    on_set.store(Arc::as_ptr(set).cast_mut(), Ordering::Release);
    block(&set.word, token, Status::Polling, ptr::null());
    on_set.store(ptr::null_mut(), Ordering::Release);
    unblocked();
}

/// What an async task awaits.
pub(crate) enum Awaits<'a> {
    Stream(&'a Core),
    Set(&'a Arc<SetCore>),
    Task(u64),
}

/// The running async task is going to await something: before it leaves its token there. For dumps and the search for
/// deadlocks, which believe it if that is its only token; when the token is taken out, so is the note (`forget_await`).
pub(crate) fn note_await(token: Token, what: Awaits<'_>) {
    let task = with(|c| c.task.get());
    if !waiter::is_awaiting(token, task) {
        // The future is polled by somebody else's executor, with its own wakers.
        return;
    }
    // SAFETY: the running task is alive.
    let task = unsafe { &*task };
    task.forget_await();
    // Release: pairs with the acquire of a dump that follows the pointer.
    match what {
        Awaits::Stream(core) => task.on.store(ptr::from_ref(core).cast_mut(), Ordering::Release),
        Awaits::Set(set) => task.on_set.store(Arc::as_ptr(set).cast_mut(), Ordering::Release),
        Awaits::Task(id) => task.on_task.store(id, Ordering::Relaxed),
    }
}

/// The runtime whose task runs here.
pub(crate) fn runtime() -> Option<Arc<Inner>> {
    if let Some(worker) = worker() {
        return Some(worker.inner().keep());
    }
    let inner = |t: &OnceCell<ThisThread>| {
        let header = t.get()?.0.as_ptr();
        // SAFETY: threads have such blocks.
        unsafe { &*header.cast::<ThreadCells>() }.inner.clone()
    };
    THREAD.try_with(inner).ok().flatten()
}

/// For the runtime of whoever runs here, if any: see [`Inner::count_growable`].
pub(crate) fn count_growable(begins: bool) {
    match worker() {
        Some(worker) => worker.inner().count_growable(begins),
        None => runtime().into_iter().for_each(|inner| inner.count_growable(begins)),
    }
}

/// Whether a task runs here, and no thread of its own.
pub(crate) fn is_task() -> bool {
    with(|c| !c.task.get().is_null())
}

/// Whether a task or a wrapper runs here.
pub(crate) fn is_task_or_wrapper() -> bool {
    is_task() || runtime().is_some()
}

/// Lets the worker's other tasks run.
pub(crate) fn yield_task() {
    // SAFETY: the running task is alive.
    suspend(unsafe { &*waiter() }, Status::Ready);
}

/// Suspends the running task for that time.
pub(crate) fn sleep_task(time_ns: u64) {
    let me = waiter();
    let worker = worker().expect("tasks run on workers");
    worker.set_timer(worker.inner().now_ns().saturating_add(time_ns), me);
    // SAFETY: the running task is alive.
    let me = unsafe { &*me };
    while !me.delivered.replace(false) {
        suspend(me, Status::Sleeping);
    }
}

/// Lets this thread sleep for that time, or until it is to end early.
pub(crate) fn sleep_thread(time: Duration) {
    let begin = Instant::now();
    // SAFETY: this thread's own block, which is there: the caller may block.
    while !unsafe { (*waiter()).is_cancelled() }
        && let Some(left) = time.checked_sub(begin.elapsed())
        && !left.is_zero()
    {
        thread::park_timeout(left);
    }
}

/// Where the other side of a stream was last used, seen from here.
pub(crate) enum Other {
    /// On this worker, so not at this moment.
    Here,
    /// On another worker or thread, or nowhere yet; this is a worker.
    Elsewhere(&'static Worker),
    /// This is no worker.
    Outside,
}

#[inline(always)]
pub(crate) fn other(side: &Side) -> Other {
    with(|c| {
        let worker = c.worker.get();
        // SAFETY: as in `worker`.
        match unsafe { worker.as_ref() } {
            // Relaxed: see `End::enter`.
            Some(_) if side.home.load(Ordering::Relaxed) == home_of(c.stamp.get()) => Other::Here,
            Some(worker) => Other::Elsewhere(worker),
            None => Other::Outside,
        }
    })
}

/// Gives the worker back its thread until the task is dispatched again.
#[inline(always)]
pub(crate) fn suspend(me: &Header, status: Status) {
    let here = 0u8;
    me.frame.set(&raw const here);
    me.set_status(status);
    context::suspend(if status == Status::Ready { Outcome::Yielded } else { Outcome::Blocked });
}

/// The block of a thread that waits.
#[repr(C)]
struct ThreadCells {
    header: Header,
    thread: thread::Thread,
    woken: AtomicBool,
    /// Of a wrapper: its runtime, which counts it as active while it does not wait.
    inner: Option<Arc<Inner>>,
}

static THREAD_VTABLE: Vtable = task::thread_vtable(|header| {
    // SAFETY: made by `new_thread` from such a box.
    drop(unsafe { Box::from_raw(header.cast::<ThreadCells>()) });
});

fn new_thread(inner: Option<Arc<Inner>>, name: Option<Arc<str>>, id: u64) -> TaskRef {
    let cells = Box::new(ThreadCells {
        header: Header::new(id, name, Kind::Thread, &THREAD_VTABLE),
        thread: thread::current(),
        woken: AtomicBool::new(false),
        inner,
    });
    cells.header.set_status(Status::Running);
    // SAFETY: a header begins with one reference.
    unsafe { TaskRef::from_raw(Box::into_raw(cells).cast()) }
}

/// Makes this thread a wrapper: known by name to dumps and to the search for deadlocks.
pub(crate) fn become_wrapper(inner: Arc<Inner>, name: Option<Arc<str>>, id: u64) -> TaskRef {
    let home = inner.wrapper_home;
    let me = new_thread(Some(inner), name, id);
    let stamp = new_stamp(home);
    with(|c| c.stamp.set(stamp));
    me.header().stamp.set(stamp);
    THREAD.with(|t| {
        let _ = t.set(ThisThread(me.clone()));
    });
    me
}

#[cold]
fn block_thread(word: &Word, token: Token, status: Status, on: *const Core) {
    // SAFETY: this thread's own block; threads have such blocks.
    let cells = unsafe { &*waiter().cast::<ThreadCells>() };
    let me = &cells.header;
    me.on.store(on.cast_mut(), Ordering::Release);
    me.set_status(status);
    if let Some(inner) = &cells.inner {
        inner.rest();
    }
    // Acquire: pairs with the release in `deliver`.
    while !cells.woken.load(Ordering::Acquire) {
        if me.is_cancelled() && waiter::withdraw(word, token) {
            if let Some(inner) = &cells.inner {
                inner.rouse();
            }
            break;
        }
        thread::park();
    }
    // Relaxed: nobody wakes us again before we leave the next token.
    cells.woken.store(false, Ordering::Relaxed);
    me.on.store(ptr::null_mut(), Ordering::Release);
    me.set_status(Status::Running);
}

/// Has a wrapper look again whether it is to end early.
pub(crate) fn nudge(wrapper: &TaskRef) {
    // SAFETY: threads have such blocks.
    unsafe { &*wrapper.as_ptr().cast::<ThreadCells>() }.thread.unpark();
}

/// Makes a task or thread ready whose token was taken.
///
/// # Safety
///
/// The caller took the token, or ended the task's awaiting.
#[inline]
pub(crate) unsafe fn deliver(task: *const Header) {
    // SAFETY: not woken yet, so alive. Relaxed: written before the task first left a token.
    let worker = unsafe { &*task }.worker.load(Ordering::Relaxed).cast_const();
    match self::worker() {
        Some(here) if ptr::eq(here, worker) => here.wake(task),
        // SAFETY: the caller's word.
        _ => unsafe { deliver_elsewhere(task, worker) },
    }
}

/// # Safety
///
/// As for [`deliver`]; it belongs to this worker, or is a thread.
#[inline(never)]
unsafe fn deliver_elsewhere(task: *const Header, worker: *const Worker) {
    if worker.is_null() {
        // SAFETY: threads have such blocks.
        let cells = unsafe { &*task.cast::<ThreadCells>() };
        if let Some(inner) = &cells.inner {
            inner.rouse();
        }
        let thread = cells.thread.clone();
        // Release: what we did is visible to who wakes. From here on the thread may end, and its block with it.
        cells.woken.store(true, Ordering::Release);
        thread.unpark();
        return;
    }
    // SAFETY: a worker lives as long as its tasks, and this one is not woken yet.
    unsafe { &*worker }.send(task);
}

/// Why the running task, or wrapper, which was cancelled, has no result.
pub(crate) fn cancellation() -> Failure {
    // SAFETY: whoever runs is alive.
    let why = unsafe { &(*waiter()).cancel }.load(Ordering::Acquire);
    match (why, runtime().and_then(|inner| inner.verdict())) {
        (task::CANCEL_DEADLOCK, Some(deadlock)) => Failure::Deadlock(deadlock),
        _ => Failure::Cancelled,
    }
}
