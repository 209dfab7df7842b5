//! `clustered.h`: counters with a part for each thread.

use corebeat_clustered::Counter;

/// `corebeat_counter`.
pub struct corebeat_counter(Counter);

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub extern "C" fn corebeat_counter_new() -> *mut corebeat_counter {
    Box::into_raw(Box::new(corebeat_counter(Counter::new())))
}

/// See `clustered.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn corebeat_counter_add(counter: *mut corebeat_counter, n: i64) {
    // SAFETY: C gives what is from `corebeat_counter_new`, and not freed.
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
pub unsafe extern "C" fn corebeat_counter_free(counter: *mut corebeat_counter) {
    if !counter.is_null() {
        // SAFETY: it is from `corebeat_counter_new`, and C gives it away.
        drop(unsafe { Box::from_raw(counter) });
    }
}
