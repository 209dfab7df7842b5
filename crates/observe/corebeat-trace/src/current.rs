//! The installed trace, and each thread's log of it.

use crate::counter;
use crate::error::Error;
use crate::event::sealed::Encode;
use crate::event::{Event, Kind};
use crate::log::{Log, Stream};
use crate::packet::RUN_EVENTS;
use crate::trace::Shared;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether a trace is installed. A thread without a log reads only this flag.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static INSTALLED: Mutex<Option<corebeat_sync::Arc<Shared>>> = Mutex::new(None);

thread_local! {
    /// The stream of [`LOG`], or null. It is separate because a variable without a destructor is
    /// read by a plain load.
    static STREAM: Cell<*const Stream> = const { Cell::new(ptr::null()) };
    static LOG: Kept = const { Kept(RefCell::new(None)) };
}

/// The log of this thread.
struct Kept(RefCell<Option<Log>>);

impl Drop for Kept {
    fn drop(&mut self) {
        STREAM.set(ptr::null());
    }
}

/// Logs an event into the installed trace ([`Trace::install`](crate::Trace::install)) as
/// [`Log::emit`] does. If no trace is installed, the call costs a load and one or two branches.
#[inline(always)]
pub fn emit<E: Event>(event: &E) {
    if STREAM.get().is_null() && !IS_INSTALLED.load(Ordering::Relaxed) {
        return;
    }
    // User code runs in these two calls. It may log and so replace this thread's log; `put` reads
    // the stream afterwards.
    put(E::kind(), E::TIMED, &event.fields());
}

#[inline(always)]
fn put<F: Encode + Copy>(kind: &'static Kind, timed: bool, fields: &F) {
    let stream = STREAM.get();
    // SAFETY: the pointer is null, or it points into this thread's log, which resets it before the
    // log is dropped. This thread is the producer.
    let continues =
        !stream.is_null() && unsafe { (*stream).emit(kind, timed, fields, counter::now) };
    if !continues {
        // A copy, so that `fields` needs no address on the fast path.
        emit_first(kind, timed, &{ *fields });
    }
}

/// Logs one event for each item, of an untimed kind whose only field is a `u32`. The events are
/// the same as those of repeated calls of [`emit`], at lower cost: up to sixteen events are stored
/// as one value and the offsets of the others, which take one or two bytes each if they are small.
///
/// ```
/// use corebeat_trace::{Event, emit_all};
///
/// #[derive(Event)]
/// #[event(untimed)]
/// struct Visited {
///     place: u32,
/// }
///
/// emit_all::<Visited, _>(&["a", "bc"], |text| text.len() as u32);
/// ```
#[inline(always)]
pub fn emit_all<E, T>(items: &[T], field: impl Fn(&T) -> u32)
where
    E: for<'a> Event<Fields<'a> = (u32, ())> + 'static,
{
    const { assert!(!E::TIMED, "these have no time stamps") };
    if STREAM.get().is_null() && !IS_INSTALLED.load(Ordering::Relaxed) {
        return;
    }
    // Chunks of constant length need no loop for each item. Short slices skip the code for long
    // ones.
    let rest = if items.len() < RUN_EVENTS / 4 { items } else { put_many::<E, T>(items, &field) };
    for item in put_runs::<E, T, { RUN_EVENTS / 8 }>(rest, &field) {
        put(E::kind(), false, &(field(item), ()));
    }
}

/// Logs all items except the last few. Returns the remaining items.
#[inline(never)]
fn put_many<E: Event, T>(items: &[T], field: impl Fn(&T) -> u32) -> &[T] {
    let rest = put_runs::<E, T, RUN_EVENTS>(items, &field);
    let rest = put_runs::<E, T, { RUN_EVENTS / 2 }>(rest, &field);
    put_runs::<E, T, { RUN_EVENTS / 4 }>(rest, &field)
}

/// Logs as many runs of `COUNT` items as there are. Returns the remaining items.
#[inline(always)]
fn put_runs<E: Event, T, const COUNT: usize>(items: &[T], field: impl Fn(&T) -> u32) -> &[T] {
    let (runs, rest) = items.as_chunks::<COUNT>();
    for items in runs {
        // User code runs here, as in `emit`.
        let (kind, values) =
            (E::kind(), std::array::from_fn::<_, COUNT, _>(|index| field(&items[index])));
        let stream = STREAM.get();
        // SAFETY: as in `put`.
        if stream.is_null() || !unsafe { (*stream).emit_run(kind, &values) } {
            // A copy, so that the values need no address on the fast path.
            put_each(kind, &{ values });
        }
    }
    rest
}

/// Logs the values one by one, because the buffer has no room for the run.
#[cold]
#[inline(never)]
fn put_each(kind: &'static Kind, values: &[u32]) {
    values.iter().for_each(|value| put(kind, false, &(*value, ())));
}

/// Logs an event on a thread that has no log, or a log of a finished trace.
#[cold]
#[inline(never)]
fn emit_first(kind: &'static Kind, timed: bool, fields: &dyn Encode) {
    STREAM.set(ptr::null());
    let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // A thread that is being destroyed has no log any more.
    let has_log = LOG.try_with(|kept| {
        let mut log = kept.0.borrow_mut();
        // The old log is dropped first: it may hold the last reference to its trace.
        *log = None;
        *log = installed.as_ref().and_then(Log::new);
        if let Some(log) = &*log {
            // SAFETY: this thread is the producer.
            unsafe { log.stream().emit_slowly(kind, timed, fields, counter::now) };
            STREAM.set(log.stream());
        }
        log.is_some()
    });
    if let (Some(shared), false) = (installed, has_log == Ok(true)) {
        shared.count_lost();
    }
}

pub(crate) fn install(shared: &corebeat_sync::Arc<Shared>) -> Result<(), Error> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    match installed.as_ref() {
        Some(other) if corebeat_sync::Arc::ptr_eq(other, shared) => return Ok(()),
        // The trace of the parent of this child of fork: this thread's log of it records nothing.
        Some(other) if other.is_forked() => {
            STREAM.set(ptr::null());
            LOG.with(|kept| std::mem::forget(kept.0.take()));
        }
        Some(_) => return Err(Error::Installed),
        None => {}
    }
    // In a child, the destructor of the parent's trace could wait for threads that do not exist.
    std::mem::forget(installed.replace(shared.clone()));
    // Relaxed: a thread that reads the flag takes the lock next.
    IS_INSTALLED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Uninstalls this trace if it is the installed one.
pub(crate) fn uninstall(shared: &corebeat_sync::Arc<Shared>) {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed.as_ref().is_some_and(|other| corebeat_sync::Arc::ptr_eq(other, shared)) {
        IS_INSTALLED.store(false, Ordering::Relaxed);
        *installed = None;
    }
}
