//! The trace that all threads log into, and each thread's log of it.

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

/// Whether there is one: what threads look at that have no log.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static INSTALLED: Mutex<Option<corebeat_sync::Arc<Shared>>> = Mutex::new(None);

thread_local! {
    /// The stream of [`LOG`], or null. Apart from it because it needs no destructor, which makes it a plain load.
    static STREAM: Cell<*const Stream> = const { Cell::new(ptr::null()) };
    static LOG: Kept = const { Kept(RefCell::new(None)) };
}

/// This thread's log.
struct Kept(RefCell<Option<Log>>);

impl Drop for Kept {
    fn drop(&mut self) {
        STREAM.set(ptr::null());
    }
}

/// Logs an event into the installed trace ([`Trace::install`](crate::Trace::install)), as [`Log::emit`] does. Where none is
/// installed, this is a load and a branch or two.
#[inline(always)]
pub fn emit<E: Event>(event: &E) {
    if STREAM.get().is_null() && !IS_INSTALLED.load(Ordering::Relaxed) {
        return;
    }
    // Code of others runs in these two, which may log as well, and so get this thread another log.
    put(E::kind(), E::TIMED, &event.fields());
}

#[inline(always)]
fn put<F: Encode + Copy>(kind: &'static Kind, timed: bool, fields: &F) {
    let stream = STREAM.get();
    // SAFETY: it is null, or this thread's log has it, which sets it to null before it goes. This thread is its filler.
    let goes_on = !stream.is_null() && unsafe { (*stream).emit(kind, timed, fields, counter::now) };
    if !goes_on {
        // A copy, so that it need not have an address on the usual way.
        emit_first(kind, timed, &{ *fields });
    }
}

/// Logs an event for each of these, of a kind without time stamps whose only field is a `u32`, as [`emit`] would one after the
/// other, but cheaper: of up to sixteen, the trace has how far they are from the first, in a byte or two where that is near.
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
    // So many that the compiler knows, without a loop for each of them; and where they are few, without what many need.
    let rest = if items.len() < RUN_EVENTS / 4 { items } else { put_many::<E, T>(items, &field) };
    for item in put_runs::<E, T, { RUN_EVENTS / 8 }>(rest, &field) {
        put(E::kind(), false, &(field(item), ()));
    }
}

/// Logs all but the last few. Those that are left.
#[inline(never)]
fn put_many<E: Event, T>(items: &[T], field: impl Fn(&T) -> u32) -> &[T] {
    let rest = put_runs::<E, T, RUN_EVENTS>(items, &field);
    let rest = put_runs::<E, T, { RUN_EVENTS / 2 }>(rest, &field);
    put_runs::<E, T, { RUN_EVENTS / 4 }>(rest, &field)
}

/// Logs as many as make up runs of so many. Those that are left.
#[inline(always)]
fn put_runs<E: Event, T, const COUNT: usize>(items: &[T], field: impl Fn(&T) -> u32) -> &[T] {
    let (runs, rest) = items.as_chunks::<COUNT>();
    for items in runs {
        // Code of others runs here, as in `emit`.
        let (kind, values) = (E::kind(), std::array::from_fn::<_, COUNT, _>(|index| field(&items[index])));
        let stream = STREAM.get();
        // SAFETY: as in `put`.
        if stream.is_null() || !unsafe { (*stream).emit_run(kind, &values) } {
            // A copy, so that they need not have an address on the usual way.
            put_each(kind, &{ values });
        }
    }
    rest
}

/// Logs them one by one, where there is no room at once.
#[cold]
#[inline(never)]
fn put_each(kind: &'static Kind, values: &[u32]) {
    values.iter().for_each(|value| put(kind, false, &(*value, ())));
}

/// In a thread that has no log yet, or one of an earlier trace.
#[cold]
#[inline(never)]
fn emit_first(kind: &'static Kind, timed: bool, fields: &dyn Encode) {
    STREAM.set(ptr::null());
    let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // A thread that is about to end has no log any more.
    let has_log = LOG.try_with(|kept| {
        let mut log = kept.0.borrow_mut();
        // The old one first: it may be the last that keeps its trace.
        *log = None;
        *log = installed.as_ref().and_then(Log::new);
        if let Some(log) = &*log {
            // SAFETY: this is the filler's thread.
            unsafe { log.stream().emit_slowly(kind, timed, fields, counter::now) };
            STREAM.set(log.stream());
        }
        log.is_some()
    });
    if let (Some(shared), false) = (installed, has_log == Ok(true)) {
        shared.lose();
    }
}

pub(crate) fn install(shared: &corebeat_sync::Arc<Shared>) -> Result<(), Error> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    match installed.as_ref() {
        Some(other) if corebeat_sync::Arc::ptr_eq(other, shared) => return Ok(()),
        Some(_) => return Err(Error::Installed),
        None => {}
    }
    *installed = Some(shared.clone());
    // Relaxed: who sees it takes the lock.
    IS_INSTALLED.store(true, Ordering::Relaxed);
    Ok(())
}

/// If it is the one that is installed.
pub(crate) fn uninstall(shared: &corebeat_sync::Arc<Shared>) {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed.as_ref().is_some_and(|other| corebeat_sync::Arc::ptr_eq(other, shared)) {
        IS_INSTALLED.store(false, Ordering::Relaxed);
        *installed = None;
    }
}
