//! Model of the retired list: inspections while memory is freed.

use super::{assert_detected, check, spawn};
use crate::retired::{Inspection, retire};
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::cell::UnsafeCell;
use std::ptr;
use std::sync::Arc;

/// An inspected object. Its memory is never freed, so that the model can detect a late inspection.
struct Thing {
    is_freed: UnsafeCell<bool>,
}

/// Marks a thing as freed when it is dropped.
struct Owned(Arc<Thing>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: no other thread uses the flag, which the model checks.
        self.0.is_freed.with_mut(|f| unsafe { *f = true });
    }
}

/// Two threads inspect two things, while the owner removes the pointers and retires the things.
#[test]
fn loom_retired_memory_outlives_inspections() {
    check(2, || {
        let things = [(), ()].map(|()| Arc::new(Thing { is_freed: UnsafeCell::new(false) }));
        let pointers =
            Arc::new(things.each_ref().map(|t| AtomicPtr::new(Arc::as_ptr(t).cast_mut())));
        let inspectors = [(), ()].map(|()| {
            let pointers = pointers.clone();
            spawn(move || {
                let _inspection = Inspection::new();
                for pointer in pointers.iter() {
                    // SAFETY: the memory of things is never freed.
                    if let Some(thing) = unsafe { pointer.load(Ordering::Acquire).as_ref() } {
                        // SAFETY: no thread writes during the inspection, which the model checks.
                        assert!(!thing.is_freed.with(|f| unsafe { *f }));
                    }
                }
            })
        });
        for (thing, pointer) in things.iter().zip(pointers.iter()) {
            pointer.store(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: the pointer was removed.
            unsafe { retire(Owned(thing.clone())) };
        }
        for inspector in inspectors {
            inspector.join().unwrap();
        }
        // SAFETY: all other threads have ended.
        let freed = things.map(|t| t.is_freed.with(|f| unsafe { *f }));
        assert_eq!(freed, [true, true]);
    });
}

#[test]
fn loom_retired_faults_are_detected() {
    let model = "retired::loom_retired_memory_outlives_inspections";
    assert_detected(&[
        (model, "light retired.rs"),
        (model, "heavy retired.rs"),
        (model, "acquire retired.rs"),
        (model, "release retired.rs"),
    ]);
}
