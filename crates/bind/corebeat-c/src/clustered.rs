//! `clustered.h`: objects with a part for each thread, read-side critical sections, and a map.

use corebeat_clustered::{Counter, Guard, Histogram, IdGenerator, Map};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

/// Moves an object to the heap for C.
fn into_pointer<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// # Safety
///
/// The pointer is null, or the result of `into_pointer`, and C does not use it afterwards.
unsafe fn take_back<T>(given: *mut T) {
    if !given.is_null() {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { Box::from_raw(given) });
    }
}

/// `corebeat_counter`.
pub struct corebeat_counter(Counter);

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_counter_new() -> *mut corebeat_counter {
    into_pointer(corebeat_counter(Counter::new()))
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_counter_add(counter: *mut corebeat_counter, n: i64) {
    // SAFETY: C passes a result of `corebeat_counter_new` that is not freed.
    unsafe { &*counter }.0.add(n);
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_counter_value(counter: *const corebeat_counter) -> i64 {
    // SAFETY: as above.
    unsafe { &*counter }.0.value()
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_counter_part(counter: *mut corebeat_counter) -> *mut u64 {
    // SAFETY: as above.
    unsafe { &*counter }.0.part().map_or(ptr::null_mut(), |part| part.as_ptr())
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_counter_free(counter: *mut corebeat_counter) {
    // SAFETY: C passes a result of `corebeat_counter_new` and does not use it afterwards.
    unsafe { take_back(counter) };
}

/// `corebeat_histogram`.
pub struct corebeat_histogram(Histogram);

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_histogram_new() -> *mut corebeat_histogram {
    into_pointer(corebeat_histogram(Histogram::new()))
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_histogram_record(histogram: *mut corebeat_histogram, value: u64) {
    // SAFETY: as for counters, here and below.
    unsafe { &*histogram }.0.record(value);
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_histogram_count(histogram: *const corebeat_histogram) -> u64 {
    // SAFETY: as above.
    unsafe { &*histogram }.0.read().count()
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_histogram_quantile(
    histogram: *const corebeat_histogram,
    share: f64,
) -> u64 {
    let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
    // SAFETY: as above.
    unsafe { &*histogram }.0.read().quantile(share).unwrap_or(0)
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_histogram_free(histogram: *mut corebeat_histogram) {
    // SAFETY: as above.
    unsafe { take_back(histogram) };
}

/// `corebeat_ids`.
pub struct corebeat_ids(IdGenerator);

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_ids_new() -> *mut corebeat_ids {
    into_pointer(corebeat_ids(IdGenerator::new()))
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_ids_next(ids: *mut corebeat_ids) -> u64 {
    // SAFETY: as above.
    unsafe { &*ids }.0.id()
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_ids_free(ids: *mut corebeat_ids) {
    // SAFETY: as above.
    unsafe { take_back(ids) };
}

/// The critical section that C has entered. Dropping the result does not leave it.
fn entered(function: &str) -> ManuallyDrop<Guard<'static>> {
    // SAFETY: C leaves each section on the thread that has entered it, before the thread ends, and
    // the guard is not dropped here.
    match unsafe { Guard::current() } {
        Some(guard) => ManuallyDrop::new(guard),
        None => {
            eprintln!(
                "corebeat: {function} outside a critical section: call corebeat_event_enter first"
            );
            std::process::abort()
        }
    }
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_event_enter() {
    // SAFETY: as in `entered`.
    std::mem::forget(unsafe { Guard::begin() });
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_event_leave() {
    drop(ManuallyDrop::into_inner(entered("corebeat_event_leave")));
}

/// A pointer from C, with its release function.
struct Value {
    to: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the header permits any thread to release it. C is responsible for all other uses.
unsafe impl Send for Value {}
// SAFETY: as above.
unsafe impl Sync for Value {}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: C has passed both for this purpose, and no critical section uses the pointer
            // any more.
            unsafe { release(self.to) };
        }
    }
}

/// `corebeat_map`.
pub struct corebeat_map {
    map: Map<u64, Value>,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_map_new(
    release: Option<unsafe extern "C" fn(*mut c_void)>,
) -> *mut corebeat_map {
    into_pointer(corebeat_map { map: Map::new(), release })
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_map_get(map: *const corebeat_map, key: u64) -> *mut c_void {
    let guard = entered("corebeat_map_get");
    // SAFETY: as above.
    unsafe { &*map }.map.get(&guard, &key).map_or(ptr::null_mut(), |value| value.to)
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_map_put(map: *mut corebeat_map, key: u64, value: *mut c_void) {
    // SAFETY: as above.
    let corebeat_map { map, release } = unsafe { &*map };
    if value.is_null() {
        map.remove(&key);
    } else {
        map.insert(key, Value { to: value, release: *release });
    }
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_map_free(map: *mut corebeat_map) {
    // SAFETY: as above.
    unsafe { take_back(map) };
    // Frees the tables, then their pointers: this thread may never trigger another release.
    while corebeat_clustered::reclaim() > 0 {}
}
