//! List of retired memory, which an inspection may still read.
//!
//! A dump and the search for a deadlock walk over tasks and streams while workers continue to run.
//! An inspection may read memory whose pointer it found before the owner removed the pointer.
//! Therefore an owner checks for an inspection before it frees such memory. If there is one, the
//! owner puts the memory on the list of retired memory, which is freed after the inspection:
//!
//! | owner | inspection |
//! | --- | --- |
//! | removes the pointer | counts itself |
//! | `light` | `heavy` |
//! | reads the count; if it is 0, frees the memory | reads the pointer |
//!
//! One of the two fences is first (see [`asymmetric`]): either the owner observes the count, or the
//! inspection finds no pointer. Without an inspection, the owner pays for one load. Only one
//! inspection runs at a time: otherwise the list could grow as long as inspections overlap.

use crate::task::discard_panic;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::{Mutex, MutexGuard, asymmetric, lock, shared_static};
use std::any::Any;

struct RetiredList {
    /// Held by the inspection.
    inspection: Mutex<()>,
    /// Number of inspections: 0 or 1.
    inspections: AtomicUsize,
    /// Memory to free after the inspection.
    retired: Mutex<Vec<Retired>>,
}

shared_static! {
    static LIST: RetiredList = RetiredList {
        inspection: Mutex::new(()),
        inspections: AtomicUsize::new(0),
        retired: Mutex::new(Vec::new()),
    };
}

/// Memory on the list.
struct Retired(#[expect(dead_code, reason = "it is only dropped")] Box<dyn Any>);

// SAFETY: retired memory is only dropped, and its owner allowed that on any thread (`retire`).
unsafe impl Send for Retired {}

/// Frees `owned`, now or after the current inspection.
///
/// # Safety
///
/// No pointer to the memory can be found any more, and any thread may drop it.
#[inline]
pub(crate) unsafe fn retire<T: 'static>(owned: T) {
    asymmetric::light_fence();
    // By the fences, the count includes an inspection that could have found a pointer. Acquire:
    // pairs with the release at the end of an inspection, so that its reads precede the free.
    if LIST.inspections.load(Ordering::Acquire) == 0 { drop(owned) } else { add(Box::new(owned)) }
}

#[cold]
fn add(owned: Box<dyn Any>) {
    let mut retired = lock(&LIST.retired);
    retired.push(Retired(owned));
    drop(retired);
    // The inspection may have ended in between. The memory is dropped outside the lock, because
    // destructors may retire more memory.
    let free = take_free();
    drop(free);
}

/// An inspection: while it lives, memory that it finds is not freed. No code of users may run
/// meanwhile, because that code might begin an inspection as well.
pub(crate) struct Inspection(Option<MutexGuard<'static, ()>>);

impl Inspection {
    pub(crate) fn new() -> Self {
        let guard = lock(&LIST.inspection);
        // Relaxed: ordered by the fence.
        LIST.inspections.fetch_add(1, Ordering::Relaxed);
        asymmetric::heavy_fence();
        Inspection(Some(guard))
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        // Release: the reads of the inspection precede the free.
        LIST.inspections.fetch_sub(1, Ordering::Release);
        let free = take_free();
        self.0 = None;
        // After the unlock: destructors are code of users.
        free.into_iter().for_each(|retired| discard_panic(|| drop(retired)));
    }
}

/// Takes the memory that can be freed: all of it without an inspection, else none.
fn take_free() -> Vec<Retired> {
    let mut retired = lock(&LIST.retired);
    // An owner executed `light` after it removed the pointer and before it took the lock. So this
    // load has the effect of a second check by that owner. Acquire: as in `retire`.
    let is_free = LIST.inspections.load(Ordering::Acquire) == 0;
    if is_free { std::mem::take(&mut *retired) } else { Vec::new() }
}
